"""Offers, batches, and who decided for whom: in the store's record, the check and the lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_group_table import rows

from lockkit.clock import Clock
from lockkit.events import Event, event
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lab.verify.check.lanes import decisions, offered, sort
from lockkit.lab.widgets.scene import whole
from lockkit.protocol.outcome import IfAbsent, IfVersion
from lockkit.runtime import Put
from lockkit.runtime import run as run_on
from lockkit.sinks import Emit
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.format.timeline import V9
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.client import timeline_key
from lockkit.table.occ.group.decision import GroupFence, Offer, decide
from lockkit.table.occ.group.fence import format_group_fence, tombstone
from lockkit.table.occ.group.offer import offered_as

T = "202501061012000{:02}".format


def offer(number: int, **more: bool) -> Offer:
    return Offer(T(number), 0, frozenset({("eu", "f" * 40)}), sha256="0" * 64, **more)


def put(client: str, key: str, body: bytes = b"", condition: object = None) -> tuple[str, Put]:
    return client, Put(key, body, condition or IfAbsent())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def history() -> list[Event]:
    """W1 decides its own commit, W2's, and against W3's; W3 buries its offer. On a real server."""
    old = [replace(offer(n), instant=f"2024{n:013}", blind=True) for n in range(1, 21)]
    long = decide(GroupFence("old"), old, attempt="1")
    made = decide(long, [offer(1, blind=True), offer(2), offer(3)], attempt="2")
    assert [each.why or each.kind for each in made.window[-3:]] == ["commit", "commit", "conflict"]
    with Emulator() as server:
        stores = {who: open_store("s3://lake/t", endpoint=server.s3, client=who)
                  for who in ("W1", "W2", "W3")}  # fmt: skip

        def send(who: str, request: Put) -> str:
            def once() -> object:
                answer = yield request
                return answer

            return str(run_on(once(), stores[who], Clock()).version)

        version = send(*put("W1", FENCE_KEY, format_group_fence(long)))
        for number, who in ((1, "W1"), (2, "W2"), (3, "W3")):
            send(*put(who, timeline_key(V9, T(number), "requested")))
        key, body = offered_as(V9, offer(2))
        send(*put("W2", key, body))
        key, body = offered_as(V9, offer(3))
        theirs = send(*put("W3", key, body))
        send(*put("W1", FENCE_KEY, format_group_fence(made), IfVersion(version)))
        send(*put("W2", key, tombstone(T(3)), IfVersion(theirs)))
        return server.requests()


def test_the_record_of_a_long_fence_has_the_decisions_of_its_round(history: list[Event]) -> None:
    last = [each for each in history if each["key"].endswith("fence.json")][-1]
    assert last["size"] > 4096
    assert decisions(last) == [(T(1), "commit"), (T(2), "commit"), (T(3), "conflict")]


def test_a_blind_offer_and_a_written_one_are_known_by_their_names() -> None:
    assert offered("t/" + offered_as(V9, offer(1, blind=True))[0]) == T(1)
    assert offered("t/" + offered_as(V9, offer(2))[0]) == T(2)
    assert offered("t/.hoodie/timeline/x.append") == offered("t/a.offer") == ""


def test_the_check_counts_a_commit_from_the_decision_of_the_fence(history: list[Event]) -> None:
    index = sort(history)
    assert {T(1), T(2)} <= index.published.keys() and T(3) in index.taken_back
    assert T(3) not in index.published
    seen = [*history, replace(history[-1], data=history[-1].data | {
        "key": f"t/.hoodie/timeline/{T(3)}_{T(4)}.commit", "before": ""})]  # fmt: skip
    found = next(each for each in check(seen).findings if each.kind == "INVALID")
    assert T(3) in found.because and "decided" in found.because


def checked(number: int, who: str, *groups: str) -> Event:
    return event(1.0, who, "checked", instant=T(number), epoch=0, covered=[], horizon="",
                 writes=[["eu", each] for each in groups], together=True)  # fmt: skip


@pytest.mark.parametrize("other, kind", [("b", "VALID"), ("a", "INVALID")])
def test_a_commit_that_was_decided_together_need_not_have_seen_one_of_other_file_groups(
    history: list[Event], other: str, kind: str
) -> None:
    named = [e for e in history if not (e["key"].endswith("fence.json") and e["before"] == "")]
    found = check([*named, checked(1, "W1", "a"), checked(2, "W2", other)]).findings
    assert [str(each.kind) for each in found if each.check == "no stale commit"] == [kind]


def test_the_check_judges_what_the_table_itself_reports() -> None:
    said: list[Event] = []
    how = {"record_key": "id", "partition_by": "region", "commit": "group"}
    with Emulator() as server:
        url, at = "s3://lake/orders", server.s3
        Table.create(url, **how, endpoint=at).close()  # type: ignore[arg-type]

        def lane(who: str) -> Emit:
            return lambda kind, **more: said.append(event(Clock().stamp_ms(), who, kind, **more))

        with (Table(url, endpoint=at, client="W1", emit=lane("W1")) as one,
              Table(url, endpoint=at, client="W2", emit=lane("W2")) as two):  # fmt: skip
            one.append(rows("a"))
            two.upsert(rows("a", v=1))
            one.overwrite(rows("b"))
        history = [*said, *server.requests()]
    verdict = check(history)
    assert verdict.kind == "VALID", verdict.because
    assert "3 commits, none stale and none lost" in verdict.because
    without = [each for each in history if each.kind != "checked"]
    assert check(without).kind == "UNKNOWN"
    blind = [replace(each, data=each.data | {"covered": [], "horizon": ""})
             if each.kind == "checked" else each for each in history]  # fmt: skip
    assert "lost update" in check(blind).because


def test_the_lanes_show_offers_and_who_decided_for_whom(history: list[Event]) -> None:
    scene = whole(history)
    arrows = [(each["lane"], each["op"]) for each in scene["arrows"] if each["side"] == "table"]
    assert arrows == [("W1", "decides 20"), ("W2", "offer"), ("W3", "offer"), ("W1", "decides 3"),
                      ("W2", "tombstone")]  # fmt: skip
    decides = next(each for each in scene["arrows"] if each["op"] == "decides 3")
    assert f"decides ..{T(2)[-6:]} of W2: commit" in decides["detail"]
    marks = [(each["lane"], each["label"]) for each in scene["marks"] if each["kind"] == "decided"]
    assert marks == [("W2", "decided by W1"), ("W3", "conflict by W1")]
