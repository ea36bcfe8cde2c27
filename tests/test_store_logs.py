"""The store's own logs: each provider's form, damaged records, and what they add to a listing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.dropped import FILE_BYTES_MAX, NotUnderstood, take_in
from lockkit.lab.incident.patterns import Pattern
from lockkit.lab.incident.places import is_of
from lockkit.lab.incident.store_logs import LoggedRequest, read_store_log

KEY = "orders/.hoodie/.locks/table_lock.json"
AT_MS = 1_767_225_600_000
OWNER = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"


def access(
    at: str, method: str, status: int, *, key: str = KEY, ip: str = "10.0.0.7",
    who: str = "arn:aws:sts::123456789012:assumed-role/etl/spark-1", code: str = "-",
) -> str:  # fmt: skip
    """A line of a server access log, with the fields that Amazon documents."""
    quoted = key.replace("/", "%252F")
    return (
        f"{OWNER} lake [01/Jan/2026:{at} +0000] {ip} {who} 3E57427F3EXAMPLE REST.{method}.OBJECT "
        f'{quoted} "{method} /lake/{key}?x-id=1 HTTP/1.1" {status} {code} 113 120 28 27 "-" '
        f'"Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux" - s9lzHYrFp76ZVxRcpX9= SigV4 '
        "ECDHE-RSA-AES128-GCM-SHA256 AuthHeader lake.s3.eu-west-1.amazonaws.com TLSV1.2 - -"
    )


def trail(at: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "eventVersion": "1.11", "eventTime": f"2026-01-01T{at}Z", "eventSource": "s3.amazonaws.com",
        "eventName": name, "awsRegion": "eu-west-1", "sourceIPAddress": "10.0.0.7",
        "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::1:assumed-role/etl/spark-1"},
        "requestParameters": {"bucketName": "lake", "key": KEY}, "readOnly": name != "PutObject",
    } | more  # fmt: skip


def audit(at: str, verb: str, code: int = 0) -> dict[str, Any]:
    said: dict[str, Any] = {
        "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
        "serviceName": "storage.googleapis.com", "methodName": f"storage.objects.{verb}",
        "authenticationInfo": {"principalEmail": "etl@project.iam.gserviceaccount.com"},
        "requestMetadata": {"callerIp": "10.0.0.7", "callerSuppliedUserAgent": "gcloud-python/3"},
        "resourceName": f"projects/_/buckets/lake/objects/{KEY}",
    }  # fmt: skip
    if code:
        said["status"] = {"code": code, "message": "conditionNotMet"}
    return {"timestamp": f"2026-01-01T{at}.123456789Z", "protoPayload": said, "insertId": "a"}


def blob(at: str, operation: str, status: int, **more: Any) -> dict[str, Any]:
    """As a diagnostic setting stores it."""
    return {
        "time": f"2026-01-01T{at}.1234567Z", "category": "StorageWrite", "operationName": operation,
        "statusCode": status, "durationMs": 12, "callerIpAddress": "10.0.0.7:4711",
        "uri": f"https://lake.blob.core.windows.net:443/lake/{KEY}?timeout=10",
        "identity": {"type": "OAuth", "requester": {"objectId": "etl-id"}},
        "properties": {"etag": '"0x8D1"', "userAgentHeader": "azsdk-python-storage-blob"} | more,
    }  # fmt: skip


def lines(records: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, records))


TRAIL = [trail("00:00:00", "PutObject"), trail("00:00:01", "GetObject"),
         trail("00:00:02", "PutObject", errorCode="PreconditionFailed"),
         trail("00:00:03", "DeleteObject"), trail("00:00:03", "ListObjects")]  # fmt: skip
ACCESS = "\n".join([access("00:00:00", "PUT", 200), access("00:00:01", "GET", 200),
                    access("00:00:02", "PUT", 412, code="PreconditionFailed"),
                    access("00:00:03", "DELETE", 204),
                    access("00:00:03", "GET", 200, key="orders/a.parquet")])  # fmt: skip
AUDIT = [audit("00:00:00", "create"), audit("00:00:01", "get"), audit("00:00:02", "create", 9),
         audit("00:00:03", "delete"), audit("00:00:03", "list")]  # fmt: skip
BLOB = [blob("00:00:00", "PutBlob", 201, conditionsUsed="If-None-Match=*"),
        blob("00:00:01", "GetBlob", 200),
        blob("00:00:02", "PutBlob", 412, conditionsUsed='If-Match="0x8D0"'),
        blob("00:00:03", "DeleteBlob", 202), blob("00:00:03", "ListBlobs", 200)]  # fmt: skip
LAKE_URI = {"uri": f"https://lake.dfs.core.windows.net:443/lake/{KEY}?action=flush"}
LAKE = [blob("00:00:00", "FlushFile", 200) | LAKE_URI, blob("00:00:01", "ReadFile", 200) | LAKE_URI,
        blob("00:00:02", "CreatePathFile", 412) | LAKE_URI,
        blob("00:00:03", "DeleteFile", 200) | LAKE_URI,
        blob("00:00:03", "AppendFile", 202) | LAKE_URI]  # fmt: skip
FORMS = {
    "CloudTrail": json.dumps({"Records": TRAIL}), "CloudTrail, lines": lines(TRAIL),
    "S3's server access log": ACCESS,
    "Google's audit log": json.dumps(AUDIT, indent=2), "Google, lines": lines(AUDIT),
    "Azure's resource log": lines(BLOB), "Azure, array": json.dumps(BLOB),
    "Azure's Data Lake": lines(LAKE),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_same_requests_are_read_from_each_form(form: str) -> None:
    log = read_store_log(FORMS[form])
    assert log is not None
    assert [(each.method, each.status < 300) for each in log.requests] == [
        ("PUT", True), ("GET", True), ("PUT", False), ("DELETE", True),
    ]  # fmt: skip
    assert [each.status for each in log.requests][2] == 412
    assert [int(each.at_ms - AT_MS) // 1000 for each in log.requests] == [0, 1, 2, 3]
    assert {each.key for each in log.requests} == {KEY}
    assert all(each.client.endswith("@10.0.0.7") for each in log.requests)
    assert (log.others, log.unread) == (1, 0)


def test_only_azures_log_has_conditions_and_etags() -> None:
    log = read_store_log(lines(BLOB))
    assert log is not None
    assert [each.condition for each in log.requests] == ["if-absent", "", 'if-version "0x8D0"', ""]
    assert log.requests[0].version == '"0x8D1"'


def test_a_row_that_a_query_of_azures_log_returns_is_read() -> None:
    row = {"TimeGenerated": "2026-01-01T00:00:00Z", "OperationName": "PutBlob", "StatusCode": "201",
           "Uri": f"https://lake.blob.core.windows.net/lake/{KEY}", "Etag": '"0x8D1"',
           "CallerIpAddress": "10.0.0.7:1", "ConditionsUsed": "", "DurationMs": 3}  # fmt: skip
    log = read_store_log(json.dumps([row]))
    assert log is not None
    assert log.requests == [
        LoggedRequest(float(AT_MS), "somebody@10.0.0.7", "PUT", KEY, 201, "", '"0x8D1"', 3.0,
                      place="lake/lake")
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_lock_deleted_by_hand_is_named_with_the_identity_that_deleted_it(form: str) -> None:
    evidence = take_in([("log", FORMS[form].encode())])
    found = diagnose(evidence.events)
    assert found.pattern is Pattern.HAND_DELETED
    assert "10.0.0.7 deleted the lock object" in found.because
    assert "requests of 1 clients" in evidence.taken[0].said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("url", "found"), [
    ("{scheme}://lake/orders", 4), ("{scheme}://lake-dev/orders", 1), ("{scheme}://lake/other", 0),
])  # fmt: skip
def test_only_the_requests_for_the_lock_of_the_tables_own_bucket_count(
    form: str, url: str, found: int
) -> None:
    """A log of a project, or of a target bucket, has those of every bucket."""
    url = url.format(scheme={"S": "s3", "C": "s3", "G": "gs", "A": "az"}[form[0]])
    if form == "S3's server access log":
        more = ACCESS.split("\n")[3].replace(" lake [", " lake-dev [")
    else:
        last = {"C": TRAIL, "G": AUDIT, "A": BLOB}[form[0]][3]
        more = json.dumps(last).replace('"lake"', '"lake-dev"').replace("/lake/", "/lake-dev/")
    files = [("log", FORMS[form].encode()), ("other", more.encode())]
    evidence = take_in(files, url=url)
    assert len(evidence.events) == found
    with pytest.raises(NotUnderstood, match=r"locks of 2 tables .*lake-dev/orders.*give the URL"):
        take_in(files)


@pytest.mark.parametrize("form", ["CloudTrail", "S3's server access log", "Google's audit log"])
def test_a_folder_with_the_name_of_its_bucket_is_not_the_bucket(form: str) -> None:
    quoted = KEY.replace("/", "%252F")
    log = FORMS[form].replace(KEY, f"lake/{KEY}").replace(quoted, f"lake%252F{quoted}")
    scheme = "gs" if form[0] == "G" else "s3"
    assert not take_in([("log", log.encode())], url=f"{scheme}://lake/orders").events
    assert len(take_in([("log", log.encode())], url=f"{scheme}://lake/lake/orders").events) == 4


def test_a_debug_log_of_a_client_that_uses_an_access_point_is_believed() -> None:
    alias = "etl-x7y5d2r3eu-s3alias"
    assert is_of("s3://lake/orders", f"{alias}/{KEY}")
    assert not is_of("s3://lake/other", f"{alias}/{KEY}")


STAMP = "2026-01-01 00:00:00,000"
LOGGED = {
    "botocore": f"{STAMP} botocore.endpoint [DEBUG] Sending http request: <AWSPreparedRequest "
    f"stream_output=True, method=GET, url=https://HOST/{KEY}, headers={{'User-Agent': b'x'}}>\n",
    "http.client": f"send: b'GET /{KEY} HTTP/1.1\\r\\nHost: HOST\\r\\n\\r\\n'\n",
    "urllib3": f'{STAMP} urllib3.connectionpool https://HOST:443 "GET /{KEY} HTTP/1.1" 200 1\n',
}


@pytest.mark.parametrize("form", LOGGED)
def test_a_bucket_in_the_host_of_a_debug_log_is_that_of_its_requests(form: str) -> None:
    for host, buckets in {
        "lake.s3.eu-west-1.amazonaws.com": {"lake"},
        "la.ke.s3.amazonaws.com": {"la.ke"},
        "s3.amazonaws.com": {"", "lake", "la.ke"},  # the path may have it
        "etl-12.s3-accesspoint.eu-west-1.amazonaws.com": {"", "lake", "la.ke"},
        "bucket.vpce-1a-2b.s3.us-east-1.vpce.amazonaws.com": {"", "lake", "la.ke"},
        "lake.example.org": {"", "lake", "la.ke"},
    }.items():
        log = LOGGED[form].replace("HOST", host).encode()
        read = {
            bucket for bucket in ("", "lake", "la.ke")
            if take_in([("log", log)], url=f"s3://{bucket}/orders" if bucket else "").events
        }  # fmt: skip
        assert read == buckets | {""}, host


@pytest.mark.parametrize(("account", "same"), [
    ("etl", True), ("ETL", True), ("etl-secondary", True), ("other", False),
])  # fmt: skip
def test_an_account_of_azure_has_two_hosts_and_its_name_no_case(account: str, same: bool) -> None:
    assert is_of("az://lake@Etl.blob.core.windows.net/orders", f"{account}/lake/{KEY}") == same


def test_a_container_of_azure_is_known_by_its_account_and_its_place() -> None:
    """A folder may have its container's name, and a host may be a domain of the customer's."""
    assert not is_of("az://lake/orders", f"etl/lake/lake/{KEY}")
    assert is_of("az://lake/orders", f"127/devstoreaccount1/lake/{KEY}")
    assert is_of("abfss://lake@etl-secondary.dfs.core.windows.net/orders", f"etl/lake/{KEY}")
    rows = lines([
        each | {"uri": f"https://x.contoso.com/lake/{KEY}", "properties": {"accountName": "etl"}}
        for each in BLOB
    ])  # fmt: skip
    url = "abfss://lake@{}.dfs.core.windows.net/orders"
    assert len(take_in([("log", rows.encode())], url=url.format("etl")).events) == 4
    assert not take_in([("log", rows.encode())], url=url.format("other")).events


BY_ACCESS_POINT = [
    trail(f"00:00:0{at}", name, requestParameters={"bucketName": bucket, "key": KEY})
    for at, (name, bucket) in enumerate([
        ("PutObject", "arn:aws:s3:eu-west-1:123456789012:accesspoint/etl"),
        ("DeleteObject", "etl-x7y5d2r3eu-s3alias"), ("PutObject", "lake"),
    ])
]  # fmt: skip
RESOURCES = {"resources": [
    {"type": "AWS::S3::Object", "ARN": f"arn:aws:s3:::lake/{KEY}"},
    {"accountId": "1", "type": "AWS::S3::Bucket", "ARN": "arn:aws:s3:::lake"},
    {"type": "AWS::S3::AccessPoint", "ARN": "arn:aws:s3:eu-west-1:1:accesspoint/etl"}, None,
]}  # fmt: skip


@pytest.mark.parametrize("more", [{}, RESOURCES, {"resources": RESOURCES["resources"][:1]}])
@pytest.mark.parametrize("url", ["", "s3://lake/orders", "s3://etl-x7y5d2r3eu-s3alias/orders"])
def test_a_request_by_an_access_point_is_one_for_its_bucket(url: str, more: dict[str, Any]) -> None:
    records = [each | more for each in BY_ACCESS_POINT]
    found = take_in([("log", lines(records).encode())], url=url)
    assert len(found.events) == 3
    assert diagnose(found.events).pattern is Pattern.HAND_DELETED
    if more:
        assert not take_in([("log", lines(records).encode())], url="s3://other/orders").events


@pytest.mark.parametrize("url", ["abfss://lake@lake.dfs.core.windows.net/orders", "az://lake/orders"])
def test_two_storage_accounts_with_one_path_are_two_locks(url: str) -> None:
    other = json.dumps(BLOB[2]).replace("//lake.blob", "//archive.blob")
    files = [("log", lines(BLOB).encode()), ("other", other.encode())]
    assert len(take_in(files, url=url).events) == 4 + (url[0] == "a" and "@" not in url)


def test_a_debug_log_of_another_tables_lock_is_not_evidence_of_this_one() -> None:
    logs = Path(__file__).parents[1] / "datasets" / "incidents" / "logs"
    files = [("log", next(logs.glob("*.log")).read_bytes())]
    assert take_in(files).events
    assert not take_in(files, url="s3://lake/none-of-its-tables").events


OLD = "3HL4kqtJlcpXroDTDmJ.rmSpXd3QBFP1"


@pytest.mark.parametrize("log", [
    json.dumps({"Records": [TRAIL[0], TRAIL[3] | {"requestParameters": {
        "bucketName": "lake", "key": KEY, "versionId": OLD}}]}),
    ACCESS.replace("?x-id=1", f"?versionId={OLD}").replace('linux" - ', f'linux" {OLD} '),
    ACCESS.replace("REST.DELETE.OBJECT", "S3.EXPIRE.OBJECT").replace('linux" - ', f'linux" {OLD} '),
    lines(BLOB).replace("?timeout=10", "?snapshot=2026-11-27T08:00:00.0000000Z"),
    lines(BLOB).replace("?timeout=10", "?timeout=10&versionid=2026-11-27T08:00:00.0000000Z"),
])  # fmt: skip
def test_a_deletion_of_an_old_version_deletes_no_lock(log: str) -> None:
    """A bucket that keeps versions has a rule that deletes old ones every day."""
    evidence = take_in([("log", log.encode())])
    assert not [each for each in evidence.events if each["method"] == "DELETE"]
    assert diagnose(evidence.events).pattern is not Pattern.HAND_DELETED
    assert "other records" in evidence.taken[0].said


def test_a_version_that_a_write_made_hides_no_write() -> None:
    """Amazon logs the version that the request names. Other stores log the one it made, too."""
    log = "\n".join(
        line if "REST.DELETE" in line else line.replace('linux" - ', f'linux" {OLD} ')
        for line in ACCESS.split("\n")
    )
    evidence = take_in([("log", log.encode())])
    assert [each["method"] for each in evidence.events] == ["PUT", "GET", "PUT", "DELETE"]
    assert diagnose(evidence.events).pattern is Pattern.HAND_DELETED


def test_an_access_log_of_another_zone_is_brought_to_utc() -> None:
    log = read_store_log(access("09:00:00", "PUT", 200).replace("+0000", "+0900"))
    assert log is not None and log.requests[0].at_ms == AT_MS


def test_a_log_names_the_writer_of_each_listed_version() -> None:
    listing = {"Versions": [
        {"Key": KEY, "VersionId": "v1", "ETag": '"6dd671d9771f97132818793a016605ac"',
         "LastModified": "2026-01-01T00:00:00Z", "IsLatest": True},
    ]}  # fmt: skip
    log = access("00:00:00", "PUT", 200)
    evidence = take_in([("log", log.encode()), ("list.json", json.dumps(listing).encode())])
    (write,) = evidence.events
    assert write["version"] == '"6dd671d9771f97132818793a016605ac"'
    assert write["client"] == "etl/spark-1@10.0.0.7"
    far = access("00:00:05", "PUT", 200)
    evidence = take_in([("log", far.encode()), ("list.json", json.dumps(listing).encode())])
    assert len(evidence.events) == 2


def test_several_clients_are_distinguished_by_name_or_address() -> None:
    text = "\n".join([
        access("00:00:00", "PUT", 200), access("00:00:01", "PUT", 200, ip="10.0.0.8"),
        access("00:00:02", "PUT", 200, who="arn:aws:iam::1:user/ana"),
        access("00:00:03", "PUT", 200, who="-"),
    ])  # fmt: skip
    log = read_store_log(text)
    assert log is not None
    assert [each.client for each in log.requests] == [
        "etl/spark-1@10.0.0.7", "etl/spark-1@10.0.0.8", "ana@10.0.0.7", "somebody@10.0.0.7",
    ]  # fmt: skip


def test_a_person_who_signs_in_by_mail_address_is_named_in_each_providers_log() -> None:
    """CloudTrail's session name is the address; a query of Azure's log has columns of its own."""
    role = {"arn": "arn:aws:sts::1:assumed-role/AWSReservedSSO_Admin_0a/bob@x.com"}
    deleted = {
        "TimeGenerated": "2026-01-01T00:00:03Z", "OperationName": "DeleteBlob", "StatusCode": "202",
        "Uri": f"https://etl.blob.core.windows.net:443/lake/{KEY}", "CallerIpAddress": "10.0.0.9",
        "RequesterUpn": "bob@x.com", "DurationMs": "12", "Type": "StorageBlobLogs",
    }  # fmt: skip
    for record, who in (
        (trail("00:00:03", "DeleteObject", userIdentity=role),
         "AWSReservedSSO_Admin_0a/bob@x.com@10.0.0.7"),
        (deleted, "bob@x.com@10.0.0.9"),
    ):  # fmt: skip
        log = read_store_log(json.dumps(record))
        assert log is not None and [each.client for each in log.requests] == [who]


def test_a_deletion_of_several_objects_is_counted_where_their_keys_are_not_logged() -> None:
    batch = trail("00:00:03", "DeleteObjects", requestParameters={"bucketName": "lake"})
    (taken,) = take_in([("log", lines([*TRAIL, batch]).encode())]).taken
    assert "1 deletions of several objects, whose keys it does not name" in taken.said


def test_a_user_agent_with_quotes_hides_no_version_of_an_access_logs_row() -> None:
    row = access("00:00:03", "DELETE", 204).replace("ua/2.1 os/linux", 'a "quoted" name')
    old = row.replace('name" - ', 'name" 3HL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY ')
    assert old != row
    for line, found in ((row, 1), (old, 0)):
        log = read_store_log(line)
        assert log is not None and len(log.requests) == found


def test_a_file_that_gzip_packed_is_unpacked_within_its_limit() -> None:
    packed = gzip.compress(FORMS["CloudTrail"].encode())
    assert take_in([("trail.json.gz", packed)]).taken[0].kind == "CloudTrail's data events"
    with pytest.raises(NotUnderstood, match="cannot be unpacked"):
        take_in([("trail.json.gz", packed[:40])])
    with pytest.raises(NotUnderstood, match="longer than"):
        take_in([("bomb.gz", gzip.compress(b" " * (FILE_BYTES_MAX + 10)))])


DAMAGED: list[Any] = [
    None, 7, [], {}, {"eventSource": "s3.amazonaws.com"}, trail("99:00:00", "PutObject"),
    trail("00:00:00", "PutObject", requestParameters=None),
    trail("00:00:00", "PutObject", requestParameters={"key": 7}),
    trail("00:00:00", "PutObject", userIdentity=[], sourceIPAddress={}),
    audit("00:00:00", "create") | {"protoPayload": []}, blob("00:00:00", "PutBlob", 0),
    blob("00:00:00", "PutBlob", 201) | {"uri": 5}, blob("x", "PutBlob", 201),
    audit("00:00:00", "create", code=[]),  # type: ignore[arg-type]
    blob("00:00:00", "PutBlob", 201) | {"uri": "https://[lake/c/b"},
    blob("00:00:00", "PutBlob", 201) | {"statusCode": "9" * 5000},
    blob("00:00:00", "PutBlob", 201) | {"durationMs": 10**400},
    trail(10**400, "PutObject") | {"eventTime": 10**400},  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("first", [TRAIL[0], AUDIT[0], BLOB[0]])
def test_damaged_records_are_counted_and_nothing_is_raised(first: dict[str, Any]) -> None:
    log = read_store_log(json.dumps([first, *DAMAGED]))
    assert log is not None
    assert log.requests
    assert log.unread
    assert read_store_log(lines([first]) + '\n{"torn')


@pytest.mark.parametrize(
    ("old", "new"),
    [("01/Jan/2026:00:00:00 +0000", "01/Jan/2026:" + " " * 20), (" 28 27 ", f" {'9' * 5000} 27 ")],
)
def test_a_damaged_line_of_an_access_log_is_counted(old: str, new: str) -> None:
    line = access("00:00:00", "PUT", 200)
    log = read_store_log(f"{line}\n{line.replace(old, new)}")
    assert log is not None
    assert (len(log.requests), log.unread) == (1, 1)


def test_a_time_that_is_no_number_keeps_the_request() -> None:
    log = read_store_log(lines([blob("00:00:00", "PutBlob", 201) | {"durationMs": float("nan")}]))
    assert log is not None
    assert [each.took_ms for each in log.requests] == [0.0]


@pytest.mark.parametrize(
    ("operation", "status", "who"),
    [
        ("BATCH.DELETE.OBJECT", "204", "etl/spark-1@10.0.0.7"),
        ("S3.EXPIRE.OBJECT", "-", "a lifecycle rule"),
        ("S3.CREATE.DELETEMARKER", "-", "a lifecycle rule"),
    ],
)
def test_a_batch_and_a_lifecycle_rule_delete_the_lock_too(
    operation: str, status: str, who: str
) -> None:
    """As the console, `aws s3 rm --recursive` and a rule of the bucket are logged."""
    ip = "-" if status == "-" else "10.0.0.7"
    gone = access("00:00:03", "DELETE", 204, ip=ip).replace("REST.DELETE.OBJECT", operation)
    gone = gone.replace('" 204 -', f'" {status} -')
    evidence = take_in([("log", f"{access('00:00:00', 'PUT', 200)}\n{gone}".encode())])
    found = diagnose(evidence.events)
    assert found.pattern is Pattern.HAND_DELETED
    assert f"{who} deleted the lock object" in found.because


def test_a_utf_16_log_as_powershell_writes_it_is_read() -> None:
    evidence = take_in([("trail.json", FORMS["CloudTrail"].encode("utf-16"))])
    assert evidence.taken[0].kind == "CloudTrail's data events"


@pytest.mark.parametrize(
    "log",
    [
        (
            "botocore Sending http request: <AWSPreparedRequest stream_output=False, method=PUT, "
            "url=https://[lake/orders, headers={'x': b'y'}>"
        ),
        (
            "azure.core.pipeline.policies.http_logging_policy Request URL: 'https://[a/b'\n"
            "Request method: 'PUT'"
        ),
        (
            "azure.core.pipeline.policies.http_logging_policy Request URL: 'https://a.b/c'\n"
            "Request method: 'PUT'\nb'\\xzz'"
        ),
        'urllib3.connectionpool "PUT //[lake/orders HTTP/1.1" 200',
    ],
)
def test_a_debug_log_with_an_invalid_url_or_body_is_read(log: str) -> None:
    assert "1 requests" in take_in([("log", log.encode())]).taken[0].said


def test_hostile_names_are_bounded_and_escaped_where_they_are_shown() -> None:
    from lockkit.lab.course.sequence import draw

    text = lines([trail("00:00:00", "PutObject", sourceIPAddress="<script>" * 1000)])
    evidence = take_in([("log", text.encode())])
    assert len(evidence.events[0]["client"]) < 200
    assert "<script>" not in draw(evidence.events, "").value


def test_ten_megabytes_are_read_in_seconds() -> None:
    """A hundred thousand records; the bound is far above what it takes (see `make bench`)."""
    other = access("00:00:04", "GET", 200, key="orders/part-0001.parquet")
    text = "\n".join([other] * (FILE_BYTES_MAX // (len(other) + 1) - 10) + [ACCESS])
    log = read_store_log(text)
    assert log is not None
    assert len(log.requests) == 4
    assert log.others > 20_000
