"""The active faults, and the course of one request under them.

`ArmedFaults.course` is the rule. It does no I/O: it yields the next step. The proxy carries it out
on sockets, and `hooks` on the requests of an SDK, so the two cannot disagree.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lockkit.clock import Clock
from lockkit.events import STORE, Event, event
from lockkit.lab.faults.plan import Counts, Fault, FaultPlan, RequestFacts
from lockkit.sinks import overheard

FIRED_MAX = 10_000
PLANS_MAX = 1_000
UPLOADS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the request to the store, once. The status of the answer is sent back."""


@dataclass(frozen=True, slots=True)
class SwallowAnswer:
    """Read all of the answer and keep it: the store has finished before the fault strikes."""


@dataclass(frozen=True, slots=True)
class DelayClient:
    """Let this much time pass for the client."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class SendLater:
    """Send the request to the store after that time, whether or not the client still waits."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """Give the client the store's own answer, and end."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Give the client what the fault's `ending`, or else its `what`, says, and end."""

    fault: Fault


Step = SendRequest | SwallowAnswer | DelayClient | SendLater | RelayAnswer | EndRequest


class ArmedFaults:
    """The armed faults, and those that happened. Any thread may use it. `on_fault` is called with
    each event in the thread that caused it, so it should only enqueue.
    """

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        on_fault: Callable[[Event], None] | None = None,
    ) -> None:
        self.on_fault = on_fault
        self.uploads: dict[str, str] = {}
        """The object of each resumable upload of GCS: it names it once, then only its upload_id."""
        self._clock = Clock()
        self._guard = threading.Lock()
        self._plans: deque[tuple[FaultPlan, Counts]] = deque(maxlen=PLANS_MAX)
        self._fired: deque[Event] = deque(maxlen=FIRED_MAX)
        if plan is not None:
            self.inject(plan)

    def __repr__(self) -> str:
        happened = f"{len(self.armed())} armed, {len(self.faults)} happened"
        return f"<{type(self).__name__}{self._where()}: {happened}>"

    def _where(self) -> str:
        return ""

    @property
    def faults(self) -> list[Event]:
        """The faults that happened, oldest first (the last 10,000)."""
        with self._guard:
            return list(self._fired)

    def inject(self, fault: Fault | FaultPlan) -> None:
        """Arm a fault, or a plan. The newest is tried first, so it precedes a standing plan."""
        plan = fault if isinstance(fault, FaultPlan) else FaultPlan((fault,))
        with self._guard:
            self._plans.appendleft((plan, Counts()))

    def clear(self) -> None:
        """Disarm everything; running faults continue to their end."""
        with self._guard:
            self._plans.clear()

    def armed(self) -> list[FaultPlan]:
        """The active plans, newest first."""
        with self._guard:
            return [plan for plan, _ in self._plans]

    def course(self, request: RequestFacts) -> Generator[Step, int, None]:
        """The steps of one request, ending in `RelayAnswer` or `EndRequest`; send it the
        answer's status, or 0 while there is none."""
        return self.course_under(self._next_fault(request), request)

    def course_under(
        self, fault: Fault | None, request: RequestFacts
    ) -> Generator[Step, int, None]:
        """The course of a request under this fault alone."""
        if fault is not None and fault.when == "before":
            self._note(fault, request)
            if fault.what == "delay":
                yield DelayClient(_delay_s(fault))
            else:
                if fault.what == "late":
                    yield SendLater(_delay_s(fault))
                yield EndRequest(fault)
                return
        status = yield SendRequest()
        if fault is not None and fault.when == "after":
            if fault.applied and status >= 300:
                self.inject(replace(fault, nth=1, next=1))
            elif fault.what == "delay":
                self._note(fault, request)
                yield DelayClient(_delay_s(fault))
            else:
                yield SwallowAnswer()
                self._note(fault, request, swallowed=status)
                yield EndRequest(fault)
                return
        yield RelayAnswer()

    def _next_fault(self, request: RequestFacts) -> Fault | None:
        with self._guard:
            for plan, counts in self._plans:
                fault = plan.match(request, counts)
                if fault is not None:
                    return fault
        return None

    def remember_upload(self, request: RequestFacts, headers: Mapping[str, str]) -> None:
        """Learn from an answer (header names in lower case) which object an upload is for."""
        place = headers.get("location", "")
        if request.operation != "part" or "upload_id=" not in place:
            return
        with self._guard:
            for upload_id in parse_qs(urlsplit(place).query).get("upload_id", []):
                self.uploads[upload_id] = request.key
            while len(self.uploads) > UPLOADS_MAX:
                del self.uploads[next(iter(self.uploads))]

    # --- events ----------------------------------------------------------------------------------

    def _note(self, fault: Fault, request: RequestFacts, *, swallowed: int | None = None) -> None:
        more = {
            name: value
            for name, value in {
                "code": fault.code,
                "delay_s": fault.delay_s,
                "ending": fault.ending,
                "swallowed_status": swallowed,
            }.items()
            if value is not None
        }
        bucket, _, key = request.key.partition("/")
        happened = event(
            self._clock.wall_ms(), STORE, "fault", fault=fault.what, when=fault.when,
            client=request.client, method=request.operation, verb=request.method,
            bucket=bucket, key=key, attempt=request.attempt, **more,
        )  # fmt: skip
        with self._guard:
            self._fired.append(happened)
        self._emit(happened)

    def _delivered(self, request: RequestFacts, end: str) -> None:
        """Record the outcome of a late request."""
        text = f"a late {request.method} of {request.key} was delivered: {end}"
        self._emit(event(self._clock.wall_ms(), STORE, "note", text=text, client=request.client))

    def _emit(self, happened: Event) -> None:
        overheard("", happened)
        if self.on_fault is not None:
            self.on_fault(happened)

    def state(self) -> dict[str, Any]:
        """The armed faults, how often each was tried, and what happened; for JSON."""
        with self._guard:
            plans = [
                {
                    **json.loads(plan.to_json()),
                    "matched": [*counts.matched, *[0] * (len(plan.faults) - len(counts.matched))],
                }
                for plan, counts in self._plans
            ]
            fired = [json.loads(each.to_json()) for each in self._fired]
        return {"plans": plans, "fired": fired}


def _delay_s(fault: Fault) -> float:
    assert fault.delay_s is not None
    return fault.delay_s
