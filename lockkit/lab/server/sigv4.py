"""AWS Signature Version 4, checked where the server was given a key (else it takes any)."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, unquote

from lockkit.lab.server.call import DialectError, DialectRequest

SKEW_S_MAX = 15 * 60
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request,\s*"
    r"SignedHeaders=([a-z0-9;-]+),\s*Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(...)"


def verify(call: DialectRequest, credentials: Credentials, now_ms: float) -> None:
    """403 unless the request is signed with these credentials, within 15 minutes of now."""
    found = _HEADER.fullmatch(call.headers.get("authorization", ""))
    if found is None:
        raise DialectError(
            403, "AccessDenied", "this server wants a request signed by SigV4 headers"
        )
    access_key, day, region, names, signature = found.groups()
    if access_key != credentials.access_key:
        raise DialectError(
            403, "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
        )  # fmt: skip
    signed_at = call.headers.get("x-amz-date", "")
    try:
        moment = datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise DialectError(403, "AccessDenied", "x-amz-date is not readable") from None
    if abs(moment.timestamp() - now_ms / 1000) > SKEW_S_MAX:
        raise DialectError(
            403, "RequestTimeTooSkewed",
            "The difference between the request time and the server's time is too large.",
        )  # fmt: skip
    scope = f"{day}/{region}/s3/aws4_request"
    hashed = hashlib.sha256(_canonical(call, names).encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{signed_at}\n{scope}\n{hashed}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), signature):
        raise DialectError(
            403, "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided.",
        )  # fmt: skip


def _canonical(call: DialectRequest, names: str) -> str:
    path, _, query = call.target.partition("?")
    # Rust's object_store sends a space as "+" and signs it as %20; a plus is always sent as %2B.
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    headers = "".join(
        f"{name}:{' '.join(call.headers.get(name, '').split())}\n" for name in names.split(";")
    )
    return "\n".join((
        call.method, quote(unquote(path), safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in pairs), headers, names,
        call.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ))  # fmt: skip
