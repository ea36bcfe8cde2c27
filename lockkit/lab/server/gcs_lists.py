"""Google's listings, of objects and of their versions."""

from __future__ import annotations

from typing import Any

from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect, number
from lockkit.lab.server.gcs_resource import answer, resource
from lockkit.lab.server.listing import page, token, untoken, version_place, version_token
from lockkit.lab.server.objects import Objects

PAGE_MAX = 1000


def contents(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    query, bucket = call.query, deed.bucket
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(number(query.get("maxResults", "1000"), "maxResults"), PAGE_MAX)
    if query.get("matchGlob"):
        raise DialectError(501, "notImplemented", "this server does not do matchGlob")
    deed.method, deed.key, deed.answer = "list", prefix, "listed"
    document: dict[str, Any] = {"kind": "storage#objects"}
    if query.get("versions", "").lower() == "true":  # the SDK writes True
        place = version_place(query.get("pageToken"))
        kept = objects.generations(bucket, prefix, place, limit + 1)
        if len(kept) > limit > 0:
            document["nextPageToken"] = version_token(kept[limit - 1])
        document["items"] = [
            resource(call, each, objects) for each in kept[:limit] if not each.deleted
        ]
        return answer(document, deed)
    after, start = untoken(query.get("pageToken", "")), query.get("startOffset", "")
    found, prefixes, last = page(objects, bucket, prefix, delimiter, after, limit, start)
    end = query.get("endOffset", "")
    if end and (found or prefixes) and max([each.key for each in found] + prefixes) >= end:
        last = None
    document["items"] = [resource(call, each) for each in found if not end or each.key < end]
    if prefixes:
        document["prefixes"] = [each for each in prefixes if not end or each < end]
    if last is not None:
        document["nextPageToken"] = token(last)
    return answer(document, deed)
