"""What is dropped into the console: SDKs' debug logs, listings of versions, all as one history."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from lockkit.cli.main import main
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.dropped import FILE_BYTES_MAX, Evidence, NotUnderstood, take_in
from lockkit.lab.incident.listings import read_listing
from lockkit.lab.incident.logs import read_log
from lockkit.lab.incident.patterns import Pattern
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.export import page_of
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Found, over
from lockkit.protocol.record import Record, encode
from lockkit.stores import open_store

LOGS = Path(__file__).parents[1] / "datasets" / "incidents" / "logs"
ANSWERS = json.loads((LOGS / "answers.json").read_text())
LOST = Fault("drop", operation="put", key="table_lock.json")
SECRET = "pLaNtEd"
LOCK = f"orders/{LOCK_KEY}"
DAY = "2025-01-01T10:0"


def dropped(*files: tuple[str, str]) -> Evidence:
    return take_in([(name, text.encode()) for name, text in files])


def log_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


# --- debug logs ----------------------------------------------------------------------------------


def test_every_log_has_its_solution_elsewhere() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_log_is_a_history_that_is_drawn_judged_and_diagnosed(name: str) -> None:
    evidence = dropped((f"{name}.log", log_of(name)))
    found = diagnose(evidence.events)
    assert found.pattern == ANSWERS[name]
    assert set(map(id, found.evidence)) <= set(map(id, evidence.events))
    assert "table_lock.json" in page_of(evidence.events, check(evidence.events), title=name)
    (taken,) = evidence.taken
    shows_bodies = any(each.get("valid_until_ms") for each in evidence.events)
    assert ("does not show what was written" in taken.said) is not shows_bodies


@pytest.mark.parametrize("name", ANSWERS)
def test_a_truncated_log_is_unknown(name: str) -> None:
    lines = log_of(name).splitlines(keepends=True)
    cut = ["".join(lines[:length]) for length in range(5, len(lines), 7)]
    found = [str(diagnose(dropped(("a.log", each)).events).pattern)
             for each in cut if read_log(each, "W1").sent]  # fmt: skip
    assert found and set(found) <= {"unknown", ANSWERS[name]}


def test_a_log_that_is_dropped_in_twice_adds_no_event_twice() -> None:
    text = log_of("azure-renewal-retried")
    once, twice = dropped(("W1.log", text)), dropped(("W1.log", text), ("copy (1).log", text))
    assert len(twice.events) == len(once.events)
    assert diagnose(twice.events).pattern is Pattern.FALSE_412


SENDING = "Sending http request: <AWSPreparedRequest stream_output=False, method=PUT, url="
THREADS = {
    "botocore": (
        f"botocore.endpoint {SENDING}http://h/lake/{LOCK}, headers={{'If-Match': b'\"v1\"'}}>\n",
        (f'urllib3 http://h:80 "PUT /lake/{LOCK} HTTP/1.1" 200 0\n'
        "botocore.parsers Response headers: {'Date': 'Wed, 01 Jan 2025 10:00:00 GMT', 'ETag': "
        "'\"%s\"'}\n"),
    ),
    "http.client": (
        f"send: b'PUT /lake/{LOCK} HTTP/1.1\\r\\nHost: h\\r\\nIf-Match: \"v1\"\\r\\n\\r\\n'\n",
        (
            "reply: 'HTTP/1.1 200 OK\\r\\n'\nheader: Date: Wed, 01 Jan 2025 10:00:00 GMT\n"
            "header: ETag: \"%s\"\n"
        ),
    ),
    "azure-core": (
        ("azure.core.pipeline.policies.http_logging_policy Request URL: "
        f"'https://a.test/lake/{LOCK}'\nRequest method: 'PUT'\n    'If-Match': '\"v1\"'\n"),
        ("azure.core.pipeline.policies.http_logging_policy Response status: 201\n"
        "    'date': 'Wed, 01 Jan 2025 10:00:00 GMT'\n    'ETag': '\"%s\"'\n"),
    ),
}


@pytest.mark.parametrize("form", THREADS)
def test_answers_to_requests_of_threads_that_share_a_log_are_nobodys(form: str) -> None:
    """A sound store was called one without conditions: two answers were joined to one request."""
    request, answer = THREADS[form]
    mixed = request * 2 + answer % "v2" + request + answer % "v3" + answer % "v4"
    events = dropped(("W1.log", mixed)).events
    assert diagnose(events).pattern is Pattern.UNKNOWN
    assert not [each for each in events if each.get("applied") and each.get("condition")]
    again = request * 2 + answer % "v2"  # an SDK that got no answer, and sent it once more
    assert [each["version"] for each in dropped(("W1.log", again)).events if each.get("applied")]


def test_a_claim_without_an_answer_is_not_a_ghost_if_another_record_was_read() -> None:
    text = log_of("botocore-claim-retried")
    (crc32,) = set(re.findall(r"'x-amz-checksum-crc32': '(\S+)'", text.partition("GetObject")[2]))
    before, reads = text[: (at := text.index("GetObject"))], text[at:]
    others = before + re.sub(r'"[0-9a-f]{32}"', f'"{"ab" * 16}"', reads.replace(crc32, "AAAAAA=="))
    assert others != text
    assert diagnose(dropped(("W1.log", others)).events).pattern is Pattern.UNKNOWN


def test_facts_inferred_from_a_log_are_marked() -> None:
    evidence = dropped(("W1.log", log_of("botocore-claim-retried")))
    landed = [each for each in evidence.events if each.kind == "request" and each["applied"]]
    assert [each["inferred"] for each in landed] == ["a later read found what this write sent"]


def test_stamps_of_another_time_zone_are_brought_to_utc_by_the_answers_date() -> None:
    here = read_log(text := log_of("botocore-claim-retried"), "W1")
    moved = re.sub(r"^(\d{4}-\d\d-\d\d) (\d\d)", lambda m: f"{m[1]} {(int(m[2]) + 5) % 24:02d}",
                   text, flags=re.M)  # fmt: skip
    there = read_log(moved, "W1")
    assert there.zone_ms == 5 * 3_600_000
    assert [each.sent_ms for each in there.sent] == [each.sent_ms for each in here.sent]


def test_garbled_lines_are_counted_and_reported() -> None:
    text = log_of("botocore-claim-retried")
    torn = text.replace("method=PUT, url=", "method=PUT, u", 1)
    (taken,) = dropped(("W1.log", torn)).taken
    assert "1 lines could not be read" in taken.said
    (taken,) = dropped(("W1.log", log_of("urllib3-renewal-throttled"))).taken
    assert "for 1 writes it does not name the object" in taken.said


@pytest.mark.parametrize("name", ANSWERS)
def test_no_secret_of_a_log_is_kept_shown_or_exported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = log_of(name)
    text = re.sub(r"(?<=SCRUBBED|REDACTED)", SECRET, text)
    text = re.sub(r"(?<=table_lock\.json)(?=[', ])", f"?sv=1&sig={SECRET}", text)
    text = text.replace(" HTTP/1.1", f"&upload_id={SECRET} HTTP/1.1")
    text = text.replace("Host: ", f"Authorization: Bearer {SECRET}\\r\\nHost: ")
    text = text.replace("'Content-Length'", f"'x-amz-security-token': '{SECRET}', 'Content-Length'")
    text += f"header: Authorization: {SECRET}\nsend: b'torn {SECRET}\n{SECRET}\n"
    assert text.count(SECRET) > 5
    evidence = dropped(("W1.log", text))
    shown = "".join(each.to_json() for each in evidence.events) + str(evidence.taken)
    shown += page_of(evidence.events, check(evidence.events), title="x")
    (file := tmp_path / "W1.log").write_text(text)
    assert main(["incident", str(file)]) in (1, 2)
    assert main(["incident", str(file), "--json"]) in (1, 2)
    assert SECRET not in shown + "".join(capsys.readouterr())
    assert len(evidence.events) > 4


@pytest.mark.parametrize("content", ["{garbage", '{"a": 1}', "{}\n{"])
def test_json_that_is_no_history_is_refused_with_what_is_accepted(content: str) -> None:
    with pytest.raises(NotUnderstood, match=r"x\.json.*accepted are a history \(JSON lines\)"):
        take_in([("x.json", content.encode())])



def test_a_file_of_no_known_kind_is_refused_without_quoting_it(tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood, match=r"x\.txt is none of these: a history") as error:
        dropped(("x.txt", f"password={SECRET}\n"))
    assert SECRET not in str(error.value)
    with pytest.raises(NotUnderstood, match="longer than 10 MB"):
        take_in([("big.log", b"x" * (FILE_BYTES_MAX + 1))])
    with pytest.raises(NotUnderstood, match="201 files at once"):
        take_in([("x", b"")] * 201)
    (tmp_path / "x").write_text("nothing")
    assert main(["incident", str(tmp_path / "x")]) == 3


@contextmanager
def debugging() -> Iterator[io.StringIO]:
    """What `boto3.set_stream_logger('')` would show."""
    out, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s [%(levelname)s] %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def record(**fields: Any) -> bytes:
    return encode(Record("W1", 1_999_999_999_999, **{"epoch": 1, "ttl_ms": 9_000} | fields))


def versioned(emulator: Emulator, bucket: str) -> None:
    on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    urlopen(Request(f"{emulator.s3}/{bucket}?versioning", data=on, method="PUT")).close()


def test_a_log_of_boto3_names_the_pattern_only_together_with_the_buckets_versions(
    shared_emulator: Emulator, bucket: str, aws: None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import boto3

    versioned(shared_emulator, bucket)
    with Proxy(shared_emulator.s3) as proxy, debugging() as out:
        s3 = boto3.client("s3", endpoint_url=proxy.url, region_name="us-east-1")
        where = {"Bucket": bucket, "Key": LOCK}
        etag = s3.put_object(**where, Body=record(attempt="1"), IfNoneMatch="*")["ETag"]
        proxy.inject(LOST)
        with pytest.raises(s3.exceptions.ClientError, match="PreconditionFailed"):
            s3.put_object(**where, Body=record(attempt="2"), IfMatch=etag)
    (file := tmp_path / "W1.log").write_text(out.getvalue())
    assert SECRET not in out.getvalue()
    assert main(["incident", str(file)]) == 2
    console = ["incident", f"s3://{bucket}/orders", str(file), "--endpoint", shared_emulator.s3]
    assert main([*console, "--watch-s", "0", "--json"]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["diagnosis"]["pattern"] == str(Pattern.FALSE_412)
    assert said["files"][0]["kind"] == "botocore's debug log"


def test_a_log_in_which_the_sdks_retry_helped_names_nothing(
    shared_emulator: Emulator, bucket: str, aws: None
) -> None:
    import boto3

    with Proxy(shared_emulator.s3) as proxy, debugging() as out:
        s3 = boto3.client("s3", endpoint_url=proxy.url, region_name="us-east-1")
        where = {"Bucket": bucket, "Key": LOCK}
        proxy.inject(Fault("drop", when="before", operation="put", next=2))
        etag = s3.put_object(**where, Body=record(attempt="1"), IfNoneMatch="*")["ETag"]
        s3.put_object(**where, Body=record(attempt="2", expired=True), IfMatch=etag)
        s3.get_object(**where)["Body"].read()
    evidence = dropped(("W1.log", out.getvalue()))
    assert any("sent it again" in str(each.get("text")) for each in evidence.events)
    assert diagnose(evidence.events).pattern is Pattern.UNKNOWN


# --- listings of versions ------------------------------------------------------------------------


def twice(emulator: Emulator, scheme: str, bucket: str) -> None:
    """A lock that is written, deleted by hand, and written again, in each dialect."""
    endpoint = {"s3": emulator.s3, "gs": emulator.gcs, "az": emulator.azure}[scheme]
    with closing(open_store(f"{scheme}://{bucket}/orders", endpoint=endpoint)) as store:
        for attempt in ("1", "2"):
            found = store.get(LOCK_KEY)
            assert not isinstance(found, Found)
            store.put(LOCK_KEY, record(attempt=attempt), over(None))
            if attempt == "1":
                store.delete(LOCK_KEY)


def asked(url: str) -> str:
    with urlopen(url) as answer:
        return str(answer.read().decode())


def test_s3s_own_listing_names_a_lock_that_was_deleted_by_hand(
    shared_emulator: Emulator, bucket: str, aws: None
) -> None:
    import boto3

    versioned(shared_emulator, bucket)
    twice(shared_emulator, "s3", bucket)
    s3 = boto3.client("s3", endpoint_url=shared_emulator.s3, region_name="us-east-1")
    listed = s3.list_object_versions(Bucket=bucket)
    listed.pop("ResponseMetadata")  # as the AWS CLI prints it
    text = json.dumps(listed, default=lambda at: at.isoformat(), indent=4)
    evidence = dropped(("versions.json", text))
    found = diagnose(evidence.events)
    assert found.pattern is Pattern.HAND_DELETED
    assert "held it" not in found.because  # no body says so
    assert "without their content" in evidence.taken[0].said


def test_azures_listing_is_read_as_its_server_and_as_its_command_line_write_it(
    shared_emulator: Emulator, bucket: str
) -> None:
    twice(shared_emulator, "az", bucket)
    account = f"{shared_emulator.azure}/devstoreaccount1"
    xml = asked(f"{account}/{bucket}?restype=container&comp=list&include=versions")
    listing = read_listing(xml)
    assert listing is not None and (listing.provider, listing.unread) == ("Azure", 0)
    assert len(listing.lock) >= 1 and all(each.digest for each in listing.lock)
    row = {
        "name": LOCK, "versionId": "x", "properties": {
            "etag": listing.lock[0].version.strip('"'), "lastModified": f"{DAY}0:00+00:00",
            "contentSettings": {"contentMd5": "CY9rzUYh03PK3k6DJie09g=="}}}  # fmt: skip
    cli = read_listing(json.dumps([row, {"properties": 4, "name": []}]))
    assert cli is not None and cli.unread == 1
    assert cli.lock[0].version == listing.lock[0].version
    assert read_listing(xml.replace("?>", "?><!DOCTYPE x [<!ENTITY a 'b'>]>", 1)) is None


GCS = [
    {"name": LOCK, "generation": "1", "timeCreated": f"{DAY}0:00.5Z", "timeDeleted": f"{DAY}1:00Z"},
    {"name": LOCK, "generation": "2", "timeCreated": f"{DAY}1:00Z", "timeDeleted": f"{DAY}2:00Z"},
    {"name": LOCK, "generation": "3", "timeCreated": f"{DAY}5:00Z"},
]
GCLOUD = {"timeCreated": "creation_time", "timeDeleted": "noncurrent_time", "md5Hash": "md5_hash"}


@pytest.mark.parametrize("printer", ["api", "gcloud"])
def test_a_generation_of_gcs_that_ended_before_the_next_one_began_was_deleted(printer: str) -> None:
    rows = GCS if printer == "api" else [
        {GCLOUD.get(name, name): value.replace("Z", "+0000") if name != "name" else value
         for name, value in row.items()} for row in GCS
    ]  # fmt: skip
    text = json.dumps({"kind": "storage#objects", "items": rows} if printer == "api" else rows)
    deletes = [each for each in dropped(("x.json", text)).events if each["method"] == "DELETE"]
    assert [(each["before"], each.at_ms % 600_000) for each in deletes] == [("2", 120_000)]
    whole = dropped(("x.json", json.dumps(rows[:2])))
    assert diagnose(whole.events).pattern is Pattern.HAND_DELETED
    current = dict(list(rows[1].items())[:3])  # without its end
    kept = dropped(("x.json", json.dumps([rows[0], current])))
    assert diagnose(kept.events).pattern is Pattern.UNKNOWN


def test_gcss_own_listing_is_read(shared_emulator: Emulator, bucket: str) -> None:
    twice(shared_emulator, "gs", bucket)
    text = asked(f"{shared_emulator.gcs}/storage/v1/b/{bucket}/o?versions=true")
    listing = read_listing(text)
    assert listing is not None and (listing.provider, listing.unread) == ("GCS", 0)
    assert all(each.digest for each in listing.lock)


def test_a_write_in_both_a_log_and_a_listing_is_drawn_once() -> None:
    text = log_of("azure-renewal-retried")
    log = read_log(text, "W1")
    versions = [each.version for each in log.sent if each.version]
    rows = [{"name": LOCK, "properties": {"etag": each.strip('"'), "lastModified": f"{DAY}{n}:00Z"}}
            for n, each in enumerate(dict.fromkeys(versions))]  # fmt: skip
    evidence = dropped(("W1.log", text), ("versions.json", json.dumps(rows)))
    applied = [each for each in evidence.events if each.kind == "request" and each["applied"]]
    assert sorted(each["version"] for each in applied) == sorted(dict.fromkeys(versions))
    assert diagnose(evidence.events).pattern is Pattern.FALSE_412


@pytest.mark.parametrize(
    "text", ['{"Versions": 4}', '{"Versions": [{"Key": 1, "ETag": {}}, 7]}', '{"items": [{}]}',
             "[]", "<EnumerationResults><Blob>", '[{"generation": 1e999}]', "{" * 5_000],
)  # fmt: skip
def test_a_damaged_listing_is_no_listing_or_says_what_it_could_not_read(text: str) -> None:
    listing = read_listing(text)
    assert listing is None or not listing.kept


@pytest.mark.parametrize(("url", "left_out"), [
    ("file:///srv/sales", True), ("s3://lake/sales", True),
    ("file:///srv/orders", False), ("s3://lake/orders", False), ("", False),
])  # fmt: skip
def test_a_history_of_another_tables_lock_is_left_out_and_says_so(url: str, left_out: bool) -> None:
    """Two tables' locks as one history named a deletion by hand that never was."""
    text = (LOGS.parent / "hudi-14373-renewal-retried.jsonl").read_bytes()
    evidence = take_in([("a.jsonl", text)], url=url)
    assert bool(evidence.events) != left_out
    assert ("of another table's lock: left out" in evidence.taken[0].said) == left_out
