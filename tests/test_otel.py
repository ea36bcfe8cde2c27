"""OpenTelemetry: what locks and tables report, read back from the SDK's in-memory exporters."""

from __future__ import annotations

import atexit
import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="make test installs opentelemetry-sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from table_world import CONFIG, new_table, rows

from lockkit import Lock, open_lock, sinks
from lockkit.errors import LockBusy
from lockkit.events import Event, event
from lockkit.recipes.wal import Wal
from lockkit.sinks import ObserverFailed, overheard, queued
from lockkit.sinks.otel import INSTRUMENTS, LANES_MAX, Telemetry, address, instrument
from lockkit.table.handle import Table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "telemetry"
URL = "s3://lake/orders"
_NAMES = itertools.count()


class Gate(InMemorySpanExporter):
    """An exporter that takes as long as its gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open, self.waited_in_vain = threading.Event(), threading.Event(), False
        self.open.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.reached.set()
        self.waited_in_vain |= not self.open.wait(2.0)
        return super().export(spans)


class Exported:
    """The metrics and spans of one test."""

    def __init__(self) -> None:
        self.reader, self.gate = InMemoryMetricReader(), Gate()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.gate))
        self.stop = instrument(meter_provider=self.meters, tracer_provider=self.tracers)
        self.telemetry = sinks._listeners[-1]
        assert isinstance(self.telemetry, Telemetry)

    def spans(self) -> tuple[ReadableSpan, ...]:
        assert self.telemetry.queue.flush(30)
        return self.gate.get_finished_spans()

    def points(self, name: str) -> list[Any]:
        assert self.telemetry.queue.flush(30)
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def by(self, name: str, label: str) -> dict[Any, int]:
        """The count of each value of a label."""
        return {
            each.attributes.get(label): getattr(each, "count", None) or each.value
            for each in self.points(name)
        }

    def span_names(self) -> list[str]:
        return [each.name for each in self.spans()]


@pytest.fixture
def exported() -> Iterator[Exported]:
    found = Exported()
    yield found
    found.gate.open.set()
    found.stop()


@pytest.fixture
def url() -> str:
    return f"memory://otel-{next(_NAMES)}"


def heard(*events: Event) -> None:
    for each in events:
        overheard(URL, each)


def at(ms: float, kind: str, **data: Any) -> Event:
    return event(ms, "W1", kind, **data)


def test_a_lock_reports_its_wait_its_hold_and_its_renewals(exported: Exported, url: str) -> None:
    with Lock(url) as lock:
        lock.renew()
        with pytest.raises(LockBusy), Lock(url, acquire_timeout=0):
            pass
    waits = exported.by("lockkit.lock.wait", "lockkit.outcome")
    assert waits == {"granted": 1, "gave up": 1}
    assert exported.by("lockkit.lock.hold", "lockkit.outcome") == {"released": 1}
    assert exported.by("lockkit.lock.renewals", "lockkit.url") == {url: 1}
    assert exported.span_names() == ["lockkit.lock.acquire"] * 2
    assert not exported.points("lockkit.lock.lost")


@pytest.mark.parametrize("metric", ["lockkit.lock.wait", "lockkit.lock.hold"])
def test_the_exemplar_of_a_metric_is_in_the_trace_of_the_thread_that_reported_it(
    exported: Exported, url: str, metric: str
) -> None:
    with exported.tracers.get_tracer("test").start_as_current_span("job") as job:
        with Lock(url):
            pass
    (point,) = exported.points(metric)
    assert {each.trace_id for each in point.exemplars} == {job.get_span_context().trace_id}


def test_no_attribute_has_the_password_of_an_owners_name(exported: Exported, url: str) -> None:
    with Lock(url, owner="https://anna:secret-word@ci.test/job/7"):
        pass
    (span,) = exported.spans()
    assert span.attributes["lockkit.client"] == "https://***@ci.test/job/7"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize("outcome", ["granted", "gave up"])
def test_a_services_lock_reports_its_wait_too(
    exported: Exported, tmp_path: Path, outcome: str
) -> None:
    where = f"filesystem://{tmp_path}/locks"
    with open_lock(where, acquire_timeout=0):
        if outcome == "gave up":
            with pytest.raises(LockBusy), open_lock(where, acquire_timeout=0):
                pass
    assert exported.by("lockkit.lock.wait", "lockkit.outcome")[outcome] == 1
    assert exported.by("lockkit.lock.hold", "lockkit.outcome") == {"released": 1}


ASKED = at(1.0, "ask", request=1, op="renew", key="k", attempt="a/1")
SILENT = at(2.0, "answer", request=1, op="renew", outcome="Unknown", version="", why="reset")
AGAIN = at(3.0, "ask", request=2, op="renew", key="k", attempt="a/1")
CONFIRM = at(3.0, "ask", request=2, op="confirm", key="k", attempt="a/2")


@pytest.mark.parametrize(
    ("then", "settled"),
    [
        (at(4.0, "renewed", epoch=1, until_ms=9.0, version="v"), "ours"),
        (CONFIRM, "ours"),
        (AGAIN, "sent again"),
        (at(4.0, "lost", epoch=1, why="taken"), "not ours"),
        (at(4.0, "released", epoch=1, proven=False), "unproven"),
        (at(4.0, "waiting", owner="W2", epoch=2, until_ms=9.0), "not ours"),
    ],
)
def test_a_write_without_an_answer_is_counted_with_how_it_was_settled(
    exported: Exported, then: Event, settled: str
) -> None:
    heard(ASKED, SILENT)
    assert not exported.points("lockkit.writes.ambiguous")
    heard(then)
    assert exported.by("lockkit.writes.ambiguous", "lockkit.settled") == {settled: 1}
    assert exported.by("lockkit.requests", "lockkit.outcome") == {"unknown": 1}


def test_a_lost_lease_and_a_danger_are_counted(exported: Exported) -> None:
    held = at(1_000.0, "held", epoch=3, until_ms=9.0, version="v")
    heard(held, at(3_000.0, "danger", epoch=3, until_ms=9.0), at(5_000.0, "lost", epoch=3, why="x"))
    assert exported.by("lockkit.lock.lost", "lockkit.url") == {URL: 1}
    assert exported.by("lockkit.lock.dangers", "lockkit.url") == {URL: 1}
    (hold,) = exported.points("lockkit.lock.hold")
    assert (hold.sum, hold.attributes["lockkit.outcome"]) == (4.0, "lost")


def test_a_commit_is_a_span_with_its_phases_and_a_refused_one_an_error(
    exported: Exported, url: str
) -> None:
    new_table(url, CONFIG)
    with Table(url) as table:
        table.append(rows([1]))
    spans = {each.name: each for each in exported.spans()}
    commit = spans["lockkit.commit"]
    for phase in ("prepare", "decide", "publish"):
        span = spans[f"lockkit.commit.{phase}"]
        assert span.parent.span_id == commit.context.span_id
        assert commit.start_time <= span.start_time <= span.end_time <= commit.end_time
    decided, published = spans["lockkit.commit.decide"], spans["lockkit.commit.publish"]
    assert decided.end_time == published.start_time < published.end_time
    assert exported.by("lockkit.commit.duration", "lockkit.outcome") == {"committed": 1}
    refused = at(9.0, "refused", instant="T", epoch=1, error="CommitConflict", why="secret text")
    heard(at(1.0, "began", instant="T"), refused)
    assert exported.by("lockkit.commit.conflicts", "lockkit.url") == {URL: 1}
    last = exported.spans()[-1]
    assert not last.status.is_ok and "secret" not in last.to_json()


def test_the_batches_of_a_log_are_counted(exported: Exported, url: str) -> None:
    wal = Wal(url)
    wal.append({"order": 1})
    wal.close()
    (point,) = exported.points("lockkit.batch.size")
    assert (point.count, point.sum) == (1, 1)


def test_nothing_is_exported_after_the_stop(exported: Exported, url: str) -> None:
    exported.stop()
    with Lock(url):
        pass
    assert not exported.points("lockkit.lock.wait") and not exported.span_names()


def test_an_exporter_that_raises_is_one_warning_and_ends_nothing(url: str) -> None:
    def broken(_url: str) -> str:
        raise RuntimeError("no route")

    stop = instrument(
        meter_provider=MeterProvider(shutdown_on_exit=False), tracer_provider=TracerProvider(),
        url_of=broken,
    )  # fmt: skip
    try:
        with pytest.warns(UserWarning, match="no route") as warned:
            with Lock(url):
                pass
            stop()
    finally:
        stop()
    assert len(warned) == 1


def test_a_slow_exporter_delays_no_lock(exported: Exported, url: str) -> None:
    exported.gate.open.clear()
    with Lock(url) as first:
        assert exported.gate.reached.wait(30)  # the span of its grant is being exported
        with Lock(f"{url}-2"):
            first.renew()
    assert not exported.gate.waited_in_vain
    exported.gate.open.set()
    assert exported.span_names() == ["lockkit.lock.acquire"] * 2
    assert len(exported.points("lockkit.lock.hold")) == 2


def test_a_full_queue_drops_events_counts_them_and_measures_nothing_across_the_gap(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, held = (
        at(1.0, "heard", step=1, event="want", boot_ms=1, wall_ms=1),
        at(2.0, "held", epoch=1, until_ms=9.0, version="v"),
    )
    released = at(3.0, "released", epoch=1, proven=True)
    monkeypatch.setattr(queued, "ITEMS_MAX", 3)
    exported.gate.open.clear()
    heard(want, held)
    assert exported.gate.reached.wait(30)
    with pytest.warns(ObserverFailed, match="drops events .* BatchSpanProcessor") as warned:
        heard(released, want, held, released, released)
    assert len(warned) == 1
    exported.gate.open.set()
    assert exported.points("lockkit.lock.wait")[0].count == 2
    heard(released)
    (hold,) = exported.points("lockkit.lock.hold")
    assert (hold.count, hold.sum) == (1, 0.001), "the second hold began before the gap"
    assert [each.value for each in exported.points("lockkit.events.dropped")] == [2]


@pytest.mark.parametrize("how", ["stop", "exit"])
def test_what_is_queued_is_exported_at_the_stop_and_at_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    exported = Exported()
    heard(*(at(float(number), "held", epoch=1, until_ms=9.0, version="") for number in range(50)))
    heard(at(99.0, "waiting", owner="W2", epoch=2, until_ms=9.0))
    heard(at(99.0, "released", epoch=1, proven=True))
    (exported.stop if how == "stop" else at_exit[-1])()
    exported.telemetry.queue._thread.join(30)
    assert exported.by("lockkit.lock.hold", "lockkit.outcome") == {"released": 1}
    exported.stop()


def test_a_stop_does_not_wait_for_ever_for_an_exporter(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(queued, "FLUSH_S", 0.01)
    exported.gate.open.clear()
    with Lock(url):
        assert exported.gate.reached.wait(30)
    with pytest.warns(ObserverFailed, match="drops events"):
        exported.stop()
    assert exported.telemetry.queue.dropped and not exported.gate.waited_in_vain


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_exports_its_own_events_and_not_its_parents() -> None:
    taken: list[str | None] = []
    gate = threading.Event()

    def take(item: str | None) -> None:
        gate.wait(30)
        taken.append(item)

    handed = queued.EventQueue(take, "")
    handed.put("of the parent")
    if not (child := os.fork()):
        gate.set()
        handed.put("of the child")
        os._exit(0 if handed.flush(30) and taken == ["of the child"] else 1)
    gate.set()
    assert os.waitpid(child, 0)[1] == 0
    assert handed.flush(30) and taken == ["of the parent"]
    handed.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_drops_an_event_does_not_hang() -> None:
    handed, held = queued.EventQueue[str](lambda _: None, ""), threading.Event()
    forked = threading.Event()

    def dropping() -> None:
        with handed._guard:
            held.set()
            forked.wait(30)

    thread = threading.Thread(target=dropping)
    thread.start()
    held.wait(30)
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that hangs
        handed.put("of the child")
        os._exit(0 if handed.flush(15) else 1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        forked.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_of_multiprocessing_exports_what_is_queued_at_its_end(stopped: bool) -> None:
    reader, writer = os.pipe()
    gate = threading.Event()

    class UntilFlushed(queued.EventQueue[bytes]):
        def flush(self, timeout_s: float) -> bool:
            gate.set()
            return super().flush(timeout_s)

    def take(item: bytes | None) -> None:
        gate.wait(30)
        os.write(writer, item or b"dropped")

    def work() -> None:
        handed = UntilFlushed(take, "")
        handed.put(b"of the child")
        if stopped:
            handed.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    os.close(writer)
    assert (child.exitcode, os.read(reader, 100)) == (0, b"of the child")
    os.close(reader)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://me:pass@lake/orders", "s3://lake/orders"),
        ("dynamodb://us-east-1/t/k?endpoint=http://u:p@h&x=secret", "dynamodb://us-east-1/t/k"),
        ("/var/locks/lock", "/var/locks/lock"),
        ("s3://lake/http://u:secret@h/x", "s3://lake/http://***@h/x"),
        ("s3://lake/\x1b[31m\u202e", "s3://lake/\\x1b[31m\\u202e"),
    ],
)
def test_a_label_carries_no_credential_and_no_control_character(given: str, shown: str) -> None:
    assert address(given) == shown


def test_handles_that_are_idle_are_forgotten_and_others_are_bounded() -> None:
    seen = Telemetry(MeterProvider(), TracerProvider(), address)
    for number in range(LANES_MAX + 5):
        seen._take(URL, event(1.0, f"W{number}", "held", epoch=1, until_ms=2.0, version=""))
    assert len(seen._handles) == LANES_MAX
    seen._take(URL, event(2.0, f"W{LANES_MAX}", "released", epoch=1, proven=True))
    assert len(seen._handles) == LANES_MAX - 1


# --- the example and the dashboard ---------------------------------------------------------------


def prometheus_names() -> set[str]:
    """As Prometheus's own exporter for OpenTelemetry names them."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import REGISTRY, generate_latest

    reader = PrometheusMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("lockkit")
    for name, each in INSTRUMENTS.items():
        if each.kind == "counter":
            meter.create_counter(name, each.unit).add(1)
        else:
            meter.create_histogram(name, each.unit).record(1)
    said = generate_latest(REGISTRY).decode()
    reader.shutdown()
    return set(re.findall(r"^(lockkit_[a-z_]+)", said, re.MULTILINE))


def test_the_dashboard_and_the_alerts_use_the_names_that_prometheus_gets() -> None:
    known = prometheus_names()
    used = set()
    for name in ("grafana.json", "alerts.yml"):
        text = (DOCS / name).read_text()
        used |= set(re.findall(r"\b(lockkit_[a-z_]+)(?=[\[{ )])", text)) - {
            "lockkit_url", "lockkit_outcome", "lockkit_op", "lockkit_settled",
        }  # fmt: skip
    assert used and used <= known, used - known
    board = json.loads((DOCS / "grafana.json").read_text())
    assert len(board["panels"]) >= 8 and board["uid"] == "lockkit"
