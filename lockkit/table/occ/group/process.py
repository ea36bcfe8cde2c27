"""The threads of one process that commit to one table: one decision for all of them.

The first thread decides. The others wait in memory, without an offer in the store; then the next
one decides for all that wait. No rule of safety depends on this: a decision replaces exactly the
fence that its client has read, so it fails if another decision came first.

A rewrite that began without a listing is decided over the fence that its snapshot shows, or over
one that this process made from that fence (`GroupProcess.carry`). The request for that was sent
after the rewrite began, and replaced exactly that fence. So until then nothing else was decided,
and no later instant was over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from lockkit.protocol.outcome import Version
from lockkit.runtime import Procedure, Sleep
from lockkit.table.occ.group.client import GroupClient, GroupWrite, decision_in
from lockkit.table.occ.group.combine import decide_alone, decide_once
from lockkit.table.occ.group.decision import GroupFence, Offer, clash, conflicts, may_judge, reaches
from lockkit.table.occ.group.view import GroupView, known_decisions

LOOKS_S, LOOKS_MAX = 1.0, 60
"""A waiting thread is woken. As often as this it also looks by itself, and then decides by
itself."""
BUSY_MS = 500
"""So long after a thread's decision the next one is expected."""
REMEMBERED_MAX = 256
"""A process remembers so many instants of its threads, and so many fences that they made."""


@dataclass(slots=True, eq=False)
class WaitingCommit:
    """A commit of one thread, whose files are proven."""

    write: GroupWrite
    last: int
    """Its owner knows every decision up to this one; none of them decides this instant."""
    held: threading.Lock
    """Held by its thread until its call is over, even if Ctrl-C interrupts the call repeatedly."""
    thread: int
    over: bool = False
    """Whether it stops waiting: it is decided, or another process has replaced the fence."""
    woken: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    """Set once the fence that its thread sent is answered."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class GroupProcess:
    """The threads of this process that commit to one table."""

    waiting: list[WaitingCommit] = field(default_factory=list)
    """The thread that decides comes first, then those that wait. A thread may be gone (`held`)."""
    latest: tuple[GroupFence, Version, int] | None = None
    """The last fence that one of these threads made, and when it was sent."""
    taken: dict[str, int] = field(default_factory=dict)
    """The latest instants of these threads: none of them waits for another one's. Each has the
    number of its client."""
    replaced: dict[Version, tuple[Version, int]] = field(default_factory=dict)
    """By the version that a thread replaced: the one that it made, and the number of its
    request."""
    sent: int = 0
    """How many such requests were sent."""
    deciding: WaitingCommit | None = None
    """The commit whose thread sent the last one."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """No request is sent while it is held."""

    def takes(self, instant: str, client: GroupClient) -> None:
        with self.lock:
            self.taken[instant] = id(client)
            _forget_oldest(self.taken)

    def meets(self, client: GroupClient) -> bool:
        """Whether another client of this process took an instant since this one's last but one."""
        with self.lock:
            return any(each != id(client) for each in list(self.taken.values())[-2:])

    def catches_up(self, client: GroupClient) -> Procedure[bool]:
        """Let a client that is about to make a rewrite know the last fence of its process. False:
        no thread has decided anything for a while.

        It waits for a request under way, since a rewrite that begins beside it would be decided
        over neither fence.
        """
        deciding = self.deciding
        if deciding is not None and deciding.held.locked() and not deciding.answered.is_set():
            yield Sleep(LOOKS_S, deciding.answered)
        self._inform(client)
        return self.latest is not None and client.boot_ms() - self.latest[2] <= BUSY_MS

    def carry(self, client: GroupClient, write: GroupWrite) -> None:
        """Have a rewrite without a listing decided over the last fence of its process, if only
        this process has replaced the fence since it began."""
        with self.lock:
            carry_on(self.replaced, write)
        self._inform(client)

    def _reaches(self, view: GroupView, write: GroupWrite, others: list[Offer]) -> bool:
        """Whether a rewrite without a listing is decided over this view's fence.

        If another thread has written its file groups meanwhile, or is about to, it begins again.
        """
        carry_on(self.replaced, write)
        offer, fence = write.offer(), view.fence
        if not may_judge(fence, offer) or conflicts(offer, fence.window):
            return False
        met = any(clash(write.writes, each.writes) for each in others if not each.blind)
        return write.only == view.version and not met

    def _inform(self, client: GroupClient) -> None:
        known = client.known
        if self.latest is None or known is None:
            return
        fence, version, sent_ms = self.latest
        newer = fence.table == known.table and fence.round > known.round
        if newer and reaches(fence, known.last):
            client.knows(fence, version)
            client.knew_ms = sent_ms

    def is_turn(self, mine: WaitingCommit) -> bool:
        """Whether it decides now: each thread before it has left or is gone."""
        with self.lock:
            self.waiting = [each for each in self.waiting if each.held.locked()]
            return self.waiting[0] is mine

    def leave(self, write: GroupWrite) -> None:
        """From now on no other thread decides it. If Ctrl-C interrupts this, `is_turn` repairs
        it."""
        with self.lock:
            self.waiting = [each for each in self.waiting if each.write is not write]
            for first in self.waiting[:1]:
                first.woken.set()

    def made(
        self, fence: GroupFence, version: Version, sent_ms: int, over: Version = "", number: int = 0
    ) -> None:  # fmt: skip
        """The store has this fence: every commit that it decides stops waiting."""
        with self.lock:
            self.latest = fence, version, sent_ms
            self.replaced[over] = version, number
            _forget_oldest(self.replaced)
            decided = {each.instant for each in fence.window}
            self._end([each for each in self.waiting if each.write.instant in decided])

    def lost(self) -> None:
        """Another process has replaced the fence: each thread offers its commit to that process."""
        with self.lock:
            self._end(self.waiting)

    def _end(self, over: list[WaitingCommit]) -> None:
        for each in over:
            each.over = True
            each.woken.set()

    def is_shared(self, known: GroupFence | None) -> bool:
        """Whether another thread of this process decides now, or has decided since."""
        if self.waiting or self.latest is None or known is None:
            return bool(self.waiting or self.latest)
        latest, *_ = self.latest
        return latest.table == known.table and latest.round > known.round

    def newest(self, view: GroupView) -> GroupView:
        """The view with this process's last fence, if no decision between the two is unknown."""
        fence, version, _ = self.latest or (view.fence, view.version, 0)
        same = fence.table == view.fence.table and fence.round > view.fence.round
        if not same or not reaches(fence, view.fence.last):
            return view
        decided = {**view.decided, **known_decisions(view.fence, fence)}
        return replace(view, fence=fence, version=version, decided=decided)

    def offers(self, view: GroupView, mine: WaitingCommit) -> list[Offer]:
        """The waiting commits that this view shows as open."""
        found, fence = list[Offer](), view.fence
        with self.lock:
            for each in (each for each in self.waiting if not each.over):
                write = each.write
                if write.table == fence.table:
                    write.see(fence)
                if write.only and not self._reaches(view, write, found):
                    continue
                in_order = write.listed or fence.newest < write.instant
                if in_order and write.instant not in view.decided and reaches(fence, each.last):
                    if each is not mine:  # from now on its owner may not deny it
                        write.sent = write.doubtful = True
                    found.append(write.offer())
        return found

    def decide(
        self, client: GroupClient, view: GroupView, others: list[Offer], write: GroupWrite
    ) -> Procedure[bool]:
        """Like `decide_alone`, in turn, and with the commits of the threads that wait."""
        mine = WaitingCommit(write, view.fence.last, client.held, client.thread())
        here = [each for each in self.waiting if each.held.locked()]
        if any(each.thread == mine.thread for each in here):  # it never waits for itself
            return (yield from decide_alone(client, view, others, write))
        try:
            with self.lock:
                self.waiting.append(mine)
            for _ in range(LOOKS_MAX):
                if mine.over or self.is_turn(mine):
                    break
                yield Sleep(LOOKS_S, mine.woken)
            view = self.newest(view)
            offers = [] if mine.over else self.offers(view, mine)
            ours = {each.instant for each in offers}
            if write.instant not in ours:
                return self._learn(client, view, write)
            offers += [e for e in others if e.instant not in ours and e.instant not in view.decided]
            with self.lock:
                self.sent, self.deciding = self.sent + 1, mine
                number = self.sent
            won = yield from decide_once(client, view, offers, write)
            if won and client.known is not None:
                self.made(client.known, client.version, client.knew_ms, view.version, number)
            else:
                self.lost()
            return won
        finally:
            mine.answered.set()
            self.leave(write)

    def _learn(self, client: GroupClient, view: GroupView, write: GroupWrite) -> bool:
        """Whether the fence that another thread made decides it. If so, the client knows that
        fence."""
        latest = self.latest
        if latest is None or not decision_in(view.fence, write.instant):
            return False
        client.knows(view.fence, view.version)
        client.knew_ms = latest[2]
        client.contended = max(0, client.contended - 1)
        return True


def carry_on(replaced: Mapping[Version, tuple[Version, int]], write: GroupWrite) -> None:
    """Follow the fences that one process has made, from the one that this rewrite's snapshot
    shows."""
    while after := replaced.get(write.only):
        version, number = after
        if number <= write.began:
            return  # that request may have been applied before it began
        write.only, write.listed = version, True


def _forget_oldest(found: dict[str, Any]) -> None:
    if len(found) > REMEMBERED_MAX:
        del found[next(iter(found))]


_OPEN: WeakValueDictionary[tuple[int, str, str], GroupProcess] = WeakValueDictionary()
_OPENING = threading.Lock()


def _begin_anew() -> None:
    """At the fork, another thread of the parent may have held the lock."""
    global _OPENING
    _OPENING = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


def process_of(url: str, server: str) -> GroupProcess:
    """The threads for a table's address; a forked child has its own."""
    with _OPENING:
        return _OPEN.setdefault((os.getpid(), url, server), GroupProcess())
