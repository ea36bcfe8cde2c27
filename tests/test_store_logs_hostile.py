"""Logs as they arrive at night: torn, doubled, reordered, in odd encodings, with secrets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from test_store_logs import ACCESS, BLOB, FORMS, KEY, TRAIL, access, blob, lines, trail

from lockkit.cli.main import main
from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.dropped import FILE_BYTES_MAX, Evidence, NotUnderstood, take_in
from lockkit.lab.incident.patterns import Pattern

SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"


def read(*contents: str | bytes) -> Evidence:
    files = [each.encode() if isinstance(each, str) else each for each in contents]
    return take_in([(f"log-{number}", each) for number, each in enumerate(files)])


def pattern(evidence: Evidence) -> Pattern:
    return diagnose(evidence.events).pattern


def test_a_record_that_azure_delivers_twice_is_one_write_and_no_store_without_conditions() -> None:
    """Two equal creates showed "store without real compare-and-set": stop all writers."""
    created = lines([BLOB[0]])
    for twice in (read(f"{created}\n{created}"), read(created, created)):
        assert [each["applied"] for each in twice.events] == [True]
        assert pattern(twice) is Pattern.UNKNOWN


def test_a_log_that_lacks_a_delete_shows_no_store_without_conditions() -> None:
    """A provider does not promise that its log is complete. One version replaced twice is proof."""
    again = blob("00:00:05", "PutBlob", 201, conditionsUsed="If-None-Match=*", etag='"0x8D2"')
    assert pattern(read(lines([BLOB[0], again]))) is Pattern.UNKNOWN
    replaced = [
        blob(at, "PutBlob", 201, conditionsUsed='If-Match="0x8D1"', etag=etag)
        for at, etag in (("00:00:06", '"0x8D3"'), ("00:00:07", '"0x8D4"'))
    ]
    assert pattern(read(lines([BLOB[0], *replaced]))) is Pattern.NO_CAS


@pytest.mark.parametrize("form", FORMS)
def test_a_log_that_is_given_twice_or_packed_shows_the_same_history(form: str) -> None:
    once = read(FORMS[form])
    for again in (read(FORMS[form], FORMS[form]), read(gzip.compress(FORMS[form].encode()))):
        assert pattern(again) is pattern(once) is Pattern.HAND_DELETED
    if "CloudTrail" not in form:  # those records have no ids here
        assert len(read(FORMS[form], FORMS[form]).events) == len(once.events)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", [
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.encode("utf-8-sig"),
    lambda text: text.encode("utf-16"),
    lambda text: ("\n\n" + text + "\n\n").encode(),
], ids=["CRLF", "BOM", "UTF-16", "blank lines"])  # fmt: skip
def test_line_ends_and_encodings_of_windows_change_nothing(
    form: str, change: Callable[[str], bytes]
) -> None:
    assert read(change(FORMS[form])).events == read(FORMS[form]).events


@pytest.mark.parametrize("form", ["CloudTrail, lines", "S3's server access log", "Google, lines"])
def test_lines_out_of_order_are_sorted_by_their_times(form: str) -> None:
    turned = "\n".join(reversed(FORMS[form].split("\n")))
    assert [each.at_ms for each in read(turned).events] == [
        each.at_ms for each in read(FORMS[form]).events
    ]
    assert pattern(read(turned)) is Pattern.HAND_DELETED


def test_a_line_separator_in_a_record_ends_no_line() -> None:
    """JSON may have U+2028 in a text; Python's splitlines takes it for a line's end."""
    text = "\n".join(json.dumps(each | {"x": "a\u2028b"}, ensure_ascii=False) for each in TRAIL)
    assert len(read(text).events) == 4


def test_the_whole_records_of_a_torn_file_are_read_and_the_rest_is_counted() -> None:
    many = TRAIL[:3] * 20 + TRAIL
    for whole in (json.dumps({"Records": many}), json.dumps(many, indent=1), lines(many)):
        torn = read(whole[:-100])
        assert len(torn.events) > 50
        assert "1 records could not be read" in torn.taken[0].said
    assert "0 requests" in read(json.dumps({"Records": TRAIL})[:300]).taken[0].said


def test_a_torn_gzip_file_is_read_as_far_as_it_goes_and_that_is_said() -> None:
    records = [trail(f"00:{n // 60:02}:{n % 60:02}", "PutObject", eventID=f"e{n * 7919}")
               for n in range(3_000)]  # fmt: skip
    packed = gzip.compress(lines(records).encode())
    torn = read(packed[: len(packed) // 2])
    assert 500 < len(torn.events) < 3_000
    assert "damaged, and only its beginning was read" in torn.taken[0].said
    broken = bytearray(packed)
    broken[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    assert "damaged" in read(bytes(broken)).taken[0].said
    with pytest.raises(NotUnderstood, match="cannot be unpacked"):
        read(packed[:12])


@pytest.mark.parametrize(
    "content", [b"", b"\n \r\n", gzip.compress(b"")], ids=["nothing", "blank", "packed"]
)
def test_an_empty_file_is_called_empty(content: bytes) -> None:
    with pytest.raises(NotUnderstood, match="is empty"):
        read(content)


def test_one_line_of_50_mb_is_refused_by_its_size_before_it_is_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trail.json"
    with file.open("wb") as out:
        out.write(b'{"Records": [')
        out.writelines(b'{"eventSource": "s3.amazonaws.com"},' * 1_000 for _ in range(1_400))
    assert file.stat().st_size > 5 * FILE_BYTES_MAX
    packed = tmp_path / "trail.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes(), 1))
    for each in (file, packed):
        assert main(["incident", str(each)]) == 3
        assert "is longer than 10 MB" in capsys.readouterr().err


BOTOCORE = (
    f"2026-01-01 00:00:00,000 botocore.endpoint [DEBUG] Sending http request: "
    f"<AWSPreparedRequest stream_output=False, method=PUT, url=https://lake.s3.amazonaws.com/{KEY}"
    f"?X-Amz-Signature={SECRET}, headers={{'If-None-Match': b'*', 'Authorization': "
    f"b'AWS4-HMAC-SHA256 Credential=AKIA/{SECRET}', 'X-Amz-Security-Token': b'{SECRET}', "
    f"'User-Agent': b'Boto3 \x1b[31m<script>'}}>\n"
    f'2026-01-01 00:00:00,100 urllib3.connectionpool [DEBUG] https://x:443 "PUT /{KEY}'
    f'?X-Amz-Signature={SECRET} HTTP/1.1" 412 0\n'
    f"2026-01-01 00:00:00,100 botocore.parsers [DEBUG] Response headers: "
    f"{{'Date': 'Thu, 01 Jan 2026 00:00:00 GMT', 'x-amz-id-2': '{SECRET}'}}\n"
)
HTTP_CLIENT = (
    f"send: b'PUT /lake/{KEY}?X-Goog-Signature={SECRET} HTTP/1.1\\r\\nHost: h\\r\\n"
    f"Authorization: Bearer {SECRET}\\r\\nIf-None-Match: *\\r\\n\\r\\n'\n"
    f"send: b'{{\"password\":\"{SECRET}\"}}'\nreply: 'HTTP/1.1 412 x\\r\\n'\n"
    f"header: Date: Thu, 01 Jan 2026 00:00:00 GMT\nheader: Set-Cookie: {SECRET}\n"
)
AZURE_CORE = (
    f"azure.core.pipeline.policies.http_logging_policy Request URL: 'https://a/lake/{KEY}"
    f"?sv=1&sig={SECRET}'\nRequest method: 'PUT'\n    'Authorization': '{SECRET}'\n"
    f"    'x-ms-copy-source': 'https://a/b?sig={SECRET}'\nResponse status: 412\n"
)
SAS = {"uri": f"https://lake.blob.core.windows.net/lake/{KEY}?sv=1&sig={SECRET}"}
PRINCIPAL = f"arn:aws:x/\x1b]0;owned\x07<script>alert(1)</script>?X-Amz-Signature={SECRET}"
BY = {"userIdentity": {"arn": PRINCIPAL}, "sourceIPAddress": "\x1b[2J<b>\u202e"}
HOSTILE = {
    "botocore": BOTOCORE, "http.client": HTTP_CLIENT, "azure-core": AZURE_CORE,
    "CloudTrail": lines(
        [trail("00:00:00", "PutObject", **BY), trail("00:00:03", "DeleteObject", **BY)]
    ),
    "Azure": lines(
        [blob("00:00:00", "PutBlob", 201) | SAS, blob("00:00:03", "DeleteBlob", 202) | SAS]
    ),
    "access log": "\n".join(
        access(*each).replace("?x-id=1", f"?X-Amz-Signature={SECRET}")
        for each in (("00:00:00", "PUT", 200), ("00:00:03", "DELETE", 204))
    ),
    "a file of credentials": json.dumps({"aws_secret_access_key": SECRET}),
    "a torn file of credentials": f'{{"aws_secret_access_key": "{SECRET}", \n',
    "a text": f"password={SECRET}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_output_has_a_credential_of_a_log_or_what_a_terminal_would_obey(
    name: str, form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    file.write_text(HOSTILE[name] if name != "botocore" else HOSTILE[name] + lines(TRAIL))
    main(["incident", str(file), *form])
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert SECRET not in said and "Traceback" not in said
    assert all(each.isprintable() for each in said.replace("\n", ""))
    if name in LOGS:
        for each in take_in([("log", file.read_bytes())]).events:
            assert SECRET not in json.dumps(each.data), "an export has the events"


LOGS = {"botocore", "http.client", "azure-core", "CloudTrail", "Azure", "access log"}


def test_files_of_several_kinds_are_one_history() -> None:
    together = read(BOTOCORE, FORMS["CloudTrail"], ACCESS, lines(BLOB))
    assert len({each.kind for each in together.taken}) == 4
    times = [each.at_ms for each in together.events]
    assert times == sorted(times) and pattern(together) is Pattern.HAND_DELETED
