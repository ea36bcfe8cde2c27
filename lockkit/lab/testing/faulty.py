"""One run of a test under one case: which request is struck, and what every request came to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from lockkit.errors import LockkitError
from lockkit.lab.faults.armed import ArmedFaults, EndRequest, RelayAnswer, SendRequest, Step
from lockkit.lab.faults.hooks import Faulty, SdkAttempt, outcome_of, whole
from lockkit.lab.faults.plan import Fault, FaultError, RequestFacts
from lockkit.lab.faults.proxy import Proxy
from lockkit.lab.testing.cases import STRIKES, Case, CaseRequest, Occurrences, name_of
from lockkit.lab.testing.limit import BlockLimit

LANDING_S_MAX = 30.0
NOTHING = "nothing"


class FaultScript:
    """The requests of one run, in the order of their arrival; `case` is None without faults."""

    def __init__(self, case: Case | None) -> None:
        self.case = case
        self.sent: list[CaseRequest] = []
        self.struck: CaseRequest | None = None
        self.entered = False
        self._active = 0
        self._guard = threading.Lock()
        self._occurrences = Occurrences()
        self._held: list[Callable[[], None]] = []

    def arrive(self, request: RequestFacts) -> CaseRequest:
        with self._guard:
            name, counts = name_of(request), self._active > 0
            key = request.key.partition("/")[2]
            number = self._occurrences.next(name) if counts else 0
            sent = CaseRequest(name, request.method, key, number, counts)
            case = self.case
            if case and counts and (case.name, case.occurrence) == (name, number):
                sent.fault, self.struck = case.kind, sent
            self.sent.append(sent)
        return sent

    def fault(self, sent: CaseRequest) -> Fault | None:
        return STRIKES[sent.fault] if sent.fault else None

    def hold(self, deliver: Callable[[], None]) -> None:
        """Keep a late write until the block ends."""
        with self._guard:
            self._held.append(deliver)

    def land(self, end: str) -> None:
        if self.struck is not None:
            self.struck.landed = end

    def enter(self) -> None:
        with self._guard:
            self.entered = True
            self._active += 1

    def leave(self) -> None:
        """The block ends: from here on no request is struck, and late writes reach the store."""
        with self._guard:
            self._active -= 1
            held, self._held = self._held, []
        for deliver in held:
            deliver()


class _Scripted(ArmedFaults):
    """Faults as the script says, and a record of every request's course."""

    script: FaultScript

    def course(self, request: RequestFacts) -> Generator[Step, int, None]:
        sent = self.script.arrive(request)
        inner, status = self.course_under(self.script.fault(sent), request), 0
        step = next(inner)
        while not isinstance(step, RelayAnswer | EndRequest):
            status = yield step
            if isinstance(step, SendRequest):
                sent.status = status
            step = inner.send(status)
        fault = step.fault if isinstance(step, EndRequest) else None
        code = sent.status if fault is None else fault.code
        sent.answer = str(code) if code else NOTHING
        yield step


class CaseProxy(_Scripted, Proxy):
    """A proxy in front of the embedded server, for one run."""

    def __init__(self, upstream: str, script: FaultScript) -> None:
        super().__init__(upstream)
        self.script = script

    async def _deliver(self, request: RequestFacts, sent: bytes, delay_s: float) -> None:
        def deliver() -> None:
            landing = Proxy._deliver(self, request, sent, delay_s)
            asyncio.run_coroutine_threadsafe(landing, self._loop).result(LANDING_S_MAX)

        self.script.hold(deliver)

    def _delivered(self, request: RequestFacts, end: str) -> None:
        self.script.land(end)
        super()._delivered(request, end)


class CaseFaulty(_Scripted, Faulty):
    """What stands below the retries of the clients that a test installs it in, for one run."""

    def __init__(self, script: FaultScript) -> None:
        super().__init__()
        self.script = script

    def _deliver(self, attempt: SdkAttempt, delay_s: float, report: Callable[[str], None]) -> None:
        send = attempt.kept(whole(attempt.body))
        self.script.hold(lambda: report(outcome_of(send)))

    def _delivered(self, request: RequestFacts, end: str) -> None:
        self.script.land(end)
        super()._delivered(request, end)


class LostResponses:
    """The fixture: `with lost_responses:` around what your code does; check behind the block.

    Only requests within the block are struck, one in each run of the test. A late write reaches the
    store when the block ends. `allowing(OSError)` lets the block end with such an error when a
    fault was made, and never in the run without one; `error` is what it ended with.
    """

    def __init__(self, script: FaultScript | None, *, limit_s: float) -> None:
        self._script = script
        self._limit_s, self._limits = limit_s, list[BlockLimit]()
        self._allowed: tuple[type[BaseException], ...] = ()
        self._faulty: CaseFaulty | None = None
        self.error: BaseException | None = None

    @property
    def case(self) -> str:
        """The id of the present case; "" in the run without faults."""
        return self._running.case.id if self._running.case else ""

    @property
    def _running(self) -> FaultScript:
        if self._script is None:
            raise LockkitError(
                "no run of lost_responses is under way: another plugin runs this test in place of "
                "lockkit's"
            )
        return self._script

    def allowing(self, *errors: type[BaseException]) -> LostResponses:
        """The errors that the block may end with because of a fault."""
        for each in errors or ("nothing",):
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                why = f"{each!r} is no class of errors"
                raise FaultError("allowing:", why, "pass classes, such as OSError")
        self._allowed = errors
        return self

    def install(self, client: Any) -> None:
        """Stand below a boto3 S3, google-cloud-storage or (synchronous) Azure client, whatever its
        endpoint is: for TLS, where no proxy can stand."""
        self._faulty = self._faulty or CaseFaulty(self._running)
        self._faulty.install(client)

    def close(self) -> None:
        if self._faulty is not None:
            self._faulty.close()

    def __enter__(self) -> LostResponses:
        self.error = None
        self._running.enter()
        self._limits.append(BlockLimit(self._limit_s))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._limits.pop().stop()
        self._running.leave()
        self.error, allowed, self._allowed = error, self._allowed, ()
        return self._running.struck is not None and isinstance(error, allowed)
