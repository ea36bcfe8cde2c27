"""Properties of data: codecs give back what they got, parsers refuse what is invalid.

What Hypothesis finds becomes a named example here. `HYPOTHESIS_PROFILE=seek` draws other examples
at each run, and many more of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from shape_mutants import MISTAKES, Mistake, planted
from xxhash import xxh64_digest

from lockkit.clock import Clock, back_off_s, utc
from lockkit.errors import TableError
from lockkit.events import KINDS, Event, HistoryError, event, narrate, parse, plain, read, write
from lockkit.lab.faults import Fault, FaultError, FaultPlan, RequestFacts, dialects, wire
from lockkit.lab.verify.check import Kind as VerdictKind
from lockkit.lab.verify.check import check
from lockkit.lock.handle import Lock
from lockkit.lock.hudi_keys import key_of_base_path
from lockkit.lock.polling import LOOK_FLOOR_MS, SLEEP_LONGEST_MS, PollingPace
from lockkit.protocol.outcome import Found, NotOurs, Ours, StillOut, resolve
from lockkit.protocol.record import EPOCH_BELIEVED_MAX, EPOCH_MAX, Garbled, Record, decode, encode
from lockkit.stores import ListEntry
from lockkit.stores.endpoint import RETRY_AFTER_S_MAX, epoch_ms, seconds
from lockkit.table.format.layout import (
    FileGroup,
    Overwritten,
    TaskId,
    WriteStat,
    file_name,
    format_commit,
    parse_commit,
)
from lockkit.table.format.partition import is_inside, partition_path
from lockkit.table.format.plans import RollbackPlan, format_rollback_plan, parse_rollback_plan
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.spark_hash import KEYS_AT_ONCE, bucket_of
from lockkit.table.format.timeline import (
    LANES,
    UNUSED,
    V6,
    V9,
    TimelineNames,
    instant_ms,
    instant_of,
    next_instant_ms,
    parse_timeline,
)  # fmt: skip
from lockkit.table.occ.conflict import (
    STRATEGIES,
    ConflictStrategy,
    OwnChanges,
    Pending,
    Winner,
    find_conflict,
)
from lockkit.table.occ.conflict import bucket_of as bucket_of_group
from lockkit.table.occ.fence import Decided, Fence, format_fence, parse_fence
from lockkit.table.occ.liveness import heartbeat_of
from lockkit.table.read.bucket_groups import bucket_file_id, generations
from lockkit.table.read.buckets import free_file_id, is_bucketed
from lockkit.table.read.checkpoint_bytes import parse_checkpoint
from lockkit.table.read.checkpoint_writing import format_checkpoint
from lockkit.table.read.predicate import partition_value
from lockkit.table.read.snapshot import CheckedHorizon, Slice, Snapshot


def times(factor: float) -> settings:
    """Multiplies the number of examples of the profile."""
    return settings(max_examples=round(factor * settings.default.max_examples))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
ODDITIES = [
    None, True, -1, 0, EPOCH_MAX, 2**70, 10**400, 1e308, math.inf, math.nan, 0.5, "", "W1",
    "\x1b[2J\n", "\ud800", "\u202e", [], {}, [[]], [["a", "b"]], {"a": [None]},
]  # fmt: skip
"""What JSON can put in the place of anything else."""
ODD = st.sampled_from(ODDITIES)
COUNTS = st.integers(0, EPOCH_BELIEVED_MAX - 1)

# --- the lock record ------------------------------------------------------------------------------

records = st.builds(
    Record, owner=st.text(max_size=80), valid_until_ms=st.integers(-EPOCH_MAX, EPOCH_MAX),
    expired=st.booleans(), epoch=COUNTS, attempt=st.text(max_size=80), ttl_ms=COUNTS,
    holder=st.text(max_size=80),
)  # fmt: skip


@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize("names", [{"owner": "W" * 70_000}, {"client": "W" * 70_000}])
def test_a_lock_never_writes_a_record_that_no_client_could_parse(names: dict[str, str]) -> None:
    """Once, such a release succeeded, and afterwards no client could ever take the lock."""
    with pytest.raises(ValueError, match=r"1000 characters"):
        Lock("memory://long-names/table", **names)
    for name in ("é" * 1000, "\U0001f600" * 1000):
        widest = Record(name, EPOCH_MAX, False, EPOCH_BELIEVED_MAX - 1, name, EPOCH_MAX, name)
        assert decode(encode(widest)) == widest


class NeverRaised(Exception):
    """The error of a reader that never raises one."""


def _judged(body: bytes) -> None:
    match decode(body):
        case Garbled(why):
            assert why
        case record:
            assert abs(record.valid_until_ms) <= EPOCH_MAX
            assert 0 <= record.ttl_ms <= EPOCH_MAX
            assert 0 <= record.epoch < EPOCH_BELIEVED_MAX, "there is always a next epoch"
            said = json.loads(body).get("epoch")
            assert record.epoch == (said if type(said) is int and said > 0 else 0), "nor a second 1"
            assert decode(encode(record)) == record


bodies = (
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda record, n: encode(record)[:n], records, st.integers(0, 300))
)


@given(bodies)
@example(b'{"expired":false,"validUntil":1e999,"owner":""}')
@example(b'{"expired":false,"validUntil":' + b"9" * 5_000 + b',"owner":""}')
@example(b"[" * 60_000)
@example(b"\xff\xfe{\x00}\x00")
def test_any_body_is_a_record_or_garbled_with_a_reason(body: bytes) -> None:
    _judged(body)


@given(st.sampled_from([b"[", b'{"a":', b"9", b'"', b" ", b"\x00", b"\xff"]))
@times(0.1)
def test_ten_megabytes_of_anything_are_refused_unread(unit: bytes) -> None:
    body = _Watched(unit * (10_000_000 // len(unit)))
    assert isinstance(decode(body), Garbled)
    assert not body.was_read


class _Watched(bytes):
    """Bytes that record whether they were read."""

    was_read = False

    def decode(self, *arguments: Any, **named: Any) -> str:
        self.was_read = True
        return super().decode(*arguments, **named)

    def startswith(self, *arguments: Any) -> bool:
        self.was_read = True
        return super().startswith(*arguments)


# --- what an ambiguous write was ------------------------------------------------------------------


few = st.integers(0, 5)


@given(few, st.booleans(), few, few)
def test_an_ambiguous_write_is_judged_as_it_went(
    before: int, landed: bool, after: int, others: int
) -> None:
    """Plays a whole life of the object: writes of others, ours over what we saw, theirs again."""
    life: list[tuple[str, str]] = [(f"v{n}", f"theirs-{n}") for n in range(before)]
    wrote_over = life[-1][0] if life else None
    life += [(f"w{n}", f"theirs-w{n}") for n in range(others)]
    lands = landed and not others  # its condition holds only while nothing came in between
    if lands:
        life.append(("ours", "mine"))
    life += [(f"x{n}", f"theirs-x{n}") for n in range(after)]
    version, attempt = life[-1] if life else (None, None)
    may_yet_land = not lands and version == wrote_over
    match resolve(version, attempt, attempt="mine", wrote_over=wrote_over):
        case Ours(seen):
            assert lands and seen == version and not after
        case StillOut():
            assert may_yet_land
        case NotOurs():
            assert not may_yet_land and (not lands or after)


# --- conflicts, beside a naive statement of Hudi's rules ------------------------------------------

EARLIER, ME, LATER = "20250101000000001", "20250101000000002", "20250101000000003"
groups = st.frozensets(
    st.tuples(st.sampled_from(["", "a"]), st.sampled_from(["0", "00000001-x", "00000001-y"])),
    max_size=3,
)
instants = st.sampled_from([EARLIER, LATER])
backs = st.sampled_from([frozenset(), frozenset({ME}), frozenset({EARLIER})])
# What each kind of instant looks like: its action, and its operation where one is told.
AS = {
    "ingestion": ("commit", "UPSERT"), "overwrite": ("replacecommit", "INSERT_OVERWRITE"),
    "clustering": ("replacecommit", "CLUSTER"), "compaction": ("commit", "COMPACT"),
    "log compaction": ("deltacommit", "LOG_COMPACT"), "rollback": ("rollback", ""),
}  # fmt: skip
PLANNED = {"clustering": "clustering", "overwrite": "replacecommit", "ingestion": "commit",
           "compaction": "compaction", "log compaction": "logcompaction",
           "rollback": "rollback"}  # fmt: skip
kinds = st.sampled_from(sorted(AS))


@st.composite
def completed(draw: st.DrawFn) -> tuple[str, Winner]:
    kind = draw(kinds)
    action, operation = AS[kind]
    replaces = kind in ("overwrite", "clustering")
    return kind, Winner(
        draw(instants), action, draw(groups), draw(groups) if replaces else frozenset(), operation,
        draw(backs) if kind == "rollback" else frozenset(),
    )  # fmt: skip


@st.composite
def pending(draw: st.DrawFn) -> tuple[str, Pending]:
    kind = draw(kinds)
    takes_back = draw(backs) if kind == "rollback" else frozenset()
    return kind, Pending(draw(instants), PLANNED[kind], draw(st.none() | groups), takes_back)


def naive(kind: str, mine: OwnChanges, strategy: str, by: str, other: Winner | Pending) -> bool:
    """Hudi's rules about one other instant, one sentence each."""
    done = isinstance(other, Winner)
    unit = _first_eight if strategy == "bucket" else (lambda each: each)
    ours = {unit(each) for each in mine.writes | mine.replaced}
    theirs = (other.writes | other.replaced) if isinstance(other, Winner) else other.inputs
    overlap = bool(ours & {unit(each) for each in theirs or ()})
    later = other.instant > mine.instant
    if by == "rollback":  # "rollback of my own instant => conflict"
        return mine.instant in other.takes_back
    if kind == "log compaction":  # "I am LOG_COMPACT => ok"; only a later compaction hides its logs
        return by == "compaction" and later and overlap and (done or strategy != "prefer_writer")
    if done:  # "(partition, fileId) set intersection"; "COMPACT with earlier instant => ok"
        return overlap and (by != "compaction" or later)
    if strategy == "prefer_writer":  # services yield to inflight ingestion, and to nothing else
        service = kind in ("clustering", "compaction")
        return service and by in ("ingestion", "overwrite") and (overlap or theirs is None)
    if by == "clustering":  # "pending clustering (any time)"
        return overlap
    # "other pending replacecommit requested after me", "pending compaction requested after me"
    return by in ("overwrite", "compaction") and later and overlap


def _first_eight(group: FileGroup) -> FileGroup:
    partition, file_id = group
    return (partition, file_id[:8]) if file_id[:8].isdigit() and len(file_id) >= 8 else group


F, SAME_BUCKET, FAR = ("a", "00000001-x"), ("a", "00000001-y"), ("a", "00000002-x")
WRITERS = sorted(AS.keys() - {"rollback"})


def _mine(kind: str, writes: frozenset[FileGroup], replaced: frozenset[FileGroup]) -> OwnChanges:
    return OwnChanges(ME, frozenset(), writes, replaced, AS[kind][1])


def test_of_any_two_kinds_hudis_rules_say_which_go_together() -> None:
    """Each kind beside each other: before and after, completed and pending, near and far."""
    judged = set()
    for kind, by, instant, group in product(WRITERS, AS, (EARLIER, LATER), (F, SAME_BUCKET, FAR)):
        for strategy, replaces, takes_back in product(STRATEGIES, (False, True), (ME, EARLIER)):
            gone = replaces or kind == "overwrite"
            ours = (frozenset({("b", "new")}), frozenset({F})) if gone else ({F}, frozenset())
            me = _mine(kind, frozenset(ours[0]), ours[1])
            theirs, back = frozenset({group}), frozenset({takes_back} if by == "rollback" else ())
            others: list[Winner | Pending] = [
                Winner(instant, AS[by][0], theirs, frozenset(), AS[by][1], back),
                Winner(instant, AS[by][0], frozenset(), theirs, AS[by][1], back),
                Pending(instant, PLANNED[by], theirs, back),
                Pending(instant, PLANNED[by], None, back),
            ]
            for other in others:
                won, plans = ([other], []) if isinstance(other, Winner) else ([], [other])
                found = find_conflict(me, won, pending=plans, strategy=strategy)
                expected = naive(kind, me, strategy.name, by, other)
                assert (found is not None) == expected, (kind, by, strategy.name, other)
                judged.add((kind, by, expected))
    assert {kind for kind, _, expected in judged if expected} == set(WRITERS)


@given(
    st.sampled_from(WRITERS), groups, groups,
    st.lists(completed(), max_size=3), st.lists(pending(), max_size=3),
    st.sampled_from(STRATEGIES),
)  # fmt: skip
@times(4)
def test_of_many_conflicts_the_oldest_completed_one_is_reported_first(
    kind: str, writes: frozenset[FileGroup], replaced: frozenset[FileGroup],
    won: list[tuple[str, Winner]], plans: list[tuple[str, Pending]], strategy: ConflictStrategy,
) -> None:  # fmt: skip
    if kind not in ("overwrite", "clustering"):
        replaced = frozenset()
    assume(replaced or kind != "overwrite")  # an overwrite of nothing is an insert
    me = _mine(kind, writes, replaced)
    guilty = [
        sorted(one.instant for by, one in others if naive(kind, me, strategy.name, by, one))
        for others in (won, plans)
    ]
    found = find_conflict(
        me, [each for _, each in won], pending=[each for _, each in plans], strategy=strategy
    )
    assert (found and found.instant) == next((each[0] for each in guilty if each), None)


# --- buckets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_path", "key"),
    [
        ("s3://lake/orders", "9BBEA24B29C16651"),
        ("S3A://lake/orders", "9BBEA24B29C16651"),
        ("s3://a-rather-long-bucket-name/warehouse/db/orders", "7E179AB703068740"),
        ("file:///data/lake/orders/", "C8BE1A94B3CF4BDA"),
    ],
)
def test_a_path_makes_the_implicit_key_that_hudi_makes_of_it(base_path: str, key: str) -> None:
    """Hudi's own hash, lz4-java's `hash64`, with Hudi's seed."""
    assert key_of_base_path(base_path) == key


keys = st.lists(st.text(max_size=70) | st.text("ab", min_size=30, max_size=70), max_size=8)


def signed_hash(text: str) -> int:
    return int.from_bytes(xxh64_digest(text.encode(), 42), "big", signed=True)


@given(keys, st.integers(1, 10_000), st.integers(0, 3))
def test_the_bucket_of_a_key_is_its_signed_hash_modulo_the_buckets(
    texts: list[str], buckets: int, skipped: int
) -> None:
    column = pa.array(texts, pa.string())[skipped:]
    wanted = [signed_hash(text) % buckets for text in texts[skipped:]]
    assert bucket_of(column, buckets).to_pylist() == wanted


def test_a_long_column_has_the_bucket_of_each_key_in_order() -> None:
    column = pa.array(map(str, range(KEYS_AT_ONCE + 2)))
    assert bucket_of(column, 997).to_pylist() == [signed_hash(k) % 997 for k in column.to_pylist()]


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 99_999_999), st.integers(0, 99)),
                max_size=6, unique=True))  # fmt: skip
def test_file_ids_of_buckets_are_distinct_and_read_back(all_: list[tuple[str, int, int]]) -> None:
    ids = [bucket_file_id(*each) for each in all_]
    assert len(set(ids)) == len(ids)
    for (partition, bucket, generation), file_id in zip(all_, ids, strict=True):
        assert is_bucketed(file_id)
        assert bucket_of_group((partition, file_id)) == (partition, f"{bucket:08d}")
        assert file_id.endswith(f"-{generation}")
        assert file_name(file_id, ME, TaskId(1, 2, 3)) == f"{file_id}_1-2-3_{ME}.parquet"
    free = free_file_id(Clock())
    assert not is_bucketed(free) and bucket_of_group(("", free)) == ("", free)


def test_a_file_id_with_an_infinite_number_belongs_to_no_bucket() -> None:
    """int() refuses more than 4,300 digits: one such id in a commit's file stopped all writers."""
    hostile = bucket_file_id("", 1)[:-1] + "9" * 5_000
    assert not is_bucketed(hostile)
    snapshot: Any = _Groups(set(), {("", hostile)})
    assert generations(snapshot) == {}


class _Groups:
    """The part of a snapshot that `generations` uses."""

    def __init__(self, replaced: set[FileGroup], groups: set[FileGroup]) -> None:
        self.replaced, self.groups = dict.fromkeys(replaced, ME), dict.fromkeys(groups)


@given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 4))),
       st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 4))))  # fmt: skip
def test_the_next_generation_was_never_used_before(
    gone: set[tuple[str, int, int]], here: set[tuple[str, int, int]]
) -> None:
    snapshot: Any = _Groups(
        {(p, bucket_file_id(p, b, g)) for p, b, g in gone - here},
        {(p, bucket_file_id(p, b, g)) for p, b, g in here},
    )
    found = generations(snapshot)
    for partition, bucket in product("ab", range(3)):
        used = {g for p, b, g in gone - here if (p, b) == (partition, bucket)}
        standing = {g for p, b, g in here if (p, b) == (partition, bucket)}
        number = found.get((partition, f"{bucket:08d}"), 0)
        assert number not in used or number in standing
        assert number <= max(used | standing, default=-1) + 1


# --- time -----------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0.001, 10), st.floats(0.001, 100))
def test_a_back_off_stays_within_its_bounds(
    tries: int, first_s: float, longest_s: float
) -> None:
    wait = back_off_s(tries, Clock(), first_s=first_s, longest_s=longest_s)
    assert 0 < wait <= longest_s
    assert wait >= min(first_s, longest_s) / 2


steps = st.lists(
    st.tuples(st.sampled_from(["wants", "saw", "met", "granted", "released", "answered"]),
              st.integers(0, 10_000), st.integers(1, 5)),
    min_size=10, max_size=40,
)  # fmt: skip


@given(steps, st.sampled_from([0.0, 1000.0]), st.sampled_from([0, 0, 1, 100]))
def test_a_waiter_always_reads_again_within_its_bounds(
    steps: list[tuple[str, int, int]], interval_ms: float, waited: int
) -> None:
    polling, now, epoch = PollingPace(interval_ms), 0.0, 0
    longest = max(SLEEP_LONGEST_MS, LOOK_FLOOR_MS, interval_ms)
    for what, later, more in steps:
        now, epoch = now + later, epoch + (more if what in ("saw", "granted") else 0)
        match what:
            case "saw" | "granted":
                getattr(polling, what)(epoch, now)
            case "answered":
                polling.answered(later)
            case "met":
                polling.met(f"W{more}")
            case _:
                getattr(polling, what)(now)
        assert 0 <= polling.look_ms(waited, now) <= longest
        assert 0 <= replace(polling).stand_back_ms(now) <= longest
        assert polling.turn_ms >= 0 and 0 <= polling.contenders <= 5


DATES = r"[A-Z][a-z]{2}, \d{1,5} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d [-+]?\w{0,9}"


@given(st.text(max_size=40) | st.from_regex(DATES))
def test_a_date_from_the_wire_is_a_number_or_nothing(text: str) -> None:
    found = epoch_ms(text)
    assert found is None or isinstance(found, int)


def test_a_server_that_requests_an_endless_wait_gets_the_next_request_within_minutes() -> None:
    """time.sleep() raises OverflowError for it."""
    assert [seconds(each) for each in ("inf", "1e400", "1e9")] == [RETRY_AFTER_S_MAX] * 3
    assert [seconds(each) for each in ("-inf", "-1", "0", "7")] == [0.0, 0.0, 0.0, 7.0]
    assert [seconds(each) for each in (None, "", "nan", "soon")] == [None] * 4


@given(st.text(max_size=20) | st.floats().map(str) | st.integers().map(str))
def test_a_wait_that_a_server_requests_is_a_length_of_time(text: str) -> None:
    found = seconds(text)
    assert found is None or (math.isfinite(found) and found >= 0)


@given(st.floats() | st.integers(-EPOCH_MAX, EPOCH_MAX))
def test_any_number_of_milliseconds_can_be_printed(ms: float) -> None:
    assert utc(ms)


# --- the timeline ---------------------------------------------------------------------------------

MS = st.integers(946_684_800_000, 32_503_679_990_000)  # the years 2000 to 2999
ACTIONS = st.sampled_from(["commit", "replacecommit", "clean", "rollback", "savepoint"])
layouts = st.sampled_from([V6, V9])


@given(MS)
def test_an_instant_is_its_milliseconds(ms: int) -> None:
    assert instant_ms(instant_of(ms)) == ms
    assert instant_ms(instant_of(ms)[:14]) == ms // 1000 * 1000 + 999


@given(st.lists(MS, min_size=2))
def test_instants_sort_as_their_times(times: list[int]) -> None:
    assert sorted(map(instant_of, times)) == [instant_of(ms) for ms in sorted(times)]


@given(MS, MS, st.sampled_from(LANES), st.integers(0, 10_000))
def test_a_new_instant_is_later_than_the_newest(
    newest: int, wall: int, action: str, lead_ms: int
) -> None:
    found = next_instant_ms(instant_of(newest), wall, action, lead_ms)
    assert instant_of(found) > instant_of(newest) and found >= wall
    assert found % len(LANES) == LANES.index(action), "no two actions ask for one instant"
    grouped = next_instant_ms(instant_of(newest), wall, action, lead_ms, True)
    assert instant_of(newest) < instant_of(grouped) and wall <= grouped <= found
    lane = LANES[grouped % len(LANES)]
    assert lane == action or (action == "commit" and lane in UNUSED)


acted = st.tuples(ACTIONS, st.integers(1, 3))


@given(st.dictionaries(MS.map(instant_of), acted, max_size=6), layouts)
def test_a_timeline_is_read_as_it_was_written(
    wrote: dict[str, tuple[str, int]], names: TimelineNames
) -> None:
    keys = []
    for instant, (action, far) in wrote.items():
        completion = instant_of(instant_ms(instant) + 5) if names.layout == 2 else None
        keys += [
            names.requested(instant, action), names.inflight(instant, action),
            names.completed(instant, action, completion),
        ][:far]  # fmt: skip
    found = parse_timeline([ListEntry(key, 0) for key in keys], names)
    assert found.completed == {i: action for i, (action, far) in wrote.items() if far == 3}
    assert found.pending == {i: action for i, (action, far) in wrote.items() if far < 3}
    assert found.inflight == {i for i, (_, far) in wrote.items() if far > 1}
    assert (found.foreign, found.doubled) == ((), frozenset())
    assert list(found.completed) == sorted(found.completed)


DIGITS = st.text("0123456789", min_size=13, max_size=18) | MS.map(instant_of) | st.text(
    st.characters(categories=["Nd"]), min_size=14, max_size=17
)  # fmt: skip
hostile_names = st.text(max_size=30) | st.builds(
    lambda instant, mark, done, tail: f"2{instant[1:]}{mark}{done}.{tail}",
    DIGITS, st.sampled_from(["", "_"]), st.just("") | DIGITS,
    st.sampled_from(["commit", "inflight", "commit.requested", "commit\n", "Commit", "clean", ""]),
)  # fmt: skip


ROLLBACK = format_rollback_plan(RollbackPlan(ME, EARLIER, "commit", ()))


@pytest.mark.parametrize(
    "digits",
    ["2\u06602\u06650101000000001", "2025 101000000001", "+2025101000000001", "20250101000000",
     "20250101", "2025010100000000100"],
)  # fmt: skip
def test_an_instant_is_seventeen_ascii_digits_or_fourteen(digits: str) -> None:
    """`\\d` and int() take other scripts' digits: a commit that sorts anywhere."""
    timeline = parse_timeline([ListEntry(V6.completed(digits), 0)], V6)
    assert bool(timeline.completed) is (digits == "20250101000000")
    if not timeline.completed:
        assert timeline.foreign == (f"{digits}.commit",)
        with pytest.raises(ValueError, match="is not an instant"):
            instant_ms(digits)
        stat = {"fileId": "f", "path": f"f_0-0-0_{digits}.parquet"}
        with pytest.raises(TableError, match="is not a base or log file"):
            parse_commit(ME, "k", json.dumps({"partitionToWriteStats": {"": [stat]}}).encode())
        with pytest.raises(TableError, match="is not an instant"):
            parse_rollback_plan(f".hoodie/{digits}.rollback.requested", ROLLBACK)


@given(st.lists(hostile_names, max_size=5), layouts)
def test_a_file_name_without_an_instant_is_no_commit(
    found: list[str], names: TimelineNames
) -> None:
    timeline = parse_timeline([ListEntry(names.folder + name, 0) for name in found], names)
    for instant in {**timeline.completed, **timeline.pending}:
        assert instant.isascii() and len(instant) in (14, 17)
        assert instant_of(instant_ms(instant)).startswith(instant)
    assert all(each.isascii() and len(each) == 17 for each in timeline.completion.values())


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()) | st.builds(
    lambda stats, replaced: json.dumps(
        {"partitionToWriteStats": stats, "partitionToReplaceFileIds": replaced}
    ).encode(),
    st.dictionaries(st.text(max_size=5), JSON, max_size=2), JSON,
))  # fmt: skip
@times(3)
def test_any_bytes_are_a_commit_or_a_table_error(body: bytes) -> None:
    try:
        files = parse_commit(ME, "T.commit", body)
    except TableError as error:
        assert "T.commit" in str(error)
    else:
        assert all(stat.writes >= 0 for stat in files.stats)


# --- one odd node --------------------------------------------------------------------------------


def spoiled(value: Any) -> Iterator[Any]:
    """The same document with one node removed, renamed, or replaced by an odd value."""
    yield from ODDITIES
    if isinstance(value, dict):
        for name, inner in value.items():
            rest = {other: each for other, each in value.items() if other != name}
            yield rest
            yield {**rest, f"{name}\ud800": inner}
            yield from ({**value, name: each} for each in spoiled(inner))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            before, after = value[:n], value[n + 1 :]
            yield [*before, *after]
            yield from ([*before, each, *after] for each in spoiled(inner))


GROUP = ("region=EU", "00000003-f-0")
STAT = WriteStat(
    partition=GROUP[0], file_id=GROUP[1], path=f"{GROUP[0]}/{file_name(GROUP[1], ME)}", writes=3,
    inserts=1, updates=2, size_bytes=9,
)  # fmt: skip
FENCE = Fence(
    7, "attempt", "0" * 64,
    (Decided("rollback", EARLIER),
     Decided("commit", EARLIER, "replacecommit", None, frozenset({GROUP}), frozenset(),
             Overwritten(frozenset({GROUP[0]}))),
     Decided("commit", ME, "commit", LATER, frozenset({GROUP}))),
    whole=False, completion=LATER,
)  # fmt: skip
SNAPSHOT = Snapshot(
    TableConfig(name="t", record_key="id", partition_by="region"),
    CheckedHorizon(ME, 3, frozenset({LATER}), {LATER: LATER}),
    {GROUP: Slice(*GROUP, ME, STAT.path)}, {("", "gone-0"): EARLIER}, "{}", ME,
)  # fmt: skip


def _with_its_digest(fields: Any) -> bytes:
    if isinstance(fields, dict) and "table" in fields:
        recorded = json.dumps(fields["table"], sort_keys=True, separators=(",", ":"))
        fields = {**fields, "sha256": hashlib.sha256(recorded.encode()).hexdigest()}
    return json.dumps(fields).encode()


def _pulse(body: bytes) -> object:
    return heartbeat_of(ME, Found(body, "v"))


def _commit(body: bytes) -> object:
    return parse_commit(ME, "T.commit", body)


SPOILT: dict[str, tuple[bytes, Callable[[bytes], object], type[Exception]]] = {
    "lock": (encode(Record("W1", 5, epoch=3, attempt="a/1", ttl_ms=9)), _judged, NeverRaised),
    "fence": (format_fence(FENCE), parse_fence, TableError),
    "heartbeat": (b'{"attempt":"a","ttlMs":9,"ended":false,"holder":"h"}', _pulse, NeverRaised),
    "commit": (
        format_commit([STAT], operation="UPSERT", schema="{}", attempt="a"), _commit, TableError,
    ),
    "replacecommit": (
        format_commit([STAT], operation="CLUSTER", schema="{}", attempt="a",
                      action="replacecommit", replaced=frozenset({("", "gone-0")})),
        _commit, TableError,
    ),
    "checkpoint": (format_checkpoint(SNAPSHOT), parse_checkpoint, ValueError),
    "fault plan": (
        FaultPlan((Fault("late", delay_s=1, key="*"),), seed=3, why="x").to_json().encode(),
        FaultPlan.parse, FaultError,
    ),
    "event": (
        event(1, "W1", "held", epoch=1, until_ms=2, version="v").to_json().encode(),
        lambda line: narrate([parse(line.decode())]), HistoryError,
    ),
}  # fmt: skip


def test_a_checkpoint_with_an_infinite_count_is_ignored() -> None:
    """int() of it raises OverflowError, which is no ValueError: it ended every reader."""
    odd = json.loads(format_checkpoint(SNAPSHOT))
    odd["table"]["settled"] = math.inf
    with pytest.raises(ValueError, match="no checkpoint"):
        parse_checkpoint(_with_its_digest(odd))


@pytest.mark.parametrize("what", SPOILT)
def test_a_document_with_one_odd_node_is_read_or_refused(what: str) -> None:
    body, read_it, refusal = SPOILT[what]
    as_bytes = _with_its_digest if what == "checkpoint" else lambda each: json.dumps(each).encode()
    read_it(body)
    tried, refused = 0, 0
    for tried, each in enumerate(spoiled(json.loads(body)), 1):  # noqa: B007
        try:
            read_it(as_bytes(each))
        except refusal:
            refused += 1
    assert tried > len(ODDITIES) and (refused > 0) is (refusal is not NeverRaised)


# --- partitions ----------------------------------------------------------------------------------

odd_folders = st.sampled_from(
    ["", ".", "..", ".hoodie", "a", "a=b", "..a", "%2F", "\\", "\x00", " ", "é", "\ud800"]
)
odd_paths = st.lists(odd_folders, max_size=3).map("/".join)


@given(odd_paths | st.text(max_size=20))
def test_a_path_that_is_inside_stays_inside(path: str) -> None:
    if is_inside(path):
        assert posixpath.normpath(f"/t/{path}") == f"/t/{path}"
        assert path.split("/")[0] not in ("", ".hoodie")


@given(odd_paths, odd_paths | st.text(max_size=20), st.booleans(), st.booleans())
def test_for_any_field_and_value_a_partition_is_inside_the_table(
    name: str, value: str, hive: bool, urlencode: bool
) -> None:
    try:
        config = TableConfig(
            name="t", record_key="id", partition_by=name, hive_style=hive, urlencode=urlencode
        )
        path = partition_path(config, value)
    except TableError:
        return
    assert is_inside(path)
    assert partition_value(config, path) == (value or None)


# --- histories ------------------------------------------------------------------------------------

plain_json = (
    st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9) | st.sampled_from([None, True, [], {}, [["a", 1]], {"a": {"b": [None]}}])
)  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(sorted(KINDS)))
    values = st.lists(plain_json, min_size=12, max_size=12)
    said = dict(zip((*KINDS[kind], "x_more"), draw(values), strict=False))
    return event(draw(st.integers(0, 10**15)) / 8, draw(st.text(max_size=8)), kind, **said)


@given(st.lists(events(), max_size=4), st.data())
def test_a_history_comes_back_and_a_torn_one_up_to_the_tear(
    recorded: list[Event], data: st.DataObject
) -> None:
    out = io.StringIO()
    write(recorded, out)
    text = out.getvalue()
    assert list(read(text.splitlines(keepends=True))) == recorded
    torn = text[: data.draw(st.integers(0, len(text)))]
    whole = sum(line.rstrip("\n") in text.splitlines() for line in torn.splitlines())
    assert list(read(torn.splitlines(keepends=True))) == recorded[:whole]


@pytest.mark.parametrize("kind", [[], {}, None, 7])
def test_an_event_kind_that_is_not_text_is_reported_with_its_line(kind: Any) -> None:
    with pytest.raises(HistoryError, match="line 3 is of an unknown kind"):
        parse(json.dumps({"at_ms": 0, "who": "W1", "kind": kind}), number=3)


@pytest.mark.parametrize("at_ms", ["9" * 400, "NaN", "-Infinity"])
def test_an_impossible_time_is_reported_with_its_line(at_ms: str) -> None:
    with pytest.raises(HistoryError, match="line 3 needs at_ms"):
        parse(f'{{"at_ms":{at_ms},"who":"W1","kind":"note","text":""}}', number=3)


@pytest.mark.parametrize("until_ms", [10**400, math.inf, -math.inf, math.nan, "soon", None])
def test_a_lease_without_a_valid_end_can_be_printed(until_ms: Any) -> None:
    [recorded] = narrate([event(0, "W1", "held", epoch=1, until_ms=until_ms, version="")])
    assert recorded == "+0.000 s  W1 holds the lock, epoch 1, until an unknown time"


hostile_events = st.builds(
    lambda kind, said, who, at_ms: json.dumps({"at_ms": at_ms, "who": who, "kind": kind, **said}),
    st.sampled_from(sorted(KINDS)) | ODD,
    st.dictionaries(st.sampled_from(sorted({f for each in KINDS.values() for f in each})), ODD),
    ODD, ODD,
)  # fmt: skip


@given(st.text(max_size=60) | JSON.map(json.dumps) | hostile_events)
@times(3)
def test_any_line_is_an_event_or_a_history_error(line: str) -> None:
    try:
        found = parse(line, number=3)
    except HistoryError as error:
        assert str(error).startswith("line 3")
    else:
        assert math.isfinite(found.at_ms)
        assert parse(found.to_json()).kind == found.kind


@st.composite
def odd_events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(sorted(KINDS)))
    who = draw(st.sampled_from(["store", "W1", "\x07"]))
    said = {name: draw(ODD) for name in KINDS[kind]}
    return event(draw(st.floats(-1e15, 1e15)), who, kind, **said)


@given(st.lists(odd_events(), max_size=4))
@times(3)
def test_any_history_can_be_narrated_without_terminal_control_sequences(
    recorded: list[Event],
) -> None:
    for sentence in narrate(recorded):
        assert sentence.isprintable()


def test_a_history_with_a_lease_beyond_all_time_is_damaged_not_a_traceback() -> None:
    recorded = [event(0, "W1", "held", epoch=1, until_ms=10**400, version="")]
    verdict = check(recorded)
    assert (verdict.kind, verdict.because.partition(":")[0]) == (
        VerdictKind.UNKNOWN, "the history is damaged",
    )  # fmt: skip


@given(st.lists(odd_events(), max_size=5))
@times(3)
def test_any_history_gets_a_verdict(recorded: list[Event]) -> None:
    verdict = check(recorded)
    assert verdict.because
    assert all(each in recorded for each in verdict.evidence)


HISTORIES = [
    list(read(path.read_text(encoding="utf-8").splitlines()))
    for path in sorted((Path(__file__).parents[1] / "datasets" / "histories").glob("*/*.jsonl"))
]


@given(st.sampled_from(HISTORIES), st.data(), ODD)
def test_a_history_with_one_invalid_field_gets_a_verdict_and_a_narration(
    real: list[Event], data: st.DataObject, odd: Any
) -> None:
    place = data.draw(st.integers(0, len(real) - 1))
    name = data.draw(st.sampled_from(sorted(real[place].data)))
    spoilt = replace(real[place], data={**real[place].data, name: odd})
    recorded = [*real[:place], spoilt, *real[place + 1 :]]
    assert check(recorded).because
    assert all(sentence.isprintable() for sentence in narrate(recorded))


@given(st.text(max_size=400), st.integers(1, 300))
def test_foreign_text_is_short_and_printable(text: str, limit: int) -> None:
    assert plain(text, limit=limit).isprintable()


# --- requests on the wire -------------------------------------------------------------------------

targets = st.text(st.characters(codec="latin-1"), max_size=40) | st.builds(
    "".join,
    st.lists(st.sampled_from(["/", "storage/v1", "upload", "/b/", "lake", "/o", "/o/", "?", "&",
                              "name=", "upload_id=", "uploadType=resumable", "comp=list", "%2F",
                              "%ff", "restype=container", "rewriteTo/b/x/o/", "prefix=a"])),
)  # fmt: skip
headers = st.dictionaries(
    st.sampled_from(["host", "x-ms-version", "content-range", "user-agent", "content-length"]),
    st.text(st.characters(codec="latin-1"), max_size=20), max_size=3,
)  # fmt: skip


methods = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "X", ""])
payloads = st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode())


@given(methods, targets, headers, payloads)
@times(3)
def test_any_request_that_has_a_head_is_described(
    method: str, target: str, said: Mapping[str, str], payload: bytes
) -> None:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    try:
        head = wire.parse_head("\r\n".join([*lines, "", ""]).encode("latin-1"))
    except wire.WireError:
        return
    found = dialects.describe(head, payload)
    assert isinstance(found, RequestFacts)
    assert found.operation in ("put", "get", "delete", "list", "part", "other")


# --- planted mistakes ----------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.says)
def test_each_planted_mistake_of_shape_is_found_by_its_property(mistake: Mistake) -> None:
    with planted(mistake), pytest.raises((AssertionError, ExceptionGroup, ValueError)):
        globals()[mistake.found_by]()
