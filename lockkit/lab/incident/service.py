"""The lock of a service or of a Terraform state, read twice: who holds it, and is the holder alive.

A service shows less than a bucket: no history, often no time. What it does not show is `unknown`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.events import plain
from lockkit.lab.incident.diagnosis import Diagnosis
from lockkit.lab.incident.patterns import Pattern
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.process_state import NO_RENEWALS, ProcessState
from lockkit.sinks import Emit, silent

if TYPE_CHECKING:
    from lockkit.providers.leased import LeasedLock

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class ServiceExamination:
    """Who holds the lock, whether it is renewed, and the pattern."""

    holder: ServiceHolder | None
    watched_ms: int
    renews: bool | None
    """None: it was not watched for long enough, or the service does not show renewals."""
    diagnosis: Diagnosis

    @property
    def troubled(self) -> bool:
        return self.diagnosis.pattern not in (Pattern.HEALTHY, Pattern.UNKNOWN)

    @property
    def state(self) -> str:
        return "free" if self.holder is None else "held"


def examine_service(
    lock: LeasedLock, *, watch_s: float, emit: Emit = silent
) -> ServiceExamination:
    """Look at the lock until it changes, for up to `watch_s`. Reads only. Raises `StoreError`."""
    clock = Clock()
    began_ms, first = clock.boot_ms(), lock.holder()
    last, watched_ms = first, 0
    while first and _is_unchanged(first, last) and watched_ms < watch_s * 1000:
        emit("note", text=f"watching whether it is renewed: {watched_ms // 1000} of {watch_s:g} s")
        clock.sleep(min(LOOK_S, watch_s - watched_ms / 1000))
        last, watched_ms = lock.holder(), clock.boot_ms() - began_ms
    renews, diagnosis = judge(first, last, watched_ms=watched_ms, wall_ms=clock.wall_ms())
    return ServiceExamination(last, watched_ms, renews, diagnosis)


def _is_unchanged(first: ServiceHolder, last: ServiceHolder | None) -> bool:
    """Whether it was neither renewed nor granted again, and its process may still live."""
    return last is not None and last.process_state is not ProcessState.ENDED and (
        (last.version, last.renewed_ms) == (first.version, first.renewed_ms)
    )  # fmt: skip


def judge(
    first: ServiceHolder | None, last: ServiceHolder | None, *, watched_ms: float, wall_ms: float
) -> tuple[bool | None, Diagnosis]:
    """Whether its holder renews it, and the pattern that two looks show."""
    if last is None:
        return None, Diagnosis(Pattern.HEALTHY, "the lock is free")
    who = plain(last.owner, limit=200)
    state = last.process_state
    process = f"{who}: its process ({plain(last.process)})"
    if state is ProcessState.ENDED:
        return False, Diagnosis(Pattern.HOLDER_DIED, f"{process} ran on this host and has ended")
    if first is not None and last.version != first.version:
        because = f"{who} renewed it, or was granted it, while it was watched"
        return True, Diagnosis(Pattern.HEALTHY, because)
    if last.renewed_ms is not None and first is not None and first.renewed_ms is not None:
        if last.renewed_ms > first.renewed_ms:
            return True, Diagnosis(Pattern.HEALTHY, f"{who} renewed it while it was watched")
    if state in NO_RENEWALS:
        return False, Diagnosis(Pattern.HOLDER_SILENT, f"{process}: {state.value}")
    if last.no_holder:
        return False, Diagnosis(Pattern.HOLDER_DIED, f"{who}: {last.no_holder}")
    if last.kept_alive:
        return _kept_alive(last, who, watched_ms)
    silent_ms = last.silent_ms(wall_ms, watched_ms)
    by_ours = silent_ms > watched_ms and last.now_ms is None
    clock = "by this machine's clock" if by_ours else f"by {last.clock}"
    clock = clock if silent_ms > watched_ms else "while it was watched"
    silent = f"was not renewed for {silent_ms / 1000:.0f} s, {clock}"
    if last.lease_s is not None and silent_ms > last.lease_s * 1000:
        because = f"{who}: it {silent}, which is longer than its lease of {last.lease_s:g} s"
        unsure = by_ours or state is ProcessState.RUNS  # a clock is wrong, or it is paused
        return False, Diagnosis(Pattern.HOLDER_SILENT if unsure else Pattern.HOLDER_DIED, because)
    if last.overdue_s is not None and silent_ms > last.overdue_s * 1000:
        because = f"{who}: it {silent}; a holder that lives renews it within {last.overdue_s:g} s"
        return False, Diagnosis(Pattern.HOLDER_SILENT, because)
    if state is ProcessState.RUNS:
        return None, Diagnosis(Pattern.HEALTHY, f"{process} runs on this host")
    if last.overdue_s is None:
        because = f"{who} holds it, and nothing there shows whether its process lives"
    else:
        enough_s = math.ceil(last.overdue_s)
        because = (
            f"{who} holds it; watch it for {enough_s} s to see whether it is renewed "
            f"(--watch-s {enough_s})"
        )
    return None, Diagnosis(Pattern.UNKNOWN, because)


def _kept_alive(last: ServiceHolder, who: str, watched_ms: float) -> tuple[bool | None, Diagnosis]:
    """The service ends the grant of a holder that died, `lease_s` after that at the latest."""
    if last.process_state is ProcessState.RUNS:
        because = f"{who}: its process ({plain(last.process)}) runs on this host"
        return None, Diagnosis(Pattern.HEALTHY, because)
    assert last.lease_s is not None
    if watched_ms > last.lease_s * 1000:
        because = f"{who} had it for the whole watch of {watched_ms / 1000:.0f} s: it is kept alive"
        return True, Diagnosis(Pattern.HEALTHY, because)
    return None, Diagnosis(Pattern.UNKNOWN, (
        f"{who}: {last.kept_alive}. That is also true if it died less than {last.lease_s:g} s ago. "
        f"If it still has the lock after a watch of that time, it lives "
        f"(--watch-s {last.lease_s + 1:.0f})"
    ))  # fmt: skip


def to_json(found: ServiceExamination, fields: dict[str, Any]) -> dict[str, Any]:
    """`fields`: the holder's, as `lock show` prints them."""
    return fields | {
        "renews": found.renews, "watched_ms": found.watched_ms,
        "diagnosis": found.diagnosis.to_json(), "do": found.diagnosis.card.do,
        "dont": found.diagnosis.card.dont,
    }  # fmt: skip
