"""The object server: its record, its profiles, and what it does with bad input and a full disk."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from lockkit import StoreError, open_store
from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.server import Credentials, Emulator

LOCK = "/lake/orders/.hoodie/.locks/table_lock.json"
DIALECTS = ["s3", "gcs", "azure"]


def ask(
    endpoint: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and body of one request."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def raw(endpoint: str, data: bytes) -> bytes:
    """What the server says to these bytes, until it hangs up or falls silent for a second."""
    parts = urlsplit(endpoint)
    with socket.create_connection((parts.hostname, parts.port), timeout=1) as connection:
        connection.sendall(data)
        said = b""
        try:
            while chunk := connection.recv(65536):
                said += chunk
        except TimeoutError:
            pass
    return said


# --- the record ----------------------------------------------------------------------------------


def test_every_request_is_recorded_with_client_condition_and_outcome(emulator: Any) -> None:
    heard: list[Event] = []
    emulator.on_request = heard.append
    agent = {"User_Agent": "Boto3/1.44 lockkit-client/W1 more"}
    body = json.dumps({"attempt": "a-1", "owner": "me"}).encode()
    _, first, _ = ask(emulator.s3, "PUT", LOCK, body, If_None_Match="*", **agent)
    ask(emulator.s3, "PUT", LOCK, body, If_None_Match="*", **agent)
    ask(emulator.s3, "GET", LOCK, If_None_Match=first["etag"])
    ask(emulator.s3, "GET", "/lake/missing")
    ask(emulator.s3, "GET", "/lake?list-type=2&prefix=orders/")
    ask(emulator.s3, "DELETE", LOCK, If_Match=first["etag"])
    ask(emulator.s3, "PUT", "/lake?policy")
    record = emulator.requests()
    key = LOCK.removeprefix("/lake/")
    assert [(e["method"], e["key"], e["answer"], e["status"], e["applied"]) for e in record] == [
        ("put", key, "applied", 200, True),
        ("put", key, "precondition_failed", 412, False),
        ("get", key, "not_modified", 304, False),
        ("get", "missing", "missing", 404, False),
        ("list", "orders/", "listed", 200, False),
        ("delete", key, "applied", 204, True),
        ("put", "", "error", 501, False),
    ]
    created, refused, polled, *_, deleted, _ = record
    assert created["client"] == "W1" and polled["client"] == ""
    assert created["attempt"] == "a-1" and created["body"]["owner"] == "me"
    assert created["condition"] == "if-absent" and created["bucket"] == "lake"
    assert (created["before"], created["version"]) == ("", first["etag"])
    assert refused["before"] == first["etag"] and refused["version"] == ""
    assert polled["condition"] == f"unless-version {first['etag']}"
    assert deleted["before"] == first["etag"] and deleted["generation"] > created["generation"]
    assert all(each["began_ms"] <= each.at_ms for each in record)
    assert [each.at_ms for each in record] == sorted(each.at_ms for each in record)
    assert heard == [Event(each.at_ms, each.who, each.kind, each.data) for each in heard] and len(
        heard
    ) == len(record)
    assert [each.to_json() for each in heard] == [each.to_json() for each in record]


def test_a_refused_write_records_its_attempt_too(emulator: Any) -> None:
    ask(emulator.s3, "PUT", "/b/k", b"{}")
    ask(emulator.s3, "PUT", "/b/k", b'{"attempt": "late"}', If_Match='"stale"')
    assert [each["attempt"] for each in emulator.requests()] == ["", "late"]


def test_the_record_can_be_followed_over_http_and_holds_no_credential(emulator: Any) -> None:
    ask(
        emulator.s3, "PUT", "/b/k?X-Amz-Signature=s3cret", b"x",
        Authorization="AWS4-HMAC-SHA256 Credential=AKIA/s3cret", X_Amz_Security_Token="s3cret",
    )  # fmt: skip
    ask(emulator.azure, "PUT", "/acc/c/k?sig=s3cret", b"x", x_ms_blob_type="BlockBlob")
    for door in DIALECTS:
        status, _, body = ask(getattr(emulator, door), "GET", "/__lockkit/requests?since=1")
        (line,) = body.splitlines()
        assert status == 200 and json.loads(line)["bucket"] == "c"
    assert "s3cret" not in "".join(each.to_json() for each in emulator.requests())
    health = json.loads(ask(emulator.gcs, "GET", "/__lockkit/health")[2])
    assert health == {door: getattr(emulator, door) for door in DIALECTS}


def test_record_and_versions_outlive_the_server_if_it_has_a_file(tmp_path: Path) -> None:
    db = tmp_path / "objects.sqlite"
    with Emulator(db=str(db)) as emulator:
        for number in range(3):
            ask(emulator.s3, "PUT", "/b/k", str(number).encode())
        ask(emulator.s3, "GET", "/b/k")
    assert len(emulator.requests()) == 4, "also after it has stopped"
    with Emulator(db=str(db)) as emulator:
        assert [each["method"] for each in emulator.requests()] == ["put", "put", "put", "get"]
        versions = ask(emulator.s3, "GET", "/b?versions")[2]
        assert versions.count(b"<Version>") == 3


def test_a_batch_is_recorded_as_its_requests(emulator: Any) -> None:
    for key in ("a", "b"):
        ask(emulator.s3, "PUT", f"/bucket/{key}", b"x")
    names = "".join(f"<Object><Key>{key}</Key></Object>" for key in ("a", "b", "c"))
    ask(emulator.s3, "POST", "/bucket?delete", f"<Delete>{names}</Delete>".encode())
    deleted = emulator.requests(2)
    assert [(e["method"], e["key"], e["applied"]) for e in deleted] == [
        ("delete", "a", True), ("delete", "b", True), ("delete", "c", False),
    ]  # fmt: skip


def test_large_old_bodies_are_dropped_but_keep_their_place(emulator: Any) -> None:
    big = b"x" * (2 << 20)
    for body in (big, b"small", b"now"):
        ask(emulator.s3, "PUT", "/b/k", body)
    listed = ask(emulator.s3, "GET", "/b?versions")[2].decode()
    ids = [part.partition("<")[0] for part in listed.split("<VersionId>")[1:]]
    answers = [ask(emulator.s3, "GET", f"/b/k?versionId={id}") for id in ids]
    assert [status for status, _, _ in answers] == [200, 200, 410]
    assert answers[1][2] == b"small" and str(len(big)) in listed


# --- profiles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulator", [{"profile": "gcs"}], indirect=True)
def test_the_gcs_profile_takes_one_write_a_second_to_an_object(emulator: Any) -> None:
    assert ask(emulator.gcs, "POST", "/storage/v1/b", b'{"name": 5}')[0] == 400
    path = "/upload/storage/v1/b/b/o?uploadType=media&name="
    began = time.monotonic()
    assert ask(emulator.gcs, "POST", f"{path}k", b"1")[0] == 200
    status, _, body = ask(emulator.gcs, "POST", f"{path}k", b"2")
    error = json.loads(body)["error"]
    assert status == 429 and error["errors"][0]["reason"] == "rateLimitExceeded"
    assert ask(emulator.gcs, "POST", f"{path}other", b"1")[0] == 200
    assert ask(emulator.gcs, "DELETE", "/storage/v1/b/b/o/k")[0] == 429
    assert ask(emulator.s3, "PUT", "/b/k", b"2")[0] == 429
    assert ask(emulator.azure, "PUT", "/a/b/k", b"2", x_ms_blob_type="BlockBlob")[0] == 429
    assert [e["answer"] for e in emulator.requests()].count("throttled") == 4
    while ask(emulator.gcs, "POST", f"{path}k", b"3")[0] == 429:
        assert time.monotonic() - began < 20
    assert time.monotonic() - began > 0.9
    assert ask(emulator.gcs, "GET", "/storage/v1/b/b/o/k?alt=media")[2] == b"3"


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_the_spaces_profile_silently_ignores_conditions_on_writes(emulator: Any) -> None:
    put = {"x_ms_blob_type": "BlockBlob"}
    for _ in range(2):
        assert ask(emulator.s3, "PUT", "/b/k", b"1", If_None_Match="*")[0] == 200
        assert ask(emulator.s3, "PUT", "/b/k", b"2", If_Match='"stale"')[0] == 200
        assert ask(emulator.azure, "PUT", "/a/b/k", b"3", If_None_Match="*", **put)[0] == 201
        upload = "/upload/storage/v1/b/b/o?uploadType=media&name=k&ifGenerationMatch=0"
        assert ask(emulator.gcs, "POST", upload, b"4")[0] == 200
    head = ask(emulator.s3, "GET", "/b/k")[1]
    assert ask(emulator.s3, "GET", "/b/k", If_None_Match=head["etag"])[0] == 304, "reads are sound"


class Standing(Clock):
    """A clock that stands: everything happens while everything else is under way."""

    def wall_ns(self) -> int:
        return 1_800_000_000_000_000_000


def test_of_the_losers_of_a_race_on_rgw_every_second_gets_500_and_none_is_applied() -> None:
    with Emulator(profile="rgw", clock=Standing()) as emulator:
        etag = ask(emulator.s3, "PUT", "/b/k", b"1", If_None_Match="*")[1]["etag"]
        created = [ask(emulator.s3, "PUT", "/b/k", b"2", If_None_Match="*")[0] for _ in range(4)]
        swapped = [ask(emulator.s3, "PUT", "/b/k", b"3", If_Match='"other"')[0] for _ in range(4)]
        assert sorted(created) == sorted(swapped) == [412, 412, 500, 500]
        assert ask(emulator.s3, "GET", "/b/k")[1]["etag"] == etag
    with Emulator(profile="rgw") as emulator:
        answers = [ask(emulator.s3, "PUT", "/b/k", b"1", If_None_Match="*")[0] for _ in range(4)]
        assert answers == [200, 412, 412, 412], "one after another there is no race"


@pytest.mark.parametrize("emulator", [{"profile": "rgw"}], indirect=True)
def test_on_rgw_a_versioned_bucket_takes_every_create_and_no_swap(emulator: Any) -> None:
    status = b"<VersioningConfiguration><Status>%s</Status></VersioningConfiguration>"
    create = {"If_None_Match": "*"}
    for on, answers in ((b"Enabled", [200, 200, 412]), (b"Suspended", [412, 412, 200])):
        assert ask(emulator.s3, "PUT", "/b?versioning", status % on)[0] == 200
        assert (on in ask(emulator.s3, "GET", "/b?versioning")[2]) is (on == b"Enabled")
        first = ask(emulator.s3, "PUT", "/b/k", on, **create)
        again = ask(emulator.s3, "PUT", "/b/k", on + on, **create)
        etag = ask(emulator.s3, "GET", "/b/k")[1]["etag"]
        swap = ask(emulator.s3, "PUT", "/b/k", b"3", If_Match=etag)
        assert [first[0], again[0], swap[0]] == answers
    assert ask(emulator.s3, "DELETE", "/b/k", If_Match='"stale"')[0] == 204, "ignored, as measured"
    assert ask(emulator.s3, "PUT", "/b?versioning", b"<x")[0] == 400


def test_a_server_that_reads_and_then_writes_has_two_winners_in_a_race() -> None:
    with Emulator(profile="two-steps", clock=Standing()) as emulator:
        etag = ask(emulator.s3, "PUT", "/b/k", b"1", If_None_Match="*")[1]["etag"]
        assert ask(emulator.s3, "PUT", "/b/k", b"2", If_None_Match="*")[0] == 200
    with Emulator(profile="two-steps") as emulator:
        answers = [ask(emulator.s3, "PUT", "/b/k", b"1", If_None_Match="*")[0] for _ in range(2)]
        answers += [ask(emulator.s3, "PUT", "/b/k", b"2", If_Match=etag)[0] for _ in range(2)]
        assert answers == [200, 412, 200, 412], "one after another it is sound"


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'ibm'; there are aws, gcs, .*, two-steps"):
        Emulator(profile="ibm")


@pytest.mark.parametrize("emulator", [{"latency_ms": 60}], indirect=True)
def test_latency_is_half_before_and_half_after_the_write(emulator: Any) -> None:
    began = time.monotonic()
    ask(emulator.s3, "PUT", "/b/k", b"x")
    took_ms = (time.monotonic() - began) * 1000
    (event,) = emulator.requests()
    assert 30 <= event.at_ms - event["began_ms"] <= took_ms - 30


# --- who may use it ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "example.org", "127.0.0.1.evil"])
def test_an_address_that_others_could_reach_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="other machines"):
        Emulator(host=host)


def test_a_port_in_use_and_an_invalid_file_are_reported(tmp_path: Path, emulator: Any) -> None:
    taken = urlsplit(emulator.s3).port
    with pytest.raises(OSError, match="in use"), Emulator(port=taken or 0):
        pass
    not_ours = tmp_path / "letter.txt"
    not_ours.write_text("Dear database,\n" * 100)
    with pytest.raises(OSError, match=r"cannot keep objects in .*letter\.txt"):
        with Emulator(db=str(not_ours)):
            pass
    with pytest.raises(OSError, match="cannot keep objects"):
        with Emulator(db=str(tmp_path / "no" / "such" / "folder.sqlite")):
            pass


@pytest.mark.parametrize(
    "emulator", [{"credentials": Credentials("AKIAREAL", "realsecret")}], indirect=True
)
def test_with_credentials_only_requests_signed_by_them_are_answered(emulator: Any) -> None:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config
    from botocore.exceptions import ClientError

    def client(access_key: str, secret_key: str, region: str = "us-east-1") -> Any:
        return boto3.client(
            "s3", endpoint_url=emulator.s3, region_name=region,
            aws_access_key_id=access_key, aws_secret_access_key=secret_key,
            config=Config(retries={"total_max_attempts": 1}, signature_version="s3v4"),
        )  # fmt: skip

    real = client("AKIAREAL", "realsecret")
    key = "ü/a b+c%2F&=?.txt"
    real.put_object(Bucket="b", Key=key, Body=b"x", Metadata={"a": "b  c"})
    assert real.get_object(Bucket="b", Key=key)["Body"].read() == b"x"
    assert real.list_objects_v2(Bucket="b", Prefix="ü/a b+", Delimiter="%")["KeyCount"] == 1
    for wrong, code in (
        (client("AKIAREAL", "guess"), "SignatureDoesNotMatch"),
        (client("AKIAFAKE", "realsecret"), "InvalidAccessKeyId"),
    ):
        with pytest.raises(ClientError) as caught:
            wrong.put_object(Bucket="b", Key="k", Body=b"x")
        assert caught.value.response["Error"]["Code"] == code
    elsewhere, at = client("AKIAREAL", "realsecret", "eu-west-1"), {"Bucket": "b", "Key": key}
    link = elsewhere.generate_presigned_url("get_object", at)
    status, _, said = ask(emulator.s3, "GET", link.removeprefix(emulator.s3))
    assert status == 400 and b"the region 'eu-west-1' is wrong" in said
    keys = {"aws_access_key_id": "AKIAREAL", "aws_secret_access_key": "realsecret"}
    store = open_store("s3://b", endpoint=emulator.s3, region_name="eu-west-1", **keys)
    with pytest.raises(StoreError, match="AuthorizationHeaderMalformed; wrong region"):
        store.get(key)
    assert elsewhere.get_object(**at)["Body"].read() == b"x", "boto3 follows the answer's region"
    assert ask(emulator.s3, "GET", "/b/k")[0] == 403
    form = "multipart/form-data; boundary=x"
    assert ask(emulator.s3, "POST", "/b", b"--x--", Content_Type=form)[0] == 501
    assert "realsecret" not in repr(Credentials("AKIAREAL", "realsecret"))


@pytest.mark.parametrize("emulator", [{"credentials": Credentials("key", "secret")}], indirect=True)
def test_a_signed_listing_may_spell_the_space_of_its_prefix_as_a_plus(emulator: Any) -> None:
    stores = pytest.importorskip("obstore.store")
    store = stores.S3Store(
        "b", endpoint=emulator.s3, region="us-east-1",
        access_key_id="key", secret_access_key="secret",
        client_options={"allow_http": True}, retry_config={"max_retries": 0},
    )  # fmt: skip
    for key in ("a b/1", "a+b/2"):
        store.put(key, b"x")
    for prefix, key in (("a b", "a b/1"), ("a+b", "a+b/2")):
        assert [found["path"] for page in store.list(prefix) for found in page] == [key]


def test_the_command_takes_its_secret_from_the_environment(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKKIT_SECRET_KEY", "realsecret")
    server = serve("--access-key", "AKIAREAL")
    assert ask(server.s3, "PUT", "/b/k", b"x")[0] == 403
    assert ask(server.azure, "PUT", "/a/b/k", b"x", x_ms_blob_type="BlockBlob")[0] == 201


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["a/../../etc/passwd", "..", "%2F", "%252F", "a//b", "/", "new\nline", "\u202eevil", "'; DROP",
     "<script>", "🦆" * 200, "x" * 1024],
)  # fmt: skip
@pytest.mark.parametrize("door", DIALECTS)
def test_a_hostile_key_is_a_key_like_any_other(door: str, key: str, emulator: Any) -> None:
    quoted = quote(key, safe="")
    place = {
        "s3": f"/b/{quoted}", "azure": f"/account/b/{quoted}", "gcs": f"/storage/v1/b/b/o/{quoted}",
    }[door]  # fmt: skip
    endpoint = getattr(emulator, door)
    if door == "gcs":
        upload = f"/upload/storage/v1/b/b/o?uploadType=media&name={quoted}"
        assert ask(endpoint, "POST", upload, b"mine")[0] == 200
        place += "?alt=media"
    else:
        assert ask(endpoint, "PUT", place, b"mine", x_ms_blob_type="BlockBlob")[0] in (200, 201)
    assert ask(endpoint, "GET", place)[2] == b"mine"
    assert emulator.requests()[0]["key"] == key
    assert ask(emulator.s3, "GET", "/b?encoding-type=url")[0] == 200
    assert ask(emulator.azure, "GET", "/account/b?restype=container&comp=list")[0] == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [("/b/" + "x" * 1025, "KeyTooLongError"), ("/b/%ff", "InvalidURI"), ("/b/%00", "InvalidURI")],
)
def test_an_impossible_key_is_a_400(path: str, code: str, emulator: Any) -> None:
    status, _, body = ask(emulator.s3, "PUT", path, b"x")
    assert status == 400 and code.encode() in body


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><Delete>&b;</Delete>'


@pytest.mark.parametrize(
    "body",
    [b"", b"<Delete>", b"<Other/>", BOMB, BOMB.decode().encode("utf-16"), b"\xff\xfe",
     b"<Delete>" * 5000, b"<?xml version='1.0' encoding='x-unknown'?><Delete/>",
     b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>"],
)  # fmt: skip
def test_xml_that_is_malformed_or_would_grow_is_a_400(body: bytes, emulator: Any) -> None:
    status, _, said = ask(emulator.s3, "POST", "/b?delete", body)
    assert status == 400 and b"<Code>MalformedXML</Code>" in said
    status, _, said = ask(emulator.azure, "PUT", "/a/b/k?comp=blocklist", body)
    assert status == 400 and b"<Code>InvalidXmlDocument</Code>" in said


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/upload/storage/v1/b/b/o?uploadType=multipart", b"--x\r\n\r\n{}\r\n--x--", "x"),
        ("/upload/storage/v1/b/b/o?uploadType=multipart", b"nothing", "x"),
        ("/upload/storage/v1/b/b/o?uploadType=resumable", b"[1]", "x"),
        ("/upload/storage/v1/b/b/o?uploadType=resumable", b"[" * 100_000, "x"),
        ("/upload/storage/v1/b/b/o?uploadType=resumable", b'{"name": ""}', "x"),
        ("/upload/storage/v1/b/b/o?uploadType=resumable", b'{"name": "\\ud800"}', "x"),
        ("/upload/storage/v1/b/b/o?uploadType=media&name=k&ifGenerationMatch=x", b"", "x"),
        ("/batch/storage/v1", b"--x\r\n\r\nnonsense\r\n--x--", "x"),
        ("/storage/v1/b/b/o/k/compose", b'{"sourceObjects": 7}', "x"),
    ],
)
def test_broken_google_requests_are_a_400(path: str, body: bytes, kind: str, emulator: Any) -> None:
    content_type = f"multipart/related; boundary={kind}"
    status, _, said = ask(emulator.gcs, "POST", path, body, Content_Type=content_type)
    assert status == 400 and json.loads(said)["error"]["code"] == 400
    assert not any(each["applied"] for each in emulator.requests())


@pytest.mark.parametrize(
    "body",
    [b"", b"zz\r\n", b"5\r\nabc", b"5\r\nabcdefgh\r\n0\r\n\r\n",
     b"5;chunk-signature=x\r\nabcde\r\n", b"-1\r\n\r\n", b"ffffffffffffffff\r\n"],
)  # fmt: skip
def test_a_broken_aws_chunked_body_writes_nothing(body: bytes, emulator: Any) -> None:
    streaming = {"X_Amz_Content_Sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    status, _, said = ask(emulator.s3, "PUT", "/b/k", body, **streaming)
    assert status == 400 and b"IncompleteBody" in said
    assert ask(emulator.s3, "GET", "/b/k")[0] == 404


def test_metadata_cannot_smuggle_a_header(emulator: Any) -> None:
    fields = {"name": "k", "metadata": {"a": "x\r\nInjected: 1", "b c\n": "y", "ü": "ü"}}
    body = b"--x\r\n\r\n" + json.dumps(fields).encode() + b"\r\n--x\r\n\r\nbytes\r\n--x--"
    kind = "multipart/related; boundary=x"
    upload = "/upload/storage/v1/b/b/o?uploadType=multipart"
    assert ask(emulator.gcs, "POST", upload, body, Content_Type=kind)[0] == 200
    for endpoint, path in ((emulator.s3, "/b/k"), (emulator.azure, "/account/b/k")):
        status, headers, said = ask(endpoint, "GET", path)
        assert (status, said) == (200, b"bytes") and "injected" not in headers
    assert ask(emulator.azure, "GET", "/a/b?restype=container&comp=list&include=metadata")[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nNo colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nSpace : b\r\n\r\n", 400),
        (b"PUT /b/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /b/k HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"PUT /b/k HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", 400),
        (b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n", 413),
        (b"PUT /b/k HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_broken_or_ambiguous_http_is_refused_and_its_connection_closed(
    data: bytes, status: int, emulator: Any
) -> None:
    said = raw(emulator.s3, data)
    assert said.startswith(f"HTTP/1.1 {status} ".encode()) and b"Connection: close" in said
    assert b"Traceback" not in said
    assert ask(emulator.s3, "PUT", "/b/after", b"x")[0] == 200
    assert [each["key"] for each in emulator.requests()] == ["after"]


def test_requests_in_pieces_in_chunks_and_in_a_row_are_understood(emulator: Any) -> None:
    chunked = (
        b"PUT /b/chunked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n"
    )
    row = b"GET /b/chunked HTTP/1.1\r\n\r\n" * 3 + b"HEAD /b/chunked HTTP/1.0\r\n\r\n"
    said = raw(emulator.s3, chunked + row)
    assert said.count(b"HTTP/1.1 200 OK") == 5 and said.count(b"abcdefg") == 3
    parts = urlsplit(emulator.s3)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in chunked.replace(b"chunked HTTP", b"slow HTTP"):
            connection.sendall(bytes([byte]))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    assert ask(emulator.s3, "GET", "/b/slow")[2] == b"abcdefg"


def test_a_client_that_waits_for_100_continue_gets_it(emulator: Any) -> None:
    parts = urlsplit(emulator.s3)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        connection.sendall(
            b"PUT /b/k HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"x")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("door", DIALECTS)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "PATCH", "OPTIONS", "DELETE", "BREW"])
def test_a_request_that_is_not_built_is_a_501_that_names_it_and_never_a_traceback(
    door: str, method: str, emulator: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in ("/", "/x", "/b/o/%20?torrent", "/a/b/c?comp=lease", "/storage/v1/zz?acl&comp=zz"):
        status, _, body = ask(getattr(emulator, door), method, path, b"<x>{}")
        assert status < 500 or status == 501, (method, path, body)
        if status == 501:
            assert method.encode() in body or b"has no blob type" in body
    assert capfd.readouterr().err == "", "no fault of its own to complain of"


# --- a full disk ---------------------------------------------------------------------------------


def test_on_a_full_disk_writes_are_certainly_refused_and_the_server_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "objects.sqlite")
    with Emulator(db=db) as emulator:
        ask(emulator.s3, "PUT", "/b/kept", b"before")
        emulator.objects.limit_pages(1)  # not below what is there: nothing may grow
        doors: dict[str, Callable[[], tuple[int, dict[str, str], bytes]]] = {
            "s3": lambda: ask(emulator.s3, "PUT", "/b/kept", b"x" * 50_000),
            "gcs": lambda: ask(
                emulator.gcs, "POST", "/upload/storage/v1/b/b/o?uploadType=media&name=kept",
                b"x" * 50_000,
            ),
            "azure": lambda: ask(
                emulator.azure, "PUT", "/a/b/kept", b"x" * 50_000, x_ms_blob_type="BlockBlob"
            ),
        }  # fmt: skip
        for write in doors.values():
            status, _, body = write()
            assert status == 507 and b"Traceback" not in body
        assert ask(emulator.s3, "GET", "/b/kept")[2] == b"before"
        complaint = capfd.readouterr().err
        assert "disk is full" in complaint and "PUT /b/kept was not applied" in complaint
        emulator.objects.limit_pages(1_000_000)  # space was made
        assert ask(emulator.s3, "PUT", "/b/kept", b"after")[0] == 200
        applied = [each["applied"] for each in emulator.requests() if each["key"] == "kept"]
        assert applied.count(True) == 2


def test_another_process_that_keeps_the_file_locked_is_a_503_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "objects.sqlite"
    monkeypatch.setattr("lockkit.lab.server.objects.BUSY_S_MAX", 0.2)
    with Emulator(db=str(db)) as emulator:
        ask(emulator.s3, "PUT", "/b/k", b"1")
        other = sqlite3.connect(db, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        status, _, body = ask(emulator.s3, "PUT", "/b/k", b"2")
        assert status == 503 and b"SlowDown" in body
        other.execute("ROLLBACK")
        other.close()
        assert ask(emulator.s3, "GET", "/b/k")[2] == b"1"
        assert ask(emulator.s3, "PUT", "/b/k", b"3")[0] == 200
