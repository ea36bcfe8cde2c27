"""Terraform's lock file: `<state key>.tflock`, created if absent, deleted to unlock.

The body is Terraform's own `LockInfo`, so each sees the other's locks. Two things are done that
Terraform (1.10 to 1.14) and OpenTofu leave out: a lock whose answer was lost is recognised by its
ID and not collided with (OpenTofu #4405), and what is deleted is the very version whose ID was
compared, so that a slow unlock never removes the lock of whoever came next.

There is no expiry, by design: nobody but a human can tell that a holder is dead (`force_unlock`).
And as unlocking deletes, a copy of a create that was still on its way may land afterwards, a ghost
that nobody holds: its ID, which is of a run that has ended, tells a human so.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from lockkit import __version__
from lockkit.clock import Clock, utc
from lockkit.errors import StoreError, Unanswered, UnsafeStore
from lockkit.lock.conformance import MISMATCHES_MAX, ProofScope, never_matches, place_of, proven
from lockkit.lock.creation_check import ignores
from lockkit.lock.grant import LATE_S
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
from lockkit.recipes.terraform.lockinfo import BODY_BYTES_MAX, ForeignLock, LockInfo, decode, encode
from lockkit.runtime import Delete, Note, Procedure, Put, Sleep, run
from lockkit.runtime.proven import TRIES_MAX, pause_s, read
from lockkit.sinks import Emit, silent
from lockkit.stores import open_store, split_url
from lockkit.stores.within import within

SUFFIX = ".tflock"
WAIT_FIRST_S, WAIT_LONGEST_S = 1.0, 16.0
"""Terraform's own: doubled from one to the other."""
ANSWER_S = 10.0
"""How long `StateLock.lock` gives a store that does not answer, if it is to try only once."""
DEFAULT, WORKSPACE_PREFIX = "default", "env:"

T = TypeVar("T")

_proven: set[ProofScope] = set()
"""Places that `prove_by_lock` tested. They count for nothing else: If-Match may not be tested."""


@dataclass(frozen=True, slots=True)
class StateRead:
    """What one read found; no version: unlocked."""

    info: LockInfo | ForeignLock | None = None
    version: Version | None = None


def lock_key(key: str, workspace: str = DEFAULT, prefix: str = WORKSPACE_PREFIX) -> str:
    """Of the state at `key`, where Terraform looks for it."""
    inside = key if workspace == DEFAULT else f"{prefix}/{workspace}/{key}"
    return inside + SUFFIX


# --- procedures -----------------------------------------------------------------------------------


def read_state(key: str) -> Procedure[StateRead]:
    """Who has it; raises `Unanswered`."""
    match (yield from read(key, limit=BODY_BYTES_MAX)):
        case Found(body, version):
            return StateRead(decode(body), version)
        case _:
            return StateRead()


def lock(key: str, info: LockInfo, *, timeout_s: float = 0.0) -> Procedure[Version]:
    """Create the lock file, however often it takes; for `timeout_s` in all it waits for others.

    Raises `StateLocked`, and `LockUnknown` where the store said so little that it may yet land.
    """
    waited_s, wait_s, doubt = 0.0, WAIT_FIRST_S, False
    while True:
        standing, unanswered = yield from _try_lock(key, info, doubt)
        doubt |= unanswered
        if standing.version is not None and is_ours(standing.info, info):
            return standing.version
        if waited_s >= timeout_s or isinstance(standing.info, ForeignLock):
            raise _refused(key, info, standing.info, doubt)
        wait_s = min(wait_s, timeout_s - waited_s)
        yield Note("note", {"text": f"waits for {standing.info}"})
        yield Sleep(wait_s)
        waited_s, wait_s = waited_s + wait_s, min(WAIT_LONGEST_S, wait_s * 2)


def prove_by_lock(key: str, body: bytes, name: str, *, swaps: bool) -> Procedure[bool]:
    """With our lock in place: its creation must fail, its overwrite over the version that is there
    must succeed, and another over the version that was there before must fail.

    False where the store did not say. `swaps`: unlocking will rely on the lock file's version;
    otherwise the lock is created and deleted, and relies on no If-Match. The overwrite adds the
    white space that gives the file another version; Terraform reads it as the same lock. That
    If-Match holds for a DELETE as well is not tried: a store that ignores it there alone (Ceph RGW
    16.2) excludes as well as any, and a slow unlock there deletes what is there, as Terraform does.
    """
    found = yield from read(key, limit=BODY_BYTES_MAX)
    if not isinstance(found, Found) or found.body != body:
        return False
    again = yield Put(key, body, IfAbsent())  # a test: here the raw answers count
    if isinstance(again, Applied):
        raise ignores(name, "create this object only if it is absent")
    if not isinstance(again, PreconditionFailed) or not swaps:
        return isinstance(again, PreconditionFailed)
    for _ in range(MISMATCHES_MAX):
        swapped = yield Put(key, body + b"\n", IfVersion(found.version))
        if not isinstance(swapped, PreconditionFailed):
            break
        now = yield from read(key, limit=BODY_BYTES_MAX)
        if not isinstance(now, Found) or now.version != found.version:
            return False
    else:
        raise never_matches(name, found.version)
    if not isinstance(swapped, Applied):
        return False
    stale = yield Put(key, body, IfVersion(found.version))
    if isinstance(stale, Applied):
        raise ignores(name, "overwrite this object only if it still has the version that was read")
    return isinstance(stale, PreconditionFailed)


def _try_lock(key: str, info: LockInfo, doubt: bool) -> Procedure[tuple[StateRead, bool]]:
    """What stands there after one create, ours or whose; and whether one of ours may yet land."""
    try:
        # Not `settle_write`: while another holds the lock, a create of ours may still be out.
        for tries in range(TRIES_MAX):
            match (yield Put(key, encode(info), IfAbsent())):
                case Applied(version):
                    return StateRead(info, version), doubt
                case Throttled(after_s):
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    pass  # also the answer to a hidden second copy of our own
                case Unknown():
                    doubt = True
                case other:
                    raise AssertionError(f"not an answer to a write: {other!r}")
            standing = yield from read_state(key)
            if standing.version is not None:
                return standing, doubt
            yield Sleep(pause_s(tries))  # the same bytes once more: at most one copy can land
    except (Unanswered, StoreError) as error:
        if doubt:
            raise LockUnknown(_in_doubt(key, info)) from error
        raise
    raise LockUnknown(_in_doubt(key, info))


def _refused(
    key: str, info: LockInfo, found: LockInfo | ForeignLock | None, doubt: bool
) -> StateLocked | LockUnknown:
    match found:
        case ForeignLock(why):
            text = (
                f"{key} is no lock file: {why}; Terraform takes it for a lock, too: find out who "
                "wrote it, then delete it by hand"
            )
        case _:
            text = (
                f"{key} is held by {found}; it never expires: wait, or if its holder is certainly "
                "dead: lockkit tflock force-unlock URL ID"
            )
    return LockUnknown(f"{text}. {_in_doubt(key, info)}") if doubt else StateLocked(text)


def _in_doubt(key: str, info: LockInfo) -> str:
    return (
        f"nobody told what became of a create of {key}: it may yet land, under the ID {info.id}; "
        "look with lockkit tflock show, and unlock it by that ID"
    )


def is_ours(found: LockInfo | ForeignLock | None, info: LockInfo) -> bool:
    """A refused or unanswered create is read back, and recognised by its ID: every process of one
    user on one host has the same `Who`."""
    return isinstance(found, LockInfo) and found.id == info.id


def may_delete(found: str | None, id: str) -> bool:
    return found == id


def exactly(version: Version) -> IfVersion | None:
    """What is deleted is the version whose ID was compared."""
    return IfVersion(version)


def unlock(key: str, id: str, *, conditional: bool = True) -> Procedure[None]:
    """Delete the lock file that has this ID; the same for a `force_unlock` of somebody else's.

    `conditional`: the store can delete a version; where it cannot, the moment between comparing
    and deleting is open, and a note says so. Raises `NotLocked`, `LockUnknown`.
    """
    sent = False
    if not conditional:
        text = f"{key}: this store deletes no version: a lock that is taken meanwhile goes, too"
        yield Note("note", {"text": text})
    for tries in range(TRIES_MAX):
        try:
            standing = yield from read_state(key)
        except (Unanswered, StoreError) as error:
            if sent:
                raise _unlock_in_doubt(key, id) from error
            raise
        version = standing.version
        found = standing.info.id if isinstance(standing.info, LockInfo) else None
        if version is None or not may_delete(found, id):
            if sent:
                return  # ours is gone
            raise NotLocked(_why_not(key, id, standing))
        sent = True
        match (yield Delete(key, exactly(version) if conditional else None)):
            case Applied():
                return
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
            case PreconditionFailed() | Unknown():
                yield Sleep(pause_s(tries))
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
    raise _unlock_in_doubt(key, id)


def _why_not(key: str, id: str, standing: StateRead) -> str:
    match standing.info:
        case None:
            return f"{key} is not there: nothing is locked, or somebody else has unlocked it"
        case ForeignLock(why):
            return f"{key} is no lock file: {why}; find out who wrote it, then delete it by hand"
        case LockInfo():
            return f"{key} has another ID than {id[:60]!r}: it is held by {standing.info}"
        case never:
            assert_never(never)


def _unlock_in_doubt(key: str, id: str) -> LockUnknown:
    return LockUnknown(f"nobody told whether {key} was deleted; unlock it again, by {id[:60]!r}")


# --- the handle ----------------------------------------------------------------------------------


class StateLock:
    """The lock of a Terraform state at `url`; `with` waits for `acquire_timeout` seconds.

    Raises `StateLocked`, `NotLocked`, `LockUnknown`, and `StoreError` where the store cannot be
    used. Terraform itself finds the lock where `use_lockfile` is set; an error names its holder.
    """

    def __init__(
        self,
        url: str,
        *,
        workspace: str = DEFAULT,
        workspace_key_prefix: str = WORKSPACE_PREFIX,
        acquire_timeout: float = 0.0,
        emit: Emit = silent,
        clock: Clock | None = None,
        **store_options: Any,
    ) -> None:
        self.url, self.acquire_timeout = url, acquire_timeout
        place, bucket, key = state_place(url)
        self.key = lock_key(key, workspace, workspace_key_prefix)
        self.path = f"{bucket}/{self.key.removesuffix(SUFFIX)}"
        self.clock = clock or Clock()
        self.store = open_store(place, **store_options)
        self.held: LockInfo | None = None
        self._emit = emit

    def show(self) -> StateRead:
        return self._run(read_state(self.key))

    def lock(
        self, *, operation: str = "", info: str = "", acquire_timeout: float = 0.0
    ) -> LockInfo:
        """Create the lock file and return it. Waits `acquire_timeout` s for others; 0 tries once.

        A store that does not answer gets `LATE_S` more, `ANSWER_S` for a wait of 0. An interrupt
        deletes the lock file, or carries a note that names the ID to unlock.
        """
        if self.held is not None:
            raise RuntimeError(f"{self} is held by this handle already: unlock it first")
        mine = LockInfo(
            id=self.clock.unique(), operation=operation, info=info, who=who(),
            version=f"lockkit {__version__}", created=utc(self.clock.wall_ms()), path=self.path,
        )  # fmt: skip
        try:
            with within(acquire_timeout + LATE_S if acquire_timeout else ANSWER_S):
                self._run(lock(self.key, mine, timeout_s=acquire_timeout))
        except Exception:
            raise
        except BaseException as interrupt:
            self._take_back(mine, interrupt)
            raise
        self.held = mine
        try:
            self._prove(mine)
        except UnsafeStore:
            self.held = None
            self._run(unlock(self.key, mine.id, conditional=False))
            raise
        except BaseException:
            self.unlock()  # nobody else would: it never expires
            raise
        return mine

    def _take_back(self, mine: LockInfo, interrupt: BaseException) -> None:
        """Delete what an interrupted create may have left."""
        try:
            self.force_unlock(mine.id)
        except (NotLocked, LockUnknown, Unanswered, StoreError) as failed:
            interrupt.add_note(f"{_in_doubt(self.key, mine)} ({failed})")

    def _prove(self, mine: LockInfo) -> None:
        """Before this lock counts: see that the store enforces conditions (incus #3651 did not).

        On the lock file itself: Terraform's own rights may cover nothing but the state and this.
        """
        place, swaps = place_of(self.store), self.store.capabilities.conditional_delete
        if place is not None and place not in proven | _proven:
            name = f"{self} at {self.store.server}"
            if self._run(prove_by_lock(self.key, encode(mine), name, swaps=swaps)):
                _proven.add(place)

    def unlock(self) -> None:
        if self.held is None:
            raise NotLocked(f"{self} is not held by this handle")
        self.force_unlock(self.held.id)
        self.held = None

    def force_unlock(self, id: str) -> None:
        """Delete the lock that has this ID, whosoever it is: its holder may work on."""
        conditional = self.store.capabilities.conditional_delete
        self._run(unlock(self.key, id, conditional=conditional))

    def close(self) -> None:
        """Close the store's client. Does not unlock."""
        self.store.close()

    def __enter__(self) -> LockInfo:
        return self.lock(acquire_timeout=self.acquire_timeout)

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def __str__(self) -> str:
        return f"the state lock {self.key} of {self.url}"

    def __repr__(self) -> str:
        held = f"held, ID {self.held.id}" if self.held else "not held"
        return f"<StateLock {self.path}: {held}>"

    def _run(self, procedure: Procedure[T]) -> T:
        return run(procedure, self.store, self.clock, self._emit)


def state_place(url: str) -> tuple[str, str, str]:
    """Of a state's URL: the store to open, the bucket's name, the key in it.

    A workspace's states lie beside, under a prefix of the bucket; of a file, under its directory.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "file":
        bucket, _, key = rest.rpartition("/")
    else:
        bucket, key = split_url(url)
    if not key:
        raise StoreError(f"{url!r} names no state; write s3://bucket/path/terraform.tfstate")
    return f"{scheme}://{bucket}", bucket, key


def who() -> str:
    """user@host, as Terraform names a holder."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, in a container
        user = ""
    return f"{user}@{socket.gethostname()}"
