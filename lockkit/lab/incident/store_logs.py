"""The store's own logs of requests for the lock: the client, the request and the answer.

CloudTrail data events and server access logs of S3, audit logs of Google Cloud Storage, resource
logs of Azure Blob Storage. None has bodies. Only Azure's has conditions and ETags. S3's have times
to the second and no order within it. docs/howto/on_call.md has the table.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from lockkit.events import STORE, Event, event
from lockkit.lab.incident.listings import moment_ms
from lockkit.lab.incident.places import bucket_of, is_lock
from lockkit.lab.verify.check.lanes import name_of
from lockkit.stores.secret import carries_secret

TEXT_MAX = 1_024
BLANKS_MAX = 1_000
"""Between two records of an array."""
LISTED_WITHIN_MS = 1_500.0
"""A log's time and a listing's are both to the second, and may be of the two ends of a request."""
WRITES = ("PUT", "DELETE")
ANSWERS = {304: "not_modified", 404: "missing", 409: "precondition_failed",
           412: "precondition_failed", 429: "throttled", 503: "throttled"}  # fmt: skip
OLD_VERSION = "a version by its name"
"""A request for one version of an object, as of a lifecycle rule for old ones, is another record:
the object itself stays."""
_GRPC = {0: 200, 5: 404, 6: 412, 7: 403, 8: 429, 9: 412, 10: 409, 13: 500, 14: 503, 16: 401}


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request, as the store logged it. `condition` and `version` are "" where it logs none."""

    at_ms: float
    client: str
    method: str
    key: str
    status: int
    condition: str = ""
    version: str = ""
    took_ms: float = 0.0
    id: str = ""
    """The store's own number of the record or the request: a log may be delivered twice."""
    place: str = ""
    """The bucket, or Azure's account and container. "" if the log does not name it."""

    @property
    def bucket(self) -> str:
        """Empty for Azure, too: an emulator's URL has the account before the container."""
        return "" if "/" in self.place else self.place

    @property
    def path(self) -> str:
        return f"{self.place}/{self.key}" if self.place else self.key

    @property
    def identity(self) -> object:
        """Equal for one request that was delivered twice; without a number each is its own."""
        return self if self.id or self.version else id(self)


@dataclass(slots=True)
class StoreLog:
    """A log's requests for the lock and its fence."""

    form: str
    requests: list[LoggedRequest] = field(default_factory=list)
    others: int = 0
    """Requests for other objects."""
    batches: int = 0
    """Deletions of several objects, of which CloudTrail names none."""
    unread: int = 0


def read_store_log(text: str) -> StoreLog | None:
    """Return None for another kind of text. Never raises: damaged records are counted."""
    head = text.lstrip("\ufeff \t\r\n")
    if _ACCESS.match(head):
        lines = filter(str.strip, text.splitlines())
        return _gather("S3's server access log", _understood(_access, lines))
    for form, mark, parse in _FORMS:
        if re.search(mark, head[:20_000]):
            return _gather(form, _understood(parse, _records(head)))
    return None


def _understood(
    parse: Callable[[Any], LoggedRequest | str | None], records: Iterable[Any]
) -> Iterator[LoggedRequest | str | None]:
    for each in records:
        try:
            yield parse(each)
        except (ValueError, OverflowError, IndexError):  # a URL or a number that is none
            yield None


def _gather(form: str, found: Iterable[LoggedRequest | str | None]) -> StoreLog:
    log = StoreLog(form)
    for each in found:
        if each is None:
            log.unread += 1
        elif isinstance(each, str) or not is_lock(each.key):
            log.others += 1
            log.batches += each == "DeleteObjects"
        else:
            log.requests.append(each)
    log.requests.sort(key=lambda each: each.at_ms)
    return log


def _records(text: str) -> Iterator[dict[str, Any]]:
    """The records of `{"Records": [...]}`, of an array, or of lines with one record each."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = [_record(line) for line in text.split("\n") if line.strip()]
        if not any(isinstance(each, dict) for each in whole):
            whole = [*_begun(text), None]
    if isinstance(whole, dict):
        whole = whole.get("Records") or whole.get("records") or whole.get("entries") or [whole]
    for each in whole if isinstance(whole, list) else ():
        yield each if isinstance(each, dict) else {}


def _begun(text: str) -> Iterator[Any]:
    """The whole records of an array whose end is missing."""
    decoder, at = json.JSONDecoder(), text.find("[") + 1
    while at:
        at += len(text[at : at + BLANKS_MAX]) - len(text[at : at + BLANKS_MAX].lstrip(" ,\t\r\n"))
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield found


def _record(line: str) -> Any:
    try:
        return json.loads(line.strip().rstrip(","))
    except (ValueError, RecursionError):
        return None


# --- one record of each form ----------------------------------------------------------------------

_ACCESS = re.compile(
    r'\S+ (?P<bucket>\S+) \[(?P<at>[^\]]{20,40})\] (?P<ip>\S+) (?P<who>\S+) (?P<id>\S+) '
    r'(?P<op>(?:REST|BATCH|S3|WEBSITE)\.\S+) (?P<key>\S+) (?P<request>"[^"]*"|-) '
    r"(?P<status>\d{3}|-) (?P<code>\S+) \S+ \S+ (?P<took>\d+|-)"
    r'(?: \S+ (?:"[^"]*"|-) (?:".*"|-) (?P<version>\S+))?'
)  # fmt: skip
_ACCESS_METHODS = {
    **{f"REST.{method}.OBJECT": method for method in ("GET", "HEAD", "PUT", "DELETE")},
    "REST.COPY.OBJECT": "PUT", "REST.POST.UPLOAD": "PUT", "BATCH.DELETE.OBJECT": "DELETE",
    "S3.EXPIRE.OBJECT": "DELETE", "S3.CREATE.DELETEMARKER": "DELETE",
}  # fmt: skip
"""A deletion of several objects at once, as by the console, is logged as BATCH for each of them."""
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def _access(line: str) -> LoggedRequest | str | None:
    found = _ACCESS.match(line)
    if found is None:
        return None
    method, who = _ACCESS_METHODS.get(found["op"]), found["who"]
    rule = found["op"].startswith("S3.")
    if method is None or (found["status"] == "-" and not rule):
        return found["op"]
    if _names_a_version(found, method):
        return OLD_VERSION
    day, _, clock = found["at"].partition(":")
    parts = day.split("/")
    if len(parts) != 3 or parts[1] not in _MONTHS:
        return None
    date = f"{parts[2]}-{_MONTHS.index(parts[1]) + 1:02}-{parts[0]}"
    moment = f"{date}T{clock.replace(' ', '')}"
    return _request(
        moment, ("a lifecycle rule" if rule else who, found["ip"]), method,
        unquote(unquote(found["key"])), 204 if rule else int(found["status"]),
        took_ms=0 if found["took"] == "-" else int(found["took"]), id=found["id"],
        place=bucket_of(found["bucket"]),
    )  # fmt: skip


def _names_a_version(found: re.Match[str], method: str) -> bool:
    """A store may log the version that a write made, too. No write of an object can name one."""
    if method == "PUT" or found["op"] == "S3.CREATE.DELETEMARKER":
        return False
    of_delete = method == "DELETE" and found["version"] not in (None, "-")
    return of_delete or re.search(r"[?&]versionId=", found["request"]) is not None


_TRAIL = {"PutObject": "PUT", "GetObject": "GET", "HeadObject": "HEAD", "DeleteObject": "DELETE",
          "CopyObject": "PUT", "CompleteMultipartUpload": "PUT"}  # fmt: skip
_CODES = {"NoSuchKey": 404, "PreconditionFailed": 412, "ConditionalRequestConflict": 409,
          "SlowDown": 503, "NotModified": 304, "InternalError": 500}  # fmt: skip


def _trail(record: Mapping[str, Any]) -> LoggedRequest | str | None:
    """Its `requestParameters` have the key, and no condition."""
    method = _TRAIL.get(str(record.get("eventName")))
    if record.get("eventSource") != "s3.amazonaws.com" or method is None:
        return str(record.get("eventName")) if "eventName" in record else None
    code = record.get("errorCode")
    parameters = _dict(record, "requestParameters")
    if parameters.get("versionId"):
        return OLD_VERSION
    who = _dict(record, "userIdentity")
    status = _CODES.get(str(code), 403 if "Denied" in str(code) else 400) if code else 200
    name = who.get("arn") or who.get("userName") or who.get("principalId")
    return _request(
        record.get("eventTime"), (name, record.get("sourceIPAddress")), method,
        parameters.get("key"), status, id=record.get("eventID"),
        place=_trail_bucket(record, str(parameters.get("bucketName", ""))),
    )  # fmt: skip


_BUCKET_ARN = re.compile(r"arn:[\w-]+:s3:::([^/]+)")


def _trail_bucket(record: Mapping[str, Any], named: str) -> str:
    """A client that uses an access point names that. The bucket is then among the resources."""
    resources = record.get("resources")
    arns = [
        _BUCKET_ARN.match(str(each.get("ARN")))
        for each in (resources if isinstance(resources, list) else ())
        if isinstance(each, dict)
    ]
    buckets = {arn[1] for arn in arns if arn}
    if named in buckets or not buckets:
        return bucket_of(named)
    return buckets.pop() if len(buckets) == 1 else ""


_AUDIT = {"create": "PUT", "get": "GET", "delete": "DELETE", "update": "PUT", "patch": "PUT"}


def _audit(record: Mapping[str, Any]) -> LoggedRequest | str | None:
    said = _dict(record, "protoPayload")
    kind, _, verb = str(said.get("methodName")).removeprefix("storage.").partition(".")
    method = _AUDIT.get(verb)
    if kind != "objects" or method is None:
        return str(said.get("methodName")) if "methodName" in said else None
    code = _dict(said, "status").get("code") or 0
    who = _dict(said, "authenticationInfo").get("principalEmail")
    place, _, name = str(said.get("resourceName")).partition("/objects/")
    return _request(
        record.get("timestamp"), (who, _dict(said, "requestMetadata").get("callerIp")), method,
        name, _GRPC.get(code, 500) if type(code) is int else 500, id=record.get("insertId"),
        place=place.rpartition("/")[2],
    )  # fmt: skip


_BLOB = {"PutBlob": "PUT", "PutBlockList": "PUT", "GetBlob": "GET", "GetBlobProperties": "HEAD",
         "DeleteBlob": "DELETE", "CopyBlob": "PUT", "UndeleteBlob": "PUT",
         # Data Lake (abfss), by Microsoft's list of logged operations. A file's new content appears
         # with its flush; a rename is a request for the new name.
         "CreatePathFile": "PUT", "FlushFile": "PUT", "RenamePathFile": "PUT", "ReadFile": "GET",
         "GetFileProperties": "HEAD", "GetPathStatus": "HEAD", "DeleteFile": "DELETE"}  # fmt: skip


def _blob(record: Mapping[str, Any]) -> LoggedRequest | str | None:
    """A record as stored (camelCase, with `properties`), or as a query returns it (PascalCase)."""
    fields = {str(name).lower(): value for name, value in record.items()}
    for inner in ("properties", "identity"):
        nested = fields.get(inner)
        if isinstance(nested, dict):
            fields |= {str(name).lower(): value for name, value in nested.items()}
    method = _BLOB.get(str(fields.get("operationname")))
    if method is None:
        return str(fields.get("operationname")) if "operationname" in fields else None
    uri = urlsplit(str(fields.get("uri")))
    if re.search(r"(?i)(?:^|&)(?:versionid|snapshot)=", uri.query):
        return OLD_VERSION
    container, _, key = unquote(uri.path).lstrip("/").partition("/")
    requester = _dict(fields, "requester")
    who = requester.get("upn") or requester.get("objectId")  # or, in the answer of a query:
    who = who or fields.get("requesterupn") or fields.get("requesterobjectid")
    who = who or fields.get("authenticationtype") or fields.get("type")
    ip = str(fields.get("calleripaddress") or "")
    status, took = str(fields.get("statuscode")), str(fields.get("durationms"))
    return _request(
        fields.get("time") or fields.get("timegenerated"),
        (who, ip.rpartition(":")[0] or ip), method, key,
        int(status) if status.isdecimal() else 0, condition=_used(fields.get("conditionsused")),
        version=str(fields.get("etag") or ""),
        took_ms=float(took) if re.fullmatch(r"\d{1,9}(?:\.\d+)?", took) else 0.0,
        id=fields.get("correlationid"),  # the host may be a domain of the customer's
        place=f"{fields.get('accountname') or uri.netloc.partition('.')[0]}/{container}",
    )  # fmt: skip


def _used(conditions: object) -> str:
    for each in str(conditions or "").split(";"):
        name, _, value = each.strip().partition("=")
        if name.lower() == "if-none-match" and value.strip('"') == "*":
            return "if-absent"
        if name.lower() in ("if-match", "if-none-match") and value:
            word = "if-version" if name.lower() == "if-match" else "unless-version"
            return f"{word} {value[:TEXT_MAX]}"
    return ""


_FORMS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], LoggedRequest | str | None]], ...] = (
    ("CloudTrail's data events", r'"eventSource"\s*:\s*"s3', _trail),
    ("Google's audit log", r'"protoPayload"\s*:', _audit),
    ("Azure's resource log", r'(?i)"operationName"\s*:\s*"\w+"', _blob),
)


def _request(
    at: object, who: Sequence[object], method: str, key: object, status: int, *,
    condition: str = "", version: str = "", took_ms: float = 0.0, id: object = "", place: str = "",
) -> LoggedRequest | None:  # fmt: skip
    at_ms = moment_ms(at)
    took_ms = took_ms if math.isfinite(took_ms) else 0.0
    if at_ms is None or not isinstance(key, str) or not key or not 100 <= status <= 599:
        return None
    return LoggedRequest(
        at_ms, _name(*who), method, key[:TEXT_MAX], status, condition, version[:TEXT_MAX],
        min(max(took_ms, 0.0), 600_000.0), id[:TEXT_MAX] if isinstance(id, str) else "",
        place[:TEXT_MAX],
    )  # fmt: skip


def _name(who: object, ip: object) -> str:
    """The last part of a principal's name, of a role's session with the role, and its address.

    Several clients may share any of them: many programs name their sessions alike.
    """
    role, _, last = str(who or "").rpartition("assumed-role/")
    name = last if role else last.rpartition("/")[2]
    name = "somebody" if name in ("", "-") or carries_secret(name) else name
    return f"{name[:60]}@{str(ip)[:45]}" if ip and ip != "-" else name[:60]


def _dict(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


# --- as a history ---------------------------------------------------------------------------------


def as_events(logs: Iterable[StoreLog]) -> list[Event]:
    """The requests in the truth lane. A version that the log lacks is `?1`, `?2`, ..."""
    events, standing = list[Event](), dict[str, str]()
    requests = [each for log in logs for each in log.requests]
    requests.sort(key=lambda each: each.at_ms)
    for number, each in enumerate(requests, 1):
        applied = each.method in WRITES and each.status < 300
        before, version = standing.get(each.key, ""), each.version
        if applied:
            version = "" if each.method == "DELETE" else version or f"?{number}"
            standing[each.key] = version
        done = "applied" if applied else "found" if each.status < 300 else ""
        events.append(event(
            each.at_ms + min(each.took_ms, 1.0), STORE, "request", client=each.client,
            method=each.method, key=each.key, condition=each.condition, status=each.status,
            answer=done or ANSWERS.get(each.status, "error"), applied=applied, before=before,
            version=version, attempt="", began_ms=each.at_ms, logged=True,
        ))  # fmt: skip
    return events


def with_listed(events: Sequence[Event]) -> list[Event]:
    """A write that a log and a bucket's listing both tell is one: the log knows who, the listing
    which version, and whose lease it was.
    """
    logged = [each for each in events if each.get("logged") and each["applied"]]
    listed = sorted((each for each in events if each.get("listed")), key=lambda each: each.at_ms)
    times = [each.at_ms for each in listed]
    merged: dict[int, Event] = {}
    for one in logged:
        first = bisect_left(times, one.at_ms - LISTED_WITHIN_MS)
        last = bisect_right(times, one.at_ms + LISTED_WITHIN_MS)
        near = [
            other for other in listed[first:last]
            if id(other) not in merged and name_of(other["key"]) == name_of(one["key"])
            and bool(other["version"]) == bool(one["version"])
        ]  # fmt: skip
        if near:
            other = min(near, key=lambda each: abs(each.at_ms - one.at_ms))
            known = {name: one[name] for name in ("client", "condition") if one[name]}
            merged[id(other)] = Event(other.at_ms, other.who, other.kind, {**other.data, **known})
            merged[id(one)] = merged[id(other)]
    kept = [each for each in events if id(each) not in merged or each.get("listed")]
    return [merged.get(id(each), each) for each in kept]
