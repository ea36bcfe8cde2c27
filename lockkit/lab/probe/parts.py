"""Objects that are joined from parts: the condition belongs to the request that joins them.

S3 completes a multipart upload, Azure commits a list of blocks, and Google composes objects. A
table's large files may be written so; a lock's record is too small to need it. Therefore nothing
here changes the verdict on a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockkit.clock import Clock
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Throttled,
    WriteAnswer,
)
from lockkit.stores import Store

REQUESTS_BEFORE = {"s3": 2, "azure": 1, "gcs": 1}
"""The requests of such a write before the one that joins the parts."""
CHUNK_BYTES = 256 << 10
"""The smallest chunk of a resumable upload."""

Write = Callable[[str, bytes, Condition], WriteAnswer]


def joined(store: Store) -> Store | None:
    """The same place through a new client that joins every object from parts; None: it cannot."""
    match store.capabilities.name:
        case "s3":
            from lockkit.stores.s3 import S3Store

            extra = {**store.options.extra, "multipart_bytes": 0}  # every body is longer
            return S3Store(store.url, replace(store.options, extra=extra))
        case "azure":
            return committed(store)
        case "gcs":
            return composed(store)
    return None


def committed(store: Store) -> Store:
    """Every write is one block of a name of its own, and the list that commits it.

    The SDK numbers the blocks of an upload, so two uploads to one blob overwrite each other's.
    """
    from lockkit.stores import azure  # its SDK is an extra

    class BlockListStore(azure.AzureStore):
        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            block, blob, doing = Clock().unique(), self.blob(key), f"commit {key}"
            guard: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
            if isinstance(condition, IfVersion):
                same = MatchConditions.IfNotModified
                guard = {"etag": condition.version, "match_condition": same}
            try:
                blob.stage_block(block, body)
                answer = blob.commit_block_list([BlobBlock(block)], **guard)
            except azure.SDK_ERRORS as error:
                refusal = self.refusal(error, doing)
                # Another commit discards the blocks that are in no list.
                if getattr(refusal, "code", "") == "InvalidBlockList":
                    return PreconditionFailed()
                return self._endpoint.write(azure.TABLE, refusal, doing)
            return Applied(azure._quoted(str(answer["etag"])))

    from azure.core import MatchConditions
    from azure.storage.blob import BlobBlock

    return BlockListStore(store.url, store.options)


def composed(store: Store) -> Store:
    """Every write is composed from an object of its own."""
    from lockkit.stores import gcs  # its SDK is an extra

    class Composed(gcs.GcsStore):
        def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
            part = f"{key}.{Clock().unique()}"
            if not isinstance(super().put(part, body, IfAbsent()), Applied):
                return Throttled()  # the object itself was not written
            generation = int(condition.version) if isinstance(condition, IfVersion) else 0
            blob, doing = self._bucket.blob(self._full(key)), f"compose {key}"
            try:
                blob.compose(
                    [self._bucket.blob(self._full(part))],
                    if_generation_match=generation, retry=None, timeout=self._timeout,
                )  # fmt: skip
            except gcs.SDK_ERRORS as error:
                return self._endpoint.write(gcs.WRITES, self._refusal(error, doing), doing)
            return Applied(str(blob.generation))

    return Composed(store.url, store.options)


def delayed(client: Store) -> Write:
    """A write in one request, after as many reads as a joined write has requests before it."""

    def write(key: str, body: bytes, condition: Condition) -> WriteAnswer:
        for _ in range(REQUESTS_BEFORE[client.capabilities.name]):
            client.get(key)
        return client.put(key, body, condition)

    return write


def summary(checks: list[Check]) -> Check:
    """One check of the checks of `conditions` on a store that joins every write."""
    name, found = "multipart", {check.name: check.finding.value for check in checks}
    for check in checks:
        if check.finding is CheckOutcome.UNDECIDED:
            return replace(check, name=name)
        if check.finding is CheckOutcome.FAILED:
            because = f"of an object that is joined from parts {check.because}"
            evidence = {**check.evidence, "create_only": found.get("create") == "passed"}
            return Check(name, CheckOutcome.NOTED, f"{because} (no lock needs it)", evidence)
    because = "joining parts to an object obeys conditions"
    return Check(name, CheckOutcome.PASSED, because, dict(found))


def resumable(store: Store, key: str) -> Check:
    """Google takes the condition when an upload begins: it must hold when the upload ends.

    Another object is created in between, so the upload must fail.
    """
    from lockkit.stores import gcs

    assert isinstance(store, gcs.GcsStore)
    name, error = "resumable-upload", ""
    blob = store._bucket.blob(store._full(key))
    try:
        upload = blob.open("wb", if_generation_match=0, chunk_size=CHUNK_BYTES, retry=None)
        upload.write(bytes(CHUNK_BYTES))  # begins the session
    except gcs.SDK_ERRORS as refused:
        error = type(refused).__name__
    if error or not isinstance(store.put(key, b"another", IfAbsent()), Applied):
        because = f"no upload could begin ({error})" if error else "nothing could be created"
        return Check(name, CheckOutcome.UNDECIDED, because)
    try:
        upload.close()
    except gcs.SDK_ERRORS as refused:
        evidence = {"error": type(refused).__name__}
        because = "a resumable upload whose condition no longer holds at its end is refused"
        return Check(name, CheckOutcome.PASSED, because, evidence)
    because = "a resumable upload replaced an object that was created after it had begun"
    return Check(name, CheckOutcome.NOTED, because, {"answer": "Applied"})
