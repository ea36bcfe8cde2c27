"""S3's listings: of buckets, objects (V1 and V2), versions, uploads and parts."""

from __future__ import annotations

from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.listing import common_prefix, page, token, untoken
from lockkit.lab.server.markup import document, iso, plain, shower
from lockkit.lab.server.objects import Object, Objects

XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
PAGE_MAX = 1000
_OWNER = "<Owner><ID>lockkit</ID><DisplayName>lockkit</DisplayName></Owner>"


def answer(name: str, text: str, deed: RequestEffect) -> Reply:
    return document(f'<{name} xmlns="{XMLNS}">{text}</{name}>', deed)


def buckets(objects: Objects, deed: RequestEffect) -> Reply:
    deed.method, deed.answer = "list", "listed"
    names = "".join(
        f"<Bucket><Name>{plain(name)}</Name><CreationDate>2024-01-01T00:00:00.000Z</CreationDate>"
        "</Bucket>"
        for name in objects.buckets()
    )
    return answer("ListAllMyBucketsResult", f"{_OWNER}<Buckets>{names}</Buckets>", deed)


def contents(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    query, second = call.query, call.query.get("list-type") == "2"
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    mark = query.get("continuation-token")
    if second:
        after = untoken(mark) if mark is not None else query.get("start-after", "")
    else:
        after = query.get("marker", "")
    limit = min(number(query.get("max-keys", "1000"), "max-keys"), PAGE_MAX)
    show = shower(query.get("encoding-type"))
    deed.method, deed.key, deed.answer = "list", prefix, "listed"
    found, prefixes, last = page(objects, deed.bucket, prefix, delimiter, after, limit)
    head = _head(call, deed, limit, last is not None)
    if second:
        head += f"<KeyCount>{len(found) + len(prefixes)}</KeyCount>"
        if "start-after" in query:
            head += f"<StartAfter>{show(query['start-after'])}</StartAfter>"
        if mark is not None:
            head += f"<ContinuationToken>{plain(mark)}</ContinuationToken>"
        if last is not None:
            head += f"<NextContinuationToken>{token(last)}</NextContinuationToken>"
    else:
        head += f"<Marker>{show(after)}</Marker>"
        if last is not None:
            head += f"<NextMarker>{show(last)}</NextMarker>"
    rows = "".join(
        f"<Contents><Key>{show(each.key)}</Key>{_state(each)}</Contents>" for each in found
    ) + "".join(
        f"<CommonPrefixes><Prefix>{show(each)}</Prefix></CommonPrefixes>" for each in prefixes
    )
    return answer("ListBucketResult", head + rows, deed)


def versions(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    query, prefix = call.query, call.query.get("prefix", "")
    if query.get("delimiter"):
        raise DialectError(501, "NotImplemented", "this server lists versions without a delimiter")
    limit = min(number(query.get("max-keys", "1000"), "max-keys"), PAGE_MAX)
    show = shower(query.get("encoding-type"))
    mark = query.get("version-id-marker", "")
    behind = number(mark, "version-id-marker") if mark else 0
    deed.method, deed.key, deed.answer = "list", prefix, "listed"
    found = objects.history(deed.bucket, prefix, (query.get("key-marker", ""), behind), limit + 1)
    more, found = len(found) > limit, found[:limit]
    rows = []
    for each in found:
        latest = str(objects.superseded_ms(each) is None).lower()
        head = (
            f"<Key>{show(each.key)}</Key><VersionId>{each.id}</VersionId>"
            f"<IsLatest>{latest}</IsLatest>"
        )
        if each.deleted:
            modified = f"<LastModified>{iso(each.at_ms)}</LastModified>{_OWNER}"
            rows.append(f"<DeleteMarker>{head}{modified}</DeleteMarker>")
        else:
            rows.append(f"<Version>{head}{_state(each)}{_OWNER}</Version>")
    head = _head(call, deed, limit, more)
    if more and found:
        head += (
            f"<NextKeyMarker>{show(found[-1].key)}</NextKeyMarker>"
            f"<NextVersionIdMarker>{found[-1].id}</NextVersionIdMarker>"
        )
    return answer("ListVersionsResult", head + "".join(rows), deed)


def uploads(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    """By key, then by upload id; a page starts after `key-marker`, and there after its id."""
    query, show = call.query, shower(call.query.get("encoding-type"))
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    mark, behind = query.get("key-marker", ""), query.get("upload-id-marker", "")
    limit = min(number(query.get("max-uploads", "1000"), "max-uploads"), PAGE_MAX)
    listed = common_prefix(mark, prefix, delimiter)
    rows: dict[tuple[str, str], str] = {}
    for key, upload, meta in objects.uploads("s3", deed.bucket, prefix):
        common = common_prefix(key, prefix, delimiter)
        is_listed = key < mark or (common and common == listed)
        if is_listed or (key == mark and not (behind and upload > behind)):
            continue
        if common:
            text = f"<Prefix>{show(common)}</Prefix>"
            rows[common, ""] = f"<CommonPrefixes>{text}</CommonPrefixes>"
        else:
            rows[key, upload] = (
                f"<Upload><Key>{show(key)}</Key><UploadId>{upload}</UploadId>"
                f"<Initiated>{iso(meta.get('initiated_ms', 0))}</Initiated>{_OWNER}"
                "<StorageClass>STANDARD</StorageClass></Upload>"
            )
    found = list(rows)[:limit]
    more = bool(found) and len(rows) > limit
    head = f"<Bucket>{plain(deed.bucket)}</Bucket><KeyMarker>{show(mark)}</KeyMarker>"
    head += f"<UploadIdMarker>{plain(behind)}</UploadIdMarker>"
    if more:
        head += f"<NextKeyMarker>{show(found[-1][0])}</NextKeyMarker>"
        head += f"<NextUploadIdMarker>{found[-1][1]}</NextUploadIdMarker>"
    head += _common_head(call) + f"<MaxUploads>{limit}</MaxUploads>{_truncated(more)}"
    deed.method, deed.answer = "list", "listed"
    shown = "".join(rows[each] for each in found)
    return answer("ListMultipartUploadsResult", head + shown, deed)


def parts(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    query = call.query
    mark = number(query.get("part-number-marker") or "0", "part-number-marker")
    limit = min(number(query.get("max-parts", "1000"), "max-parts"), PAGE_MAX)
    kept = [each for each in objects.parts(query["uploadId"]) if each[1] > mark]
    found = kept[:limit]
    more = bool(found) and len(kept) > limit
    rows = "".join(
        f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag><Size>{size}</Size></Part>'
        for _, number, etag, size in found
    )
    deed.method, deed.answer = "list", "listed"
    head = (
        f"<Bucket>{plain(deed.bucket)}</Bucket><Key>{plain(deed.key)}</Key>"
        f"<UploadId>{query['uploadId']}</UploadId><PartNumberMarker>{mark}</PartNumberMarker>"
    )
    if more:
        head += f"<NextPartNumberMarker>{found[-1][1]}</NextPartNumberMarker>"
    head += f"<MaxParts>{limit}</MaxParts>{_truncated(more)}<StorageClass>STANDARD</StorageClass>"
    return answer("ListPartsResult", head + rows, deed)


def _head(call: DialectRequest, deed: RequestEffect, limit: int, more: bool) -> str:
    return (
        f"<Name>{plain(deed.bucket)}</Name>{_common_head(call)}"
        f"<MaxKeys>{limit}</MaxKeys>{_truncated(more)}"
    )


def _truncated(more: bool) -> str:
    return f"<IsTruncated>{str(more).lower()}</IsTruncated>"


def _common_head(call: DialectRequest) -> str:
    """What every listing repeats of its request."""
    show = shower(call.query.get("encoding-type"))
    text = f"<Prefix>{show(call.query.get('prefix', ''))}</Prefix>"
    if call.query.get("delimiter"):
        text += f"<Delimiter>{show(call.query['delimiter'])}</Delimiter>"
    if call.query.get("encoding-type") == "url":
        text += "<EncodingType>url</EncodingType>"
    return text


def _state(each: Object) -> str:
    return (
        f'<LastModified>{iso(each.at_ms)}</LastModified><ETag>"{each.etag}"</ETag>'
        f"<Size>{each.size}</Size><StorageClass>STANDARD</StorageClass>"
    )
