"""Conflicts: Hudi's matrix row by row, the three strategies, and what holds for any two writers."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockkit.errors import TableError
from lockkit.stores import ListEntry
from lockkit.table.errors import CommitConflict
from lockkit.table.format.layout import NOWHERE, CommitFiles, FileGroup, Overwritten, WriteStat
from lockkit.table.format.timeline import V6, parse_timeline
from lockkit.table.occ.conflict import (
    BUCKET,
    MATRIX,
    PREFER_WRITER,
    SIMPLE,
    STRATEGIES,
    Conflict,
    ConflictStrategy,
    Groups,
    OwnChanges,
    Pending,
    Winner,
    bucket_of,
    find_conflict,
    kind_of,
    strategy_of,
    winners,
)

EARLIER, ME, LATER = "20250101000000001", "20250101000000002", "20250101000000003"
F: FileGroup = ("region=EU", "00000003-f-0")
SAME_BUCKET: FileGroup = ("region=EU", "00000003-g-0")
OTHER: FileGroup = ("region=EU", "00000004-h-0")
ELSEWHERE: FileGroup = ("region=US", "00000003-f-0")


def only(*groups: FileGroup) -> Groups:
    return frozenset(groups)


def mine(
    operation: str = "UPSERT", *, writes: Groups = only(F), replaced: Groups = only()
) -> OwnChanges:
    return OwnChanges(ME, frozenset(), writes, replaced, operation)


ABORT, OK = "abort", "ok"
INGEST, CLUSTER, OVERWRITE, COMPACT, LOG = (
    mine("UPSERT"),
    mine("CLUSTER", writes=only(OTHER), replaced=only(F)),
    mine("INSERT_OVERWRITE", writes=only(OTHER), replaced=only(F)),
    mine("COMPACT"),
    mine("LOG_COMPACT"),
)
COMMIT = Winner(EARLIER, "commit", only(F), operation="UPSERT")
DELTA = Winner(EARLIER, "deltacommit", only(F), operation="UPSERT")
CLUSTERED = Winner(LATER, "replacecommit", only(ELSEWHERE), only(F), "CLUSTER")
OVERWROTE = Winner(LATER, "replacecommit", only(ELSEWHERE), only(F), "INSERT_OVERWRITE")
UNNAMED = Winner(LATER, "replacecommit", only(ELSEWHERE), only(F))
COMPACTED_BEFORE = Winner(EARLIER, "commit", only(F), operation="COMPACT")
COMPACTED_AFTER = Winner(LATER, "commit", only(F), operation="COMPACT")
LOGS = Winner(EARLIER, "deltacommit", only(F), operation="LOG_COMPACT")
ROLLED_ME_BACK = Winner(LATER, "rollback", takes_back=frozenset({ME}))
ROLLED_BACK = Winner(LATER, "rollback", only(F), takes_back=frozenset({EARLIER}))
FAR = Winner(LATER, "commit", only(ELSEWHERE), operation="UPSERT")

# Hudi's matrix (SimpleConcurrentFileWritesConflictResolutionStrategy and its two siblings), a row
# for each pair. All but FAR have a file group in common.
# That a winner's instant lies before or after mine matters for compactions alone.
COMPLETED = [
    # me        other              says
    (INGEST,    COMMIT,            ABORT),
    (INGEST,    DELTA,             ABORT),
    (INGEST,    COMPACTED_BEFORE,  OK),
    (INGEST,    COMPACTED_AFTER,   ABORT),
    (INGEST,    LOGS,              ABORT),
    (INGEST,    CLUSTERED,         ABORT),
    (INGEST,    OVERWROTE,         ABORT),
    (INGEST,    UNNAMED,           ABORT),
    (INGEST,    ROLLED_ME_BACK,    ABORT),
    (INGEST,    ROLLED_BACK,       OK),
    (INGEST,    FAR,               OK),
    (OVERWRITE, COMMIT,            ABORT),
    (OVERWRITE, COMPACTED_BEFORE,  OK),
    (OVERWRITE, COMPACTED_AFTER,   ABORT),
    (OVERWRITE, CLUSTERED,         ABORT),
    (OVERWRITE, OVERWROTE,         ABORT),
    (OVERWRITE, ROLLED_ME_BACK,    ABORT),
    (OVERWRITE, FAR,               OK),
    (CLUSTER,   COMMIT,            ABORT),
    (CLUSTER,   DELTA,             ABORT),
    (CLUSTER,   COMPACTED_BEFORE,  OK),
    (CLUSTER,   COMPACTED_AFTER,   ABORT),
    (CLUSTER,   CLUSTERED,         ABORT),
    (CLUSTER,   OVERWROTE,         ABORT),
    (CLUSTER,   ROLLED_ME_BACK,    ABORT),
    (CLUSTER,   FAR,               OK),
    (COMPACT,   COMMIT,            ABORT),
    (COMPACT,   COMPACTED_BEFORE,  OK),
    (COMPACT,   COMPACTED_AFTER,   ABORT),
    (COMPACT,   CLUSTERED,         ABORT),
    (COMPACT,   FAR,               OK),
    (LOG,       COMMIT,            OK),
    (LOG,       DELTA,             OK),
    (LOG,       COMPACTED_BEFORE,  OK),
    (LOG,       COMPACTED_AFTER,   ABORT),
    (LOG,       CLUSTERED,         OK),
    (LOG,       LOGS,              OK),
    (LOG,       ROLLED_ME_BACK,    ABORT),
    (LOG,       FAR,               OK),
]  # fmt: skip

# Plans as recorded on the timeline, and writers that are still at work.
CLUSTERING_BEFORE = Pending(EARLIER, "clustering", only(F))
CLUSTERING_AFTER = Pending(LATER, "clustering", only(F))
REPLACING_BEFORE = Pending(EARLIER, "replacecommit", only(F))
REPLACING_AFTER = Pending(LATER, "replacecommit", only(F))
COMPACTION_BEFORE = Pending(EARLIER, "compaction", only(F))
COMPACTION_AFTER = Pending(LATER, "compaction", only(F))
WRITER = Pending(LATER, "commit", only(F))
WRITER_UNKNOWN = Pending(LATER, "commit", None)
WRITER_FAR = Pending(LATER, "commit", only(ELSEWHERE))
TAKES_ME_BACK = Pending(LATER, "rollback", takes_back=frozenset({ME}))
TAKES_BACK = Pending(LATER, "rollback", only(F), takes_back=frozenset({EARLIER}))
OWN_PLAN = Pending(ME, "clustering", only(F))

PENDING = [
    # me        other               simple  prefer_writer
    (INGEST,    CLUSTERING_BEFORE,  ABORT,  OK),
    (INGEST,    CLUSTERING_AFTER,   ABORT,  OK),
    (INGEST,    REPLACING_BEFORE,   OK,     OK),
    (INGEST,    REPLACING_AFTER,    ABORT,  OK),
    (INGEST,    COMPACTION_BEFORE,  OK,     OK),
    (INGEST,    COMPACTION_AFTER,   ABORT,  OK),
    (INGEST,    WRITER,             OK,     OK),
    (INGEST,    WRITER_UNKNOWN,     OK,     OK),
    (INGEST,    TAKES_ME_BACK,      ABORT,  ABORT),
    (INGEST,    TAKES_BACK,         OK,     OK),
    (OVERWRITE, CLUSTERING_BEFORE,  ABORT,  OK),
    (OVERWRITE, WRITER,             OK,     OK),
    (CLUSTER,   CLUSTERING_BEFORE,  ABORT,  OK),
    (CLUSTER,   OWN_PLAN,           OK,     OK),
    (CLUSTER,   WRITER,             OK,     ABORT),
    (CLUSTER,   WRITER_UNKNOWN,     OK,     ABORT),
    (CLUSTER,   WRITER_FAR,         OK,     OK),
    (CLUSTER,   REPLACING_BEFORE,   OK,     ABORT),
    (CLUSTER,   TAKES_ME_BACK,      ABORT,  ABORT),
    (COMPACT,   WRITER,             OK,     ABORT),
    (COMPACT,   WRITER_UNKNOWN,     OK,     ABORT),
    (COMPACT,   COMPACTION_AFTER,   ABORT,  OK),
    (LOG,       CLUSTERING_BEFORE,  OK,     OK),
    (LOG,       COMPACTION_AFTER,   ABORT,  OK),
    (LOG,       COMPACTION_BEFORE,  OK,     OK),
    (LOG,       WRITER,             OK,     OK),
    (LOG,       TAKES_ME_BACK,      ABORT,  ABORT),
]  # fmt: skip


def named(row: tuple[object, ...]) -> str:
    me, other = row[0], row[1]
    assert isinstance(me, OwnChanges) and isinstance(other, Winner | Pending)
    when = "before" if other.instant < me.instant else "after"
    return f"{me.operation}-{type(other).__name__}-{kind_of(other.action)}-{when}"


@pytest.mark.parametrize(("me", "other", "says"), COMPLETED, ids=map(named, COMPLETED))
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_a_winner_is_judged_as_the_matrix_says(
    me: OwnChanges, other: Winner, says: str, strategy: ConflictStrategy
) -> None:
    found = find_conflict(me, [other], strategy=strategy)
    assert (found is not None) == (says == ABORT), found
    if found:
        assert (found.instant, found.action) == (other.instant, other.action)
        assert found.group == (None if other.action == "rollback" else F)
        assert found.cause and found.cure


@pytest.mark.parametrize(("me", "other", "simple", "prefer"), PENDING, ids=map(named, PENDING))
def test_a_pending_plan_is_judged_as_the_strategy_says(
    me: OwnChanges, other: Pending, simple: str, prefer: str
) -> None:
    for strategy, says in ((SIMPLE, simple), (BUCKET, simple), (PREFER_WRITER, prefer)):
        found = find_conflict(me, [], pending=[other], strategy=strategy)
        assert (found is not None) == (says == ABORT), (strategy.name, found)
        if found:
            assert (found.instant, found.action) == (other.instant, other.action)


def test_every_pair_of_kinds_has_a_row() -> None:
    kinds = {kind_of("replacecommit" if me.replaced else "commit", me.operation)
             for me, *_ in COMPLETED}  # fmt: skip
    assert kinds == set(MATRIX)
    assert {kind_of(other.action, other.operation) for _, other, _ in COMPLETED} == set(
        MATRIX["ingestion"]
    )


# --- what each overlap is called ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("me", "other", "words"),
    [
        (mine(), COMMIT, "also rewrote region=EU/00000003-f-0"),
        (mine(), CLUSTERED, "replaced region=EU/00000003-f-0"),
        (CLUSTER, COMMIT, "wrote a new slice of region=EU/00000003-f-0"),
        (CLUSTER, CLUSTERED, "has already replaced region=EU/00000003-f-0"),
        (INGEST, ROLLED_ME_BACK, f"rolls {ME} back"),
    ],
)
def test_a_conflict_names_the_writer_the_file_group_and_the_remedy(
    me: OwnChanges, other: Winner, words: str
) -> None:
    found = find_conflict(me, [other])
    assert found is not None
    text = str(found.refusal(ME))
    assert text.startswith(f"{other.instant} ({other.action}) {words}; ")
    assert f"{ME} was not committed: {found.cure}" in text


@pytest.mark.parametrize("group", [F, ("", "f-1"), None])
def test_a_conflict_survives_a_trip_between_processes(group: FileGroup | None) -> None:
    error = Conflict(LATER, group, "also rewrote", "begin again", "commit").refusal(ME)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.mine) == (CommitConflict, str(error), ME)
    assert (again.partition, again.file_group) == (group or ("", ""))


def test_a_commits_file_gives_the_writes_and_replacements_that_conflict() -> None:
    stat = WriteStat(partition=F[0], file_id=F[1], path="x", writes=1, size_bytes=1)
    files = CommitFiles(EARLIER, "UPSERT", (stat,), only(OTHER), None, None)
    assert Winner.of(files) == Winner(EARLIER, "commit", only(F), only(OTHER), "UPSERT")
    assert find_conflict(mine(), [files]) is not None
    assert find_conflict(mine(writes=only(OTHER)), [files]) is not None
    assert find_conflict(mine(writes=only(ELSEWHERE)), [files]) is None


# --- overwrites -----------------------------------------------------------------------------------

EU, US = Overwritten(frozenset({"region=EU"})), Overwritten(frozenset({"region=US"}))
TABLE = Overwritten(whole_table=True)
NEW, NEW_ELSEWHERE = only(("region=EU", "00000009-n-0")), only(("region=US", "00000009-n-0"))
TOGETHER = [
    # a commit: action, writes, what it overwrites; another; do they go together?
    (("commit", NEW, NOWHERE), ("replacecommit", only(OTHER), EU), False),
    (("commit", NEW, NOWHERE), ("replacecommit", only(OTHER), TABLE), False),
    (("commit", NEW, NOWHERE), ("replacecommit", only(), EU), False),
    (("commit", NEW_ELSEWHERE, NOWHERE), ("replacecommit", only(OTHER), EU), True),
    (("commit", NEW_ELSEWHERE, NOWHERE), ("replacecommit", only(OTHER), TABLE), False),
    (("commit", NEW, NOWHERE), ("replacecommit", only(OTHER), NOWHERE), True),  # a clustering
    (("replacecommit", NEW, EU), ("replacecommit", only(OTHER), EU), False),
    (("replacecommit", only(), EU), ("replacecommit", only(), EU), False),
    (("replacecommit", only(), TABLE), ("replacecommit", only(), TABLE), False),
    (("replacecommit", only(), TABLE), ("replacecommit", only(), US), False),
    (("replacecommit", NEW, EU), ("replacecommit", NEW_ELSEWHERE, US), True),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
@pytest.mark.parametrize(("one", "two", "together"), TOGETHER)
def test_an_overwrite_conflicts_with_every_write_in_its_partition(
    one: tuple[str, Groups, Overwritten], two: tuple[str, Groups, Overwritten],
    together: bool, strategy: ConflictStrategy,
) -> None:  # fmt: skip
    for (_, writes, where), (action, others, theirs) in ((one, two), (two, one)):
        me = OwnChanges(ME, frozenset(), writes, operation="INSERT_OVERWRITE", overwrites=where)
        for instant in (EARLIER, LATER):
            won = Winner(instant, action, others, overwrites=theirs)
            found = find_conflict(me, [won], strategy=strategy)
            assert (found is None) == together, found
            if found is not None:
                assert found.cure and "overw" in str(found.refusal(ME))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("INSERT_OVERWRITE", EU), ("DELETE_PARTITION", EU), ("INSERT_OVERWRITE_TABLE", TABLE),
     ("CLUSTER", NOWHERE), ("UPSERT", NOWHERE), ("UNKNOWN", NOWHERE)],
)  # fmt: skip
def test_a_commits_file_lists_what_it_overwrote(operation: str, expected: Overwritten) -> None:
    stat = WriteStat(partition=F[0], file_id=F[1], path="x", writes=1, size_bytes=1)
    for stats, replaced in (((stat,), only()), ((), only(OTHER))):
        files = CommitFiles(EARLIER, operation, stats, replaced, None, None)
        assert Winner.of(files, "replacecommit").overwrites == expected


# --- strategies -----------------------------------------------------------------------------------


def test_two_file_groups_of_one_bucket_conflict_only_by_bucket() -> None:
    other = Winner(EARLIER, "commit", only(SAME_BUCKET))
    assert find_conflict(mine(), [other], strategy=SIMPLE) is None
    found = find_conflict(mine(), [other], strategy=BUCKET)
    assert found is not None and found.group == F and "bucket" in found.cause
    far = [Winner(EARLIER, "commit", only(each)) for each in (OTHER, ELSEWHERE)]
    assert find_conflict(mine(), far, strategy=BUCKET) is None


def test_a_file_id_without_eight_digits_belongs_to_no_bucket() -> None:
    for file_id in ("f-1", "1234567-a", "0000000a-b", "٠٠٠٠٠٠٠٣-x"):
        assert bucket_of(("p", file_id)) == ("p", file_id)
    assert bucket_of(("p", "00000012-abc-0")) == ("p", "00000012")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_a_strategy_is_named_by_us_or_by_hudis_class(strategy: ConflictStrategy) -> None:
    assert strategy_of(strategy.name) is strategy
    assert strategy_of(strategy.hudi) is strategy
    assert strategy_of(f"org.apache.hudi.client.transaction.{strategy.hudi}") is strategy


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(TableError, match=r"IngestionPrimaryWriter.*prefer_writer.*bucket"):
        strategy_of("org.apache.hudi.IngestionPrimaryWriterBasedConflictResolutionStrategy")


# --- who has to be checked ------------------------------------------------------------------------


def test_instants_pending_at_the_writers_begin_are_checked_even_below_the_horizon() -> None:
    instants = [f"2025010100000000{n}" for n in range(1, 6)]
    now = parse_timeline([ListEntry(V6.completed(each), 1) for each in instants], V6)
    me = OwnChanges(
        instants[4], frozenset({instants[3]}), only(F),
        pending=frozenset({instants[0]}), horizon=instants[2],
    )  # fmt: skip
    assert winners(me, now) == [instants[0]]
    assert winners(replace(me, pending=frozenset()), now) == []
    assert winners(replace(me, horizon="", base=frozenset()), now) == instants[:4]


# --- what holds for any two -----------------------------------------------------------------------

groups = st.frozensets(
    st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["0", "00000001-x", "00000001-y"])),
    max_size=4,
)
strategies = st.sampled_from(STRATEGIES)
operations = st.sampled_from(["INSERT", "UPSERT", "DELETE", "CLUSTER", "INSERT_OVERWRITE"])


@given(groups, groups, groups, groups, operations, operations, strategies)
def test_of_two_that_overlap_neither_may_follow_the_other(
    writes: Groups, replaced: Groups, others: Groups, taken: Groups,
    operation: str, by: str, strategy: ConflictStrategy,
) -> None:  # fmt: skip
    def after(first: tuple[Groups, Groups, str], then: tuple[Groups, Groups, str]) -> bool:
        action = "replacecommit" if first[1] else "commit"
        won = Winner(EARLIER, action, first[0], first[1], first[2])
        me = OwnChanges(ME, frozenset(), then[0], then[1], then[2])
        return find_conflict(me, [won], strategy=strategy) is not None

    one, two = (writes, replaced, operation), (others, taken, by)
    unit = strategy.unit or (lambda each: each)
    overlap = {unit(g) for g in writes | replaced} & {unit(g) for g in others | taken}
    assert after(one, two) == after(two, one) == bool(overlap)


@given(groups, st.lists(groups, max_size=5), st.randoms(use_true_random=False), strategies)
def test_the_order_of_winners_and_plans_does_not_matter(
    writes: Groups, each_wrote: list[Groups], random: object, strategy: ConflictStrategy
) -> None:
    me = mine(writes=writes)
    won = [Winner(f"2025010100000001{n}", "commit", wrote) for n, wrote in enumerate(each_wrote)]
    plans = [Pending(f"2025010100000002{n}", "clustering", w) for n, w in enumerate(each_wrote)]
    first = find_conflict(me, won, pending=plans, strategy=strategy)
    random.shuffle(won)  # type: ignore[attr-defined]
    random.shuffle(plans)  # type: ignore[attr-defined]
    assert find_conflict(me, won, pending=plans, strategy=strategy) == first


@given(groups, groups, st.sampled_from(sorted(MATRIX)), strategies)
def test_commits_that_do_not_overlap_never_conflict(
    writes: Groups, others: Groups, kind: str, strategy: ConflictStrategy
) -> None:
    unit = strategy.unit or (lambda each: each)
    taken = {unit(each) for each in writes}
    far = frozenset(each for each in others if unit(each) not in taken)
    action = {"overwrite": "replacecommit", "log compaction": "logcompaction"}.get(kind, kind)
    won = [Winner(each, action, far, far) for each in (EARLIER, LATER)]
    plans = [Pending(each, action, far) for each in (EARLIER, LATER)]
    for operation in ("UPSERT", "CLUSTER", "COMPACT", "LOG_COMPACT", "INSERT_OVERWRITE"):
        me = mine(operation, writes=writes)
        assert find_conflict(me, won, pending=plans, strategy=strategy) is None
