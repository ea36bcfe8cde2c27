"""Amazon S3 and compatible stores, through botocore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, BinaryIO

import botocore.handlers
import botocore.parsers
from botocore.config import Config

from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    ReadAnswer,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.stores import (
    CHUNK_BYTES,
    Capabilities,
    ListEntry,
    Listing,
    ObjectVersion,
    StoreOptions,
    aws,
    shown,
    split_url,
    tokens,
)
from lockkit.stores.deadline import Deadline, in_time
from lockkit.stores.endpoint import (
    ANY_CODE,
    ANY_STATUS,
    HTTP,
    Endpoint,
    ForeignAnswer,
    RefusalKind,
    Table,
    epoch_ms,
)
from lockkit.stores.pages import joined, new_pages

# docs.aws.amazon.com: S3 API "Error responses" and User Guide "Conditional writes" / "Conditional
# deletes". Rows marked (docs) were never observed by our tests and probes.
TABLE: Table = {
    **HTTP,
    # By its code under any status: seen with status 200 (aws-sdk-java-v2 #6023), which botocore
    # turns into a 500.
    (ANY_STATUS, "PreconditionFailed"): RefusalKind.CONDITION_FAILED,
    # A conflicting request landed during this one; nothing was written (Conditional writes).
    (409, "ConditionalRequestConflict"): RefusalKind.THROTTLED,
    (409, "OperationAborted"): RefusalKind.THROTTLED,  # (docs) "try again"
    # S3 answers 404, not 412, to If-Match on a missing object; Ceph and Ozone answer 412.
    (404, "NoSuchKey"): RefusalKind.MISSING,
    (400, "RequestTimeout"): RefusalKind.UNKNOWN,  # (docs) the body did not arrive in time
    # Answer to a completion: another copy of it came first, or the upload was aborted.
    (404, "NoSuchUpload"): RefusalKind.UNKNOWN,
}

CURES: Mapping[tuple[int, str], str] = {
    (ANY_STATUS, "NoSuchBucket"): "there is no such bucket; create it, or correct the URL",
    (ANY_STATUS, "ExpiredToken"): "the credentials have expired; log in again or renew them",
    (ANY_STATUS, "InvalidToken"): "the session token is not valid; log in again or renew it",
    (ANY_STATUS, "TokenRefreshRequired"): "the credentials have expired; renew them",
    (ANY_STATUS, "InvalidAccessKeyId"): "this access key does not exist there; check the profile",
    (ANY_STATUS, "SignatureDoesNotMatch"):
        "the secret key is wrong, or a proxy changed the request",
    (ANY_STATUS, "RequestTimeTooSkewed"): "this machine's clock is wrong; set it (NTP)",
    **dict.fromkeys([
        (ANY_STATUS, "PermanentRedirect"), (ANY_STATUS, "AuthorizationHeaderMalformed"),
        (ANY_STATUS, "IllegalLocationConstraintException"), (301, ANY_CODE),
    ], "wrong region: pass the bucket's region_name=..."),
    (307, "TemporaryRedirect"):
        "the bucket is new and its name not yet known everywhere; try in some minutes",
}  # fmt: skip

RIGHTS = {
    "list versions": "s3:ListBucketVersions on the bucket, and s3:GetObjectVersion",
    "list": "s3:ListBucket on the bucket",
    "read version": "s3:GetObjectVersion under that prefix",
    "read": "s3:GetObject under that prefix, and s3:ListBucket, without which a missing object is "
    "denied as well",
    "delete": "s3:DeleteObject under that prefix",
    "": "s3:PutObject under that prefix, and s3:GetObject for a write over a version",
}

ELSEWHERE = Config(s3={"addressing_style": "path"})
"""For servers that are not Amazon's: few of them have a host name per bucket."""

WRITE_INTERVAL_S = {".r2.cloudflarestorage.com": 1.0}
"""Hosts that throttle writes to one key (R2's limits page: one per second)."""


class S3Store:
    """`s3://bucket/prefix`. With `multipart_bytes=n` a longer body is sent in parts."""

    @staticmethod
    def keywords() -> frozenset[str]:
        return aws.keywords() | {"multipart_bytes"}

    def __init__(self, url: str, options: StoreOptions = StoreOptions()) -> None:
        self.url = url
        self.options = options
        self._bucket, self._prefix = split_url(url)
        self._endpoint = Endpoint(url, options, cures=CURES, rights=RIGHTS)
        self.refusals = self._endpoint.refusals
        extra = dict(options.extra)
        self._multipart_bytes = extra.pop("multipart_bytes", None)
        with self._translated(tokens.OPENING):
            try:
                self._client = _client(replace(options, extra=extra))
            except ValueError as error:
                raise self._endpoint.misconfigured(error) from None
        self._endpoint.opened(self._client.meta.endpoint_url)
        self.server = self._endpoint.server
        interval_s = next((s for h, s in WRITE_INTERVAL_S.items() if h in self.server), 0.0)
        self.capabilities = Capabilities(
            name="s3",
            poll_min_s=0.06,  # a GET's own latency: p50 63 ms (turbopuffer.com/docs/architecture)
            write_interval_min_s=interval_s,
            content_versions=True,
        )

    @in_time
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        doing = f"read {key}"
        condition = {} if unless is None else {"IfNoneMatch": unless}
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._full(key), **condition)
            self._endpoint.mark_answered()
            # Not a Range: an empty object answers it with 416. Closing drops the unread rest.
            with closing(answer["Body"]) as stream:
                body = stream.read() if limit is None else stream.read(limit + 1)
        except aws.SDK_ERRORS as error:
            return self._endpoint.read(TABLE, aws.refusal(error, self._endpoint, doing), doing)
        if not answer.get("ETag"):
            return Unknown(f"a 200 without an ETag to {doing}")
        length = answer.get("ContentLength", len(body))
        if len(body) != (length if limit is None else min(limit + 1, length)):
            return Unknown(f"{len(body)} of {length} bytes of {key} arrived")
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return Found(
            body,
            answer["ETag"],
            epoch_ms(headers.get("last-modified")),
            epoch_ms(headers.get("date")),
        )

    @in_time
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        doing = f"write {key}"
        match condition:
            case IfAbsent():
                header = {"IfNoneMatch": "*"}
            case IfVersion(version):
                header = {"IfMatch": version}
        if self._multipart_bytes is not None and len(body) > self._multipart_bytes:
            return put_in_parts(
                self._client, {"Bucket": self._bucket, "Key": self._full(key)}, body, header,
                lambda error: self._endpoint.write(
                    TABLE, aws.refusal(error, self._endpoint, doing), doing
                ),
            )  # fmt: skip
        try:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=self._full(key), Body=body, **header
            )
        except aws.SDK_ERRORS as error:
            return self._endpoint.write(TABLE, aws.refusal(error, self._endpoint, doing), doing)
        self._endpoint.mark_answered()
        if not answer.get("ETag"):
            return Unknown(f"a 200 without an ETag to {doing}")
        return Applied(answer["ETag"])

    @in_time
    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        """One request, up to 5 GiB (the limit of PutObject)."""
        doing = f"write {key}"
        try:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=self._full(key), Body=source, ContentLength=size,
                IfNoneMatch="*",
            )  # fmt: skip
        except aws.SDK_ERRORS as error:
            return self._endpoint.write(TABLE, aws.refusal(error, self._endpoint, doing), doing)
        self._endpoint.mark_answered()
        return Applied(answer.get("ETag", ""))

    @in_time
    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        doing, length = f"read {key}", 0
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._full(key))
            self._endpoint.mark_answered()
            with closing(answer["Body"]) as stream:
                for chunk in stream.iter_chunks(CHUNK_BYTES):
                    length += into.write(chunk)
        except aws.SDK_ERRORS as error:
            return self._endpoint.read(TABLE, aws.refusal(error, self._endpoint, doing), doing)
        if length != answer.get("ContentLength", length):
            return Unknown(f"{length} of {answer['ContentLength']} bytes of {key} arrived")
        return Found(b"", answer.get("ETag", ""))

    def list(self, prefix: str, after: str = "") -> Listing:
        where, own, start = {"Prefix": self._full(prefix)}, len(self._full("")), self._full(after)
        if after:
            where["StartAfter"] = start
        pages = [
            [
                ListEntry(item["Key"][own:], item["Size"], item.get("ETag"))
                for item in page
                # Directory buckets (S3 Express) do not know StartAfter.
                if item["Key"] > start
            ]
            for page in self._pages("list_objects_v2", f"list {prefix}*", **where)
        ]
        return joined(pages, snapshots=self.capabilities.snapshot_page)

    @in_time
    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        doing = f"delete {key}"
        header = {} if condition is None else {"IfMatch": condition.version}
        try:
            answer = self._client.delete_object(
                Bucket=self._bucket, Key=self._full(key), **header
            )
            said = answer["ResponseMetadata"]
            kind = said["HTTPHeaders"].get("content-type", "")
            if said["HTTPStatusCode"] == 200 and "html" in kind:
                raise ForeignAnswer("S3")  # botocore ignores the body of a deletion's answer
        except aws.SDK_ERRORS as error:
            return self._endpoint.delete(TABLE, aws.refusal(error, self._endpoint, doing), doing)
        self._endpoint.mark_answered()
        return Applied("")

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        full = self._full(key)
        found: list[ObjectVersion] = []
        for page in self._pages("list_object_versions", f"list versions of {key}", Prefix=full):
            found += [_object_version(item) for item in page if item["Key"] == full]
        # The two kinds come in two lists; within a second only the provider's order is known.
        return sorted(found, key=lambda v: (v.current, v.modified_ms), reverse=True)

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        doing = f"read version {version.id} of {key}"
        with self._translated(doing):
            answer = self._client.get_object(
                Bucket=self._bucket, Key=self._full(key), VersionId=version.id
            )
            with closing(answer["Body"]) as stream:
                body: bytes = stream.read()
                return body

    def __repr__(self) -> str:
        return shown(self)

    def close(self) -> None:
        self._client.close()

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _pages(self, operation: str, doing: str, **parameters: Any) -> Iterator[Sequence[Any]]:
        paginator = self._client.get_paginator(operation)
        with self._translated(doing) as call:
            pages = paginator.paginate(Bucket=self._bucket, **parameters)
            yield from new_pages(
                (self._entries(page, doing) for page in pages),
                lambda item: (item["Key"], item.get("VersionId")),
                call=call, endpoint=self._endpoint, doing=doing,
            )  # fmt: skip

    def _entries(self, page: dict[str, Any], doing: str) -> Sequence[Any]:
        if "IsTruncated" not in page:  # botocore reads an empty answer as an empty list
            raise botocore.parsers.ResponseParserError("this is not a listing")
        # Without a token botocore ends the listing here, as if it were complete.
        if page["IsTruncated"] and not ("NextContinuationToken" in page or "NextKeyMarker" in page):
            raise self._endpoint.unusable(
                f"cannot {doing}, the server says that more keys follow, but not from where",
                "it may not know ListObjectsV2; use a server or a proxy that does",
            )
        return [
            *page.get("Contents", ()), *page.get("Versions", ()), *page.get("DeleteMarkers", ())
        ]  # fmt: skip

    @contextmanager
    def _translated(self, doing: str) -> Iterator[Deadline]:
        """For requests without partial answers: every error is raised."""
        try:
            with self._endpoint.call() as call:
                yield call
        except aws.SDK_ERRORS as error:
            self._endpoint.listing(TABLE, aws.refusal(error, self._endpoint, doing), doing)


def _object_version(item: dict[str, Any]) -> ObjectVersion:
    return ObjectVersion(
        version=item.get("ETag", ""),
        modified_ms=int(item["LastModified"].timestamp() * 1000),
        size=item.get("Size", 0),
        current=bool(item["IsLatest"]) and "ETag" in item,
        deleted="ETag" not in item,
        id=item["VersionId"],
    )


def _client(options: StoreOptions) -> Any:
    own = Config(
        # SDK checksums (aws-chunked trailers since 2025) are refused by many S3-likes. HTTP checks
        # the length, and the parser checks the content.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = aws.client("s3", options, options.endpoint, own, elsewhere=ELSEWHERE)
    # Bodies are small here: waiting for "100 Continue" would cost each write a round trip.
    client.meta.events.unregister("before-call.s3", botocore.handlers.add_expect_header)
    # For AWS's statistics: two more headers to be signed in each request.
    client.meta.events.unregister("request-created", botocore.handlers.add_retry_headers)
    client.meta.events.register_last("before-parameter-build.s3", _stay)
    for operation, names in READ.items():
        shape = client.meta.service_model.operation_model(operation).output_shape
        _only(shape.members, names)
    _only(shape.members["Contents"].member.members, ("Key", "Size", "ETag"))
    if options.faults is not None:
        options.faults.install(client)
    return client


READ = {
    "PutObject": ("ETag",), "GetObject": ("Body", "ETag", "ContentLength"), "DeleteObject": (),
    "ListObjectsV2": ("Contents", "EncodingType", "IsTruncated", "NextContinuationToken"),
}  # fmt: skip
"""What is read of an answer. botocore looks for each field that its model of the answer has."""


def _only(members: dict[str, Any], names: Sequence[str]) -> None:
    for name in members.keys() - set(names):
        del members[name]


def _stay(context: dict[str, Any], **_: Any) -> None:
    """Keep botocore from following a redirect to another region: each request is sent once."""
    context.get("s3_redirect", {})["redirected"] = True


PART_BYTES = 8 << 20
"""S3 requires at least 5 MiB in each part except the last, and allows 10,000 parts."""


def put_in_parts(
    client: Any, where: Mapping[str, str], body: bytes, condition: Mapping[str, str],
    meant: Callable[[Exception], WriteAnswer],
) -> WriteAnswer:  # fmt: skip
    """One upload, completed once. `meant` translates an error of the SDK for a write.

    Before the completion is sent, the object cannot exist. An error up to then counts as throttled:
    try again, with a new upload (as S3 requires after its 409).
    """
    upload, completing = "", False
    try:
        upload = client.create_multipart_upload(**where).get("UploadId") or ""
        parts = []
        for number, at in enumerate(range(0, len(body), PART_BYTES), 1):
            part = client.upload_part(
                **where, UploadId=upload, PartNumber=number, Body=body[at : at + PART_BYTES]
            )
            parts.append({"PartNumber": number, "ETag": part.get("ETag", "")})
        completing = True
        answer = client.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
        )
    except aws.SDK_ERRORS as error:
        try:
            said = meant(error)
        finally:
            _abort(client, where, upload)
        if completing:
            return said
        return said if isinstance(said, Throttled) else Throttled()
    if not answer.get("ETag"):
        return Unknown(f"a 200 without an ETag to the completion of {where['Key']}")
    return Applied(answer["ETag"])


def _abort(client: Any, where: Mapping[str, str], upload: str) -> None:
    """Parts cost money until they are deleted. A completed upload is not affected."""
    if upload:
        with suppress(*aws.SDK_ERRORS):
            client.abort_multipart_upload(**where, UploadId=upload)
