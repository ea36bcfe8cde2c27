"""Leader election at a URL: campaign, lead under an epoch, write guarded by it, resign.

`candidate` holds the protocol and `guarded` the guard. This module runs them against a store, with
a clock and a renewal thread. The store must support create-if-absent and conditional overwrite.
Each look costs one listing.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from lockkit.clock import Clock, process_name, utc
from lockkit.config import lease_s
from lockkit.errors import NoAnswer, StoreError, Unanswered, clipped
from lockkit.lock.conformance import prove_conditions
from lockkit.lock.grant import LATE_S
from lockkit.lock.on_store import OnStore
from lockkit.lock.renewal import Renewer
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Garbled
from lockkit.protocol.state import Identity
from lockkit.recipes.election.candidate import Candidate
from lockkit.recipes.election.epochs import KEPT, collect, epoch_key
from lockkit.recipes.errors import ElectionError, NotLeader
from lockkit.recipes.guarded import read_guarded, write_guarded
from lockkit.runtime import Procedure, run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store, open_store
from lockkit.stores.within import within

__all__ = ["Election", "ElectionError", "NotLeader"]

LOOK_S_MIN = 0.02

T = TypeVar("T")


class Election:
    """One node of an election. `with` campaigns without a time limit, and resigns on exit.

    An epoch is valid for `ttl_s` seconds after its last renewal. A thread renews it every tenth of
    that. Raises `NotLeader` if only a leader may make the call, `StoreError` if the store cannot be
    used, `Unanswered` if an outcome is unknown, `ElectionError` if an epoch was tampered with.

    :param url: where the epochs are, as for `open_store`: one object each.
    :param name: what others see as the leader; a fresh id by default.
    :param ttl_s: how long an epoch lasts without a renewal, in seconds, up to a day; 30 by
        default. All nodes should use the same.
    :param policy: which clock ends an epoch, and the allowances for clocks, as for `Lock`.
    :param emit: called with every event of this node.
    :param clock: the source of time; tests replace it.
    :param client: the name of this node in events and in the store's log.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    :raises ValueError: for a `ttl_s` that is not above 0, or above a day.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        ttl_s: float = 30.0,
        policy: Policy = Policy(),
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        **store_options: Any,
    ) -> None:
        ttl_s, self._renew_s = lease_s(ttl_s, None)
        self.url, self.policy = url.rstrip("/"), policy
        self.clock = clock or Clock()
        self.store = open_store(
            self.url, client=client, timeout_s=min(10.0, max(0.2, ttl_s / 5)), **store_options
        )
        handle = self.clock.unique()
        identity = Identity(name or handle, round(ttl_s * 1000), process_name(client), handle)
        self._candidate = Candidate(identity, self.clock, policy, emit)
        self._reign = Reign(self._candidate, self.store, self._renew_s * 1000)
        self._turn = self._reign.turn
        self._renewer: Renewer | None = None
        self._pid = os.getpid()

    # --- to lead ----------------------------------------------------------------------------------

    def campaign(self, acquire_timeout: float | None = None) -> bool:
        """Whether this node leads. Waits at most `acquire_timeout` seconds; None: no limit.

        Each try gets at least `LATE_S`, even one that begins at the end. Raises `NoAnswer` or
        `Unanswered` if the store did not answer the last try.
        """
        wait_ms = math.inf if acquire_timeout is None else acquire_timeout * 1000
        ends_ms = self.clock.boot_ms() + wait_ms
        while True:
            left_s = (ends_ms - self.clock.boot_ms()) / 1000
            unanswered: Unanswered | NoAnswer | None = None
            try:
                self._enter()
                with within(max(LATE_S, left_s)):
                    prove_conditions(self.store, self.clock, tries_max=1)
                    leads = self._do(lambda candidate: candidate.confirm())
                if leads:
                    self._begin_renewing()
                    return True
            except (Unanswered, NoAnswer) as error:
                unanswered, left_s = error, (ends_ms - self.clock.boot_ms()) / 1000
            if left_s <= 0:
                if unanswered is not None:
                    raise unanswered
                return False
            left_s = max(0.0, (ends_ms - self.clock.boot_ms()) / 1000)
            self.clock.sleep(min(self._look_s(), left_s))

    def assert_held(self) -> int:
        """The epoch in which this node leads now; otherwise `NotLeader`. Sends no request."""
        term = self._candidate.leads() if os.getpid() == self._pid else None
        if term is None:
            raise NotLeader(str(self), "is not led by this handle", self.because())
        return term.epoch

    def write(self, key: str, change: Callable[[Any], Any]) -> Any:
        """Replace a JSON value, guarded by the epoch. Returns the result of `change(value)`.

        Also raises `NotLeader` if a later leader has already written it.
        """
        with self._turn:
            procedure = write_guarded(key, change, self.assert_held())
            return run(procedure, self.store, self.clock)

    def read(self, key: str) -> tuple[Any, int]:
        """A guarded value and the epoch that wrote it; (None, 0) if none did."""
        found = run(read_guarded(key), self.store, self.clock)
        return found.value, found.epoch

    def resign(self) -> bool:
        """End the term at once. False: not proven; the epoch then ends when it expires."""
        self._stop_renewing()
        return self._do(lambda candidate: candidate.resign())

    def collect(self, keep: int = KEPT) -> int:
        """Delete past epochs except the newest `keep`. The highest always stays."""
        return run(collect(keep), self.store, self.clock)

    def because(self) -> str:
        """Who leads, as this node last saw it, until when, and what to do next."""
        observed, epoch = self._candidate.observed, self._candidate.known
        record = None if observed is None else observed.observation.record
        if record is None:
            return "no leader seen yet: campaign"
        if isinstance(record, Garbled):
            return (
                f"{epoch_key(epoch)} is not an epoch's record: {record.why}; find who wrote it, "
                'then overwrite it with {"expired": true}; do not delete it, or its number recurs'
            )
        if record.expired:
            return f"the leader of epoch {epoch} has resigned: campaign"
        owner, holder = clipped(record.owner, 60), clipped(record.holder, 100)
        return (
            f"{owner!r} ({holder!r}) leads in epoch {epoch} until "
            f"{utc(record.valid_until_ms)} by its own clock, unless it renews"
        )

    def close(self) -> None:
        """Stop renewing and close the store's client. Does not resign: the epoch expires."""
        self._stop_renewing()
        self.store.close()

    def __enter__(self) -> Election:
        self.campaign()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        with suppress(Unanswered):  # then the epoch expires
            self.resign()

    def __str__(self) -> str:
        return f"the election of {self.url}"

    def __repr__(self) -> str:
        term = self._candidate.term
        standing = f"leads in epoch {term.epoch}" if term else self.because()
        return f"<Election {self.url}: {standing}>"

    # --- within -----------------------------------------------------------------------------------

    def _enter(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self}: used after fork; make a new Election in the child")

    def _do(self, ask: Callable[[Candidate], Procedure[T]]) -> T:
        self._enter()
        with self._turn:
            return run(ask(self._candidate), self.store, self.clock)

    def _look_s(self) -> float:
        """Seconds until a follower looks again: no later than when the epoch may expire."""
        longest_s = max(self._renew_s, self.store.capabilities.poll_min_s)
        wait_s, over_ms = self.clock.uniform(longest_s / 2, longest_s), self._candidate.over_ms
        left_s = math.inf if over_ms is None else (over_ms + 1 - self.clock.boot_ms()) / 1000
        return max(LOOK_S_MIN, min(wait_s, left_s))

    def _begin_renewing(self) -> None:
        """Renew while the thread that campaigned is alive and this node leads."""
        if self._renewer is None or self._renewer.stopped:
            us = weakref.ref(self)
            self._renewer = Renewer(
                self._reign, threading.current_thread(), lives=lambda: us() is not None,
                report=lambda _kind: None,
            )  # fmt: skip

    def _stop_renewing(self) -> None:
        if self._renewer is not None:
            self._renewer.stop()


class Reign(OnStore):
    """The term of a candidate, for `Renewer`."""

    def __init__(self, candidate: Candidate, store: Store, renew_ms: float) -> None:
        super().__init__(store, candidate.clock)
        self._candidate, self.renew_ms = candidate, renew_ms

    @property
    def proven_ms(self) -> float:
        return self._candidate.proven_ms

    @property
    def until_ms(self) -> float | None:
        term = self._candidate.term
        return None if term is None else term.until_ms

    def notice_end(self) -> None:
        self._candidate.leads()

    def lose(self, why: str) -> None:
        self._candidate.lose(why)

    def renewed(self) -> Procedure[tuple[bool, float | None]]:
        try:
            return (yield from self._candidate.renew()), None
        except (NotLeader, Unanswered, StoreError):  # the lease runs on until it expires
            return False, None

    def note(self, text: str) -> None:
        self._candidate.emit("note", text=text)

    def note_danger(self) -> None:
        self._candidate.emit_danger()
