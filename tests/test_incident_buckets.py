"""Each pattern on a real bucket: made by real clients over HTTP, judged by the commands.

A server keeps the objects and their versions. Its clock is set back while the past is made, so that
the bucket's own times are old. What a person did by hand is done with the provider's SDK.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pyarrow as pa
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pages import section
from test_incident_files import debugging

from lockkit import Lock, open_store
from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.incident.audit import AUDIT
from lockkit.lab.incident.patterns import UNJUDGED, Pattern
from lockkit.lab.server import Emulator
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Found
from lockkit.protocol.record import Record, encode
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import begin
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.handle import Table
from lockkit.table.occ.fence import FENCE_KEY

SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
HOUR_S = 3_600.0


@dataclass
class Bucket:
    """A bucket that keeps versions, the table in it, and the clock of its server."""

    kind: str
    server: Emulator
    clock: Clock

    @property
    def endpoint(self) -> str:
        return str(getattr(self.server, self.kind))

    @property
    def url(self) -> str:
        return f"{SCHEMES[self.kind]}://lake/orders"

    def ago(self, seconds: float) -> None:
        """From here on the server's clock, and so the bucket's times, are so far in the past."""
        self.clock.offset_ms = -round(seconds * 1000)

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def lock(self, **options: Any) -> Lock:
        """A client on another host, with the server's clock."""
        return Lock(self.url, endpoint=self.endpoint, clock=self.clock, client="etl", **options)

    def store(self) -> Store:
        return open_store(self.url, endpoint=self.endpoint)

    def table(self, version: int = 6, **options: str) -> Table:
        shape = {"record_key": "id", "version": version, "endpoint": self.endpoint}
        return Table.create(self.url, clock=self.clock, options=options, **shape)  # type: ignore[arg-type]

    def body(self, key: str = LOCK_KEY) -> bytes:
        with closing(self.store()) as store:
            found = store.get(key)
        assert isinstance(found, Found)
        return found.body

    def by_hand(self, body: bytes | None, key: str = LOCK_KEY) -> None:
        """A person writes or deletes an object, without a condition, with the provider's SDK."""
        name = f"orders/{key}"
        if self.kind == "s3":
            client = boto3.client(
                "s3", endpoint_url=self.endpoint, region_name="us-east-1",
                aws_access_key_id="a", aws_secret_access_key="b",
            )  # fmt: skip
            at = {"Bucket": "lake", "Key": name}
            client.delete_object(**at) if body is None else client.put_object(**at, Body=body)
        elif self.kind == "gcs":
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import storage

            options = {"api_endpoint": self.endpoint}
            gcs = storage.Client("p", credentials=AnonymousCredentials(), client_options=options)
            blob = gcs.bucket("lake").blob(name)
            blob.delete() if body is None else blob.upload_from_string(body)
        else:
            from azure.storage.blob import BlobServiceClient

            with closing(self.store()) as store:
                at = store.server  # with the account's name
            account = BlobServiceClient(at, credential=None)
            blob = account.get_blob_client("lake", name)
            blob.delete_blob() if body is None else blob.upload_blob(body, overwrite=True)


@pytest.fixture(params=SCHEMES)
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anybody")
    with versioned(request.param) as made:
        yield made


@contextmanager
def versioned(kind: str, profile: str = "aws") -> Iterator[Bucket]:
    clock = Clock()
    with Emulator(clock=clock, profile=profile) as server:
        on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        urlopen(Request(f"{server.s3}/lake", method="PUT")).close()
        urlopen(Request(f"{server.s3}/lake?versioning", data=on, method="PUT")).close()
        yield Bucket(kind, server, clock)


# --- situations -----------------------------------------------------------------------------------


def rows() -> pa.Table:
    return pa.table({"id": ["a"]})


def hold(bucket: Bucket, *, ttl_s: float, ago_s: float) -> None:
    """A client took the lock so long ago, and sent nothing more."""
    bucket.ago(ago_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "etl-3")
        lock = bucket.lock(ttl_s=ttl_s)
    assert lock.acquire(timeout=5)
    lock.close()
    bucket.ago(0)


def of_hudi(bucket: Bucket, left_s: float, **more: Any) -> bytes:
    """A record as Hudi writes it, without blanks."""
    until_ms = bucket.now_ms() + round(left_s * 1000)
    fields = {"expired": False, "validUntil": until_ms, "owner": "hudi-1", **more}
    return json.dumps(fields, separators=(",", ":")).encode()


def died(bucket: Bucket) -> None:
    """a client took the lock for 60 s, and has written nothing for 400 s"""
    hold(bucket, ttl_s=60, ago_s=400)


def silent(bucket: Bucket) -> None:
    """a client took the lock for 300 s, and has not renewed it for 200 s"""
    hold(bucket, ttl_s=300, ago_s=200)


def in_time(bucket: Bucket) -> None:
    """a client took the lock for 300 s, 20 s ago"""
    hold(bucket, ttl_s=300, ago_s=20)


def released(bucket: Bucket) -> None:
    """the last holder released it"""
    bucket.ago(400)
    with bucket.lock(ttl_s=60):
        pass
    bucket.ago(0)


def no_record(bucket: Bucket) -> None:
    """somebody uploaded a page of HTML in place of the lock"""
    released(bucket)
    bucket.by_hand(b"<html>")


def held_by_hudi(bucket: Bucket) -> None:
    """Hudi holds it: three fields, no epoch"""
    bucket.by_hand(of_hudi(bucket, 290))


def edited(bucket: Bucket) -> None:
    """somebody set `expired` in a held lock, and saved it with an editor"""
    in_time(bucket)
    bucket.by_hand(json.dumps(json.loads(bucket.body()) | {"expired": True}, indent=2).encode())


def with_a_new_field(bucket: Bucket) -> None:
    """a later Hudi wrote a field that we do not know"""
    bucket.by_hand(of_hudi(bucket, 290, host="etl-3"))


def deleted(bucket: Bucket) -> None:
    """somebody deleted the lock, and the next client took it with epoch 1"""
    bucket.ago(100)
    for _ in range(2):
        with bucket.lock(ttl_s=60):
            pass
    bucket.by_hand(None)
    bucket.ago(20)
    with bucket.lock(ttl_s=60):
        pass
    bucket.ago(0)


def broken_by_command(bucket: Bucket) -> None:
    """the lock of a dead client was broken with `lockkit lock break`"""
    died(bucket)
    at = ["--endpoint", bucket.endpoint, "--watch-s", "0"]
    version = _version(bucket)
    assert main(["lock", "break", bucket.url, *at, "--version", version]) == 0


def _version(bucket: Bucket) -> str:
    with closing(bucket.store()) as store:
        found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    return found.version


def behind(bucket: Bucket) -> None:
    """a Hudi client whose clock is 6 minutes behind took it for 5 minutes"""
    bucket.by_hand(of_hudi(bucket, -60))


def released_late(bucket: Bucket) -> None:
    """Hudi released it after its lease had ended"""
    bucket.by_hand(of_hudi(bucket, -60, expired=True))


def audited(bucket: Bucket, gap_ms: int) -> None:
    """Two Hudi clients, one after the other; each wrote its audit file."""
    start_ms = bucket.now_ms() - 600_000
    ended_ms = start_ms + 60_000
    for owner, began_ms, until_ms in (
        ("A", start_ms, ended_ms), ("B", ended_ms + gap_ms, ended_ms + gap_ms + 60_000)
    ):  # fmt: skip
        lines = [
            json.dumps({
                "ownerId": owner, "transactionStartTime": began_ms, "timestamp": at_ms,
                "state": state, "lockExpiration": began_ms + 300_000, "lockHeld": True,
            }) for state, at_ms in (("START", began_ms), ("END", until_ms))
        ]  # fmt: skip
        bucket.by_hand("\n".join(lines).encode(), f"{AUDIT}{began_ms}_{owner}.jsonl")


def overlapping(bucket: Bucket) -> None:
    """Hudi's audit files show two holders at once for 20 s"""
    audited(bucket, -20_000)


def one_after_the_other(bucket: Bucket) -> None:
    """Hudi's audit files overlap by 0.1 s, which two clocks explain"""
    audited(bucket, -100)


def pending(bucket: Bucket, *, ago_s: float, later: bool = True) -> None:
    """A writer began an instant; another one committed after it."""
    bucket.table().close()
    bucket.ago(ago_s)
    with closing(bucket.store()) as store:
        run(begin(), store, bucket.clock)
    bucket.ago(0)
    if later:
        services = {"hoodie.table.services.enabled": "false"}
        with Table(bucket.url, endpoint=bucket.endpoint, options=services) as table:
            table.append(rows())


def dead_instant(bucket: Bucket) -> None:
    """a writer of a table of version 6 died an hour ago, and others committed after it"""
    pending(bucket, ago_s=HOUR_S)


def writer_at_work(bucket: Bucket) -> None:
    """a writer of a table of version 6 began 5 s ago, and others committed after it"""
    pending(bucket, ago_s=5)


def nothing_after_it(bucket: Bucket) -> None:
    """a writer died an hour ago, and nobody committed after it"""
    pending(bucket, ago_s=HOUR_S, later=False)


def decided(bucket: Bucket, *, ago_s: float) -> None:
    """A writer ended between its write of the fence and its completed file."""
    bucket.ago(ago_s)
    with bucket.table() as table:
        instant = table.append(rows()).instant
    bucket.by_hand(None, f".hoodie/{instant}.commit")
    bucket.ago(0)


def not_published(bucket: Bucket) -> None:
    """a writer died between the fence and its completed file, an hour ago"""
    decided(bucket, ago_s=HOUR_S)


def about_to_publish(bucket: Bucket) -> None:
    """a writer wrote the fence 3 s ago, and no completed file yet"""
    decided(bucket, ago_s=3)


def unreadable_table(bucket: Bucket) -> None:
    """the table's properties cannot be read"""
    bucket.table().close()
    bucket.by_hand(b"\xff", PROPERTIES_KEY)


def unreadable_fence(bucket: Bucket) -> None:
    """half of the fence is missing"""
    bucket.table().close()
    bucket.by_hand(b'{"format": 4, "win', FENCE_KEY)


def nothing_there(_bucket: Bucket) -> None:
    """neither a table nor a lock is at the address"""


Situation = Callable[[Bucket], None]
SITUATIONS: dict[Pattern, tuple[list[Situation], list[Situation]]] = {
    Pattern.HAND_DELETED: ([deleted], [broken_by_command, released]),
    Pattern.HAND_EDITED: ([edited], [with_a_new_field, held_by_hudi]),
    Pattern.CLOCK_SKEW: ([behind], [released_late, held_by_hudi]),
    Pattern.TWO_BELIEVERS: ([overlapping], [one_after_the_other]),
    Pattern.GARBLED: ([no_record], [held_by_hudi]),
    Pattern.HOLDER_DIED: ([died], [silent, released, broken_by_command]),
    Pattern.HOLDER_SILENT: ([silent], [in_time, died]),
    Pattern.UNPUBLISHED: ([not_published], [about_to_publish]),
    Pattern.HELD_BACK: ([dead_instant], [writer_at_work, nothing_after_it]),
    Pattern.HEALTHY: ([in_time, released, writer_at_work], [died, no_record, dead_instant]),
    Pattern.UNREADABLE: ([unreadable_table, unreadable_fence], [not_published, no_record]),
    Pattern.UNKNOWN: ([nothing_there], [in_time, died]),
}

# --- with the debug log of boto3 beside the bucket ------------------------------------------------

RETRIES = Config(retries={"mode": "standard", "max_attempts": 2})
LOCK = "table_lock.json"


def record(attempt: str, **fields: Any) -> bytes:
    until_ms = Clock().wall_ms() + 290_000
    fields = {"epoch": 1, "ttl_ms": 300_000, "attempt": attempt, **fields}
    return encode(Record("W1", until_ms, **fields))


@dataclass
class Client:
    """boto3 as it comes, through a proxy that injects faults."""

    bucket: Bucket
    proxy: Proxy

    def put(self, body: bytes, **condition: str) -> str:
        """The ETag; "" if the write was refused or got no answer."""
        s3 = boto3.client(
            "s3", endpoint_url=self.proxy.url, region_name="us-east-1", config=RETRIES,
            aws_access_key_id="a", aws_secret_access_key="b",
        )  # fmt: skip
        try:
            done = s3.put_object(Bucket="lake", Key=f"orders/{LOCK_KEY}", Body=body, **condition)
        except ClientError:
            return ""
        return str(done["ETag"])

    def get(self) -> None:
        s3 = boto3.client(
            "s3", endpoint_url=self.proxy.url, region_name="us-east-1",
            aws_access_key_id="a", aws_secret_access_key="b",
        )  # fmt: skip
        s3.get_object(Bucket="lake", Key=f"orders/{LOCK_KEY}")["Body"].read()


def renewed(client: Client, when: str) -> None:
    etag = client.put(record("1"), IfNoneMatch="*")
    client.proxy.inject(Fault("drop", when=when, operation="put", key=LOCK))
    client.put(record("2"), IfMatch=etag)


def renewal_answer_lost(client: Client) -> None:
    """boto3 lost the answer to a renewal, sent it again, and took the 412 for a loss"""
    renewed(client, "after")


def renewal_lost(client: Client) -> None:
    """boto3's renewal was lost before it arrived, and the second copy landed"""
    renewed(client, "before")


def claimed(client: Client, when: str) -> None:
    client.proxy.inject(Fault("drop", when=when, operation="put", key=LOCK))
    client.put(record("1"), IfNoneMatch="*")
    client.get()


def claim_answer_lost(client: Client) -> None:
    """boto3 lost the answer to a claim, sent it again, and waits for itself after the 412"""
    claimed(client, "after")


def claim_lost(client: Client) -> None:
    """boto3's claim was lost before it arrived, and the second copy landed"""
    claimed(client, "before")


def both_replaced(client: Client) -> None:
    """two writes with one If-Match were both applied: the server ignores conditions"""
    one_replaced(client)


def one_replaced(client: Client) -> None:
    """the second of two writes with one If-Match was refused"""
    etag = client.put(record("1"), IfNoneMatch="*")
    for attempt in ("2", "3"):
        client.put(record(attempt), IfMatch=etag)


LOGGED: dict[Pattern, tuple[Callable[[Client], None], Callable[[Client], None]]] = {
    Pattern.NO_CAS: (both_replaced, one_replaced),
    Pattern.FALSE_412: (renewal_answer_lost, renewal_lost),
    Pattern.GHOST: (claim_answer_lost, claim_lost),
}
NOT_LISTED = {
    Pattern.NO_CAS: "a bucket keeps no write's condition: a client's log or Azure's resource log",
    Pattern.FALSE_412: "a refused write leaves no version: the client's log",
    Pattern.GHOST: "the version looks like any grant, its client does not know of it: its log",
    Pattern.THROTTLED: "a refused release leaves no version: a log with bodies (boto3's has none)",
    Pattern.DANGLING: "a release that never landed leaves no version: such a log",
    Pattern.STALE: "a bucket does not show when a writer lost its lease: the writers' events",
}
"""Why a bucket alone does not show it, and what does."""
HARMS = [(pattern, each) for pattern, (harms, _) in SITUATIONS.items() for each in harms]
NEARLY = [(pattern, each) for pattern, (_, nearly) in SITUATIONS.items() for each in nearly]


def named(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], *files: str
) -> tuple[set[str], int]:
    """The patterns that `lockkit incident` names, and its exit code."""
    capsys.readouterr()
    at = [bucket.url, *files, "--endpoint", bucket.endpoint, "--watch-s", "0", "--json"]
    code = main(["incident", *at])
    said = json.loads(capsys.readouterr().out)["diagnosis"]
    return {said["pattern"], *(each["pattern"] for each in said["also"])}, code


@pytest.mark.parametrize(("pattern", "situation"), HARMS)
def test_a_bucket_shows_the_pattern(
    bucket: Bucket, pattern: Pattern, situation: Situation, capsys: pytest.CaptureFixture[str]
) -> None:
    situation(bucket)
    found, code = named(bucket, capsys)
    assert str(pattern) in found
    assert code == (2 if pattern in UNJUDGED else 0 if pattern is Pattern.HEALTHY else 1)


@pytest.mark.parametrize(("pattern", "situation"), NEARLY)
def test_a_bucket_that_nearly_shows_a_pattern_does_not_show_it(
    bucket: Bucket, pattern: Pattern, situation: Situation, capsys: pytest.CaptureFixture[str]
) -> None:
    situation(bucket)
    assert str(pattern) not in named(bucket, capsys)[0]


@pytest.mark.parametrize("pattern", LOGGED)
@pytest.mark.parametrize("harm", [True, False])
def test_a_bucket_and_a_clients_debug_log_show_the_pattern_together(
    pattern: Pattern, harm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anybody")
    profile = "spaces" if harm and pattern is Pattern.NO_CAS else "aws"
    with versioned("s3", profile) as bucket:
        assert str(pattern) not in named(bucket, capsys)[0]
        with Proxy(bucket.server.s3) as proxy, debugging() as out:
            LOGGED[pattern][0 if harm else 1](Client(bucket, proxy))
        (log := tmp_path / "W1.log").write_text(out.getvalue())
        assert (str(pattern) in named(bucket, capsys, str(log))[0]) == harm
        assert str(pattern) not in named(bucket, capsys)[0], "the bucket alone does not show it"


@pytest.mark.parametrize(
    ("situation", "code"),
    [(died, 1), (silent, 1), (no_record, 1), (in_time, 0), (released, 0), (held_by_hudi, 0)],
)
def test_lock_show_of_a_bucket_exits_with_1_if_the_holder_missed_its_renewals(
    bucket: Bucket, situation: Situation, code: int
) -> None:
    situation(bucket)
    assert main(["lock", "show", bucket.url, "--endpoint", bucket.endpoint]) == code


def test_the_page_for_on_call_staff_lists_each_pattern_with_its_near_miss() -> None:
    assert set(SITUATIONS) | set(NOT_LISTED) == set(Pattern)
    assert not set(SITUATIONS) & set(NOT_LISTED)
    lines = ["| pattern | a bucket shows it | it does not show it |", "|---|---|---|"]
    for pattern in Pattern:
        if pattern in NOT_LISTED:
            beside = LOGGED.get(pattern)
            shown, near = "", ""
            if beside is not None:
                shown, near = (f"; {each.__doc__}" for each in beside)
                shown = f"; beside boto3's log: {shown[2:]}"
            lines.append(f"| {pattern} | never alone{shown} | {NOT_LISTED[pattern]}{near} |")
        else:
            harms, nearly = (
                "; ".join(str(each.__doc__) for each in several) for several in SITUATIONS[pattern]
            )
            lines.append(f"| {pattern} | {harms} | {nearly} |")
    section("howto/on_call.md", "incidents", "\n".join(lines) + "\n")
