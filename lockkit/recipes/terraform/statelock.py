"""Terraform's lock file: `<state key>.tflock`, created if absent, deleted to unlock.

The body is Terraform's own `LockInfo`, so lockkit and Terraform see each other's locks. Two rules
go beyond Terraform (1.10 to 1.14) and OpenTofu. If the answer to a create was lost, our lock is
recognised by its ID, not taken for another's (OpenTofu #4405). An unlock deletes exactly the
version whose ID it compared, so a slow unlock never removes the next holder's lock.

Locks never expire, by design: only a human can decide that a holder is dead (`force_unlock`).
Unlocking deletes the file, so a delayed copy of the create may be applied afterwards. That is a
ghost: a lock without a holder. A human recognises it by its ID, which is that of a finished run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from lockkit import __version__
from lockkit.clock import Clock, process_name, utc
from lockkit.errors import NoAnswer, StoreError, Unanswered, UnsafeStore
from lockkit.lock.conformance import ProofScope, place_of, proven
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
from lockkit.recipes.terraform.lockinfo import (
    BODY_BYTES_MAX,
    ForeignLock,
    LockInfo,
    decode,
    encode,
    id_word,
    who,
)
from lockkit.recipes.terraform.proof import Creates, prove_by_lock
from lockkit.runtime import Delete, Note, Procedure, Sleep, relay, run
from lockkit.runtime.proven import TRIES_MAX, pause_after, pause_s, put_once, read
from lockkit.sinks import Emit, silent
from lockkit.stores import open_store, split_url
from lockkit.stores.within import within

SUFFIX = ".tflock"
WAIT_FIRST_S, WAIT_LONGEST_S = 1.0, 16.0
"""Terraform's waits: each is twice the one before, from the first to the longest."""
ANSWER_S = 10.0
"""How long `StateLock.lock` waits for a store that does not answer, if it tries only once."""
PROOFS_MAX = 3
"""How often a test of the store's conditions without a definite result is repeated."""
DEFAULT, WORKSPACE_PREFIX = "default", "env:"

T = TypeVar("T")

_proven: set[ProofScope] = set()
"""Places that `prove_by_lock` tested. Valid only here: it may have left If-Match untested."""


@dataclass(frozen=True, slots=True)
class StateRead:
    """The result of one read. No version: unlocked."""

    info: LockInfo | ForeignLock | None = None
    version: Version | None = None


def lock_key(key: str, workspace: str = DEFAULT, prefix: str = WORKSPACE_PREFIX) -> str:
    """The key of the lock file for the state at `key`, as Terraform names it."""
    inside = key if workspace == DEFAULT else f"{prefix}/{workspace}/{key}"
    return inside + SUFFIX


# --- procedures -----------------------------------------------------------------------------------


def read_state(key: str) -> Procedure[StateRead]:
    """Read the lock file. Raises `Unanswered`."""
    match (yield from read(key, limit=BODY_BYTES_MAX)):
        case Found(body, version):
            return StateRead(decode(body), version)
        case _:
            return StateRead()


def lock(key: str, info: LockInfo, *, timeout_s: float = 0.0) -> Procedure[Version]:
    """Create the lock file. Waits up to `timeout_s` seconds in total while others hold it.

    Raises `StateLocked` if another holds it, and `LockUnknown` if our create may still be applied.
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


def _try_lock(key: str, info: LockInfo, doubt: bool) -> Procedure[tuple[StateRead, bool]]:
    """The lock file after one create, and whether a create of ours may still be applied."""
    try:
        # Not `settle_write`: while another holds the lock, a create of ours may still be out.
        for tries in range(TRIES_MAX):
            match (yield from put_once(key, encode(info), IfAbsent())):
                case Applied(version):
                    return StateRead(info, version), doubt
                case Throttled(after_s):
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    pass  # may also answer a hidden second copy of our own create
                case Unknown():
                    doubt = True
                case never:
                    assert_never(never)
            standing = yield from read_state(key)
            if standing.version is not None:
                return standing, doubt
            yield Sleep(pause_s(tries))  # the same bytes once more: at most one copy can land
    except (Unanswered, StoreError) as error:
        if doubt:
            raise _in_doubt(key, info) from error
        raise
    raise _in_doubt(key, info)


def _refused(
    key: str, info: LockInfo, found: LockInfo | ForeignLock | None, doubt: bool
) -> StateLocked | LockUnknown:
    match found:
        case ForeignLock(why):
            why = f"is not a lock file: {why}; Terraform also treats it as a lock"
            cure = "find out who wrote it, then delete it by hand"
        case _:
            why = f"is held by {found}, and never expires"
            cure = (
                "wait, or if its holder is certainly dead: lockkit tflock force-unlock "
                f"URL{id_word(found)}"
            )
    return _in_doubt(key, info, f" {why}, and") if doubt else StateLocked(key, why, cure)


def _in_doubt(key: str, info: LockInfo, standing: str = ":") -> LockUnknown:
    return LockUnknown(
        f"{key}{standing} whether our own create of it was applied",
        f"is unknown: it may still be applied, under the ID {info.id}",
        "look with lockkit tflock show URL, and unlock it by that ID",
    )


def is_ours(found: LockInfo | ForeignLock | None, info: LockInfo) -> bool:
    """Whether a lock file is ours, by its ID: all processes of a user on a host share one `Who`."""
    return isinstance(found, LockInfo) and found.id == info.id


def may_delete(found: str | None, id: str) -> bool:
    return found == id


def exactly(version: Version) -> IfVersion | None:
    """The condition of a delete: only the version whose ID was compared."""
    return IfVersion(version)


def unlock(key: str, id: str, *, conditional: bool = True) -> Procedure[None]:
    """Delete the lock file that has this ID, ours or another's (`force_unlock`).

    `conditional`: the store supports a conditional delete. Without it, a lock taken between the
    comparison and the delete is lost, and a note says so. Raises `NotLocked`, `LockUnknown`.
    """
    sent = False
    if not conditional:
        text = f"{key}: this store has no conditional delete, a lock taken meanwhile is deleted too"
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
            raise NotLocked(key, *_why_not(id, standing))
        sent = True
        answer = yield Delete(key, exactly(version) if conditional else None)
        if isinstance(answer, Applied):
            return
        yield pause_after(answer, tries)
    raise _unlock_in_doubt(key, id)


def _why_not(id: str, standing: StateRead) -> tuple[str, str]:
    match standing.info:
        case None:
            return "is not there: nothing is locked, or somebody else has unlocked it", ""
        case ForeignLock(why):
            return f"is not a lock file: {why}", "find out who wrote it, then delete it by hand"
        case LockInfo():
            return f"has another ID than {id[:60]!r}: it is held by {standing.info}", ""
        case never:
            assert_never(never)


def _unlock_in_doubt(key: str, id: str) -> LockUnknown:
    return LockUnknown(
        key, "may or may not be deleted", f"unlock it again, with the ID {id[:60]!r}"
    )


# --- the handle ----------------------------------------------------------------------------------


class StateLock:
    """The lock of the Terraform state at `url`; `with` waits up to `acquire_timeout` seconds.

    Raises `StateLocked`, `NotLocked`, `LockUnknown`, and `StoreError` if the store cannot be used.
    Terraform itself respects the lock if `use_lockfile` is set. Errors name the holder.

    :param url: of the state, `s3://bucket/path/terraform.tfstate` or of another store.
    :param workspace: Terraform's workspace, `default` by default.
    :param workspace_key_prefix: Terraform's option of that name, `env:` by default.
    :param acquire_timeout: the longest wait of `with`, in seconds; 0, the default, tries once.
    :param emit: called with every event.
    :param clock: the source of time; tests replace it.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    :raises ValueError: if `acquire_timeout` is not a number of seconds from 0.
    :raises StoreError: if `url` names no state, or no store.
    """

    def __init__(
        self, url: str, *, workspace: str = DEFAULT, workspace_key_prefix: str = WORKSPACE_PREFIX,
        acquire_timeout: float = 0.0, emit: Emit = silent, clock: Clock | None = None,
        **store_options: Any,
    ) -> None:  # fmt: skip
        self.url, self.acquire_timeout = url, _wait_s(acquire_timeout)
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
        """Create the lock file. Waits `acquire_timeout` seconds while others hold it; 0 tries once.

        If the store does not answer, the limit is `LATE_S` more (`ANSWER_S` for a wait of 0). An
        interrupt deletes the lock file; if that fails, a note on it names the ID to unlock.
        """
        _wait_s(acquire_timeout)
        if self.held is not None:
            raise RuntimeError(f"{self} is held by this handle already: unlock it first")
        mine = self.new_info(operation, info or process_name())
        creates = Creates(self.store)
        try:
            with within(acquire_timeout + LATE_S if acquire_timeout else ANSWER_S):
                way = lock(self.key, mine, timeout_s=acquire_timeout)
                self._run(relay(way, creates.counted))
        except Exception:
            raise
        except BaseException as interrupt:
            if creates.sent:
                self._take_back(mine, interrupt, creates.out)
            raise
        self.held = mine
        try:
            self._prove(mine)
        except UnsafeStore:
            self._run(unlock(self.key, mine.id, conditional=False))
            self.held = None
            raise
        except BaseException:
            self.unlock()  # it never expires by itself
            raise
        return mine

    def new_info(self, operation: str, info: str) -> LockInfo:
        """The content of a lock file of this process, with an ID of its own."""
        return LockInfo(
            id=self.clock.unique(), operation=operation, info=info, who=who(),
            version=f"lockkit {__version__}", created=utc(self.clock.wall_ms()), path=self.path,
        )  # fmt: skip

    def _take_back(self, mine: LockInfo, interrupt: BaseException, out: bool) -> None:
        """Delete the lock file that an interrupted create may have left.

        `out`: a create has no answer, so it may be applied after a look that does not show it.
        """
        try:
            self.force_unlock(mine.id)
        except (NotLocked, LockUnknown, Unanswered, StoreError) as failed:
            if out or not isinstance(failed, NotLocked):
                interrupt.add_note(f"{_in_doubt(self.key, mine)} ({failed})")

    def _prove(self, mine: LockInfo) -> None:
        """Check that the store enforces conditions (that of incus #3651 did not).

        The lock file itself is tested: Terraform's rights may cover only the state and this file.
        Raises `NoAnswer` if the store did not answer all of the test within some tries.
        """
        place, swaps = place_of(self.store), self.store.capabilities.conditional_delete
        if place is None or place in proven | _proven:
            return
        name = f"{self} at {self.store.server}"
        for _ in range(PROOFS_MAX):
            if self._run(prove_by_lock(self.key, encode(mine), name, swaps=swaps)):
                _proven.add(place)
                return
        raise NoAnswer(
            f"{name}: it could not be tested whether this store enforces write conditions; nothing "
            "is locked: check that the store answers, then try again"
        )

    def unlock(self) -> None:
        if self.held is None:
            raise NotLocked(str(self), "is not held by this handle")
        self.force_unlock(self.held.id)
        self.held = None

    def force_unlock(self, id: str) -> None:
        """Delete the lock with this ID, even if it is not ours. Its holder may still be running."""
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


def _wait_s(acquire_timeout: float) -> float:
    if not isinstance(acquire_timeout, int | float) or not acquire_timeout >= 0:
        raise ValueError(f"acquire_timeout is in seconds (0: try once), not {acquire_timeout!r}")
    return acquire_timeout


def state_place(url: str) -> tuple[str, str, str]:
    """Split a state's URL into the URL of the store, the name of the bucket and the key.

    States of other workspaces are under a prefix of the same bucket; of a file, of its directory.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "file":
        bucket, _, key = rest.rpartition("/")
    else:
        bucket, key = split_url(url)
    if not key:
        raise StoreError(f"{url!r} names no state; write s3://bucket/path/terraform.tfstate")
    return f"{scheme}://{bucket}", bucket, key
