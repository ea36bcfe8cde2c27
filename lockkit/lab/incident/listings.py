"""A bucket's listing of versions, saved to a file, as the lock object's history.

Of S3 (`aws s3api list-object-versions`), GCS (`gcloud storage objects list --all-versions`, or the
JSON API's `objects?versions=true`) and Azure (`az storage blob list --include v`, or List Blobs'
XML). Such a listing has no bodies, so it does not show a version's owner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from lockkit.events import STORE, Event, event
from lockkit.lab.incident.calls import SeenVersion
from lockkit.lab.incident.logs.wire import hex_of
from lockkit.lab.verify.check.lanes import LOCK_NAME, name_of
from lockkit.stores.endpoint import epoch_ms

VERSIONS_MAX = 100_000
TEXT_MAX = 1_024
TIME_MS_MAX = 10**15
SUCCESSOR_MS = 1_000
"""GCS ends a generation when the next one is made; one that ended earlier was deleted."""
_HEX32 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """One version, or (`deleted`) a delete marker."""

    key: str
    version: str
    at_ms: float
    deleted: bool = False
    digest: str = ""
    ended_ms: float | None = None
    """When it ceased to be current, if the provider records it (GCS)."""


@dataclass(frozen=True, slots=True)
class VersionListing:
    """The content of a listing: the versions of every object that were understood."""

    provider: str
    kept: tuple[ListedVersion, ...]
    unread: int

    @property
    def lock(self) -> list[ListedVersion]:
        """The lock object's versions, oldest first."""
        ours = (each for each in self.kept if name_of(each.key) == LOCK_NAME)
        return sorted(ours, key=lambda each: each.at_ms)


def read_listing(text: str) -> VersionListing | None:
    """Return None if it is not a listing. Never raises: unreadable entries are counted."""
    head = text.lstrip("\ufeff \t\r\n")
    if head.startswith("<"):
        return _xml(head)
    if not head.startswith(("{", "[")):
        return None
    try:
        reported = json.loads(head)
    except (ValueError, RecursionError):
        return None
    if isinstance(reported, dict) and ("Versions" in reported or "DeleteMarkers" in reported):
        rows = [*_rows(reported.get("Versions")), *_rows(reported.get("DeleteMarkers"))]
        marks = len(_rows(reported.get("DeleteMarkers")))
        deleted = [False] * (len(rows) - marks) + [True] * marks
        return _listing("S3", (_s3(row, gone) for row, gone in zip(rows, deleted, strict=True)))
    rows = _rows(reported.get("items") if isinstance(reported, dict) else reported)
    if any("generation" in row for row in rows):
        return _listing("GCS", map(_gcs, rows))
    if any("properties" in row and "name" in row for row in rows):
        return _listing("Azure", map(_azure, rows))
    return None


def as_events(listing: VersionListing) -> list[Event]:
    """The lock object's writes and deletes, by an unknown client."""
    events, before = [], ""
    for each, after in [*pairwise(listing.lock), *((one, None) for one in listing.lock[-1:])]:
        version = "" if each.deleted else each.version
        events.append(_write(each.key, each.at_ms, before, version))
        before = version
        if each.ended_ms is not None and _was_deleted(each, after):
            events.append(_write(each.key, each.ended_ms, before, ""))
            before = ""
    return events


def _was_deleted(one: ListedVersion, after: ListedVersion | None) -> bool:
    assert one.ended_ms is not None
    return after is None or after.at_ms > one.ended_ms + SUCCESSOR_MS


def seen(listing: VersionListing) -> list[SeenVersion]:
    """The same for `client_events`: a version whose bytes a log shows is that write's."""
    return [
        SeenVersion(each.version, frozenset({f"md5:{each.digest}"}), each.at_ms)
        for each in listing.lock if each.digest and not each.deleted
    ]  # fmt: skip


def _write(key: str, at_ms: float, before: str, version: str) -> Event:
    return event(
        at_ms, STORE, "request", client="", method="PUT" if version else "DELETE", key=key,
        condition="", status=200, answer="applied", applied=True, before=before, version=version,
        attempt="", began_ms=at_ms, listed=True,
    )  # fmt: skip


def _rows(reported: object) -> list[dict[str, Any]]:
    rows = reported if isinstance(reported, list) else []
    return [each for each in rows[:VERSIONS_MAX] if isinstance(each, dict)]


def _listing(provider: str, found: Iterator[ListedVersion | None]) -> VersionListing:
    kept = list(found)
    known = tuple(each for each in kept if each is not None)
    return VersionListing(provider, known, len(kept) - len(known))


def _kept(key: object, version: object, at: object, **more: Any) -> ListedVersion | None:
    at_ms = moment_ms(at)
    if not isinstance(key, str) or not key or version in (None, "") or at_ms is None:
        return None
    return ListedVersion(key[:TEXT_MAX], str(version)[:TEXT_MAX], at_ms, **more)


def _s3(row: Mapping[str, Any], deleted: bool) -> ListedVersion | None:
    etag = row.get("VersionId") if deleted else row.get("ETag")
    bare = str(etag).strip('"')
    digest = bare if _HEX32.fullmatch(bare) else ""
    return _kept(row.get("Key"), etag, row.get("LastModified"), deleted=deleted, digest=digest)


def _gcs(row: Mapping[str, Any]) -> ListedVersion | None:
    made = row.get("timeCreated") or row.get("creation_time") or row.get("update_time")
    ended = row.get("timeDeleted") or row.get("noncurrent_time")
    digest = hex_of(row.get("md5Hash") or row.get("md5_hash") or "")
    return _kept(
        row.get("name"), row.get("generation"), made, digest=digest, ended_ms=moment_ms(ended)
    )


def _azure(row: Mapping[str, Any]) -> ListedVersion | None:
    reported = row.get("properties")
    reported = reported if isinstance(reported, dict) else {}
    content = reported.get("contentSettings")
    md5 = content.get("contentMd5") if isinstance(content, dict) else reported.get("contentMd5")
    etag = str(reported.get("etag") or "").strip('"')
    return _kept(
        row.get("name"), etag and f'"{etag}"', reported.get("lastModified"),
        digest=hex_of(md5 or ""),
    )  # fmt: skip


def _xml(text: str) -> VersionListing | None:
    """Parse List Blobs' XML. A document type is refused: it can hide expansions."""
    if "EnumerationResults" not in text[:500] or "<!" in text:
        return None
    try:
        root = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError:
        return None
    return _listing("Azure", map(_blob, list(root.iter("Blob"))[:VERSIONS_MAX]))


def _blob(blob: ElementTree.Element) -> ListedVersion | None:
    at = epoch_ms(blob.findtext("Properties/Last-Modified"))
    etag = (blob.findtext("Properties/Etag") or "").strip('"')
    digest = hex_of(blob.findtext("Properties/Content-MD5") or "")
    return _kept(blob.findtext("Name"), etag and f'"{etag}"', at, digest=digest)


def moment_ms(reported: object) -> float | None:
    """Epoch ms of an ISO time, of an HTTP date, or itself."""
    if type(reported) is int:
        return float(reported) if abs(reported) <= TIME_MS_MAX else None
    if not isinstance(reported, str):
        return None
    try:
        at = datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", reported))
    except ValueError:
        return epoch_ms(reported)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000


def left_open(kept: Sequence[ListedVersion]) -> str:
    """What a listing leaves open."""
    return (
        f"{len(kept)} versions of the lock object, without their content: no owners, and no ends "
        "of leases"
    )
