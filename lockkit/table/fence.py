"""The fence: the object whose replacement is the moment of commit.

`.hoodie/.locks/fence.json` names the last commit that was decided. Whoever wants to commit replaces
exactly the fence that it read before it checked for conflicts; if anything was decided in between,
the store refuses. protocol.md section 5 has the rules, each with the counterexample it closes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from lockkit.drive import Procedure
from lockkit.outcome import Found, Version
from lockkit.table.ask import TableError, read
from lockkit.table.timeline import HOODIE

FENCE_KEY = HOODIE + ".locks/fence.json"
FENCE_BYTES_MAX = 1_000_000
FORMAT = 1
"""A fence of another format may hold entries (a rollback) that must not be read as a commit."""
_INSTANT = re.compile(r"\d{17}|\d{14}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Fence:
    """The last decided commit: under which epoch, which instant, and what its file must hash to."""

    epoch: int
    instant: str
    attempt: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The fence as read; both None on a table that never had one."""

    fence: Fence | None
    version: Version | None

    @property
    def attempt(self) -> str | None:
        return self.fence.attempt if self.fence else None


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def format_fence(fence: Fence) -> bytes:
    return json.dumps(
        {"format": FORMAT, "epoch": fence.epoch, "instant": fence.instant,
         "attempt": fence.attempt, "sha256": fence.sha256},
    ).encode()  # fmt: skip


def parse_fence(body: bytes) -> Fence:
    """The fence, or a `TableError`: under an unreadable fence nothing may be committed."""

    def broken(why: str) -> TableError:
        return TableError(
            f"{FENCE_KEY} is not a fence ({why}); nothing was committed. Restore its last version, "
            "or stop every writer and put the newest completed instant into it"
        )

    if len(body) > FENCE_BYTES_MAX:
        raise broken(f"{len(body)} bytes")
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise broken("not JSON") from None
    if not isinstance(fields, dict):
        raise broken("not a JSON object")
    if fields.get("format") != FORMAT:
        raise broken(
            f"format {str(fields.get('format'))[:20]!r}, known: {FORMAT}; a newer lockkit?"
        )
    epoch, instant, attempt, sha256 = (
        fields.get(name) for name in ("epoch", "instant", "attempt", "sha256")
    )
    if type(epoch) is not int or epoch < 0:
        raise broken("epoch must be a whole number")
    if not isinstance(instant, str) or not _INSTANT.fullmatch(instant):
        raise broken("instant must be 17 digits")
    if not isinstance(attempt, str) or not attempt:
        raise broken("attempt is missing")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise broken("sha256 must be 64 hex digits")
    return Fence(epoch, instant, attempt, sha256)


def read_fence() -> Procedure[Seen]:
    match (yield from read(FENCE_KEY)):
        case Found(body, version):
            return Seen(parse_fence(body), version)
        case _missing:
            return Seen(None, None)
