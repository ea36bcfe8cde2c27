"""A lock within one interpreter, between its threads and tasks. Other processes do not see it."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lockkit.lock.client import Wakeup
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.stores.arguments import check_texts

LOOK_S = 1.0
"""A release wakes a waiter. It also looks by itself this often."""


@dataclass(slots=True)
class _Slot:
    """One name's lock; every field is read and written under `_TURN`."""

    holder: ProcessLock | None = None
    party: Any = None
    """The thread or asyncio task that holds it."""
    grants: int = 0
    waiting: deque[ProcessLock] = field(default_factory=deque)

    def free(self) -> None:
        self.holder = self.party = None
        self.wake()

    def wake(self) -> None:
        if self.waiting and self.holder is None:
            self.waiting[0]._woken.set()


_SLOTS: dict[str, _Slot] = {}
_TURN = threading.Lock()


def _begin_anew() -> None:
    """A forked child starts empty: the locks of its parent's threads do not concern it."""
    global _TURN
    _TURN = threading.Lock()
    _SLOTS.clear()


os.register_at_fork(after_in_child=_begin_anew)


class ProcessLock(LeasedLock):
    """The lock of a name among this process's threads, first come first served.

    Its token counts the grants of that name. As with Hudi's InProcessLockProvider only the thread
    that took it may release it. A thread that takes it twice gets a `RuntimeError` instead of
    waiting for itself. (With `AsyncLock`, both rules apply to the task.) It ends with the process.

    :param name: the lock's name.
    :param options: the keywords of every lock; `LeasedLock` lists them.
    """

    service = "process"

    def __init__(self, name: str, **options: Any) -> None:
        check_texts(name=name)
        super().__init__(name, ttl_s=None, **options)
        self._woken = Wakeup()
        self._party: Any = None
        with _TURN:
            self._slot = _SLOTS.setdefault(name, _Slot())

    def look_by(self) -> str:
        return "holder() of this handle"

    def _prepare(self, party: object, beside: Any) -> None:
        self._party = party

    def _guard_release(self, party: object) -> None:
        holder = self._slot.party if self._slot.holder is self else None
        if holder is not None and holder is not party and _lives(holder):
            raise RuntimeError(f"{self}: held by {_name(holder)}, which must release it")

    def close(self) -> None:
        super().close()
        self._woken.set()

    def contenders(self) -> list[str]:
        """The thread that holds the lock, then the owners of the handles that wait, in order."""
        self._guard_process()
        with _TURN:
            holder = [_named(self._slot)] if self._slot.holder is not None else []
            return [*holder, *(each.owner for each in self._slot.waiting)]

    def _take(self) -> ServiceGrant | NotFree:
        slot, party = self._slot, self._party
        with _TURN:
            if slot.party is party and slot.holder is not self:
                what = "thread" if isinstance(party, threading.Thread) else "task"
                raise RuntimeError(
                    f"{self}: this {what} holds it already, by another handle; it is not reentrant"
                )
            if slot.holder is None and (not slot.waiting or slot.waiting[0] is self):
                slot.holder, slot.party, slot.grants = self, party, slot.grants + 1
                if slot.waiting:
                    slot.waiting.popleft()
                return ServiceGrant(slot.grants, slot.grants)
            if self not in slot.waiting:
                slot.waiting.append(self)
            self._woken.clear()
            return NotFree(_named(slot), LOOK_S, self._woken)

    def _withdraw(self) -> None:
        with _TURN:
            if self in self._slot.waiting:
                self._slot.waiting.remove(self)
            if self._slot.holder is self:
                self._slot.free()
            self._slot.wake()

    def _beat(self, taken: ServiceGrant) -> None:
        if self._slot.holder is not self:
            raise GrantOver("another thread has it")

    def _give_back(self, taken: ServiceGrant) -> None:
        with _TURN:
            if self._slot.holder is not self:
                raise GrantOver("another thread has it")
            self._slot.free()

    def _holder(self) -> ServiceHolder | None:
        with _TURN:
            if self._slot.holder is None:
                return None
            return ServiceHolder(_named(self._slot), "", "with its process")


def _named(slot: _Slot) -> str:
    return _name(slot.party) if slot.party else "a thread that waits longer"


def _name(party: Any) -> str:
    is_thread = isinstance(party, threading.Thread)
    return f"thread {party.name}" if is_thread else f"task {party.get_name()}"


def _lives(party: Any) -> bool:
    """Whether this thread, or task, can still release."""
    return party.is_alive() if isinstance(party, threading.Thread) else not party.done()
