"""An election by epochs: right in every simulated world, wrong once a rule is off, and real."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

import pytest
from faults_world import STRUCK
from lock_world import SCHEMES, memory, process, said, until

from lockkit.clock import Clock
from lockkit.errors import UnsafeStore
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.protocol.record import RECORD_BYTES_MAX, Record, decode, encode
from lockkit.protocol.state import Identity
from lockkit.recipes.election import Election
from lockkit.recipes.election.candidate import Candidate
from lockkit.recipes.election.epochs import KEPT, collect, epoch_key, epochs_in
from lockkit.recipes.errors import ElectionError, NotGuarded, NotLeader
from lockkit.runtime import List, perform, run
from lockkit.sinks import silent
from lockkit.stores import ListEntry, open_store

TTL_S = 60.0


# --- for real -------------------------------------------------------------------------------------


Make = Callable[..., Election]


@pytest.fixture(params=["memory", *SCHEMES])
def elect(request: pytest.FixtureRequest, bucket: str, shared_emulator: Any) -> Iterator[Make]:
    """Nodes of one election, in memory and behind each of the three real SDKs."""
    url, options = memory(), {}
    if request.param != "memory":
        url = f"{SCHEMES[request.param]}://{bucket}/election"
        options = {"endpoint": getattr(shared_emulator, request.param)}
    made: list[Election] = []

    def make(**more: Any) -> Election:
        made.append(Election(url, **{"ttl_s": TTL_S, **options, **more}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def body(election: Election, epoch: int) -> Record:
    found = election.store.get(epoch_key(epoch))
    assert isinstance(found, Found)
    record = decode(found.body)
    assert isinstance(record, Record)
    return record


def leave(election: Election, key: str, text: bytes) -> None:
    """What a hand, or another program, writes."""
    seen = election.store.get(key)
    condition = IfVersion(seen.version) if isinstance(seen, Found) else IfAbsent()
    assert isinstance(election.store.put(key, text, condition), Applied)


def test_one_leads_the_others_follow_and_after_a_resignation_the_next_epoch_begins(
    elect: Make,
) -> None:
    one, other = elect(name="one"), elect(name="other")
    assert one.campaign(acquire_timeout=0)
    assert not other.campaign(acquire_timeout=0)
    assert "'one'" in other.because()
    with pytest.raises(NotLeader):
        other.assert_held()
    assert one.resign()
    with pytest.raises(NotLeader):
        one.assert_held()
    assert other.campaign(acquire_timeout=0)
    assert other.assert_held() == 2
    assert body(one, 1).expired
    assert not one.campaign(acquire_timeout=0)


def test_of_four_that_race_one_leads(elect: Make) -> None:
    nodes = [elect(ttl_s=60.0) for _ in range(4)]
    won: list[Election] = []
    gate = threading.Barrier(len(nodes))

    def race(node: Election) -> None:
        gate.wait()
        if node.campaign(acquire_timeout=0):
            won.append(node)

    threads = [threading.Thread(target=race, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [node.assert_held() for node in won] == [1]


def test_a_write_goes_with_its_epoch_and_a_deposed_leader_writes_no_more(elect: Make) -> None:
    old, new = elect(), elect()
    assert old.campaign(acquire_timeout=0)
    assert old.write("plan.json", lambda was: [was]) == [None]
    old._candidate.term.until_ms += 3_600_000  # type: ignore[union-attr,operator]  # it is slow
    leave(old, epoch_key(1), b'{"expired": true}')
    assert new.campaign(acquire_timeout=0)
    assert new.write("plan.json", lambda was: [*was, "new"]) == [None, "new"]
    with pytest.raises(NotLeader, match="epoch 2"):
        old.write("plan.json", lambda was: "old")
    assert new.read("plan.json") == ([None, "new"], 2)


def test_past_epochs_are_deleted_but_never_the_highest(elect: Make) -> None:
    node = elect()
    for _ in range(4):
        assert node.campaign(acquire_timeout=0)
        assert node.resign()
    assert node.collect(keep=0) == 3
    assert epochs_in(node.store.list("lock_")) == [4]
    assert node.campaign(acquire_timeout=0)
    assert elect().collect(KEPT) == 0
    assert node.assert_held() == 5


@pytest.mark.parametrize(("kind", "fault"), STRUCK, ids=str)
def test_a_create_renewal_or_resignation_without_an_answer_is_settled(
    kind: str, fault: dict[str, Any], bucket: str, shared_emulator: Any
) -> None:
    with Proxy(getattr(shared_emulator, kind)) as proxy:
        url = f"{SCHEMES[kind]}://{bucket}/e"
        with closing(Election(url, endpoint=proxy.url, ttl_s=60.0)) as node:
            strike = Fault(**{**fault, "operation": "put", "key": "*lock_*"})
            proxy.inject(strike)
            assert node.campaign(acquire_timeout=0)
            assert node.assert_held() == 1
            proxy.inject(strike)
            before = body(node, 1).attempt
            for _ in range(3):
                run(node._candidate.renew(), node.store, node.clock)
            assert body(node, 1).attempt != before
            proxy.inject(strike)
            assert node.resign()
            assert body(node, 1).expired
            assert len(proxy.faults) == 3


def leader(url: str, options: dict[str, Any], pipe: Connection) -> None:
    election = Election(url, **options)
    pipe.send(election.campaign())
    pipe.recv()


def test_a_killed_leader_is_replaced_once_its_epoch_expires(
    bucket: str, shared_emulator: Any
) -> None:
    url = f"s3://{bucket}/e"
    options: dict[str, Any] = {"endpoint": shared_emulator.s3, "ttl_s": 2.0}
    with closing(Election(url, **options)) as heir:
        with process(leader, url, options) as (child, pipe):
            assert said(pipe)
            assert not heir.campaign(acquire_timeout=0)
            os.kill(child.pid or 0, signal.SIGKILL)
        assert heir.campaign(acquire_timeout=60)
        assert heir.assert_held() == 2
        assert not body(heir, 1).expired


def test_a_leader_renews_for_as_long_as_it_leads_and_is_deposed_by_a_later_epoch(
    bucket: str, shared_emulator: Any
) -> None:
    url = f"s3://{bucket}/e"
    with closing(Election(url, endpoint=shared_emulator.s3, ttl_s=10.0)) as node:
        assert node.campaign(acquire_timeout=0)
        first = body(node, 1).attempt
        until(lambda: body(node, 1).attempt != first)
        usurper = Record("usurper", Clock().wall_ms() + 60_000, epoch=2, attempt="u", ttl_ms=60_000)
        leave(node, epoch_key(2), encode(usurper))
        until(lambda: node._candidate.leads() is None)
        with pytest.raises(NotLeader):
            node.assert_held()


def test_ctrl_c_between_a_create_and_its_answer_leaves_a_node_that_knows_its_own_epoch() -> None:
    class Interrupted:
        struck = False

        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def put(self, *request: Any) -> Any:
            answer = self._store.put(*request)
            if not self.struck:
                self.struck = True
                raise KeyboardInterrupt
            return answer

    with closing(Election(memory(), ttl_s=TTL_S)) as node:
        node.store = Interrupted(node.store)
        with pytest.raises(KeyboardInterrupt):
            node.campaign(acquire_timeout=0)
        assert node.campaign(acquire_timeout=0)
        assert node.assert_held() == 1


# --- what may lie there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"", b'{"expired": fal', b"[]", b'{"expired": false}', b"\x00" * 10_000_000],
    ids=["empty", "torn", "an array", "Morling's, that never ends", "10 MB"],
)
def test_a_body_that_is_not_a_record_never_counts_as_expired(text: bytes) -> None:
    with closing(Election(memory())) as node:
        leave(node, epoch_key(7), text)
        assert not node.campaign(acquire_timeout=0)
        assert "is not an epoch's record" in node.because()
        assert "do not delete it, or its number recurs" in node.because()
        assert len(node.because()) < 500
        leave(node, epoch_key(7), b' {"expired" : true}\n')
        assert node.campaign(acquire_timeout=0)
        assert node.assert_held() == 8


def test_other_names_under_the_prefix_are_left_alone() -> None:
    with closing(Election(memory())) as node:
        for key in ("lock_7.json", "lock_00000000009.json", "lock_0000000009.json.bak", "lock_x"):
            leave(node, key, b"?")
        assert node.campaign(acquire_timeout=0)
        assert node.assert_held() == 1
        assert node.collect(keep=1) == 0
        assert len(node.store.list("lock_")) == 5


def test_no_epoch_follows_the_last_one() -> None:
    with closing(Election(memory())) as node:
        leave(node, "lock_9999999999.json", b'{"expired": true}')
        with pytest.raises(ElectionError, match="last epoch"):
            node.campaign(acquire_timeout=0)


def test_a_deleted_highest_epoch_is_an_error_and_its_number_is_not_granted_again() -> None:
    with closing(Election(memory())) as node:
        assert node.campaign(acquire_timeout=0)
        assert node.resign()
        assert isinstance(node.store.delete(epoch_key(1)), Applied)
        with pytest.raises(ElectionError, match=r"lock_0000000001.json is gone.*expired"):
            node.campaign(acquire_timeout=0)


@pytest.mark.parametrize(
    "text", [b"", b'{"epoch": 3', b'{"epoch": true, "attempt": "", "value": 1}', b'{"epoch": 3}']
)
def test_a_foreign_value_is_not_overwritten(text: bytes) -> None:
    with closing(Election(memory())) as node:
        leave(node, "plan.json", text)
        assert node.campaign(acquire_timeout=0)
        with pytest.raises(NotGuarded, match="not a guarded value"):
            node.write("plan.json", lambda was: 1)
        found = node.store.get("plan.json")
        assert isinstance(found, Found)
        assert found.body == text


def test_a_listing_of_several_pages_is_read_to_its_end() -> None:
    """S3 lists a thousand keys a page: the highest epoch is on the second."""
    with Emulator() as server:  # its own: no request of another test meets these writes
        for epoch in range(1, 1_003):
            server.objects.write("lake", f"e/{epoch_key(epoch)}", b'{"expired": true}')
        with closing(Election("s3://lake/e", endpoint=server.s3, ttl_s=60.0)) as node:
            assert node.campaign(acquire_timeout=0)
            assert node.assert_held() == 1_003


def test_a_node_lists_only_what_is_above_the_epoch_that_it_knows() -> None:
    asked: list[List] = []
    store, clock = open_store(memory()), Clock()
    node = Candidate(Identity("n", 60_000), clock, known=0)

    def follow(procedure: Any) -> Any:
        answer = None
        try:
            while True:
                request = procedure.send(answer)
                if isinstance(request, List):
                    asked.append(request)
                answer = perform(request, store, clock, silent)
        except StopIteration as done:
            return done.value

    store.put(epoch_key(41), b'{"expired": true}', IfAbsent())
    assert follow(node.confirm())
    assert [each.after for each in asked] == ["", epoch_key(42)]
    assert follow(node.resign())
    asked.clear()
    assert follow(node.confirm())
    assert [each.after for each in asked] == [epoch_key(42), epoch_key(43)]
    assert run(collect(), store, clock) == 0


def test_a_store_that_ignores_conditions_is_refused(bucket: str) -> None:
    with Emulator(profile="spaces") as server:
        node = Election(f"s3://{bucket}/e", endpoint=server.s3)
        with closing(node), pytest.raises(UnsafeStore, match="ignored a write condition"):
            node.campaign(acquire_timeout=0)


def test_epochs_are_read_from_names_alone() -> None:
    names = [epoch_key(3), "lock_x.json", epoch_key(12), "lock_0000000004.jsonx"]
    assert epochs_in([ListEntry(name, 0) for name in names]) == [3, 12]
    assert len(encode(Record("o" * 1_000, 0, holder="h" * 1_000))) < RECORD_BYTES_MAX
    assert json.loads(encode(Record("o", 0)))["expired"] is False
