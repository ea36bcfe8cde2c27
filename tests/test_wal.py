"""The write-ahead log: in simulated worlds, with each rule switched off, and over each SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from faults_world import SCHEMES
from wal_orders import orders

from lockkit.clock import Clock
from lockkit.errors import StoreError, Unanswered, UnsafeStore
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.server.sigv4 import Credentials
from lockkit.lab.verify.scenarios.wal import MUTANTS
from lockkit.lock.conformance import KEY as CONDITIONS
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Unknown,
)
from lockkit.recipes.errors import AppendUnknown, Damaged, Fenced, SameEpoch, WalError
from lockkit.recipes.wal.handle import Cursor, LogTail, Position, Reader, Wal
from lockkit.recipes.wal.reader import fold, poll
from lockkit.recipes.wal.slot import (
    HEAD_KEY,
    MANIFEST_KEY,
    RECORD_BYTES_MAX,
    SLOT_BYTES_MAX,
    End,
    Manifest,
    Slot,
    SlotLanded,
    SlotRead,
    SlotTaken,
    SlotUnknown,
    claim,
    decode_manifest,
    decode_slot,
    encode_head,
    encode_record,
    slot_key,
)
from lockkit.recipes.wal.writer import WriterState, append, open_log, settle
from lockkit.runtime import Procedure, Put, run
from lockkit.stores import Store, open_store

ROOT = Path(__file__).parents[1]

HEAD = LogTail.HEAD
_NAMES = count()


class Restless(Clock):
    """A real clock whose sleeps end at once."""

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0


# --- every order ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["before", "after"])
def test_no_order_of_an_append_and_the_next_writer_breaks_the_log_with_one_lost_answer(
    fault: str,
) -> None:
    place = writes = 1
    while place <= writes:
        _, writes, violation = orders(1, fault, place)
        assert violation is None
        place += 1
    assert writes >= 4


def test_no_order_of_requests_breaks_the_log_if_two_slots_are_sent_together() -> None:
    played, _, violation = orders(2)
    assert violation is None
    assert played > 1_000


@pytest.mark.parametrize(
    ("off", "size"),
    [("fences", 1), ("if_absent", 1), ("create_412 lost", 1), ("voids", 2), ("in_order", 2)],
)
def test_the_search_of_all_orders_finds_what_needs_no_fault(off: str, size: int) -> None:
    with MUTANTS[off].planted():
        assert orders(size)[2] is not None


# --- what a flight of slots comes to --------------------------------------------------------------


def standing(slot: int, epoch: int, writer: str = "other") -> SlotTaken:
    return SlotTaken(SlotRead(slot, epoch, writer, "a", ()))


LOST = SlotUnknown(Unanswered("lost", doubt=True), True)
DENIED = SlotUnknown(StoreError("denied"), False)


@pytest.mark.parametrize(
    ("ends", "following", "results"),
    [
        ([SlotLanded(), SlotLanded()], 7, [5, 6]),
        ([standing(5, 2), SlotLanded()], 7, [None, 6]),
        ([standing(5, 3, "me"), SlotLanded()], 7, [None, 6]),
        ([standing(5, 4), SlotLanded()], 5, [Fenced, Fenced]),
        ([SlotLanded(), standing(6, 4), LOST], 6, [5, Fenced, Fenced]),
        ([standing(5, 3), SlotLanded()], 5, [SameEpoch, SameEpoch]),
        ([LOST, SlotLanded()], 5, [AppendUnknown, AppendUnknown]),
        ([LOST, standing(6, 4), SlotLanded()], 5, [AppendUnknown, Fenced, Fenced]),
        ([DENIED, SlotLanded(), standing(7, 2)], 5, [StoreError, AppendUnknown, AppendUnknown]),
        ([SlotLanded(), DENIED], 6, [5, StoreError]),
    ],
)
def test_slots_sent_together_are_reported_in_their_order(
    ends: Sequence[End], following: int, results: list[Any]
) -> None:
    after, said = settle(WriterState(3, "me", 5), 5, ends)
    assert after == following
    for each, expected in zip(said, results, strict=True):
        assert isinstance(each, expected) if isinstance(expected, type) else each == expected


def test_a_reader_skips_entries_that_follow_a_higher_epoch() -> None:
    cursor, seen = Cursor(), list[Any]()
    for slot, epoch in enumerate((1, 2, 1, 2, 3, 2)):
        cursor, new = fold(cursor, SlotRead(slot, epoch, "w", "a", (f"{slot}",)))
        seen += [each.record for each in new]
    assert seen == ["0", "1", "3", "4"]
    assert (cursor.next, cursor.epoch) == (6, 3)


# --- a store in memory: stories of two writers ----------------------------------------------------


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://wal-{os.getpid()}-{next(_NAMES)}/log")


def go(procedure: Procedure[Any], store: Store) -> Any:
    return run(procedure, store, Restless())


def records(store: Store) -> list[Any]:
    return [each.record for each in go(poll(), store)[1]]


def keys(store: Store) -> list[str]:
    return [each.key for each in store.list("wal/")]


def test_appends_in_flight_of_a_fenced_older_writer_are_void_and_the_log_continues(
    store: Store,
) -> None:
    old = go(open_log(), store)
    assert go(append(old, [['"kept"']]), store) == [1]
    # Two slots were sent together, and only the second one has been applied.
    late = Slot(old.next + 1, old.epoch, old.writer, "late", ('"void"',))
    assert go(claim(late), store) == SlotLanded()
    new = go(open_log(), store)
    assert new.next == old.next + 1
    results = go(append(old, [['"refused"'], ['"refused too"']]), store)
    assert [type(each) for each in results] == [Fenced, Fenced]
    assert go(append(new, [['"after"']]), store) == [4]
    assert records(store) == ["kept", "after"]
    assert keys(store) == [slot_key(number) for number in range(5)]


def test_a_hole_that_a_dead_writer_left_is_where_the_next_one_begins(store: Store) -> None:
    old = go(open_log(), store)
    for number in (old.next + 1, old.next + 3):
        assert go(claim(Slot(number, 1, old.writer, f"{number}", ('"never told"',))), store)
    new = go(open_log(), store)
    assert go(append(new, [['"a"'], ['"b"'], ['"c"']]), store) == [5, 3, 6]
    assert records(store) == ["b", "a", "c"]


def test_a_writer_that_slept_before_its_fence_does_not_begin(store: Store) -> None:
    def slow() -> Procedure[Any]:
        opening = open_log()
        request = next(opening)
        while True:
            if isinstance(request, Put) and request.key == slot_key(0):
                go(open_log(), store)
            request = opening.send((yield request))

    with pytest.raises(Fenced, match=r"epoch 1 was fenced: slot 0 .* epoch 2") as fenced:
        go(slow(), store)
    assert (fenced.value.epoch, fenced.value.slot, fenced.value.by_epoch) == (1, 0, 2)
    assert str(fenced.value).endswith(fenced.value.cure) and fenced.value.cure


def test_a_second_writer_of_the_same_epoch_is_reported(store: Store) -> None:
    one = go(open_log(), store)
    twin = WriterState(one.epoch, "twin", one.next)
    assert go(append(twin, [['"mine"']]), store) == [1]
    (results,) = go(append(one, [['"yours"']]), store)
    assert isinstance(results, SameEpoch)
    assert go(append(one, [['"again"']]), store) == [results]
    assert records(store) == ["mine"]


@pytest.mark.parametrize("gone", ["removed", "set back"])
def test_a_manifest_that_was_set_back_grants_no_epoch(store: Store, gone: str) -> None:
    go(open_log(), store)
    first = store.get(MANIFEST_KEY)
    go(open_log(), store)
    now = store.get(MANIFEST_KEY)
    assert isinstance(first, Found)
    assert isinstance(now, Found)
    store.delete(MANIFEST_KEY)
    if gone == "set back":
        store.put(MANIFEST_KEY, first.body, IfAbsent())
    with pytest.raises(Damaged, match=r"of epoch 2: it was set back or removed; write it with"):
        go(open_log(), store)
    assert len(keys(store)) == 2


def test_a_missing_slot_below_the_head_is_reported_by_the_next_writer(store: Store) -> None:
    log = go(open_log(), store)
    go(append(log, [['"a"']]), store)
    go(open_log(), store)
    for each in keys(store)[1:]:
        store.delete(each)
    with pytest.raises(Damaged, match=r"wal/0+1.json is missing, .*slots below 2 are taken"):
        go(open_log(), store)


# --- untrusted bodies -----------------------------------------------------------------------------

GOOD = json.loads(Slot(1, 1, "w", "a", ('"r"',)).encode())


def but(**changed: Any) -> bytes:
    return json.dumps({**GOOD, **changed}).encode()


HOSTILE = {
    "empty": b"",
    "truncated": Slot(1, 1, "w", "a", ('"r"',)).encode()[:-5],
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "another slot": but(slot=2),
    "a newer format": but(format=2),
    "no format": but(format=None),
    "epoch of the wrong kind": but(epoch="1"),
    "epoch true": but(epoch=True),
    "epoch beyond any count": but(epoch=2**63),
    "no writer": but(writer=""),
    "long attempt": but(attempt="x" * 1000),
    "no records": but(records={}),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_slot_stops_the_log_and_is_not_overwritten(store: Store, body: bytes) -> None:
    log = go(open_log(), store)
    store.put(slot_key(1), body, IfAbsent())
    (results,) = go(append(log, [['"mine"']]), store)
    assert isinstance(results, Damaged)
    assert "wal/00000000000000000001.json" in str(results)
    assert len(str(results)) < 400
    with pytest.raises(Damaged):
        go(poll(), store)
    with pytest.raises(Damaged):
        go(open_log(), store)
    found = store.get(slot_key(1))
    assert isinstance(found, Found)
    assert found.body == body


def test_a_slot_is_read_only_up_to_the_longest_that_is_allowed(store: Store) -> None:
    log = go(open_log(), store)
    store.put(slot_key(1), b" " * (SLOT_BYTES_MAX + 2), IfAbsent())
    (results,) = go(append(log, [["1"]]), store)
    assert f"longer than {SLOT_BYTES_MAX} bytes" in str(results)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"format": 1}', b'{"format": 9}', b"x" * 70_000])
def test_an_invalid_manifest_grants_no_epoch(store: Store, body: bytes) -> None:
    store.put(MANIFEST_KEY, body, IfAbsent())
    with pytest.raises(Damaged, match=MANIFEST_KEY):
        go(open_log(), store)
    assert keys(store) == []


def test_slots_and_manifests_are_read_as_they_were_written() -> None:
    values: tuple[Any, ...] = (None, 1, "é\ud800", [{"a": []}], 1.5)
    texts = tuple(encode_record(each) for each in values)
    slot = decode_slot(Slot(3, 2, "w", "a", texts).encode(), 3)
    assert slot == SlotRead(3, 2, "w", "a", values)
    assert decode_manifest(Manifest(4, "a", 7).encode()) == Manifest(4, "a", 7)


@pytest.mark.parametrize("record", [float("nan"), b"bytes", {1, 2}, "x" * RECORD_BYTES_MAX])
def test_a_record_that_no_reader_could_take_is_refused_before_anything_is_sent(record: Any) -> None:
    with pytest.raises(ValueError, match="this record"):
        encode_record(record)


def test_a_record_too_deep_to_be_read_again_is_refused_too() -> None:
    record: list[Any] = []
    for _ in range(100_000):
        record = [record]
    with pytest.raises(ValueError, match="this record cannot be written"):
        encode_record(record)


# --- the handle, over the SDKs --------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Emulator]]:
    """Each provider with its own profile: on GCS one write per second to one object."""
    with Emulator() as aws, Emulator(profile="gcs") as gcs, Emulator(profile="azure") as azure:
        yield {"s3": aws, "gcs": gcs, "azure": azure}


@pytest.fixture(params=["s3", "s3 in parts", "gcs", "azure"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(provider: str, servers: dict[str, Emulator], bucket: str) -> dict[str, Any]:
    """Options that open a log of this test's own."""
    name = provider.partition(" ")[0]
    parts = {"multipart_bytes": 0} if "parts" in provider else {}
    server = servers[name]
    url = f"{SCHEMES[name]}://{bucket}/log"
    return {"url": url, "endpoint": getattr(server, name), "timeout_s": 5, **parts}


def asked(server: Emulator, bucket: str) -> list[Mapping[str, Any]]:
    """All requests for this bucket that the server has recorded."""
    events = [each.data for each in server.requests()]
    return [each for each in events if each.get("bucket") == bucket]


def s3_place(server: Emulator, bucket: str) -> dict[str, Any]:
    return {"url": f"s3://{bucket}/log", "endpoint": server.s3, "timeout_s": 5}


def read_all(place: dict[str, Any]) -> list[Any]:
    with Reader(**place) as reader:
        return [each.record for each in reader.poll()]


def test_many_threads_append_together_and_each_gets_its_own_place(
    place: dict[str, Any], provider: str, servers: dict[str, Emulator], bucket: str
) -> None:
    threads, each_appends = 16, 6
    with Wal(**place, client="W1") as wal, ThreadPoolExecutor(threads) as pool:

        def work(name: int) -> list[tuple[Position, str]]:
            texts = [f"{name}.{number}" for number in range(each_appends)]
            return [(wal.append(text), text) for text in texts]

        results = sorted(pair for some in pool.map(work, range(threads)) for pair in some)
    with Reader(**place) as reader:
        seen = [(each.at, each.record) for each in reader.poll()]
    assert seen == results  # each once, where it was told, in one order
    assert len(seen) == threads * each_appends
    slots = {position.slot for position, _ in results}
    assert len(slots) < len(results) / 2
    for name in range(threads):  # a thread's own order is kept
        own = [text for _, text in results if text.startswith(f"{name}.")]
        assert own == [f"{name}.{number}" for number in range(each_appends)]
    throttled = [
        each["key"] for each in asked(servers[provider.partition(" ")[0]], bucket)
        if each["status"] == 429
    ]  # fmt: skip
    # Except the fence, which is sent twice, and the test of the store's conditions.
    assert set(throttled) <= {f"log/{slot_key(0)}", f"log/{CONDITIONS}"}


def test_a_store_of_one_write_a_second_throttles_one_object_and_no_slots(
    servers: dict[str, Emulator], bucket: str
) -> None:
    with closing(open_store(f"gs://{bucket}/x", endpoint=servers["gcs"].gcs)) as store:
        answer = store.put("one", b"0", IfAbsent())
        results = []
        for number in range(8):
            assert isinstance(answer, Applied)
            results.append(
                type(store.put("one", b"%d" % number, IfVersion(answer.version))).__name__
            )
    assert set(results) == {"Throttled"}


LOST_ANSWERS = (
    Fault("drop"),
    Fault("reset"),
    Fault("status", code=500),
    Fault("drop", when="before"),
    Fault("status", code=503, when="before", next=2),
    Fault("late", delay_s=0.02, ending="reset"),
)


def of_slots(fault: Fault) -> Fault:
    return Fault.from_fields({**fault.to_fields(), "operation": "put", "key": "wal/*"})


def test_a_lost_answer_neither_loses_an_append_nor_doubles_it(place: dict[str, Any]) -> None:
    with Proxy(place["endpoint"]) as proxy:
        proxy.inject(Fault("drop", operation="put", key="manifest.json"))
        proxy.inject(of_slots(Fault("drop")))
        with Wal(**{**place, "endpoint": proxy.url}) as wal:
            for number, fault in enumerate(LOST_ANSWERS, 1):
                proxy.inject(of_slots(fault))
                assert wal.append(number) == Position(number, 0)
        assert len(proxy.faults) >= 2 + len(LOST_ANSWERS)
    assert read_all(place) == list(range(1, len(LOST_ANSWERS) + 1))


def test_an_sdk_that_sends_again_by_itself_meets_its_own_slot_and_knows_it(
    servers: dict[str, Emulator], bucket: str
) -> None:
    place = s3_place(servers["s3"], bucket)
    with Proxy(place["endpoint"]) as proxy:
        with Wal(**{**place, "endpoint": proxy.url}, attempts=3) as wal:
            proxy.inject(of_slots(Fault("drop")))
            assert wal.append("a") == Position(1, 0)
            assert wal.append("b") == Position(2, 0)
    assert read_all(place) == ["a", "b"]
    assert (slot_key(1), 412) in [
        (each["key"].removeprefix("log/"), each["status"]) for each in asked(servers["s3"], bucket)
    ]


def test_a_replaced_writer_gets_an_error_and_its_appends_are_never_read(
    place: dict[str, Any],
) -> None:
    with Wal(**place) as old, Wal(**place) as new:
        assert (old.epoch, new.epoch) == (1, 2)
        with pytest.raises(Fenced, match="slot 1 belongs to a writer with epoch 2"):
            old.append("zombie")
        with pytest.raises(Fenced):
            old.append("zombie again")
        new.append("mine")
    assert read_all(place) == ["mine"]


def test_a_poll_with_nothing_new_is_one_request(
    place: dict[str, Any], provider: str, servers: dict[str, Emulator], bucket: str
) -> None:
    server = servers[provider.partition(" ")[0]]
    with Wal(**place) as wal, Reader(**place, client="R") as reader:

        def requests_of(do: Callable[[], Any]) -> list[tuple[str, int]]:
            before = len(asked(server, bucket))
            do()
            return [(e["method"], e["status"]) for e in asked(server, bucket)[before:]]

        for number in range(8):
            wal.append(number)
        assert len(requests_of(reader.poll)) <= 2 * 9 + 1
        assert [each.record for each in reader.entries] == list(range(8))
        for _ in range(3):
            assert requests_of(reader.poll) == [("get", 404)]
        wal.append("news")
        results = requests_of(lambda: reader.poll() and None)
        assert results[0] in (("get", 200), ("get", 206))
        assert set(results[1:]) == {("get", 404)}
        assert reader.entries[-1].record == "news"


def test_the_head_is_read_conditionally_and_304_keeps_the_view(
    place: dict[str, Any], provider: str, servers: dict[str, Emulator], bucket: str
) -> None:
    server = servers[provider.partition(" ")[0]]

    def requests_of(do: Callable[[], Any]) -> list[tuple[str, int]]:
        before = len(asked(server, bucket))
        do()
        return [(e["method"], e["status"]) for e in asked(server, bucket)[before:]]

    with Reader(**place, client="R", tail=HEAD) as reader:
        with Wal(**place) as plain:
            plain.append("before")
        assert reader.poll() and requests_of(reader.poll) == [("get", 404), ("get", 404)]
        with Wal(**place, tail=HEAD) as wal:
            wal.append("named")
        reader.poll()
        for _ in range(3):
            assert requests_of(reader.poll) == [("get", 304)]
        with Wal(**place) as plain:  # goes on with the head that it found
            plain.append("after")
        reader.poll()
        assert requests_of(reader.poll) == [("get", 304)]
        assert [each.record for each in reader.entries] == ["before", "named", "after"]


def test_a_head_set_forward_by_hand_is_reported_and_nothing_is_read_from_it(store: Store) -> None:
    go(append(go(open_log(HEAD), store), [['"a"']]), store)
    store.put(HEAD_KEY, encode_head(9, "by hand"), IfVersion(store.get(HEAD_KEY).version))
    with pytest.raises(Damaged, match=r"02.json is missing, .*slots below 9 are there"):
        go(poll(tail=HEAD), store)


@pytest.mark.parametrize("body", [b"", b"{", b'{"format":1,"head":-1}', b'{"format":2}'])
def test_an_invalid_head_is_not_overwritten_and_the_append_is_in_doubt(
    store: Store, body: bytes
) -> None:
    log = go(open_log(HEAD), store)
    store.put(HEAD_KEY, body, IfVersion(store.get(HEAD_KEY).version))
    (results,) = go(append(log, [['"a"']]), store)
    assert isinstance(results, AppendUnknown) and HEAD_KEY in str(results)
    assert store.get(HEAD_KEY).body == body
    with pytest.raises(Damaged, match=HEAD_KEY):
        go(poll(tail=HEAD), store)


# --- when nothing is known ------------------------------------------------------------------------


def test_all_waiters_learn_that_the_store_does_not_answer_and_the_log_has_no_gap(
    servers: dict[str, Emulator], bucket: str
) -> None:
    place = s3_place(servers["s3"], bucket)
    with Proxy(place["endpoint"]) as proxy:
        with Wal(**{**place, "endpoint": proxy.url}, clock=Restless()) as wal:
            proxy.inject(Fault("drop", when="before", operation="put", next="every"))
            with ThreadPoolExecutor(4) as pool:
                errors = list(pool.map(lambda n: _error_of(wal, n), range(4)))
            assert {type(each) for each in errors} == {AppendUnknown}
            assert "it is unknown whether an append is in wal/0000" in str(errors[0])
            proxy.clear()
            assert wal.append("after") == Position(1, 0)
    assert read_all(place) == ["after"]


def _error_of(wal: Wal, record: Any) -> BaseException | None:
    try:
        wal.append(record)
    except WalError as error:
        return error
    return None


def test_an_append_in_doubt_that_landed_is_not_written_over_by_the_next(
    servers: dict[str, Emulator], bucket: str
) -> None:
    place = s3_place(servers["s3"], bucket)
    with Proxy(place["endpoint"]) as proxy:
        with Wal(**{**place, "endpoint": proxy.url}, clock=Restless()) as wal:
            proxy.inject(Fault("drop", operation="put", next="every"))
            proxy.inject(Fault("drop", operation="get", next="every"))
            with pytest.raises(AppendUnknown):
                wal.append("landed")
            proxy.clear()
            assert wal.append("after") == Position(2, 0)
    assert read_all(place) == ["landed", "after"]


class Interrupted(Restless):
    """Ctrl-C comes where the next append gets its id."""

    armed = False

    def unique(self) -> str:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return super().unique()


def test_an_interrupted_writer_does_not_block_waiters() -> None:
    clock = Interrupted()
    with Wal(f"memory://wal-{next(_NAMES)}/log", clock=clock) as wal:
        clock.armed = True
        with pytest.raises(KeyboardInterrupt):
            wal.append("a")
        assert wal.append("b") == Position(1, 0)
    with pytest.raises(WalError, match="was closed"):
        wal.append("c")


def test_a_store_that_ignores_conditions_holds_no_log(bucket: str) -> None:
    with Emulator(profile="spaces") as server:
        with pytest.raises(UnsafeStore, match="ignored a write condition"):
            Wal(f"s3://{bucket}/log", endpoint=server.s3)


def test_an_unusable_store_is_reported_and_not_as_an_unknown_outcome(bucket: str) -> None:
    with Emulator(credentials=Credentials("key", "secret-key")) as server:
        with pytest.raises(StoreError) as results:
            Wal(f"s3://{bucket}/log", endpoint=server.s3, aws_access_key_id="key",
                aws_secret_access_key="other-key")  # fmt: skip
    assert "other-key" not in str(results.value)


WRITER = """
import sys
from lockkit.recipes.wal import Wal
with Wal(sys.argv[1], endpoint=sys.argv[2]) as wal:
    for number in range(100_000):
        wal.append(number)
        print(number, flush=True)
"""


def test_writes_acknowledged_to_a_killed_process_are_there(
    servers: dict[str, Emulator], bucket: str
) -> None:
    place = s3_place(servers["s3"], bucket)
    command = [sys.executable, "-c", WRITER, place["url"], place["endpoint"]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        results = 19 + len(process.stdout.read().split())
    with Wal(**place) as wal:
        assert wal.epoch == 2
        wal.append("next")
    seen = read_all(place)
    assert seen[:-1] == list(range(len(seen) - 1))
    assert results <= len(seen) - 1 <= results + 2
    assert seen[-1] == "next"


def test_batches_that_do_not_fit_one_slot_get_a_position_each() -> None:
    release = threading.Barrier(6)
    text = "x" * (RECORD_BYTES_MAX - 100)
    with Wal(f"memory://wal-{next(_NAMES)}/log", parallel=4) as wal, ThreadPoolExecutor(6) as pool:

        def work(number: int) -> Position:
            release.wait()  # so that some of them wait together
            return wal.append([number, text])

        results = list(pool.map(work, range(6)))
    assert len(set(results)) == 6
    assert {position.slot for position in results} <= set(range(1, 8))


# --- both claims of S3 ----------------------------------------------------------------------------


@pytest.fixture
def parts(servers: dict[str, Emulator], bucket: str) -> Iterator[Store]:
    opened = open_store(f"s3://{bucket}/p", endpoint=servers["s3"].s3, multipart_bytes=4)
    with closing(opened):
        yield opened


def test_a_completed_upload_is_created_once_and_replaced_by_version(
    parts: Store, servers: dict[str, Emulator], bucket: str
) -> None:
    one = parts.put("k", b"12345", IfAbsent())
    assert isinstance(one, Applied)
    assert one.version.strip('"').endswith("-1")
    assert parts.put("k", b"other", IfAbsent()) == PreconditionFailed()
    two = parts.put("k", b"second", IfVersion(one.version))
    assert isinstance(two, Applied)
    assert parts.put("k", b"stale!", IfVersion(one.version)) == PreconditionFailed()
    assert isinstance(parts.put("small", b"1234", IfAbsent()), Applied)
    done = Counter(each["method"] for each in asked(servers["s3"], bucket))
    assert done == {"upload": 4, "part": 4, "put": 5, "abort": 2}


def test_a_part_larger_than_one_request_takes_is_one_object(parts: Store) -> None:
    body = bytes(range(256)) * ((9 << 20) // 256)
    assert isinstance(answer := parts.put("big", body, IfAbsent()), Applied)
    assert answer.version.strip('"').endswith("-2")
    found = parts.get("big")
    assert isinstance(found, Found)
    assert found.body == body


@pytest.mark.parametrize(
    ("fault", "results"),
    [
        pytest.param(Fault("drop", operation="put"), "Unknown", id="completion lost"),
        pytest.param(Fault("status", code=503, operation="put"), "Unknown", id="503"),
        pytest.param(Fault("status", code=409, operation="put"), "Throttled", id="409"),
        pytest.param(
            Fault("status", code=404, body="<Error><Code>NoSuchUpload</Code></Error>",
                  operation="put"), "Unknown", id="completed before",
        ),
        pytest.param(Fault("drop", operation="part"), "Throttled", id="start lost"),
        pytest.param(Fault("drop", operation="part", nth=2), "Throttled", id="part lost"),
        pytest.param(Fault("status", code=429, operation="part"), "Throttled", id="429"),
    ],
)  # fmt: skip
def test_an_upload_is_certainly_not_there_unless_its_completion_was_sent(
    servers: dict[str, Emulator], bucket: str, fault: Fault, results: str
) -> None:
    with Proxy(servers["s3"].s3) as proxy:
        proxy.inject(fault)
        with closing(
            open_store(f"s3://{bucket}/p", endpoint=proxy.url, multipart_bytes=0, timeout_s=3)
        ) as store:
            answer = store.put("k", b"body", IfAbsent())
            assert type(answer).__name__ == results, answer
            there = isinstance(store.get("k"), Found)
            assert there == (isinstance(answer, Unknown) and fault.when == "after")


def test_an_upload_that_is_denied_is_an_error_and_no_answer(bucket: str) -> None:
    with Emulator(credentials=Credentials("key", "secret-key")) as server:
        with closing(
            open_store(f"s3://{bucket}/p", endpoint=server.s3, multipart_bytes=0,
                       aws_access_key_id="key", aws_secret_access_key="wrong")
        ) as store, pytest.raises(StoreError):  # fmt: skip
            store.put("k", b"body", IfAbsent())
