"""Azure's snapshots: copies of a blob that stay as they are, each named by its time.

They are objects in a second bucket, whose name no client can use. A blob cannot be deleted without
its snapshots.
"""

from __future__ import annotations

from lockkit.lab.server import azure_conditions, azure_lease
from lockkit.lab.server.azure_shape import SNAPSHOTS, etag, id_of, meta_of, version_id
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, http_date
from lockkit.lab.server.objects import Object, Objects

_LAST = 10**18
"""Above every id, so that a blob sorts after its snapshots."""


def make(objects: Objects, call: DialectRequest, deed: RequestEffect, found: Object) -> Reply:
    azure_conditions.judge(call, found)
    if "x-ms-lease-id" in call.headers:  # a snapshot needs none
        azure_lease.guard(objects, call, deed)
    own = {name: value for name, value in meta_of(call).items() if name.startswith("meta-")}
    kept = {name: v for name, v in found.meta.items() if not own or not name.startswith("meta-")}
    same = {} if own else {"of": found.id}
    snapshot = objects.keep_beside(found, found.bucket + SNAPSHOTS, {**kept, **own, **same})
    deed.method, deed.answer = "copy", "applied"
    headers = {
        "x-ms-snapshot": version_id(snapshot), "ETag": etag(snapshot),
        "Last-Modified": http_date(snapshot.at_ms), "x-ms-request-server-encrypted": "true",
    }  # fmt: skip
    return Reply(201, headers, b"", deed)


def at(objects: Objects, bucket: str, key: str, name: str) -> Object | None:
    return objects.at(bucket + SNAPSHOTS, key, id_of(name))


def of(objects: Objects, bucket: str, key: str) -> list[Object]:
    found = objects.generations(bucket + SNAPSHOTS, key, limit=-1)
    return [each for each in found if each.key == key]


def guard(objects: Objects, call: DialectRequest, deed: RequestEffect) -> None:
    """Raise if the blob's snapshots do not allow its deletion."""
    wanted = call.headers.get("x-ms-delete-snapshots", "").lower()
    if wanted not in ("include", "only") and of(objects, deed.bucket, deed.key):
        raise DialectError(
            409, "SnapshotsPresent",
            "This operation is not permitted because the blob has snapshots.",
        )  # fmt: skip


def remove(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    """The snapshot that the query names, or all snapshots of the blob."""
    one = call.query.get("snapshot")
    found = of(objects, deed.bucket, deed.key)
    if one is not None:
        found = [each for each in found if each.id == id_of(one)]
        if not found:
            raise DialectError(404, "BlobNotFound", "The specified blob does not exist.", "missing")
    for each in found:
        objects.remove_version(each.bucket, each.key, each.id)
    deed.answer = "applied"
    return Reply(202, {"x-ms-delete-type-permanent": "false"}, b"", deed)


def listed(
    objects: Objects, bucket: str, prefix: str, behind: tuple[str, int], limit: int
) -> tuple[list[Object], tuple[str, int] | None]:
    """Snapshots, oldest first, then their blob; and where the next page starts."""
    found = [(each.key, each.id, each)
             for each in objects.generations(bucket + SNAPSHOTS, prefix, behind, limit + 1)]
    found += [
        (each.key, _LAST, each)
        for each in objects.under(bucket, prefix, "", limit + 2, start=behind[0])
        if (each.key, _LAST) > behind
    ]  # fmt: skip
    found.sort(key=lambda each: each[:2])
    last = found[limit - 1][:2] if len(found) > limit else None
    return [each for _, _, each in found[:limit]], last
