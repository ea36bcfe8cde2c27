"""Signed uploads: what S3's documentation signs is accepted, and nothing that is not signed."""

from __future__ import annotations

import hashlib
import hmac
import io
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from lockkit.lab.server import Credentials, Emulator
from lockkit.lab.server.call import DialectError, DialectRequest, call_of
from lockkit.lab.server.sigv4 import verify

KEY = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
SIGNED_AT_MS = 1369353600000.0
SIGNATURES = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)
SCOPE = "20130524/us-east-1/s3/aws4_request"


def upload(*signatures: str, chunks: tuple[bytes, ...] = (b"a" * 65536, b"a" * 1024, b"")) -> Any:
    """The example of docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html."""
    body = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (len(each), of.encode(), each)
        for each, of in zip(chunks, signatures, strict=True)
    )
    headers = {
        "host": "s3.amazonaws.com", "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY", "content-encoding": "aws-chunked",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "x-amz-decoded-content-length": "66560", "content-length": "66824",
        "authorization": f"AWS4-HMAC-SHA256 Credential={KEY.access_key}/{SCOPE},"
        "SignedHeaders=content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;"
        "x-amz-decoded-content-length;x-amz-storage-class,"
        "Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    }  # fmt: skip
    return call_of("PUT", "/examplebucket/chunkObject.txt", headers, body)


def refusal(call: DialectRequest) -> str:
    with pytest.raises(DialectError) as refused:
        verify(call, KEY, SIGNED_AT_MS)
    assert refused.value.status == 403
    return refused.value.code


def test_the_signed_chunks_of_amazons_documentation_are_accepted() -> None:
    verify(upload(*SIGNATURES), KEY, SIGNED_AT_MS)


@pytest.mark.parametrize("at", range(3))
def test_a_chunk_with_another_signature_is_refused(at: int) -> None:
    wrong = [*SIGNATURES[:at], "0" * 64, *SIGNATURES[at + 1 :]]
    assert refusal(upload(*wrong)) == "SignatureDoesNotMatch"


def test_chunks_that_are_changed_cut_unsigned_or_followed_by_more_are_refused() -> None:
    whole = upload(*SIGNATURES)
    for body in (
        whole.body.replace(b"aaa", b"aab", 1), whole.body[:-90], b"", b"1\r\na\r\n0\r\n\r\n",
        whole.body + b"x-amz-checksum-crc32:AAAAAA==\r\n",
    ):  # fmt: skip
        assert refusal(replace(whole, body=body)) == "SignatureDoesNotMatch"


def signed_with_trailer(trailer: bytes) -> DialectRequest:
    """The request that a client signs, each step written out from Amazon's page."""
    kind, moment = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "20130524T000000Z"
    headers = {"host": "h", "x-amz-content-sha256": kind, "x-amz-date": moment}
    names = ";".join(headers)
    canonical = "PUT\n/b/k\n\n" + "".join(f"{n}:{v}\n" for n, v in headers.items())
    canonical += f"\n{names}\n{kind}"
    key = f"AWS4{KEY.secret_key}".encode()
    for part in SCOPE.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")

    def sign(of: str, *more: str) -> str:
        return hmac.digest(key, "\n".join((of, moment, SCOPE, *more)).encode(), "sha256").hex()

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    seed = last = sign("AWS4-HMAC-SHA256", digest(canonical.encode()))
    body = b""
    for chunk in (b"abc", b""):
        last = sign("AWS4-HMAC-SHA256-PAYLOAD", last, digest(b""), digest(chunk))
        body += b"%x;chunk-signature=%s\r\n%s" % (len(chunk), last.encode(), chunk)
        body += b"\r\n" if chunk else b""
    end = sign("AWS4-HMAC-SHA256-TRAILER", last, digest(trailer + b"\n"))
    body += b"%s\r\nx-amz-trailer-signature:%s\r\n\r\n" % (trailer, end.encode())
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={KEY.access_key}/{SCOPE},SignedHeaders={names},"
        f"Signature={seed}"
    )
    return call_of("PUT", "/b/k", headers, body)


def test_a_signed_trailer_is_accepted_and_a_changed_one_is_refused() -> None:
    call = signed_with_trailer(b"x-amz-checksum-crc32:NSRBwg==")
    verify(call, KEY, SIGNED_AT_MS)
    unsigned = call.body.rpartition(b"x-")[0]
    for body in (call.body.replace(b"NSR", b"AAA"), call.body[:-30], unsigned):
        assert refusal(replace(call, body=body)) == "SignatureDoesNotMatch"


def test_an_unsigned_header_of_amazon_is_refused_and_a_link_for_an_upload_copies_nothing() -> None:
    boto3 = pytest.importorskip("boto3", reason="make test installs boto3")
    from botocore.config import Config

    whole = upload(*SIGNATURES)
    added = replace(whole, headers={**whole.headers, "x-amz-meta-evil": "1"})
    assert refusal(added) == "AccessDenied"
    with Emulator(credentials=KEY) as server:
        client = boto3.client(
            "s3", endpoint_url=server.s3, region_name="us-east-1",
            aws_access_key_id=KEY.access_key, aws_secret_access_key=KEY.secret_key,
            config=Config(signature_version="s3v4"),
        )  # fmt: skip
        client.put_object(Bucket="b", Key="secret", Body=b"secret")
        client.upload_fileobj(io.BytesIO(b"x" * 9_000_000), "b", "parts")
        link = client.generate_presigned_url("put_object", {"Bucket": "b", "Key": "k"})
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(link, b"", {"x-amz-copy-source": "/b/secret"}, method="PUT"))
        assert refused.value.code == 403 and b"not signed" in refused.value.read()
        with urlopen(Request(link, b"mine", method="PUT")) as answer:
            assert answer.status == 200
        assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"mine"
