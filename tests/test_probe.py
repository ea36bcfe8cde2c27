"""The probe passes sound stores and convicts each kind of unsound (real ones: test_matrix)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError
from lockkit.lab.probe import Check, CheckOutcome, Suitability, probe, quick_probe
from lockkit.lab.probe.nodes import across
from lockkit.lab.probe.parts import joined, resumable, summary
from lockkit.lab.probe.report import RACES, report
from lockkit.lab.probe.serial import conditions, times
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.runtime import run
from lockkit.stores import Listing, StoreOptions, open_store
from lockkit.stores.memory import MemoryStore

SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


# --- sound stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_the_stores_of_this_package_are_judged_full(kind: str, tmp_path: Path) -> None:
    url = "memory://probed/x" if kind == "memory" else f"file://{tmp_path}/table"
    report = probe(open_store(url), rounds=20, racers=8)
    assert report.verdict is Suitability.FULL and report.safe, report.conclusion
    assert report.check("clocks").finding is CheckOutcome.PASSED
    assert report.check("content-versions").evidence == {"content_versions": False}


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_the_embedded_server_is_judged_full_in_every_dialect(kind: str) -> None:
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        store = open_store(f"{SCHEMES[kind]}://bucket/table", endpoint=getattr(emulator, kind))
        report = probe(store, rounds=10, racers=6)
        assert report.verdict is Suitability.FULL, report.conclusion
        assert report.check("conditional-read").finding is CheckOutcome.PASSED
        assert report.check("delete").finding is CheckOutcome.PASSED
        assert report.check("clocks").finding is CheckOutcome.PASSED
        is_hash = report.check("content-versions").evidence["content_versions"]
        assert is_hash is store.capabilities.content_versions
        assert report.refusals, "the codes that it refused with are part of the record"
        assert store.list("") == []


def test_the_quick_probe_takes_six_requests_at_most() -> None:
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        store = open_store("s3://bucket/table", endpoint=emulator.s3)
        report = quick_probe(store)
        assert report.verdict is Suitability.UNTESTED and not report.safe
        assert "no check failed, but atomicity was not tested" in report.conclusion
        assert len(emulator.requests()) <= 6
        assert store.list("") == []


def test_a_report_is_json_with_one_sentence_of_conclusion() -> None:
    report = probe(open_store("memory://json/x"), rounds=2, racers=2)
    said = json.loads(json.dumps(report.to_json()))
    assert said["verdict"] == "full" and said["safe"] is True
    assert said["conclusion"].startswith("memory://json/x: no violation in 4 races of 2 writers; ")
    assert said["conclusion"].count(".") == 1
    assert all(check["because"] and check["finding"] for check in said["checks"])


def test_nothing_is_left_behind_and_the_report_confirms_it(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    assert isinstance(store.put("mine", b"1", IfAbsent()), Applied)
    report = probe(store, rounds=3, racers=3)
    assert report.check("clean-up").because == "nothing was left behind"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_versions_that_a_bucket_keeps_by_itself_are_reported() -> None:
    report = probe(open_store("memory://kept/x"), rounds=1, racers=2)
    assert "keeps their old versions" in report.check("clean-up").because


# --- unsound stores, each with one defect ---------------------------------------------------------


class Defective(MemoryStore):
    """The reference store, to be given one defect by a subclass."""

    def __init__(self, url: str = "", options: StoreOptions | None = None) -> None:
        super().__init__(url or f"memory://{type(self).__name__}-{id(self)}", StoreOptions())

    def over(self, key: str) -> Condition:
        """The condition that holds whatever is there: a write without any."""
        match self.get(key):
            case Found(_, version):
                return IfVersion(version)
            case _:
                return IfAbsent()


class IgnoresAll(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        return super().put(key, body, self.over(key))


class CreatesOnly(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        if isinstance(condition, IfVersion):
            condition = self.over(key)
        return super().put(key, body, condition)


class RefusesTheCurrentVersion(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        if isinstance(condition, IfVersion):  # radosgw 16 and a quoted ETag
            return PreconditionFailed()
        return super().put(key, body, condition)


class ChecksThenActs(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        now = self.get(key)
        match condition, now:
            case (IfAbsent(), Missing()):
                pass
            case (IfVersion(version), Found(_, found)) if found == version:
                pass
            case _:
                return PreconditionFailed()
        time.sleep(0.002)  # the window that no lock covers
        while not isinstance(answer := super().put(key, body, self.over(key)), Applied):
            pass
        return answer


class SwapsInTwoSteps(ChecksThenActs):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        if isinstance(condition, IfVersion):
            return super().put(key, body, condition)
        return MemoryStore.put(self, key, body, condition)


class AcknowledgesWithoutWriting(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        match condition, self.get(key):
            case (IfVersion(version), Found(_, found)) if version == found and "/race/" in key:
                super().put(key, b"somebody else's", condition)
                return Applied("so they say")
        return super().put(key, body, condition)


class ReadsStale(Defective):
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        if unless is not None and isinstance(answer := super().get(key), Found):
            return Found(b"as it was", unless, answer.modified_ms, answer.date_ms)
        return super().get(key, unless=unless, limit=limit)


class Refuses(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        raise StoreError("it answered 501 NotImplemented")


class RefusesWhatItApplied(Defective):
    """As behind a proxy that sends a request again."""

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        answer = super().put(key, body, condition)
        return PreconditionFailed() if "/race/" in key or "/clocks" in key else answer


class NeverAnswers(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        return Unknown("no answer")


UNSOUND: list[tuple[type[Defective], Suitability, str]] = [
    (
        IgnoresAll,
        Suitability.IGNORES_CONDITIONS,
        "a second create-if-absent of one key was applied",
    ),
    (CreatesOnly, Suitability.CREATE_ONLY, "a write over a version that is gone was applied"),
    (RefusesTheCurrentVersion, Suitability.CREATE_ONLY, "the current version is refused"),
    (ChecksThenActs, Suitability.NOT_ATOMIC, "more than one winner"),
    (SwapsInTwoSteps, Suitability.NOT_ATOMIC, "more than one winner"),
    (AcknowledgesWithoutWriting, Suitability.NOT_ATOMIC, "the winner's object was not there"),
    (ReadsStale, Suitability.NOT_ATOMIC, "a read did not see the write before it"),
    (Refuses, Suitability.REFUSED, "501 NotImplemented"),
    (RefusesWhatItApplied, Suitability.NOT_ATOMIC, "a refused write was there"),
    (NeverAnswers, Suitability.UNTESTED, "could not be written"),
]


@pytest.mark.parametrize(("defect", "verdict", "because"), UNSOUND)
def test_each_defect_is_called_by_its_name(
    defect: type[Defective], verdict: Suitability, because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = defect()
    # Each racer opens the place anew; the same class must open it.
    monkeypatch.setattr("lockkit.lab.probe.race.reopen", lambda other: type(other)(other.url))
    report = probe(store, rounds=10, racers=6)
    assert report.verdict is verdict, report.conclusion
    assert because in report.conclusion and not report.safe
    judged = "could not be tested" if report.untested else "not safe to lock on"
    assert judged in report.conclusion
    assert MemoryStore.list(store, "") == [], "also what it refuses is tidied up"


def test_a_place_that_cannot_even_be_read_gets_no_verdict() -> None:
    class NoBucket(Defective):
        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            raise StoreError("there is no such bucket")

    for ask in (probe, quick_probe):
        with pytest.raises(StoreError, match="no such bucket"):
            ask(NoBucket())


def test_a_place_that_does_not_answer_gets_no_verdict() -> None:
    store = open_store("s3://bucket/x", endpoint="http://127.0.0.1:9", timeout_s=1)
    for ask in (probe, quick_probe):
        with pytest.raises(NoAnswer, match=r"could not be reached: no answer .*connection refused"):
            ask(store)


def test_reads_that_get_no_answer_prove_nothing_about_what_they_would_have_seen() -> None:
    class Unreadable(Defective):
        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            return Unknown("the SDK failed") if key.endswith("/read") else super().get(key)

    found = {each.name: each.finding for each in probe(Unreadable(), rounds=1, racers=2).checks}
    assert found["read"] is found["conditional-read"] is CheckOutcome.UNDECIDED
    assert CheckOutcome.FAILED not in found.values()


@pytest.mark.parametrize(("moves", "finding"), [(0, CheckOutcome.NOTED), (1, CheckOutcome.PASSED)])
def test_a_clock_that_stands_still_ends_no_lease(moves: int, finding: CheckOutcome) -> None:
    class OfThePast(Defective):
        reads = 0

        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            self.reads += 1
            found = super().get(key, unless=unless, limit=limit)
            if isinstance(found, Found):
                found = replace(found, modified_ms=0, date_ms=self.reads * moves)
            return found

    (check,) = run(times("clock"), OfThePast(), Clock())
    assert check.finding is finding, check.because


@pytest.mark.parametrize("defect", [IgnoresAll, CreatesOnly, RefusesTheCurrentVersion, Refuses])
def test_the_quick_probe_sees_what_needs_no_race(defect: type[Defective]) -> None:
    report = quick_probe(defect())
    assert report.verdict not in (Suitability.FULL, Suitability.UNTESTED), report.conclusion


def test_a_throttled_request_is_sent_again_and_never_counts_as_refused() -> None:
    class Throttles(Defective):
        calls = 0

        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            self.calls += 1
            if self.calls == 2:
                return Throttled(0.0)
            return super().put(key, body, condition)

    report = quick_probe(Throttles())
    assert "no check failed" in report.conclusion


def test_nodes_that_are_atomic_only_each_for_itself_are_convicted() -> None:
    here, there = open_store("memory://node-1/x"), open_store("memory://node-2/x")
    report = probe(here, also=[there], rounds=3, racers=4)
    assert report.verdict is Suitability.NOT_ATOMIC, report.conclusion


def test_the_spaces_profile_is_refused_for_it_ignores_conditions() -> None:
    from lockkit.lab.server import Emulator

    with Emulator(profile="spaces") as emulator:
        store = open_store("s3://bucket/table", endpoint=emulator.s3)
        for report in (quick_probe(store), probe(store, rounds=2, racers=2)):
            assert report.verdict is Suitability.IGNORES_CONDITIONS, report.conclusion


# --- what was not tested is not called safe -------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"rounds": 0}, "rounds is the number of races of each kind, from 1 to 100000; not 0"),
        ({"rounds": -5}, "not -5"),
        ({"rounds": 10**9}, "not 1000000000"),
        ({"racers": 1}, "racers is the number of writers in each race, from 2 to 256; not 1"),
        ({"racers": 10_000}, "not 10000"),
    ],
)
def test_numbers_that_test_nothing_or_too_much_are_refused(
    numbers: dict[str, int], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        probe(open_store("memory://numbers/x"), **numbers)


def test_races_without_a_winner_are_not_counted() -> None:
    class Throttles(Defective):
        """Every writer of a race is throttled."""

        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            return Throttled(0.0) if "/race/" in key else super().put(key, body, condition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockkit.lab.probe.race.reopen", lambda other: type(other)(other.url))
        report = probe(Throttles(), rounds=2, racers=2)
    assert report.verdict is Suitability.UNTESTED and not report.safe, report.conclusion
    assert "could not be tested" in report.conclusion


def test_a_violation_counts_although_a_later_request_is_refused() -> None:
    class IgnoresThenRefuses(IgnoresAll):
        calls = 0

        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            self.calls += 1
            if self.calls > 2:
                raise StoreError("it answered 403 AccessDenied")
            return super().put(key, body, condition)

    assert not probe(IgnoresThenRefuses(), rounds=2, racers=2).safe


def test_a_refused_conditional_delete_is_noted_and_fails_nothing() -> None:
    class RefusesConditionalDeletes(Defective):
        def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
            if condition is not None:  # LocalStack
                raise StoreError("it answered 501 NotImplemented")
            return super().delete(key, condition)

    report = probe(RefusesConditionalDeletes(), rounds=2, racers=2)
    (noted,) = (each for each in report.checks if each.name == "delete")
    assert noted.finding is CheckOutcome.NOTED and "no lock here relies on it" in noted.because
    assert "501" in noted.because and report.safe


def test_the_quoted_etags_of_ceph_are_named() -> None:
    from lockkit.lab.server import Emulator

    with Emulator(profile="rgw-quoted") as emulator:
        report = probe(open_store("s3://b/x", endpoint=emulator.s3), rounds=2, racers=2)
    assert report.verdict is Suitability.CREATE_ONLY
    assert "Ceph RGW" in report.conclusion and "quoted ETag" in report.conclusion


# --- several endpoints, and objects that are joined from parts ------------------------------------


class ReadsMissing(Defective):
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        return Missing()


class ListsNothing(Defective):
    def list(self, prefix: str, after: str = "") -> Listing:
        return Listing([])


class AnswersStale304(Defective):
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        return super().get(key, limit=limit) if unless is None else NotModified(None)


@pytest.mark.parametrize(
    ("second", "because"),
    [
        (AnswersStale304, "a version that another endpoint has replaced was unchanged (304)"),
        (ReadsMissing, "a read did not see the write before it at another endpoint"),
        (IgnoresAll, "an object that another endpoint had created was created again"),
        (RefusesTheCurrentVersion, "a version of another endpoint could not be replaced"),
        (ListsNothing, "a listing did not show the writes of two endpoints"),
        (MemoryStore, ""),
    ],
)
def test_each_endpoint_must_see_refuse_and_replace_what_another_wrote(
    second: type[MemoryStore], because: str
) -> None:
    url = f"memory://across-{second.__name__}"
    ways = (MemoryStore(url, StoreOptions()), second(url, StoreOptions()))
    check = across(ways, "place", 4, Clock())
    assert check.finding is (CheckOutcome.FAILED if because else CheckOutcome.PASSED)
    assert because in check.because
    assert because or check.evidence["unchanged"] == check.evidence["rounds"], "MemoryStore: 304"
    checks = [Check("create", CheckOutcome.PASSED, ""), check]
    verdict = report("memory://x", checks, {}).verdict
    assert verdict is (Suitability.NOT_ATOMIC if because else Suitability.UNTESTED)


class Unhurried(Clock):
    """Sleeps not at all."""

    def sleep(self, seconds: float) -> None: ...


def _open(answer: Throttled | Unknown, *, reads: bool, times: int) -> type[Defective]:
    """A node that answers so to reads, or to writes over a version, a number of times."""

    class Open(Defective):
        left = times

        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            if reads and "/across/" in key and self.left:
                self.left -= 1
                return answer
            return super().get(key, unless=unless, limit=limit)

        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            if not reads and "/across/" in key and isinstance(condition, IfVersion) and self.left:
                self.left -= 1
                return answer
            return super().put(key, body, condition)

    return Open


@pytest.mark.parametrize(
    ("answer", "reads", "times", "finding"),
    [
        (Throttled(), True, 1, CheckOutcome.PASSED),
        (Unknown("500"), True, 1, CheckOutcome.PASSED),
        (Throttled(), False, 1, CheckOutcome.PASSED),
        (Throttled(), True, 1000, CheckOutcome.UNDECIDED),
        (Throttled(), False, 1000, CheckOutcome.UNDECIDED),
        (Unknown("500"), False, 1, CheckOutcome.UNDECIDED),
    ],
)
def test_an_endpoint_that_throttles_or_fails_convicts_no_store(
    answer: Throttled | Unknown, reads: bool, times: int, finding: CheckOutcome
) -> None:
    url, clock = f"memory://open-{reads}-{times}-{answer}", Unhurried()
    ways = (MemoryStore(url, StoreOptions()), _open(answer, reads=reads, times=times)(url))
    check = across(ways, "place", 4, clock)
    assert check.finding is finding
    raced = {"rounds": 9, "no_winner": 0, "clients": 3}
    races = [Check(name, CheckOutcome.PASSED, "", raced) for name in RACES]
    needed = [Check(name, CheckOutcome.PASSED, "") for name in ("create", "compare-and-set")]
    found = report("memory://x", [*needed, *races, check], {})
    decided = finding is CheckOutcome.PASSED
    assert found.verdict is (Suitability.FULL if decided else Suitability.UNTESTED)
    assert decided or ("an endpoint did not answer" in found.conclusion and found.untested)


@pytest.mark.parametrize(
    ("defect", "finding", "create_only"),
    [
        (IgnoresAll, CheckOutcome.NOTED, False),
        (CreatesOnly, CheckOutcome.NOTED, True),
        (NeverAnswers, CheckOutcome.UNDECIDED, None),
        (MemoryStore, CheckOutcome.PASSED, None),
    ],
)
def test_a_joined_object_that_ignores_its_condition_is_noted_and_changes_no_verdict(
    defect: type[MemoryStore], finding: CheckOutcome, create_only: bool | None
) -> None:
    store = defect("memory://joined", StoreOptions())
    check = summary(run(conditions(defect.__name__), store, Clock()))
    assert (check.name, check.finding) == ("multipart", finding)
    assert check.evidence.get("create_only") is create_only


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_every_joined_write_carries_its_condition_in_the_request_that_joins(kind: str) -> None:
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        store = joined(open_store(f"{SCHEMES[kind]}://bucket/t", endpoint=getattr(emulator, kind)))
        assert store is not None
        first = store.put("key", b"one", IfAbsent())
        assert isinstance(first, Applied)
        assert store.put("key", b"two", IfAbsent()) == PreconditionFailed()
        second = store.put("key", b"two", IfVersion(first.version))
        assert isinstance(second, Applied)
        assert store.put("key", b"three", IfVersion(first.version)) == PreconditionFailed()
        match store.get("key"):
            case Found(body, version):
                assert (body, version) == (b"two", second.version)
        conditional = [each for each in emulator.requests() if each["condition"]]
        assert len(conditional) >= 4 and len(emulator.requests()) > 2 * 4
    assert joined(open_store("memory://none")) is None


def test_a_resumable_upload_must_fail_if_its_condition_no_longer_holds_at_its_end() -> None:
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        store = open_store("gs://bucket/t", endpoint=emulator.gcs)
        assert resumable(store, "key").finding is CheckOutcome.PASSED
        assert isinstance(found := store.get("key"), Found) and found.body == b"another"
