"""The objects of a group commit: the fence, offers, and the tombstones of refusals."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import BrokenFence, ModeSwitched, NewerFence
from lockkit.table.format.kept import kept
from lockkit.table.occ.fence import (
    ACTIONS,
    COMMIT,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    FORMAT,
    GROUP_FORMAT,
    GROUP_FORMATS,
    NO_INSTANT,
    digest,
    is_instant,
)
from lockkit.table.occ.group.decision import (
    GROUP_WINDOW_MAX,
    KINDS,
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
)

M = TypeVar("M")
PACKED_MAX, UNPACKED_MAX = 2_000, 64_000
"""Only a smaller inflight file is repeated in its offer and in the fence."""
FULL = ".rewrite"
"""The end of an offer's name that says all, also what the commit will say."""
OFFERS = (".offer", ".append", FULL)
"""The ends of the names of offers."""
NAME_MAX, LIKE_MAX = 255, 3
"""File systems and MinIO take no longer name. An offer's name says how it differs from at most
so many decisions."""


# --- the fence ------------------------------------------------------------------------------------


def first_fence(attempt: str, table: str, version: int) -> bytes:
    """The fence of a new table; in version 6 commits have no completion times."""
    completion = NO_INSTANT if version > 6 else None
    return format_group_fence(GroupFence(attempt, table, completion=completion))


def format_group_fence(fence: GroupFence) -> bytes:
    # Not `asdict`, which copies each of 128 decisions: that took more time than a request.
    head = json.dumps({"format": fence.format} | _values(fence), separators=(",", ":"))
    window = ",".join(map(_format_decision, fence.window))
    return f'{head[:-1]},"window":[{window}]}}'.encode()


@lru_cache(maxsize=2 * GROUP_WINDOW_MAX)
def _format_decision(each: GroupDecision) -> str:
    """A client formats each decision once, though every fence of a while has it."""
    values = _values(each)
    values["writes"] = None if each.writes is None else sorted(each.writes)
    return json.dumps(values, separators=(",", ":"))


def _values(of: GroupFence | GroupDecision) -> dict[str, Any]:
    return {name: getattr(of, name) for name, _ in _FIELDS[type(of)] if name != "window"}


_FIELDS: Mapping[type[Any], tuple[tuple[str, str], ...]] = {
    kind: tuple((each.name, str(each.type)) for each in fields(kind))
    for kind in (GroupFence, GroupDecision, Offer)
}  # fmt: skip


@kept(8, 256_000)
def parse_group_fence(body: bytes) -> GroupFence:
    """The fence; `BrokenFence` or `NewerFence` if nothing may be decided with it."""
    found = (_by_decision(body) or _object(body)) if len(body) <= FENCE_BYTES_MAX else None
    if found is None:
        raise _broken("not a JSON object, or too long")
    written = found.get("format")
    if type(written) is int and written > GROUP_FORMAT:
        raise NewerFence(
            FENCE_KEY, f"has format {written}: a newer lockkit wrote it; nothing was committed",
            "upgrade lockkit here, and leave the fence as it is",
        )  # fmt: skip
    if written == FORMAT:
        raise ModeSwitched(
            FENCE_KEY, "belongs to the mode fenced: the table's mode was switched, and a "
            "commit that was not decided before is refused",
            "open the table again. If that says the same, a switch was interrupted, or this is a "
            "copy that was made during one: lockkit table mode URL group (or fenced)",
        )  # fmt: skip
    if written not in GROUP_FORMATS:
        raise _broken(f"format {str(written)[:20]!r}, expected {GROUP_FORMAT}")
    window = found.pop("window", None)
    decided = [_parse_decision(each) for each in window] if isinstance(window, list) else []
    fence = _made(GroupFence, found)
    if fence is None or not isinstance(window, list) or None in decided:
        raise _broken("a field is missing or wrong, or names no instant or no known kind")
    fence = replace(fence, window=tuple(each for each in decided if each))
    for number, each in enumerate(fence.window, fence.first):
        if each.seq != number:
            raise _broken(f"decision {number} is missing")
    instants = (fence.newest, fence.since, fence.archived, fence.completion or NO_INSTANT)
    if not all(map(is_instant, instants)) or not fence.first > 0 <= fence.published <= fence.last:
        raise _broken("its counts or one of its own instants are inconsistent")
    return fence


def _by_decision(body: bytes) -> dict[str, Any] | None:
    """The same as `_object`, with decisions in its window; None if it is not written in our form.

    The text is cut between two decisions. A cut within a string leaves an open string, which is no
    JSON.
    """
    head, _, window = body.partition(b',"window":[')
    if not (window.startswith(b"{") and window.endswith(b"}]}")):
        return None
    found, decided = _object(head + b"}"), list(map(_decision_in, window[1:-3].split(b"},{")))
    return None if found is None or None in decided else found | {"window": decided}


@kept(2 * GROUP_WINDOW_MAX, 16_000)
def _decision_in(text: bytes) -> GroupDecision | None:
    """A client parses each decision once, though every fence of a while has it."""
    return _parse_decision(_object(b"{%b}" % text))


def _parse_decision(found: Any) -> GroupDecision | None:
    if isinstance(found, GroupDecision):
        return found
    made = _made(GroupDecision, found)
    if made is None or made.kind not in KINDS or made.action not in ACTIONS:
        return None
    return made if all(map(is_instant, (made.instant, made.completion or NO_INSTANT))) else None


def _broken(why: str) -> BrokenFence:
    return BrokenFence(
        FENCE_KEY, f"is not a fence of group commit ({why}): it is damaged, or another program "
        "wrote it. It may have decided commits that no listing shows yet, so nothing is read or "
        "committed",
        "do not delete it. Restore its last good version if no writer has committed since",
    )  # fmt: skip


def read_group_fence() -> Procedure[tuple[GroupFence, Version]]:
    found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    if not isinstance(found, Found):
        raise BrokenFence(
            FENCE_KEY, "is missing: it was deleted. It may have decided commits that no listing "
            "shows yet, so none is made, and nothing is read or committed",
            "restore its last version",
        )  # fmt: skip
    return parse_group_fence(found.body), found.version


@kept(16, UNPACKED_MAX)
def packed(body: bytes) -> str:
    """An inflight file in the form in which an offer and a decision repeat it; '' if it is too
    long."""
    text = base64.b85encode(zlib.compress(body)).decode() if len(body) <= UNPACKED_MAX else ""
    return text if len(text) <= PACKED_MAX else ""


def goes_without(action: str, body: bytes) -> bool:
    """Whether a commit has no inflight file: the fence, or the offer of an append, has it."""
    return action == COMMIT and bool(packed(body))


@lru_cache(maxsize=GROUP_WINDOW_MAX)
def unpacked(each: GroupDecision) -> bytes | None:
    """The inflight file of a decision, if the fence repeats it."""
    try:
        body = zlib.decompressobj().decompress(base64.b85decode(each.body), UNPACKED_MAX)
    except (ValueError, zlib.error):
        return None
    return body if each.body and digest(body) == each.sha256 else None


# --- an offer -------------------------------------------------------------------------------------


def format_offer(offer: Offer) -> bytes:
    return json.dumps(asdict(offer) | {"writes": sorted(offer.writes)}).encode()


def parse_offer(body: bytes) -> Offer | None:
    """The offer; None for a tombstone (the fence has decided against the instant), and for an
    unreadable object, which is left to its owner."""
    found = _object(body)
    made = None if found is None or REFUSED in found else _made(Offer, found)
    known = made is not None and is_instant(made.instant) and made.action in ACTIONS
    return made if made and known and made.writes is not None else None


_BLIND = re.compile(r"([0-9]{17})\.([0-9a-f]*)-([0-9a-f]{64})(?:-([0-9A-Za-z-]{1,64}))?\.append")


def blind_name(offer: Offer) -> str:
    """The name of an offer that is compared with nothing: it says all that a decider must know."""
    table = f"-{offer.table}" if offer.table else ""
    return f"{offer.instant}.{offer.schema}-{offer.sha256}{table}.append"


def blind_offer(name: str) -> Offer | None:
    """The offer with that name; None if there is none."""
    parts = _BLIND.fullmatch(name)
    if parts is None or not is_instant(parts[1]):
        return None
    return Offer(parts[1], 0, sha256=parts[3], schema=parts[2], reserved=True, blind=True,
                 table=parts[4] or "")  # fmt: skip


_REWRITE = re.compile(r"([0-9]{17})\.((?:[0-9]{1,15}\.){1,9})([0-9A-Za-z_-]{1,240})\.rewrite")


def full_name(offer: Offer, body: bytes, fence: GroupFence) -> str:
    """A name that says the whole offer, with what the commit will say: how these differ from
    decisions of this fence, mostly the latest of the same file groups. "" if it is too long.
    """
    has = [each for each in fence.window if each.body]
    latest = {group: each.seq for each in has for group in each.writes or ()}
    like = {latest[each] for each in offer.writes if each in latest} or {e.seq for e in has[-1:]}
    numbers = sorted(like)[-LIKE_MAX:]
    if not (offer.body and (shared := _shared(offer.instant, numbers, fence))):
        return ""
    packing = zlib.compressobj(9, memLevel=9, zdict=shared)
    said = format_offer(replace(offer, sha256="", body="")) + b"\n" + body
    text = base64.urlsafe_b64encode(packing.compress(said) + packing.flush()).decode().rstrip("=")
    name = f"{offer.instant}.{''.join(f'{each}.' for each in numbers)}{text}.rewrite"
    return name if len(name) <= NAME_MAX else ""


def full_offer(name: str, fence: GroupFence) -> Offer | None:
    """The offer with that name; None if it must be read: this fence no longer repeats the
    decisions that the name refers to, the name is another table's, or it is damaged."""
    if (parts := _REWRITE.fullmatch(name)) is None:
        return None
    shared = _shared(parts[1], list(map(int, parts[2].split(".")[:-1])), fence)
    return _unlike(parts[1], parts[3], shared) if shared else None


@kept(GROUP_WINDOW_MAX, 16_000)
def _unlike(instant: str, text: str, shared: bytes) -> Offer | None:
    unpacking = zlib.decompressobj(zdict=shared)
    try:
        said = unpacking.decompress(base64.urlsafe_b64decode(text + "=="), UNPACKED_MAX)
    except (ValueError, zlib.error):
        return None
    head, _, body = said.partition(b"\n")
    found, again = parse_offer(head), packed(body) if body and unpacking.eof else ""
    if found is None or found.instant != instant or not again:
        return None
    return replace(found, sha256=digest(body), body=again)


def _shared(instant: str, numbers: list[int], fence: GroupFence) -> bytes:
    """The part of an offer that both sides know without its name; b"" if this fence lacks a
    part."""
    found = [each for each in fence.window if each.seq in numbers]
    bodies = [body for each in found if (body := unpacked(each))]
    heads = [format_offer(Offer(each.instant, each.seq, each.writes or frozenset(), "",
                                fence.schema, reserved=True, table=fence.table))
             for each in found]  # fmt: skip
    known = [*bodies, *heads, instant.encode()]
    return b"".join(known) if len(bodies) == len(numbers) else b""


def tombstone(instant: str) -> bytes:
    """The content of an offer's key once the fence has decided against the instant."""
    return json.dumps({REFUSED: instant}).encode()


def is_tombstone(body: bytes) -> bool:
    return REFUSED in (_object(body) or {})


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "str | None": (str, type(None)),
}  # fmt: skip


def _made(kind: type[M], found: Any) -> M | None:
    """A value of this dataclass; None if a field has another type. Unknown fields are left out."""
    if not isinstance(found, dict):
        return None
    given: dict[str, Any] = {}
    for name, types in _FIELDS[kind]:
        if name not in found or name == "window":
            continue
        value = found[name]
        if name == "writes":
            try:
                value = None if value is None else frozenset((str(p), str(f)) for p, f in value)
            except (TypeError, ValueError):
                return None
        elif type(value) not in _TYPES[types]:
            return None
        given[name] = value
    try:
        return kind(**given)
    except TypeError:  # a field without a default is missing
        return None
