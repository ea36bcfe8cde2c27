"""How to read an HTTP request in the dialect of S3, GCS, Azure or DynamoDB.

It reads only what selects a fault's requests: client, operation and key. A write counts as `put` if
it makes an object visible; the pieces before that (parts, blocks, resumable chunks) are `part`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from lockkit.lab.faults.plan import Fault, RequestFacts
from lockkit.lab.faults.wire import MessageHead, answer
from lockkit.stores.endpoint import bucket_in

S3, GCS, AZURE, DYNAMODB = "s3", "gcs", "azure", "dynamodb"

_CLIENT = re.compile(r"lockkit-client/([^\s;()]+)")
_GCS_OBJECT = re.compile(r"^/(?:upload/|download/)?storage/v1/b/([^/]+)(?:/o(?:/(.*))?)?$")
_ATTEMPT = re.compile(rb'"attempt"\s*:\s*("(?:[^"\\]|\\.){1,200}")')
SEARCHED_BYTES = 64 * 1024
_IP_OR_LOCAL = re.compile(r"^(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\]|[^.]+)$", re.IGNORECASE)


def dialect(head: MessageHead) -> str:
    """The API that this request uses."""
    if "x-ms-version" in head.headers:
        return AZURE
    if head.headers.get("x-amz-target", "").startswith("DynamoDB_"):
        return DYNAMODB
    if re.match(r"^/(upload/|download/)?(storage/v1|resumable)/|^/batch/storage", head.target):
        return GCS
    return S3


def describe(
    head: MessageHead, payload: bytes = b"", *, uploads: Mapping[str, str] | None = None
) -> RequestFacts:
    """Client, operation and key of a request; `uploads` names the objects of resumable uploads."""
    named = _CLIENT.search(head.headers.get("user-agent", ""))
    match dialect(head):
        case "azure":
            operation, key = _azure(head)
        case "gcs":
            operation, key = _gcs(head, payload, uploads or {})
        case "dynamodb":
            operation, key = _dynamodb(head.headers["x-amz-target"], payload)
        case _:
            operation, key = _s3(head.method, _s3_path(head), head.query)
    client = named[1] if named else ""
    return RequestFacts(client, head.method, operation, key, attempt_in(payload))


_S3_BUCKET_QUESTIONS = {
    "location", "versioning", "acl", "policy", "uploads", "object-lock", "tagging",
}  # fmt: skip


def _s3_path(head: MessageHead) -> str:
    """bucket/key; Amazon's own hosts carry the bucket in their name (virtual hosting)."""
    path = unquote(head.path).lstrip("/")
    bucket = bucket_in(head.headers.get("host", ""))
    return f"{bucket}/{path}" if bucket else path


def _under(bucket: str, prefix: str | None) -> str:
    return f"{bucket}/{prefix}" if prefix else bucket


def _s3(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    if not key:
        if method == "POST" and "delete" in query:
            return "delete", bucket
        if method == "GET" and bucket and not _S3_BUCKET_QUESTIONS & query.keys():
            return "list", _under(bucket, query.get("prefix"))
        return "other", bucket
    match method:
        case "PUT":
            staged = "uploadId" in query
            return ("part" if staged else "put"), path
        case "POST":
            if "uploads" in query:
                return "part", path
            return ("put" if "uploadId" in query else "other"), path
        case "GET" | "HEAD":
            return "get", path
        case "DELETE":
            return ("other" if "uploadId" in query else "delete"), path
    return "other", path


def _gcs(head: MessageHead, payload: bytes, uploads: Mapping[str, str]) -> tuple[str, str]:
    path, query = head.path, head.query
    found = _GCS_OBJECT.match(path)
    bucket, quoted = (unquote(found[1]), found[2]) if found else ("", None)
    if head.method == "GET" and found and path.endswith("/o"):
        return "list", _under(bucket, query.get("prefix"))
    if "upload_id" in query:
        known = uploads.get(query["upload_id"]) or f"{bucket}/{query.get('name', '')}"
        # Not the end of the upload: a chunk that leaves the total open (bytes 0-262143/*), or the
        # question how far the upload is (bytes */524288).
        ends = not re.fullmatch(
            r"bytes (.*/\*|\*/0*[1-9]\d*)", head.headers.get("content-range", "")
        )
        return ("put" if head.method in ("PUT", "POST") and ends else "part"), known
    if path.startswith(("/upload/", "/resumable/")):
        name = query.get("name") or _name_in(payload)
        return ("part" if query.get("uploadType") == "resumable" else "put"), f"{bucket}/{name}"
    if quoted is None:
        return "other", bucket
    action = re.match(r"^(.*)/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.*)$", quoted)
    if action:
        return "put", f"{unquote(action[2])}/{unquote(action[3])}"
    key = f"{bucket}/{unquote(quoted.removesuffix('/compose'))}"
    match head.method:
        case "GET" | "HEAD":
            return "get", key
        case "DELETE":
            return "delete", key
        case "POST" | "PUT" | "PATCH":
            return "put", key
    return "other", key


def _name_in(payload: bytes) -> str:
    """The name in the metadata of a GCS upload: a JSON body, or the first part of a multipart."""
    start = payload[:SEARCHED_BYTES]
    at = start.find(b"{")
    if at < 0:
        return ""
    try:
        metadata: Any = json.JSONDecoder().raw_decode(start[at:].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return ""
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def attempt_in(payload: bytes) -> str:
    """The id that lockkit writes into what it guards, wherever the dialect puts the body; or ""."""
    if len(payload) > SEARCHED_BYTES:
        return ""
    found = _ATTEMPT.search(payload)
    try:
        return str(json.loads(found[1])) if found else ""
    except ValueError:
        return ""


def _azure(head: MessageHead) -> tuple[str, str]:
    host = re.sub(r":\d+$", "", head.headers.get("host", ""))
    key, query = unquote(head.path).lstrip("/"), head.query
    if _IP_OR_LOCAL.match(host):  # path style: the account comes first, as in azurite
        key = key.partition("/")[2]
    comp = query.get("comp", "")
    if comp == "list" or query.get("resource") == "filesystem":
        listed = _under(key, query.get("prefix") or query.get("directory"))
        return ("list" if head.method == "GET" else "other"), listed
    if "restype" in query or "/" not in key:
        return "other", key
    staged = comp == "block" or query.get("action") == "append"
    match head.method:
        case "GET" | "HEAD":
            return "get", key
        case "DELETE":
            return "delete", key
        case "PUT" | "PATCH" | "POST":
            return ("part" if staged else "put"), key
    return "other", key


_DYNAMODB = {"GetItem": "get", "PutItem": "put", "UpdateItem": "put", "DeleteItem": "delete"}


def _dynamodb(target: str, payload: bytes) -> tuple[str, str]:
    """The item's key: table/value, where its key attribute is called `key` (as in lock tables)."""
    operation = _DYNAMODB.get(target.partition(".")[2], "other")
    try:
        said: Any = json.loads(payload[:SEARCHED_BYTES])
        table = str(said["TableName"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return operation, ""
    try:
        return operation, f"{table}/{(said.get('Key') or said['Item'])['key']['S']}"
    except (KeyError, TypeError):
        return operation, table


# --- errors ----------------------------------------------------------------------------------

_ERRORS: dict[str, dict[int, str]] = {
    S3: {400: "BadRequest", 403: "AccessDenied", 404: "NoSuchKey", 408: "RequestTimeout",
         409: "ConditionalRequestConflict", 412: "PreconditionFailed", 429: "TooManyRequests",
         500: "InternalError", 503: "SlowDown"},
    GCS: {400: "invalid", 401: "authError", 403: "forbidden", 404: "notFound",
          412: "conditionNotMet", 429: "rateLimitExceeded", 500: "internalError",
          503: "backendError"},
    AZURE: {400: "InvalidInput", 403: "AuthorizationFailure", 404: "BlobNotFound",
            409: "BlobAlreadyExists", 412: "ConditionNotMet", 429: "TooManyRequests",
            500: "InternalError", 503: "ServerBusy"},
    DYNAMODB: {400: "ProvisionedThroughputExceededException", 500: "InternalServerError",
               503: "ServiceUnavailable"},
}  # fmt: skip


def error_answer(
    spoken: str, status: int, message: str, *, method: str, body: str | None = None, **headers: str
) -> bytes:
    """An error in the provider's format, so that its SDK reads it as the provider's."""
    code = _ERRORS[spoken].get(status, "InternalError" if status >= 500 else "InvalidRequest")
    if spoken == GCS:
        reason = {"message": message, "domain": "global", "reason": code}
        said = json.dumps({"error": {"code": status, "message": message, "errors": [reason]}})
        kind = "application/json; charset=UTF-8"
    elif spoken == DYNAMODB:
        kinds = "com.amazonaws.dynamodb.v20120810#"
        said = json.dumps({"__type": kinds + code, "message": message})
        kind = "application/x-amz-json-1.0"
    else:
        text = message.replace("&", "&amp;").replace("<", "&lt;")
        said = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
        )
        kind = "application/xml"
    if spoken == AZURE:
        headers["x_ms_error_code"] = code
    return answer(status, (said if body is None else body).encode(), kind, method=method, **headers)


def fault_answer(fault: Fault, head: MessageHead) -> bytes:
    """The answer that a fault of `status` gives to the request of this head."""
    assert fault.code is not None
    wait = {} if fault.retry_after_s is None else {"Retry_After": str(fault.retry_after_s)}
    return error_answer(
        dialect(head), fault.code, "a fault made by lockkit", method=head.method, body=fault.body,
        **wait,
    )  # fmt: skip
