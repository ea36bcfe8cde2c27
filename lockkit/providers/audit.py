"""Hudi's audit log of the storage lock, written as Hudi's provider writes it.

The table says whether it is wanted, in `.hoodie/.locks/audit_enabled.json` (Hudi's CLI: `locks
audit enable`), which is read once per handle, after its first grant. Each grant has a file
`.hoodie/.locks/audit/<start>_<owner>.jsonl` with a line for START, RENEW and END each; the file is
written whole after each event. (`StorageLockProviderAuditService` of Apache Hudi 1.2)

A thread of its own writes, so that a slow store delays no renewal. Only a release waits for its
line, up to `END_WAIT_S`. A failure causes one warning, and the lock stays held.
"""

from __future__ import annotations

import json
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.errors import StoreError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, Missing, Version
from lockkit.sinks import Emit
from lockkit.stores.within import within

if TYPE_CHECKING:
    from lockkit.lock.handle import Lock

LOCKS = ".hoodie/.locks/"
SWITCH, FIELD = LOCKS + "audit_enabled.json", "STORAGE_LOCK_AUDIT_SERVICE_ENABLED"
AUDIT = LOCKS + "audit/"
STATES = {"held": "START", "renewed": "RENEW", "released": "END"}
SWITCH_BYTES_MAX = 10_000
WRITE_S, END_WAIT_S = 10.0, 5.0


class AuditWarning(UserWarning):
    """The audit log could not be written; the lock is not affected."""


class AuditLog:
    """An observer of a lock's events that writes its audit log, and passes the events on."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lock: weakref.ref[Lock] | None = None
        self._wanted: bool | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._key, self._lines, self._start = "", "", 0
        self._version: Version | None = None
        self._sure = True
        """Whether the file in the store has `_version`: the last write was answered."""

    def of(self, lock: Lock) -> Lock:
        self._lock = weakref.ref(lock)
        return lock

    def __call__(self, kind: str, **fields: Any) -> None:
        self._emit(kind, **fields)
        lock = None if self._lock is None else self._lock()
        if lock is None or kind not in STATES or self._wanted is False:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "lockkit-audit")
        done: Future[None] = self._pool.submit(self._note, lock, STATES[kind], lock.clock.wall_ms())
        if kind == "released":
            with suppress(NotYet):
                done.result(END_WAIT_S)

    def _note(self, lock: Lock, state: str, at_ms: float) -> None:
        try:
            with within(WRITE_S):
                if self._wanted is None:
                    self._wanted = is_wanted(lock)
                if self._wanted:
                    self._write(lock, state, round(at_ms))
        except StoreError as error:
            with suppress(Warning):
                warnings.warn(AuditWarning(f"{lock}: no audit log: {error}"), stacklevel=2)

    def _write(self, lock: Lock, state: str, at_ms: int) -> None:
        if state == "START":
            self._start, self._lines, self._version, self._sure = at_ms, "", None, True
            self._key = f"{AUDIT}{at_ms}_{lock.owner}.jsonl"
        record = {
            "ownerId": lock.owner, "transactionStartTime": self._start, "timestamp": at_ms,
            "state": state, "lockExpiration": at_ms + lock._client.identity.ttl_ms,
            "lockHeld": state != "END",
        }  # fmt: skip
        self._lines += json.dumps(record, separators=(",", ":")) + "\n"
        if not self._sure:
            match lock.store.get(self._key):
                case Found(_, version):
                    self._version = version
                case Missing():
                    self._version = None
                case other:
                    raise StoreError(f"{self._key} cannot be read: {other}")
        condition = IfAbsent() if self._version is None else IfVersion(self._version)
        answer = lock.store.put(self._key, self._lines.encode(), condition)
        self._sure = isinstance(answer, Applied)
        if not isinstance(answer, Applied):
            raise StoreError(f"{self._key} was not written: {answer}")
        self._version = answer.version


def is_wanted(lock: Lock) -> bool:
    """Whether the table's switch is on. Absent or unreadable is off, as in Hudi."""
    match lock.store.get(SWITCH, limit=SWITCH_BYTES_MAX):
        case Found(body, _):
            try:
                said = json.loads(body)
            except (ValueError, RecursionError):
                return False
            return isinstance(said, dict) and said.get(FIELD) is True
        case _:
            return False
