"""The pages of one listing: each brings other keys, and together they end in time.

A page that has come before never ends: it is a server or a proxy that ignores the token of the next
page. Pages need not be in key order: those of S3's directory buckets and of Azure accounts with
folders are not.

All pages together have the time of one call, and as much again for each `KEYS_PER_CALL` keys that
they bring, so a long listing may take long and an endless series of short pages may not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from lockkit.stores import ListEntry, Listing
from lockkit.stores.deadline import Deadline
from lockkit.stores.endpoint import Endpoint

KEYS_PER_CALL = 1000
"""The length of a full page at S3 and Google Cloud Storage; Azure's are longer."""


def new_pages(
    pages: Iterable[Sequence[Any]],
    name: Callable[[Any], Hashable],
    *,
    call: Deadline,
    endpoint: Endpoint,
    doing: str,
) -> Iterator[Sequence[Any]]:
    """The pages as they come; `name` is what each entry of the whole listing has to itself."""
    firsts: set[Hashable] = set()
    for page in pages:
        if page and name(page[0]) in firsts:
            raise endpoint.unusable(
                f"cannot {doing}, page {len(firsts) + 1} begins with a key of an earlier page, so "
                "the listing would never end",
                "the server or a proxy before it ignores where a page should begin; use another",
            )
        firsts.update(map(name, page[:1]))
        yield page
        call.extend(len(page) / KEYS_PER_CALL)


def joined(pages: Sequence[Sequence[ListEntry]], *, snapshots: bool) -> Listing:
    """The listing of these pages. `snapshots`: each page shows one moment."""
    entries = sorted((each for page in pages for each in page), key=lambda each: each.key)
    last = len(entries) - len(pages[-1]) if pages else 0
    ordered = snapshots and entries[last:] == list(*pages[-1:])
    one = snapshots and len(pages) <= 1
    return Listing(entries, snapshot=one, last_page=last if ordered else None)
