"""AWS Signature Version 4, checked if the server has a key (otherwise it accepts any)."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, unquote

from lockkit.lab.server.call import DialectError, DialectRequest

SKEW_S_MAX = 15 * 60
LINK_S_MAX = 7 * 24 * 3600
REGION = "us-east-1"
"""Of every bucket."""
MALFORMED = "AuthorizationHeaderMalformed"
_SCOPE = r"([^/]+)/(\d{8})/([^/]+)/s3/aws4_request"
_NAMES = r"[a-z0-9;!#$%&'*+.^_`|~-]+"
_HEADER = re.compile(
    rf"AWS4-HMAC-SHA256 Credential={_SCOPE},\s*SignedHeaders=({_NAMES}),"
    r"\s*Signature=([0-9a-f]{64})"
)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16});chunk-signature=([0-9a-f]{64})")
_CREDENTIAL = re.compile(_SCOPE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair.

    :param access_key: the public part.
    :param secret_key: the secret part; `repr` hides it.
    """

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(...)"


def verify(call: DialectRequest, credentials: Credentials, now_ms: float) -> None:
    """403 unless the request is signed with these credentials and is neither too old nor too new.

    A request signed by headers is valid for 15 minutes, a presigned link as long as it says.
    """
    if call.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise DialectError(501, "NotImplemented", "this server takes no uploads by forms (POST)")
    link = "X-Amz-Algorithm" in call.query
    access_key, day, region, names, signature = _of_link(call) if link else _of_headers(call)
    if access_key != credentials.access_key:
        raise DialectError(
            403, "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
        )  # fmt: skip
    if region != REGION:
        where = "X-Amz-Credential parameter" if link else "authorization header"
        raise DialectError(
            400, "AuthorizationQueryParametersError" if link else MALFORMED,
            f"The {where} is malformed; the region '{region}' is wrong; expecting '{REGION}'",
        )  # fmt: skip
    signed_at = call.query.get("X-Amz-Date", "") if link else call.headers.get("x-amz-date", "")
    try:
        moment = datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise DialectError(403, "AccessDenied", "X-Amz-Date is not readable") from None
    age_s = now_ms / 1000 - moment.timestamp()
    if link and age_s > _lifetime_s(call):
        raise DialectError(403, "AccessDenied", "Request has expired")
    if age_s < -SKEW_S_MAX or (not link and age_s > SKEW_S_MAX):
        raise DialectError(
            403, "RequestTimeTooSkewed",
            "The difference between the request time and the server's time is too large.",
        )  # fmt: skip
    unsigned = {name for name in call.headers if name.startswith("x-amz-")} - set(names.split(";"))
    if unsigned - ({"x-amz-content-sha256"} if link else set()):
        raise DialectError(
            403, "AccessDenied",
            "There were headers present in the request which were not signed: "
            + ", ".join(sorted(unsigned)),
        )  # fmt: skip
    scope = f"{day}/{region}/s3/aws4_request"
    payload = call.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    canonical = _canonical(call, names, "UNSIGNED-PAYLOAD" if link else payload)
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{signed_at}\n{scope}\n{hashed}"
    signing = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    wanted = hmac.digest(signing, text.encode(), "sha256").hex()
    if not hmac.compare_digest(wanted, signature):
        raise _mismatch("request")
    if payload.startswith("STREAMING-AWS4-") and not link:
        _verify_chunks(call, signing, f"{signed_at}\n{scope}", signature)


def _verify_chunks(call: DialectRequest, signing: bytes, place: str, before: str) -> None:
    """Each chunk's signature covers the one before it, the trailers' that of the last chunk."""

    def signature(kind: str, *hashed: bytes) -> bytes:
        digests = "\n".join(hashlib.sha256(each).hexdigest() for each in hashed)
        text = f"AWS4-HMAC-SHA256-{kind}\n{place}\n{before}\n{digests}"
        return hmac.digest(signing, text.encode(), "sha256").hex().encode()

    at, length = 0, 1
    while length:
        end = call.body.find(b"\r\n", at, at + 300)
        found = _CHUNK.fullmatch(call.body, at, max(at, end))
        length = int(found[1], 16) if found else 0
        wanted = signature("PAYLOAD", b"", call.body[end + 2 : end + 2 + length])
        if found is None or not hmac.compare_digest(wanted, found[2]):
            raise _mismatch("chunk")
        at, before = end + length + 4, wanted.decode()
    *trailers, last = [line for line in call.body[end + 2 :].split(b"\r\n") if line] or [b""]
    if call.headers["x-amz-content-sha256"].endswith("-TRAILER"):
        wanted = signature("TRAILER", b"".join(line + b"\n" for line in trailers))
        wanted = b"x-amz-trailer-signature:" + wanted
    else:
        wanted = b""
    if not hmac.compare_digest(wanted, last):
        raise _mismatch("trailer")


def _mismatch(what: str) -> DialectError:
    return DialectError(
        403, "SignatureDoesNotMatch",
        f"The {what} signature we calculated does not match the signature you provided.",
    )  # fmt: skip


def _of_headers(call: DialectRequest) -> tuple[str, ...]:
    """Access key, day, region, signed headers, signature."""
    said = call.headers.get("authorization", "")
    found = _HEADER.fullmatch(said)
    if found is None and (said.startswith("AWS ") or "Signature" in call.query):
        raise DialectError(
            400, "InvalidRequest",
            "The authorization mechanism you have provided is not supported. "
            "Please use AWS4-HMAC-SHA256.",
        )  # fmt: skip
    if found is None:
        raise DialectError(403, "AccessDenied", "every request must be signed with SigV4")
    return found.groups()


def _of_link(call: DialectRequest) -> tuple[str, ...]:
    found = _CREDENTIAL.fullmatch(call.query.get("X-Amz-Credential", ""))
    names = call.query.get("X-Amz-SignedHeaders", "")
    if found is None or not re.fullmatch(_NAMES, names):
        raise DialectError(
            400, "AuthorizationQueryParametersError",
            "X-Amz-Credential or X-Amz-SignedHeaders is missing or malformed",
        )  # fmt: skip
    return *found.groups(), names, call.query.get("X-Amz-Signature", "")


def _lifetime_s(call: DialectRequest) -> int:
    said = call.query.get("X-Amz-Expires", "")
    if not re.fullmatch("[0-9]{1,9}", said) or not 1 <= int(said) <= LINK_S_MAX:
        raise DialectError(
            400, "AuthorizationQueryParametersError",
            f"X-Amz-Expires must be 1 to {LINK_S_MAX} seconds",
        )  # fmt: skip
    return int(said)


def _canonical(call: DialectRequest, names: str, payload: str) -> str:
    path, _, query = call.target.partition("?")
    # Rust's object_store sends a space as "+" and signs it as %20; a plus is always sent as %2B.
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
        if name != "X-Amz-Signature"
    )
    headers = "".join(
        f"{name}:{' '.join(call.headers.get(name, '').split())}\n" for name in names.split(";")
    )
    return "\n".join((
        call.method, quote(unquote(path), safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in pairs), headers, names,
        payload,
    ))  # fmt: skip
