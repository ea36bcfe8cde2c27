"""Files of any known kind: recognised, read, and merged into one history."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lockkit.errors import StatedError
from lockkit.events import Event, HistoryError, plain, read
from lockkit.lab.incident import listings, store_logs
from lockkit.lab.incident.audit import Audit, Validation, is_audit, parse_audit, validate
from lockkit.lab.incident.calls import SeenVersion, identity, unnamed
from lockkit.lab.incident.client_events import client_events
from lockkit.lab.incident.logs import ParsedLog, is_log, read_log
from lockkit.lab.incident.logs.wire import SentRequest
from lockkit.lab.incident.places import FOLDER, is_lock, is_of, several
from lockkit.lab.incident.repeats import event_identity, unseen
from lockkit.lab.verify.check.lanes import LOCK_NAME, name_of

FILE_BYTES_MAX = 10_000_000
FILES_MAX = 200
NAME_MAX = 80
CHUNK_BYTES = 1 << 16
TABLES_SHOWN = 8
NESTED_MAX = 500
"""JSON that is deeper ends Python in a browser, whose stack is small."""
_BESIDE_BRACKETS = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|[^][{}"]+')


class NotUnderstood(StatedError, ValueError):
    """A file of an unknown kind, or too large: names it and the known kinds."""


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The part of a file that was understood, and the part that was not."""

    name: str
    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All files together, as one history in the order of its times."""

    events: tuple[Event, ...]
    audits: tuple[Audit, ...]
    taken: tuple[ParsedFile, ...]

    @property
    def validation(self) -> Validation | None:
        return validate(self.audits) if self.audits else None


@dataclass(slots=True)
class _Pile:
    """Sorted by kind: logs need the listings beside them."""

    url: str
    events: list[Event] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    sent: list[SentRequest] = field(default_factory=list)
    lists: list[listings.VersionListing] = field(default_factory=list)
    listed: list[Event] = field(default_factory=list)
    stores: list[store_logs.StoreLog] = field(default_factory=list)
    taken: list[ParsedFile] = field(default_factory=list)
    seen: set[object] = field(default_factory=set)
    """The identities of all events: one that is there more than once counts once."""


ACCEPTED = (
    "a history (JSON lines), Hudi's audit log, a listing of versions (S3's, GCS's or Azure's), a "
    "debug log of boto3, google-cloud-storage or azure-storage-blob, or the store's own log "
    "(CloudTrail or server access log of S3, audit log of Google Cloud, resource log of Azure)"
)


def take_in(
    files: Sequence[tuple[str, bytes]], known: Sequence[SeenVersion] = (), *, url: str = ""
) -> Evidence:
    """Read files by name and content; `known` are the lock's versions by a bucket's listing.

    Histories and requests for the locks of other tables than that at `url` are left out. Raises
    `NotUnderstood` for the first file of an unknown kind, and without a URL for logs of several
    tables' locks.
    """
    if len(files) > FILES_MAX:
        raise NotUnderstood(f"{len(files)} files at once", "", f"give at most {FILES_MAX}")
    pile = _Pile(url)
    for name, content in files:
        _sort(pile, plain(name, limit=NAME_MAX), content)
    if not url:
        _refuse_several(pile)
    seen = [*known, *(each for listing in pile.lists for each in listings.seen(listing))]
    reported = [*pile.events, *client_events(pile.sent, seen)]
    reported += store_logs.as_events(pile.stores)
    together = sorted(one_truth([*reported, *pile.listed]), key=lambda each: each.at_ms)
    return Evidence(tuple(together), tuple(pile.audits), tuple(pile.taken))


def _sort(pile: _Pile, name: str, content: bytes) -> None:
    content, cut = _unpacked(name, content)
    if len(content) > FILE_BYTES_MAX:
        raise NotUnderstood(
            name,
            f"is longer than {FILE_BYTES_MAX // 1_000_000} MB",
            "cut out what is around the incident (of a log, the lines with the lock's name)",
        )
    if not content.strip():
        raise NotUnderstood(name, "is empty")
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")  # as PowerShell redirects a command's output
    text = content.decode("utf-16" if wide else "utf-8-sig", "replace")
    not_too_deep(name, text)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if is_audit(first):
        audit = parse_audit(text)
        states, known = unseen(audit.events, event_identity, pile.seen, "states")
        pile.events += states
        if states or not audit.events:
            pile.audits.append(audit)
        said = f"{len(states)} states, {audit.skipped} lines skipped{known}"
        pile.taken.append(ParsedFile(name, "Hudi's audit log", said))
    elif (listing := listings.read_listing(text)) is not None:
        pile.lists.append(listing)
        events = listings.as_events(listing)
        new, known = unseen(events, event_identity, pile.seen, "versions")
        pile.listed += new
        said = listings.left_open(listing.lock) + known
        if listing.unread:
            said += f"; {listing.unread} entries could not be read"
        pile.taken.append(ParsedFile(name, f"{listing.provider}'s listing of versions", said))
    elif (stored := store_logs.read_store_log(text)) is not None:
        pile.stores.append(stored)
        every = stored.requests
        stored.requests = [
            each for each in every if is_of(pile.url, each.path, bucket_said=each.bucket)
        ]
        stored.others += len(every) - len(stored.requests)
        stored.requests, known = unseen(
            stored.requests, lambda each: each.identity, pile.seen, "requests"
        )
        pile.taken.append(ParsedFile(name, stored.form, _stored(stored) + known + cut))
    elif first.startswith("{"):
        events = _history(name, text)
        locks = {key for each in events if is_lock(key := str(each.get("key") or ""))}
        locks = {key for key in locks if key.rpartition("/")[0] != FOLDER}  # a client's are short
        if pile.url and not all(is_of(pile.url, key) for key in locks):
            elsewhere = "of another table's lock: left out"
            pile.taken.append(ParsedFile(name, "a recorded history", elsewhere))
            return
        new, known = unseen(events, event_identity, pile.seen, "events")
        pile.events += new
        pile.taken.append(ParsedFile(name, "a recorded history", f"{len(new)} events{known}"))
    elif is_log(text):
        log = read_log(text, name.rpartition("/")[2].removesuffix(".log"))
        sent, known = unseen(log.sent, identity, pile.seen, "requests")
        pile.sent += [each for each in sent if not is_lock(each.key) or is_of(pile.url, each.key)]
        pile.taken.append(ParsedFile(name, log.form, _said(log) + known + cut))
    else:
        raise NotUnderstood(name, f"is none of these: {ACCEPTED}")


def _refuse_several(pile: _Pile) -> None:
    logged = [each.path for log in pile.stores for each in log.requests]
    tables = several([*logged, *(each.key for each in pile.sent if is_lock(each.key))])
    if len(tables) > 1:
        names = ", ".join(plain(each.removesuffix(f"/{FOLDER}")) for each in tables[:TABLES_SHOWN])
        raise NotUnderstood(
            "the files", f"have requests for the locks of {len(tables)} tables ({names})",
            "give the URL of one of them first",
        )  # fmt: skip


def not_too_deep(name: str, text: str) -> None:
    """Raises `NotUnderstood` for JSON whose brackets are nested too deep to be read anywhere."""
    if text.lstrip()[:1] not in ("[", "{"):
        return
    lines = text.lstrip().split("\n")
    # Of JSON lines each is read by itself. In a damaged one a text may seem to begin at its end.
    deep = max(map(_depth, lines)) if _depth(lines[0], last=True) == 0 else _depth(text)
    if deep > NESTED_MAX:
        raise NotUnderstood(name, f"has brackets in brackets, {deep:,} deep",
                            f"give JSON of at most {NESTED_MAX} levels")  # fmt: skip


def _depth(text: str, *, last: bool = False) -> int:
    """How deep its brackets are nested at most; with `last`, at its end."""
    brackets = _BESIDE_BRACKETS.sub("", text)
    depths = accumulate((1 if each in "[{" else -1 for each in brackets), initial=0)
    return max(0, [*depths][-1]) if last else max(depths)


def _unpacked(name: str, content: bytes) -> tuple[bytes, str]:
    """Unpack a gzip file, as CloudTrail delivers it, up to one byte more than is allowed.

    Also what is wrong with it: of a damaged file the beginning is read, up to its last whole line.
    """
    if content[:2] != b"\x1f\x8b":
        return content, ""
    found = bytearray()
    try:
        with gzip.open(io.BytesIO(content)) as file:
            while len(found) <= FILE_BYTES_MAX and (part := file.read1(CHUNK_BYTES)):
                found += part
    except (OSError, EOFError, zlib.error) as error:
        if not found:
            raise NotUnderstood(name, f"cannot be unpacked: {plain(error)}") from None
        return bytes(found), "; the file is damaged, and only its beginning was read"
    return bytes(found), ""


def _stored(log: store_logs.StoreLog) -> str:
    clients = len({each.client for each in log.requests})
    parts = [f"{len(log.requests)} requests of {clients} clients for the lock and the fence",
             f"{log.others} other records"]  # fmt: skip
    if log.unread:
        parts.append(f"{log.unread} records could not be read")
    if log.batches:
        parts.append(f"{log.batches} deletions of several objects, whose keys it does not name")
    if not any(each.condition for each in log.requests):
        parts.append("it shows neither conditions nor what was written")
    return "; ".join(parts)


def _history(name: str, text: str) -> list[Event]:
    try:
        events = list(read(text.splitlines(keepends=True)))
    except HistoryError as error:
        raise NotUnderstood(f"{name}:", plain(error), f"accepted are {ACCEPTED}") from None
    if not events:
        raise NotUnderstood(name, "begins as JSON but has no event", f"accepted are {ACCEPTED}")
    return events


def _said(log: ParsedLog) -> str:
    parts = [f"{len(log.sent)} requests in {log.lines} lines"]
    if log.repeated:
        parts.append(f"{log.repeated} repeated lines left out")
    if log.unread:
        parts.append(f"{log.unread} lines could not be read")
    if lost := unnamed(log.sent):
        parts.append(f"for {lost} writes it does not name the object")
    if not any(each.record for each in log.sent):
        parts.append("it does not show what was written: no owners, and no ends of leases")
    if not log.stamped:
        parts.append("it has no times: order of its lines, and times of the answers' Date")
    elif log.zone_ms:
        parts.append(f"its times are converted to UTC ({log.zone_ms / 3_600_000:+g} h taken off)")
    return "; ".join(parts)


def one_truth(events: Iterable[Event]) -> list[Event]:
    """Merge a lock version that is in a listing and in a log into one write: the log has more."""
    events = store_logs.with_listed(list(events))
    reported = {
        each["version"] for each in events
        if _writes_lock(each) and not each.get("listed") and each["version"]
    }  # fmt: skip
    return [
        each for each in events
        if not (each.get("listed") and each["version"] in reported)
    ]  # fmt: skip


def _writes_lock(each: Event) -> bool:
    return each.kind == "request" and bool(each["applied"]) and name_of(each["key"]) == LOCK_NAME
