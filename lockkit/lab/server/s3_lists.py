"""S3's listings: of buckets, objects (V1 and V2), versions, uploads and parts."""

from __future__ import annotations

from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.listing import page, token, untoken
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
    show = shower(call.query.get("encoding-type"))
    rows = "".join(
        f"<Upload><Key>{show(key)}</Key><UploadId>{upload}</UploadId></Upload>"
        for key, upload in objects.uploads("s3", deed.bucket, call.query.get("prefix", ""))
    )
    deed.method, deed.answer = "list", "listed"
    return answer("ListMultipartUploadsResult", _head(call, deed, PAGE_MAX, False) + rows, deed)


def parts(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    upload = call.query["uploadId"]
    rows = "".join(
        f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag><Size>{size}</Size></Part>'
        for _, number, etag, size in objects.parts(upload)
    )
    deed.method, deed.answer = "list", "listed"
    head = (
        f"<Bucket>{plain(deed.bucket)}</Bucket><Key>{plain(deed.key)}</Key>"
        f"<UploadId>{upload}</UploadId><IsTruncated>false</IsTruncated>"
    )
    return answer("ListPartsResult", head + rows, deed)


def _head(call: DialectRequest, deed: RequestEffect, limit: int, more: bool) -> str:
    show = shower(call.query.get("encoding-type"))
    text = (
        f"<Name>{plain(deed.bucket)}</Name><Prefix>{show(call.query.get('prefix', ''))}</Prefix>"
        f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
    )
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
