"""The base of all errors, and the errors of locks, stores and tables.

An error says what happened, who is involved and what to do next, in fields and a text. Those of a
commit are in `table.errors`, those of the recipes in `recipes.errors`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum
from typing import Any

_URL = re.compile(
    r"(?i)((?:az|abfss?|wasbs?)?(?::|%(?:25)*3a)(?://|(?:%(?:25)*2f){2}|\\/\\/))"
    r'((?:(?!(?::|%(?:25)*3a)(?://|(?:%(?:25)*2f){2}))[^\s"])*)',  # up to the next URL
)
_PASSWORD = re.compile(r"(?::|%(?:25)*3a)(?!\d+(?:,|%2c|$))|^(?!localhost)[^.,]+:\d+$", re.I)
SECRET_NAMES = (
    r"(?>[\w.-]*?(?:secret|passw(?:or)?d|passphrase|pwd|token|credential|signature|googleaccessid"
    r"|(?:access|account|api|private|encryption|customer)[_.-]?key"
    r"|(?:\b|(?<=3f)|(?<=26))(?:sig|auth|pass)(?= *=(?! *\d{1,3}\b)|%)))[\w.-]*+"
)
"""A whole name of a credential; no part is tried twice, so that long texts take linear time."""
_PROSE = (  # after `password:` such a word is the next one of a sentence
    r"(?!(?:an?|and|are|cannot|denied|empty|expired|has|i[fnst]|incorrect|invalid|missing|must|needs|"
    r"not?|none|o[fnr]|refused|rejected|required|run|se[et]|that|the|this|too?|unknown|use|was|were|"
    r"with|wrong|yes)(?![\w/+=!-]))"
)
_JSON = r"\\*[\"'] *+[:,] *+(?:\\*[\"']value\\*[\"'] *+: *+)?\[?b?\\*(?=[\"'])"
_NEXT = r"[ \t]*+(?:\n[ \t]*+(?=[^\s=:]++=*(?:\s|$)))?"  # it may be on the next line, by itself
_NAMED = re.compile(
    rf"((?<![\w./-])(?:(?!tokeniz|secretar|[\w.-]*continuation){SECRET_NAMES}"
    rf"(?!(?:(?<=oken)|(?<=[^s]s)) *[:=] *\d{{1,5}}\b)(?:[ \t]*(?:=>?|:=){_NEXT}|%(?:25)*3d"
    rf"|{_JSON}|>|(?:(?<=word)|(?<=key|pwd))(?: ?:(?:[ \t]*+\|?\n +|{_NEXT})|\t+){_PROSE}"
    rf"|(?<=cret|oken|rase|tial|ture) ?:(?: *+(?=[^\s\d]*\d)|(?=\S)){_PROSE})"
    rf"|--{SECRET_NAMES} +(?!-){_PROSE}"
    r"|(?<!%)(?>(?:[\w.-]*%(?:25)*(?:[46][1-9a-f]|[57][0-9a]))+)[\w.-]*(?:=|%(?:25)*3d)"
    rf"|(?:[\w-]*authorization|(?:set-)?cookie)(?:{_JSON}| ?[:=] *+{_PROSE}"
    r"(?:(?:bearer|basic|token|apikey|aws|sharedkey(?:lite)?|goog1|negotiate|ntlm|hmac) +)?)"
    r"|bearer +(?=\S{16})|(?=eyJ[\w-]{10,}+\.)|digest:(?!sha|md5)[^\s:]+:)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?!\.\.\.(?:\W|$))"
    r"(?:(?<=KEY-----)(?:(?!-----END)[\s\S])+|(?<=ookie: )[^\n\"']++|'[^'\n]+'"
    r"|(?<!\\)\"(?:[^\"\\\n]|\\.)++\"|\"[^\"\n]+\"|[^\s&;]+)", re.I
)  # fmt: skip
_BARE = re.compile(  # user:password@host, but no port, process or job, ARN, image, service account
    r"(?<![^\s\"'])(?=[^\s\"'@:/a-z]*[a-z])([^\s\"'@:/]++)(?<!\barn):(?!//|\d{1,7}@|\S*://"
    r"|[a-z]+(?:[-_][a-z\d]+)*@[a-z][\w-]*-\d+(?![\w.:/-]))[^\s\"']+@"
    r"(?=[^\W\d][\w.-]*+(?<!\.gserviceaccount\.com)(?!:[\da-f]{32})|\d+(?:\.\d+){3}|\[)", re.I
)  # fmt: skip


def masked(text: str) -> str:
    """The text without passwords and signatures; an owner, for example, may be a URL with one."""
    return _NAMED.sub(r"\1***", _BARE.sub(r"\1:***@", _URL.sub(_without_user, text)))


def _without_user(url: re.Match[str]) -> str:
    start, rest = url.groups()
    host = re.split(r"[/?#\\]|%(?:25)*2f" if "%" in start else r"[/?#\\]", rest, flags=re.I)[0]
    if "@" not in host and _PASSWORD.search(host.rpartition("]")[2]):
        host = rest  # a password may contain a /
    ends = [each.start() for each in re.finditer("@|%(?:25)*40" if "%" in start else "@", host)]
    if not ends or (start[0] in "aAwW" and ":" not in host[: ends[-1]]):
        return url[0]  # Azure's container@account is no secret
    return f"{start}***{rest[ends[-1] :]}"


def clipped(text: str, limit: int) -> str:
    """The beginning of the text, masked first: half a password would not be recognised."""
    return masked(text)[:limit]


class LockkitError(Exception):
    """The base of every error of lockkit."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(masked(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self._facts())

    def _facts(self) -> dict[str, Any]:
        """The fields that another process gets, notes included."""
        return dict(self.__dict__)


def _restored(kind: type[LockkitError], args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    """The error as it was raised: the constructor, which builds the text, is not called again."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class StatedError(LockkitError):
    """An error in three parts: `what` (a file, an option) `why` (is wrong); `cure` (do this)."""

    def __init__(self, what: str, why: str = "", cure: str = "") -> None:
        self.what, self.why, self.cure = what, why, cure
        super().__init__(f"{what}{why and f' {why}'}{cure and f'; {cure}'}")


class LockBusy(LockkitError):
    """Another owner holds the lock, or it could not be taken in time. Nothing is held.

    `lock` names the lock. `owner`, `holder` (a readable name, "" if there is none) and `epoch` (0:
    the lock has none) are those of the last grant seen; `until_ms` is when that lease ends by its
    own record, in epoch ms. `owner` is "" if no holder was seen; then `why` gives the reason.
    """

    def __init__(
        self, lock: str, *, owner: str = "", holder: str = "", epoch: int = 0,
        until_ms: int | None = None, why: str = "was not free in time", cure: str,
        context: str = "",
    ) -> None:  # fmt: skip
        self.lock, self.owner, self.holder, self.epoch = lock, owner, holder, epoch
        self.until_ms, self.cure, self.context = until_ms, cure, context
        self.why = f"is held by {clipped(repr(owner), 200)}" if owner else why
        who = f"{holder!r}, epoch {epoch}" if epoch else holder
        until = f" until {utc(until_ms)} by its own clock" if until_ms is not None else ""
        said = f"{lock} {self.why}{f' ({who})' if who else ''}{until}; {cure}"
        super().__init__(f"{context}: {said}" if context else said)

    @property
    def until(self) -> datetime | None:
        """`until_ms` as an aware UTC time; None if it is unknown or beyond any calendar."""
        return None if self.until_ms is None else _utc(self.until_ms)

    def within(self, context: str) -> LockBusy:
        """The same facts, for an error about the larger operation that needed the lock."""
        facts = {name: fact for name, fact in vars(self).items() if name != "context"}
        return LockBusy(**facts, context=context)


class LossReason(Enum):
    """Why a handle may not, or may no longer, act as the holder."""

    NEVER_ACQUIRED = "never acquired"
    EXPIRED = "expired"
    """The lease ran out before a renewal was proven."""
    TAKEN = "taken"
    """Another owner's write replaced ours, or refused a write of ours."""
    DELETED = "deleted"
    """The lock object was deleted while it was held."""
    OVERWRITTEN = "overwritten"
    """The lock object was replaced by something that is not a lock record."""
    REVOKED = "revoked"
    """The lock service ended the grant."""
    STOPPED = "stopped"
    """Renewal stopped because of an error in this process."""
    SUPERSEDED = "superseded"
    """The table's fence knows this grant's epoch, or a higher one, as used."""
    ROLLED_BACK = "rolled back"
    """Another process rolled the instant back as that of a failed writer."""


class LockLost(LockkitError):
    """The lease was lost before the work under it was published.

    `what` names the lock or the commit, `why` says what happened and `reason` is the kind of loss;
    `epoch` is that of the grant, 0 if it has none.
    """

    def __init__(
        self, what: str, why: str, cure: str, *, reason: LossReason, epoch: int = 0
    ) -> None:
        self.what, self.why, self.cure, self.reason, self.epoch = what, why, cure, reason, epoch
        super().__init__(f"{what}: {why}; {cure}")


class BreakRefused(StatedError):
    """The lock was not broken, and nothing was written over it. `what` names the lock."""


class StoreError(LockkitError):
    """The store cannot be used as configured (denied, no bucket, wrong region, bad credentials).

    `where` is the store's URL, plus the server of its requests unless it is the provider's own;
    neither contains credentials. `status` and `code` are the server's answer, None and "" if it did
    not answer or received no request. `cure` says what to do next.
    """

    def __init__(
        self, what: str, *, where: str = "", status: int | None = None, code: str = "",
        cure: str = "",
    ) -> None:  # fmt: skip
        self.where, self.status, self.code, self.cure = where, status, code, cure
        answered = "" if status is None else f", it answered {status}{f' {code}' if code else ''}"
        text = f"{what}{answered}{f'; {cure}' if cure else ''}"
        super().__init__(f"{where}: {text}" if where else text)


class NoAnswer(StoreError):
    """A listing or a past version could not be read now (throttled, a 5xx, no answer).

    Reading again is safe. Reads and writes of one object answer `Throttled` or `Unknown` instead.
    """


class UnsafeStore(StoreError):
    """The store ignored a condition, or refused a true one: it cannot hold a lock."""


class UnknownKeyword(LockkitError, TypeError):
    """A keyword argument that neither the function nor the store's client takes."""


class TableError(StatedError):
    """The table, or a file of it, is not what it should be. Nothing was published by this call."""


class Unanswered(TableError):
    """The store gave no usable answer within its tries.

    `doubt`: whether a write of this call may have landed despite the error, or may still land.
    """

    def __init__(self, what: str, why: str = "", cure: str = "", *, doubt: bool) -> None:
        super().__init__(what, why, cure)
        self.doubt = doubt


TIME_MS_MAX = 1e15
"""The year 33658: later values are not times."""


def utc(ms: float) -> str:
    """Epoch ms as `2026-11-21T10:02:31Z`; beyond any calendar, the number itself."""
    at = _utc(ms)
    return f"{ms:.0f} ms" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(ms: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
