"""Metrics and traces by OpenTelemetry, from the events of this process's locks and tables.

    from lockkit.sinks.otel import instrument

    stop = instrument()  # the providers that opentelemetry was configured with
    ...
    stop()

Needs `pip install 'lockkit[otel]'`. Nothing but names, numbers and outcomes is exported: no message
of an error, no content of an object, no credential. `INSTRUMENTS` lists the metrics;
docs/howto/telemetry.md has an example for Prometheus and a dashboard for Grafana.
One thread exports. The threads that hold locks queue their events and never wait for an exporter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lockkit import __version__
from lockkit.events import Event, plain
from lockkit.sinks import listening, warn_of
from lockkit.sinks.queued import EventQueue

LANES_MAX = 10_000
"""Handles whose state is kept; the oldest is forgotten first."""
URL_CHARS_MAX = 200
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WRITES = frozenset({"acquire", "confirm", "renew", "release"})
URL, OUTCOME, OP, SETTLED = "lockkit.url", "lockkit.outcome", "lockkit.op", "lockkit.settled"
LANE, INSTANT, EPOCH = "lockkit.client", "lockkit.instant", "lockkit.epoch"


class Instrument(NamedTuple):
    """One metric: its kind (`histogram` or `counter`), its unit, and what it says."""

    kind: str
    unit: str
    says: str
    buckets: tuple[float, ...] = ()


INSTRUMENTS = {
    "lockkit.lock.wait": Instrument(
        "histogram", "s", "From a request for a lock to its grant, or to its end.", SECONDS
    ),
    "lockkit.lock.hold": Instrument("histogram", "s", "From a grant to its end.", SECONDS),
    "lockkit.lock.renewals": Instrument("counter", "{renewal}", "Proven renewals."),
    "lockkit.lock.dangers": Instrument("counter", "{danger}", "Renewals that became overdue."),
    "lockkit.lock.lost": Instrument("counter", "{lease}", "Leases lost while they were held."),
    "lockkit.requests": Instrument("counter", "{request}", "Requests of locks, by outcome."),
    "lockkit.writes.ambiguous": Instrument(
        "counter", "{write}", "Writes of locks without an answer, by how they were settled."
    ),
    "lockkit.commit.duration": Instrument(
        "histogram", "s", "From the beginning of a commit to its end.", SECONDS
    ),
    "lockkit.commit.conflicts": Instrument(
        "counter", "{commit}", "Commits that were refused because another one overlapped."
    ),
    "lockkit.batch.size": Instrument(
        "histogram", "{entry}", "Entries that one write decided together.", SIZES
    ),
    "lockkit.events.dropped": Instrument(
        "counter", "{event}", "Events that no metric and no span counts: the queue was full."
    ),
}  # fmt: skip
DROPPING = (
    "lockkit drops events of its metrics and traces, which are exported too slowly; export by a "
    "BatchSpanProcessor (no lock or table is affected)"
)
PHASES = {"checked": "prepare", "fenced": "decide", "published": "publish"}
"""The phases of a commit, each a span, by the event that ends the phase."""


@dataclass(slots=True)
class CommitTrace:
    """A commit in progress: its span, and when its current phase began."""

    span: Any
    inside: Any
    began_ms: float
    phase_ms: float


@dataclass(slots=True)
class HandleTelemetry:
    """One handle: its wait, its grant, and its requests without an answer."""

    wants_ms: float | None = None
    wants_in: Any = None
    held_ms: float | None = None
    requests: dict[Any, tuple[str, str]] = field(default_factory=dict)
    """By request: its operation and its attempt."""
    unsettled: tuple[str, str] | None = None
    """The operation and the attempt of a write without an answer."""
    commits: dict[str, CommitTrace] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        waits = self.wants_ms is not None or self.held_ms is not None
        return not (waits or self.requests or self.unsettled or self.commits)


def instrument(
    *, meter_provider: Any = None, tracer_provider: Any = None,
    url_of: Callable[[str], str] | None = None,
) -> Callable[[], None]:  # fmt: skip
    """Export from now on, also of handles that are already open; call the result to stop.

    The stop, and else the end of the process, exports what is queued, for `FLUSH_S` at most.

    :param meter_provider: where metrics go; None: opentelemetry's global one.
    :param tracer_provider: where spans go; None: opentelemetry's global one.
    :param url_of: the label for a lock's or table's URL, for fewer series; `address` by default.
    :raises ModuleNotFoundError: without `pip install 'lockkit[otel]'`.
    """
    block = ExitStack()
    telemetry = Telemetry(meter_provider, tracer_provider, url_of or address)
    block.callback(telemetry.queue.close)
    block.enter_context(listening(telemetry))
    return block.close


def address(url: str) -> str:
    """The URL as text of a label: without a user, a query, a fragment or a named password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return plain(url.partition("://")[0])
    host = parts.netloc.rpartition("@")[2]
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return plain(f"{scheme}{host}{parts.path}", limit=URL_CHARS_MAX)


class Telemetry:
    """A listener (`lockkit.sinks.listening`) that turns events into metrics and spans."""

    def __init__(
        self, meter_provider: Any, tracer_provider: Any, url_of: Callable[[str], str]
    ) -> None:
        from opentelemetry import context, metrics, trace

        self.queue: EventQueue[tuple[str, Event, Any]] = EventQueue(self._export, DROPPING)

        meter = metrics.get_meter("lockkit", __version__, meter_provider)
        self._tracer: Any = trace.get_tracer("lockkit", __version__, tracer_provider)
        self._trace: Any = trace
        self._get_here: Callable[[], Any] = context.get_current
        self._here: Any = None  # the context of the thread that reported the current event
        self._url_of, self._failed, self._dropped = url_of, False, 0
        self._handles: dict[tuple[str, str], HandleTelemetry] = {}
        self._add: dict[str, Callable[[float, dict[str, Any]], None]] = {}
        for name, each in INSTRUMENTS.items():
            if each.kind == "counter":
                add = meter.create_counter(name, each.unit, each.says).add
            else:
                buckets = list(each.buckets)
                add = meter.create_histogram(
                    name, each.unit, each.says, explicit_bucket_boundaries_advisory=buckets
                ).record
            self._add[name] = self._in_its_trace(add)

    def _in_its_trace(self, add: Callable[..., None]) -> Callable[[float, dict[str, Any]], None]:
        """For exemplars: the thread that exports is in no trace."""
        return lambda value, labels: add(value, labels, self._here)

    def __call__(self, url: str, event: Event) -> None:
        """Never waits: what it observes has a lease to renew."""
        if url:  # else the store's own record
            self.queue.put((url, event, self._get_here()))

    def _export(self, queued: tuple[str, Event, Any] | None) -> None:
        """Never raises: telemetry must not end what it observes."""
        try:
            if queued is None:
                return self._skip()
            url, event, self._here = queued
            self._take(url, event)
        except Exception as error:  # noqa: BLE001 - an exporter may raise anything
            if not self._failed:
                self._failed = True
                warn_of(queued[1].kind if queued else "dropped", error)

    def _skip(self) -> None:
        """Events are missing: a duration across the gap would be wrong, so it is not reported."""
        self._handles.clear()
        before, self._dropped = self._dropped, self.queue.dropped
        self._add["lockkit.events.dropped"](self._dropped - before, {})

    def _take(self, url: str, event: Event) -> None:
        at = url, event.who
        one = self._handles.pop(at, None) or HandleTelemetry()
        labels = {URL: self._url_of(url)}
        match event.kind:
            case "heard" | "waiting" | "note":
                self._waits(one, event, labels)
            case "ask" | "answer":
                self._requests(one, event, labels)
            case "held" | "renewed" | "danger" | "lost" | "released":
                self._holds(one, event, labels)
            case "began" | "checked" | "fenced" | "published" | "refused":
                self._commits(one, event, labels)
        if event.get("batch"):
            self._add["lockkit.batch.size"](float(event["batch"]), labels)
        if not one.idle:
            self._handles[at] = one
            while len(self._handles) > LANES_MAX:
                self._handles.pop(next(iter(self._handles)))

    # --- the lock --------------------------------------------------------------------------------

    def _waits(self, one: HandleTelemetry, event: Event, labels: dict[str, Any]) -> None:
        step = event.get("event")
        if event.kind == "waiting":
            self._settle(one, "not ours", labels)
        if step == "want" or (event.kind == "waiting" and one.wants_ms is None):
            self._wants(one, event)
        elif (step == "give up" or event.get("gave_up")) and one.held_ms is None:
            self._settle(one, "unproven", labels)
            self._waited(one, event, "gave up", labels)

    def _wants(self, one: HandleTelemetry, event: Event) -> None:
        if one.wants_ms is None and one.held_ms is None:
            one.wants_ms, one.wants_in = event.at_ms, self._here

    def _waited(
        self, one: HandleTelemetry, event: Event, outcome: str, labels: dict[str, Any]
    ) -> None:
        since_ms, one.wants_ms = one.wants_ms, None
        if since_ms is None:
            return
        self._seconds("lockkit.lock.wait", since_ms, event.at_ms, labels | {OUTCOME: outcome})
        span = self._span("lockkit.lock.acquire", one.wants_in, since_ms, labels, event)
        span.set_attribute(OUTCOME, outcome)
        span.end(end_time=_ns(event.at_ms))
        one.wants_in = None

    def _holds(self, one: HandleTelemetry, event: Event, labels: dict[str, Any]) -> None:
        match event.kind:
            case "held":
                self._settle(one, "ours", labels)
                self._waited(one, event, "granted", labels)
                one.held_ms = event.at_ms
                return
            case "renewed":
                self._settle(one, "ours", labels)
                self._add["lockkit.lock.renewals"](1, labels)
                return
            case "danger":
                self._add["lockkit.lock.dangers"](1, labels)
                return
            case "lost":
                self._settle(one, "not ours", labels)
                self._add["lockkit.lock.lost"](1, labels)
                outcome = "lost"
            case _:
                proven = bool(event["proven"])
                self._settle(one, "ours" if proven else "unproven", labels)
                outcome = "released" if proven else "unproven"
        since_ms, one.held_ms = one.held_ms, None
        if since_ms is not None:
            self._seconds("lockkit.lock.hold", since_ms, event.at_ms, labels | {OUTCOME: outcome})

    def _requests(self, one: HandleTelemetry, event: Event, labels: dict[str, Any]) -> None:
        op = str(event["op"])
        if event.kind == "ask":
            attempt = str(event["attempt"])
            if one.unsettled and op == "confirm":
                self._settle(one, "ours", labels)
            elif one.unsettled and attempt and one.unsettled == (op, attempt):
                self._settle(one, "sent again", labels)
            if op == "acquire":
                self._wants(one, event)
            one.requests[event["request"]] = op, attempt
            return
        outcome = str(event["outcome"]).lower()
        op, attempt = one.requests.pop(event["request"], (op, ""))
        self._add["lockkit.requests"](1, labels | {OP: op, OUTCOME: outcome})
        if outcome == "unknown" and op in WRITES:
            one.unsettled = op, attempt

    def _settle(self, one: HandleTelemetry, how: str, labels: dict[str, Any]) -> None:
        if one.unsettled is not None:
            (op, _), one.unsettled = one.unsettled, None
            self._add["lockkit.writes.ambiguous"](1, labels | {OP: op, SETTLED: how})

    # --- the commit ------------------------------------------------------------------------------

    def _commits(self, one: HandleTelemetry, event: Event, labels: dict[str, Any]) -> None:
        instant = str(event["instant"])
        if event.kind == "began":
            span = self._span("lockkit.commit", self._here, event.at_ms, labels, event)
            span.set_attribute(INSTANT, instant)
            inside = self._trace.set_span_in_context(span, self._here)
            one.commits[instant] = CommitTrace(span, inside, event.at_ms, event.at_ms)
            return
        found = one.commits.get(instant)
        phase = PHASES.get(event.kind)
        if found is not None and phase is not None:
            name = f"lockkit.commit.{phase}"
            span = self._span(name, found.inside, found.phase_ms, labels, event)
            span.end(end_time=_ns(event.at_ms))
            found.phase_ms = event.at_ms
        if event.kind not in ("published", "refused"):
            return
        outcome = "committed" if event.kind == "published" else str(event["error"])
        if outcome == "CommitConflict":
            self._add["lockkit.commit.conflicts"](1, labels)
        one.commits.pop(instant, None)
        if found is not None:
            self._seconds(
                "lockkit.commit.duration", found.began_ms, event.at_ms, labels | {OUTCOME: outcome}
            )
            found.span.set_attribute(OUTCOME, outcome)
            if event.kind == "refused":
                found.span.set_status(self._trace.StatusCode.ERROR, outcome)
            found.span.end(end_time=_ns(event.at_ms))

    # --- exporting -------------------------------------------------------------------------------

    def _span(
        self, name: str, context: Any, began_ms: float, labels: dict[str, Any], event: Event
    ) -> Any:
        about = labels | {LANE: plain(event.who)}
        if isinstance(event.get("epoch"), int):
            about[EPOCH] = event["epoch"]
        return self._tracer.start_span(
            name, context=context, start_time=_ns(began_ms), attributes=about
        )

    def _seconds(self, name: str, since_ms: float, at_ms: float, labels: dict[str, Any]) -> None:
        self._add[name](max(0.0, (at_ms - since_ms) / 1000), labels)


def _ns(at_ms: float) -> int:
    return int(at_ms * 1_000_000)
