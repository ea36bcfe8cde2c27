"""The bytes of an S3 upload, without aws-chunked framing, and with verified checksums."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from lockkit.lab.server import crc32c
from lockkit.lab.server.call import DialectError, DialectRequest

_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\r\n]*)?")


def _encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def crc32_of(body: bytes) -> str:
    """The checksum type that Amazon reports for objects of current SDKs."""
    return _encoded(zlib.crc32(body).to_bytes(4, "big"))


# Not verified: Python has none of these, and a short one would be too slow.
_TRUSTED = "x-amz-checksum-crc64nvme"
_CHECKSUMS: Mapping[str, Callable[[bytes], str | None]] = {
    "x-amz-checksum-crc32": crc32_of,
    "x-amz-checksum-crc32c": crc32c.digest_of,
    "x-amz-checksum-sha1": lambda body: _encoded(hashlib.sha1(body).digest()),
    "x-amz-checksum-sha256": lambda body: _encoded(hashlib.sha256(body).digest()),
    "x-amz-checksum-md5": lambda body: _encoded(hashlib.md5(body).digest()),
    "content-md5": lambda body: _encoded(hashlib.md5(body).digest()),
}
_DECLARED = {_TRUSTED, *_CHECKSUMS}


def payload(call: DialectRequest) -> bytes:
    """The object's bytes; 400 if the framing is broken or a checksum does not match."""
    return received(call)[0]


def received(call: DialectRequest) -> tuple[bytes, dict[str, str]]:
    """The bytes, and the checksums to keep with them (`checksum-<algorithm>`)."""
    hashed = call.headers.get("x-amz-content-sha256", "")
    framed = hashed.startswith("STREAMING-") or "aws-chunked" in call.headers.get(
        "content-encoding", ""
    )
    body, trailers = _unframed(call) if framed else (call.body, {})
    said = {**call.headers, **trailers} if trailers else call.headers
    declared = {name: said[name] for name in _DECLARED & said.keys()}
    for name in _CHECKSUMS.keys() & declared.keys():
        found = _CHECKSUMS[name](body)
        if found is not None and found != declared[name]:
            raise DialectError(400, "BadDigest", f"The {name} you specified did not match.")
    if re.fullmatch("[0-9a-f]{64}", hashed) and hashlib.sha256(body).hexdigest() != hashed:
        raise DialectError(
            400, "XAmzContentSHA256Mismatch", "The provided x-amz-content-sha256 did not match."
        )
    kept = {name.removeprefix("x-amz-"): v for name, v in declared.items() if name != "content-md5"}
    return body, kept


def sums_of(algorithms: Iterable[str], body: bytes) -> dict[str, str]:
    """The checksums that can be computed here."""
    found = {name: _CHECKSUMS[key](body) for name in algorithms
             if (key := f"x-amz-checksum-{name}") in _CHECKSUMS}  # fmt: skip
    return {f"checksum-{name}": value for name, value in found.items() if value is not None}


def sums_of_parts(algorithm: str, bodies: Sequence[bytes]) -> dict[str, str]:
    """The checksum of the parts' checksums, as Amazon gives it to an object that came in parts."""
    key = f"checksum-{algorithm}"
    digests = [base64.b64decode(sums_of([algorithm], each).get(key, "")) for each in bodies]
    whole = sums_of([algorithm], b"".join(digests)) if all(digests) else {}
    return {key: f"{value}-{len(bodies)}" for key, value in whole.items()}


def checksum_headers(kept: Mapping[str, str]) -> dict[str, str]:
    """The answer's headers for the checksums in an object's metadata."""
    said = {f"x-amz-{name}": v for name, v in kept.items() if name.startswith("checksum-")}
    if said:
        composite = any("-" in value for value in said.values())
        said["x-amz-checksum-type"] = "COMPOSITE" if composite else "FULL_OBJECT"
    return said


def _unframed(call: DialectRequest) -> tuple[bytes, dict[str, str]]:
    out, at, text = bytearray(), 0, call.body
    while True:
        end = text.find(b"\r\n", at, at + 300)
        size = _SIZE.fullmatch(text, at, end) if end >= 0 else None
        if size is None:
            raise DialectError(400, "IncompleteBody", "the aws-chunked body is broken")
        start, length = end + 2, int(size[1], 16)
        if length == 0:
            break
        at = start + length + 2
        if text[start + length : at] != b"\r\n":
            raise DialectError(400, "IncompleteBody", "the aws-chunked body ends too soon")
        out += text[start : start + length]
    declared = call.headers.get("x-amz-decoded-content-length", str(len(out)))
    if declared != str(len(out)):
        raise DialectError(400, "IncompleteBody", "x-amz-decoded-content-length does not agree")
    lines = (line.partition(b":") for line in text[start:].split(b"\r\n"))
    return bytes(out), {
        name.strip().lower().decode("latin-1"): value.strip().decode("latin-1")
        for name, colon, value in lines
        if colon
    }
