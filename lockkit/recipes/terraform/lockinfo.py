"""Terraform's `LockInfo`, the body of its lock file, encoded and decoded as Go does it.

It has seven strings; `Created` is an RFC 3339 time (internal/states/statemgr/locker.go).
"""

from __future__ import annotations

import getpass
import json
import re
import shlex
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockkit.events import plain

BODY_BYTES_MAX = 64 * 1024
SHOWN = 120
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """Terraform's fields, in its order. `id` is unique per lock."""

    id: str
    operation: str = ""
    info: str = ""
    who: str = ""
    version: str = ""
    created: str = ""
    path: str = ""

    def __str__(self) -> str:
        said = f"{_shown(self.who) or 'somebody'}, ID {_shown(self.id)}"
        since = f", since {_shown(self.created)}" if self.created else ""
        return f"{said}, {_shown(self.operation) or 'no operation'}{since}"


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """A body that is not a lock file. It still locks the state, as it does for Terraform."""

    why: str

    def __str__(self) -> str:
        return f"a file that is not Terraform's ({self.why})"


_FIELDS = ("ID", "Operation", "Info", "Who", "Version", "Created", "Path")


def as_fields(info: LockInfo) -> dict[str, str]:
    return {name: getattr(info, name.lower()) for name in _FIELDS}


def encode(info: LockInfo) -> bytes:
    """As Go's `json.Marshal` does, which escapes the characters `<`, `>` and `&`."""
    text = json.dumps(as_fields(info), separators=(",", ":"))
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text.encode()


def decode(body: bytes) -> LockInfo | ForeignLock:
    """By Go's rules: names in any case, unknown fields ignored, absent fields empty.

    A body without an ID is a `ForeignLock`, because it cannot be unlocked by its ID.
    """
    if len(body) > BODY_BYTES_MAX:
        return ForeignLock(f"it is longer than {BODY_BYTES_MAX} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ForeignLock("it is not JSON (truncated, or written by something else)")
    if not isinstance(fields, dict):
        return ForeignLock("it is not a JSON object")
    found: dict[str, Any] = dict.fromkeys(_FIELDS, "")
    known = {name.lower(): name for name in _FIELDS}
    for said, value in fields.items():
        name = known.get(said.lower())
        if name is None or value is None:
            continue
        if not isinstance(value, str):
            return ForeignLock(f"its {name} is not a string")
        found[name] = value
    if not found["ID"]:
        return ForeignLock("it has no ID")
    return LockInfo(**{name.lower(): value for name, value in found.items()})


def _shown(text: str) -> str:
    return plain(text, limit=SHOWN)


def time_ms(created: str) -> float | None:
    """Epoch ms of an RFC 3339 time, which Go writes with up to nine digits; None: it is none."""
    found = _TIME.fullmatch(created)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.timestamp() * 1000 + float(found[2] or 0) * 1000


def id_word(found: LockInfo | ForeignLock | None) -> str:
    """The ID, as the next word of a shell's command."""
    return f" {shlex.quote(plain(found.id))}" if isinstance(found, LockInfo) else ""


def who() -> str:
    """user@host, as Terraform names a holder."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, a user id may have no name
        user = ""
    return f"{user}@{socket.gethostname()}"
