"""Two services side by side: what the figures say of a history, and what cannot be started."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from lockkit.events import Event, event
from lockkit.lab.widgets.contention import Contention
from lockkit.lab.widgets.figures import Price, SideFigures, beliefs, figures, until_ms


def held(at_s: float, who: str, until_s: float = 100.0) -> Event:
    return event(at_s * 1000, who, "held", epoch=1, until_ms=until_s * 1000, version="v")


def lets_go(at_s: float, who: str) -> Event:
    return asks(at_s, who, "release")


def asks(at_s: float, who: str, op: str, *, attempt: str = "", call: str = "") -> Event:
    more = {"call": call} if call else {}
    return event(at_s * 1000, who, "ask", request=1, op=op, key="lock", attempt=attempt, **more)


def test_a_grant_lasts_until_its_release_or_its_local_expiry() -> None:
    history = [
        held(1, "W1"), lets_go(2, "W1"),
        held(3, "W2", until_s=5), event(4000, "W2", "stalled", pid=1, why="by hand"),
        held(6, "W1"), event(9000, "W2", "lost", epoch=1, why="late"),
    ]  # fmt: skip
    found = [(each.who, each.start.at_ms, until_ms(each, 9000)) for each in beliefs(history)]
    assert found == [("W1", 1000, 2000), ("W2", 3000, 5000), ("W1", 6000, 9000)]
    assert figures(history).overlap_s == 0


def test_two_simultaneous_holders_are_reported_with_the_length_of_their_overlap() -> None:
    history = [held(1, "W1"), held(2, "W2"), lets_go(2.5, "W1"), lets_go(3, "W2")]
    assert figures(history).overlap_s == 0.5


def test_hand_offs_waits_runs_and_takeovers_are_reported() -> None:
    history = [
        held(1, "W1"), lets_go(2, "W1"), held(2.5, "W1"), lets_go(3, "W1"),
        held(3.25, "W2"), event(4000, "W2", "killed", pid=1),
        held(8, "W1"), lets_go(9, "W1"),
    ]  # fmt: skip
    assert figures(history) == SideFigures(
        grants=4, per_s=4 / 7, hand_off_p50_s=0.25, wait_max_s=5.0, longest_run=2,
        taken_over_s=(4.0,), overlap_s=0.0, requests_per_grant=3 / 4,
    )  # fmt: skip


def test_the_price_of_a_million_grants_includes_the_waiters_reads() -> None:
    history = [
        asks(0, "W1", "acquire", attempt="a"), held(1, "W1"), asks(1, "W2", "look"),
        asks(1.5, "W2", "acquire", call="get_item"), asks(2, "W1", "release", call="delete_item"),
        asks(2.5, "W2", "acquire", call="put_item"), held(3, "W2"),
    ]  # fmt: skip
    price = Price(5.0, 0.5, "somebody's")
    assert figures(history, price).requests_per_grant == 5 / 2
    assert figures(history, price).million_grants_usd == (3 * 5.0 + 2 * 0.5) / 2
    assert figures(history).million_grants_usd is None


def test_the_same_moment_is_at_the_same_place_for_both_and_a_kill_is_marked() -> None:
    pytest.importorskip("anywidget", reason="make test installs anywidget")
    from lockkit.lab.widgets.providers import chart_html

    one = [
        held(0, "W2"), event(2000, "W2", "killed", pid=1),
        event(3000, "service", "note", text="killed"),
        event(4000, "service", "note", text="started again"), held(5, "W1"), lets_go(9.5, "W1"),
    ]  # fmt: skip
    other = [held(5, "W2"), event(7500, "W2", "stalled", pid=1, why="by hand"), held(8, "W1", 8)]
    histories = {"a": one, "<b>": other}
    drawn = chart_html(
        [SimpleNamespace(says=n, history=h) for n, h in histories.items()]
    )  # ten seconds
    assert "<b>a</b>" in drawn and "<b>&lt;b&gt;</b>" in drawn
    grant = r"lp-grant' style='left:(\d+).00%;[^']*background:(#\w+)' title='(W.)"
    grants = re.findall(grant, drawn)
    assert [(at, who) for at, _, who in grants] == [
        ("50", "W1"), ("0", "W2"), ("80", "W1"), ("50", "W2"),
    ]  # fmt: skip
    assert len({(colour, who) for _, colour, who in grants}) == 2, "a writer has one colour"
    mark = (r"lp-at' style='left:(\d+).00%'></i><q style='left:max\(\1.00%, (-?\d+).00% [^)]+\);"
            r"max-width:(\w+)[^']*' title='[^']+'>([^<]+)")  # fmt: skip
    assert re.findall(mark, drawn) == [
        ("20", "-100", "80", "✗ killed"), ("30", "-100", "none", "✗"),  # the next mark is near
        ("40", "30", "60", "▶ started again"),  # and stands beside the one before it
    ]  # fmt: skip
    struck = re.findall(r"lp-struck><em [^>]+>(\w+)", drawn)
    assert struck == ["W2", "service"], "words stand below a line, not over its bars"
    later = [*one, event(9400, "W2", "killed", pid=2)]
    ticks = "<s style='left:0.00%'>0 s</s><s style='left:50.00%'>5 s</s></span>"
    assert ticks in drawn, "the label at its end would be cut"
    crowded = chart_html([SimpleNamespace(says="a", history=later)])
    assert re.findall(r"killed'>([^<]+)", crowded)[-1] == "✗", "words would be cut at the edge"
    slow = [*one[:3], event(7400, "service", "note", text="started again"), *one[4:]]
    edge = chart_html([SimpleNamespace(says="a", history=slow)])
    assert re.findall(r"started again'>([^<]+)", edge) == ["▶"], "its words are longer"
    still = re.findall(r"lp-still' style='left:([\d.]+)%;width:([\d.]+)%", drawn)
    assert ("30.00", "10.00") in still, "the service was down"
    assert drawn.count("service</em>") == 1, "the other was not struck"


def test_an_empty_history_has_figures_too() -> None:
    assert figures([]) == SideFigures()


def test_an_unknown_service_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no provider 'etcd'; there are storage, zookeeper"):
        Contention(("etcd", "storage"))
