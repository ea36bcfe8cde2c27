"""Azure's listings, of containers and of blobs with their versions or snapshots."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import quote
from xml.sax.saxutils import escape

from lockkit.lab.server import azure_lease, azure_snapshots, markup, tags
from lockkit.lab.server.azure_shape import SNAPSHOTS, md5_of, tag, version_id
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, http_date
from lockkit.lab.server.listing import page, token, untoken, version_place, version_token
from lockkit.lab.server.markup import plain
from lockkit.lab.server.objects import Object, Objects

PAGE_MAX = 5000
_LEASE = {
    "x-ms-lease-status": "LeaseStatus",
    "x-ms-lease-state": "LeaseState",
    "x-ms-lease-duration": "LeaseDuration",
}


def containers(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    deed.method, deed.answer = "list", "listed"
    prefix = call.query.get("prefix", "")
    rows = "".join(
        f"<Container><Name>{plain(name)}</Name><Properties><Last-Modified>"
        f'{http_date(1_704_067_200_000)}</Last-Modified><Etag>"0x8D0000000000000"</Etag>'
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState></Properties>"
        "</Container>"
        for name in objects.buckets()
        if name.startswith(prefix)
    )
    return markup.document(
        f"<EnumerationResults><Prefix>{plain(prefix)}</Prefix><Containers>{rows}</Containers>"
        "<NextMarker/></EnumerationResults>",
        deed,
    )


def blobs(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    query, prefix = call.query, call.query.get("prefix", "")
    if not re.fullmatch("[1-9][0-9]{0,3}", query.get("maxresults", "5000")):
        raise DialectError(400, "OutOfRangeQueryParameterValue", "maxresults is 1 to 5000")
    limit = min(int(query.get("maxresults", PAGE_MAX)), PAGE_MAX)
    deed.method, deed.key, deed.answer = "list", prefix, "listed"
    include, start = query.get("include", "").split(","), query.get("startFrom", "")  # inclusive
    if "snapshots" in include:
        place = version_place(query.get("marker")) if query.get("marker") else (start, 0)
        found, behind = azure_snapshots.listed(objects, deed.bucket, prefix, place, limit)
        next_marker = "" if behind is None else token(f"{behind[1]}\n{behind[0]}")
        rows = [_row(objects, each, include, objects.leased(deed.bucket)) for each in found]
    elif "versions" in include:
        place = version_place(query.get("marker")) if query.get("marker") else (start, 0)
        found = objects.generations(deed.bucket, prefix, place, limit + 1)
        next_marker = version_token(found[limit - 1]) if len(found) > limit else ""
        rows = [_row(objects, each, include) for each in found[:limit] if not each.deleted]
    else:
        delimiter, after = query.get("delimiter", ""), untoken(query.get("marker", ""))
        found, prefixes, last = page(objects, deed.bucket, prefix, delimiter, after, limit, start)
        next_marker = "" if last is None else token(last)
        leased = objects.leased(deed.bucket)
        rows = [_row(objects, each, include, leased) for each in found]
        rows += [f"<BlobPrefix>{_name(each)}</BlobPrefix>" for each in prefixes]
    head = f"<Prefix>{plain(prefix)}</Prefix><MaxResults>{limit}</MaxResults>"
    if query.get("delimiter"):
        head += f"<Delimiter>{plain(query['delimiter'])}</Delimiter>"
    return markup.document(
        f'<EnumerationResults ServiceEndpoint="http://{plain(call.host)}/" '
        f'ContainerName="{plain(deed.bucket)}">{head}<Blobs>{"".join(rows)}</Blobs>'
        f"<NextMarker>{next_marker}</NextMarker></EnumerationResults>",
        deed,
    )


def _row(objects: Objects, object: Object, include: list[str], leased: Collection[str] = ()) -> str:
    which, lease = "", azure_lease.FREE
    if object.bucket.endswith(SNAPSHOTS):
        which = f"<Snapshot>{version_id(object)}</Snapshot>"
    elif object.key in leased:
        lease = azure_lease.read(objects, object.bucket, object.key)
    of_lease = "".join(
        f"<{_LEASE[name]}>{value}</{_LEASE[name]}>"
        for name, value in azure_lease.lease_headers(*lease).items()
    )
    if "versions" in include:
        which = f"<VersionId>{version_id(object)}</VersionId>"
        if objects.superseded_ms(object) is None:
            which += "<IsCurrentVersion>true</IsCurrentVersion>"
    kind = plain(str(object.meta.get("content-type", "application/octet-stream")))
    own = ""
    if "metadata" in include:
        own = "".join(
            f"<{name[5:]}>{plain(value)}</{name[5:]}>"
            for name, value in object.meta.items()
            if re.fullmatch("meta-[A-Za-z_][A-Za-z0-9_.-]*", name)  # else no XML element
        )
    tagged = f"<Tags>{tags.document(object)}</Tags>" if "tags" in include else ""
    return (
        f"<Blob>{_name(object.key)}{which}<Properties>"
        f"<Creation-Time>{http_date(object.at_ms)}</Creation-Time>"
        f"<Last-Modified>{http_date(object.at_ms)}</Last-Modified><Etag>{tag(object)}</Etag>"
        f"<Content-Length>{object.size}</Content-Length><Content-Type>{kind}</Content-Type>"
        f"<Content-MD5>{md5_of(object)}</Content-MD5><BlobType>BlockBlob</BlobType>"
        f"<AccessTier>Hot</AccessTier>{of_lease}<ServerEncrypted>true</ServerEncrypted>"
        f"</Properties><Metadata>{own}</Metadata>{tagged}</Blob>"
    )


def _name(key: str) -> str:
    """Percent-encode what XML cannot contain, with an attribute that says so."""
    if markup.writable(key):
        return f"<Name>{escape(key)}</Name>"
    return f'<Name Encoded="true">{quote(key)}</Name>'
