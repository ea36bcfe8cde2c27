"""What the notebooks of the course stand on, where no notebook says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.clock import Clock
from lockkit.events import event
from lockkit.lab.course import ticking
from lockkit.lab.course.clocks import ONE, TWO, SearchSummary, meet, search
from lockkit.lab.course.hot import FREE, HELD, release_once
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.lab.course.lost import LOST, NOTHING, WON, SdkReport

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def sdk_report(status: int, *, said: str = "", stored: str = "W1/1") -> SdkReport:
    sent = event(
        1, "store", "request", client="", method="put", key="k", condition="if-absent", status=200,
        answer="applied", applied=True, before="", version="1", attempt=stored, began_ms=0,
    )  # fmt: skip
    return SdkReport(sdk="boto3", said=said, status=status, sent=(sent,), stored=stored)


@pytest.mark.parametrize(
    ("status", "means"), [(200, WON), (201, WON), (412, LOST), (409, LOST), (0, NOTHING)]
)
def test_the_answer_of_an_sdk_is_one_of_the_choices(status: int, means: str) -> None:
    assert str(sdk_report(status)) == means


def test_the_text_of_objects_and_errors_is_escaped() -> None:
    page = sdk_report(412, said=HOSTILE, stored=HOSTILE)._repr_html_()
    assert "<img" not in page and page.count("&lt;img") == 3


def test_a_long_step_shows_its_seconds_and_a_short_one_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ticking, "QUIET_S", 0.02)
    monkeypatch.setattr(ticking, "TICK_S", 0.01)
    assert ticking.ticks(lambda s: Clock().sleep(s) or s)(0.2) == 0.2
    long = capsys.readouterr().out
    assert long.count("0 s …") > 2 and "\n" not in long and long.endswith(f"{ticking.BLANK}\r")
    with pytest.raises(ValueError, match="short"):
        ticking.ticks(lambda: int("short"))()
    assert capsys.readouterr().out == ""


def test_another_clients_attempt_is_not_reported_as_ones_own() -> None:
    assert sdk_report(412).mine and "the very one" in repr(sdk_report(412))
    other = sdk_report(412, stored="W2/1")
    assert not other.mine and "the very one" not in repr(other) + other._repr_html_()


def test_an_unknown_provider_has_no_test_service() -> None:
    with pytest.raises(ValueError, match="no provider 'ftp'; there are s3, gcs, azure"):
        LockTestbed("ftp")


def test_a_rule_about_an_unknown_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="'sundial' is not a valid Expiry"):
        meet("sundial", 3.0)


def test_a_search_without_a_violation_has_no_story() -> None:
    found = SearchSummary(replace(search("skew").row, violation=None, counterexample=None))
    assert (str(found), found.story, found.events) == (ONE, "", [])
    assert str(search("skew")) == TWO


def test_a_release_that_is_sent_once_leaves_a_hot_object_held() -> None:
    """Without the limit of one write a second, the same two writes leave it free."""
    assert (str(release_once("gcs")), str(release_once("s3"))) == (HELD, FREE)
    assert "1 x PUT 200, 1 x PUT 429" in repr(release_once("gcs"))
