"""The soak's supervisor: a fleet's supervisor with a separate server, a plan and relaunches.

The history goes only to a file, so that a long soak needs no memory for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from lockkit.events import Event
from lockkit.lab.faults import Proxy
from lockkit.lab.processes.child import Channel, serve
from lockkit.lab.processes.fleet import Plan
from lockkit.lab.processes.process import guarded, own_mb, rss_mb
from lockkit.lab.processes.services.objects import ADDRESSES
from lockkit.lab.processes.supervisor import (
    OWN_CREDENTIALS,
    PLAY_CREDENTIALS,
    PROFILES,
    WRITER,
    Child,
    Supervisor,
    directly,
)
from lockkit.lab.soak.plan import SoakFault, SoakPlan
from lockkit.lab.soak.tally import SERVER, injected
from lockkit.spark.connect import ServerGone, await_server, free_port
from lockkit.spark.java import spark_env

READER, KEEPER, SELF = "R1", "K1", "supervisor"
SERVER_READY_S = 20.0
SAMPLE_S = 5.0
PROGRESS_S = 5.0
ARMED_S_MAX = 30.0
"""A writer that should stop at its next commit continues if it does not commit in this time."""
RELAUNCH_S = (0.5, 2.0)
OFFSET = "clock offset"


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """A soak's settings besides a fleet's plan."""

    plan: str
    """As JSON."""
    spark: int = 0
    """This many writers, the last ones, are PySpark processes."""
    groups: int = 2
    heartbeat_ms: int = 1000
    heartbeat_misses: int = 5
    look_s: float = 1.0
    keep_s: float = 5.0
    commit: str = "serial"


class SoakSupervisor(Supervisor):
    """Restarts every process that ends, until it receives a stop."""

    def __init__(self, plan: Plan, settings: SoakSettings, channel: Channel) -> None:
        super().__init__(plan, channel)
        self._settings = settings
        self._soak_plan = SoakPlan.parse(settings.plan)
        now_ms = self._clock.boot_ms()
        self._due = [(now_ms + self._pause_ms(each), each) for each in self._soak_plan.processes]
        self._later: list[tuple[float, str, Any]] = []
        """The scheduled ends of process faults: when, what, and which process."""
        self._offsets: dict[str, int] = {}
        self._stall_s: dict[str, tuple[float, float]] = {}
        self._made: Counter[str] = Counter()
        self._commits = 0
        self._memory = (self._run_dir / "memory.jsonl").open("w", buffering=1)
        self._sampled_ms = self._reported_ms = self._scheduled_ms = now_ms

    # --- opening ---

    def _open(self) -> None:
        own = {name: value for name, value in os.environ.items() if name not in OWN_CREDENTIALS}
        self._env = own | PLAY_CREDENTIALS | directly(own)
        self._endpoint = self._host()
        names = [*(f"W{n + 1}" for n in range(self._plan.writers)), READER, KEEPER]
        for name in names:
            self._launch(name)

    def _host(self) -> str:
        port = free_port(ADDRESSES)
        self._serving = guarded(
            sys.executable, "-m", "lockkit", "serve", "--port", str(port),
            "--db", str(self._run_dir / "store.sqlite"),
            "--profile", self._plan.profile or PROFILES[self._plan.provider],
        )  # fmt: skip
        self._launch(SERVER)
        try:
            await_server(f"sc://127.0.0.1:{port}", timeout_s=SERVER_READY_S)
        except ServerGone:
            raise ServerGone(
                "the embedded server",
                f"did not listen within {SERVER_READY_S:.0f} s",
                f"see {self._run_dir / 'server.log'}",
            ) from None
        at = port + tuple(PROFILES).index(self._plan.provider)
        self._proxy = self._hosts.enter_context(
            Proxy(
                f"http://127.0.0.1:{at}",
                plan=self._soak_plan.faults,
                latency_ms=self._plan.latency_ms,
                on_fault=lambda each: self._inbox.put(("event", each)),
            )
        )
        return str(self._proxy.url)

    def _launch(self, name: str) -> None:
        if name == SERVER:
            self._serve(name, self._serving, self._env)
        elif name in (READER, KEEPER):
            self._start(name, "lockkit.lab.soak.observer", self._observer(name), self._env)
        else:
            self._launch_writer(name)

    def _launch_writer(self, name: str) -> None:
        """Launch a writer with the clock offset that the plan gave it last."""
        index, settings = int(name[1:]) - 1, self._settings
        spark = index >= self._plan.writers - settings.spark
        writer = self._writer(
            name, index, self._endpoint, None, kind="jvm" if spark else self._plan.kind,
            groups=settings.groups, commit=settings.commit, heartbeat_ms=settings.heartbeat_ms,
            heartbeat_misses=settings.heartbeat_misses,
            clock_offset_ms=self._offsets.get(name, 0),
        )  # fmt: skip
        env = {"ARROW_DEFAULT_MEMORY_POOL": "system"} | self._env
        if spark:
            env = spark_env(self._env, scratch=self._scratch)
        self._start(name, WRITER, asdict(writer), env)

    def _observer(self, name: str) -> dict[str, Any]:
        """The settings of the reader or the keeper: its `ObserverPlan`."""
        plan, settings = self._plan, self._settings
        role, every_s = ("reader", settings.look_s) if name == READER else (
            "keeper", settings.keep_s
        )  # fmt: skip
        return {
            "role": role, "name": name, "url": plan.url, "endpoint": self._endpoint,
            "every_s": every_s, "ttl_s": plan.ttl_s, "renew_interval_s": plan.renew_interval_s,
            "heartbeat_ms": settings.heartbeat_ms, "heartbeat_misses": settings.heartbeat_misses,
            "commit": settings.commit,
        }  # fmt: skip

    # --- one turn ---

    def _turn(self) -> bool:
        if not super()._turn():
            return False
        now_ms = self._clock.boot_ms()
        if now_ms - self._scheduled_ms < 50:
            return True
        self._scheduled_ms = now_ms
        for at, (due_ms, soak_fault) in enumerate(self._due):
            if now_ms >= due_ms:
                self._due[at] = now_ms + self._pause_ms(soak_fault), soak_fault
                self._make(soak_fault)
        over = [each for each in self._later if now_ms >= each[0]]
        self._later = [each for each in self._later if now_ms < each[0]]
        for _, what, who in over:
            self._end(what, who)
        if now_ms - self._sampled_ms >= 1000 * SAMPLE_S:
            self._sampled_ms = now_ms
            self._sample()
        if now_ms - self._reported_ms >= 1000 * PROGRESS_S:
            self._reported_ms = now_ms
            self._control(made=dict(self._made), commits=self._commits)
        return True

    def _pause_ms(self, soak_fault: SoakFault) -> float:
        return 1000 * soak_fault.every_s * self._clock.uniform(0.5, 1.5)

    def _draw_ms(self, pair: tuple[float, float]) -> float:
        return 1000 * self._clock.uniform(*pair)

    def _make(self, soak_fault: SoakFault) -> None:
        match soak_fault.what:
            case "burst":
                self._proxy.inject(soak_fault.fault)
            case "server":
                self._relaunch(SERVER, soak_fault.for_s)
            case _:
                able = [
                    child for child in self._writers()
                    if child.alive and not child.stopped and not child.killed
                    and child.name not in self._stall_s and soak_fault.may_befall(child.name)
                ]  # fmt: skip
                if able:
                    self._befall(soak_fault, able[int(self._clock.uniform(0, len(able) - 1e-9))])

    def _befall(self, soak_fault: SoakFault, child: Child) -> None:
        match soak_fault.what:
            case "stall":
                self._stall_s[child.name] = soak_fault.for_s
                until_ms = self._clock.boot_ms() + 1000 * ARMED_S_MAX
                self._later.append((until_ms, "disarm", child.name))
                self._stall(child, soak_fault.at, whole=soak_fault.at == "now")
            case "kill" if soak_fault.at == "combining":
                self._stall_s[child.name] = soak_fault.for_s
                child.send(do="die", at="combining")
            case "kill":
                self._relaunch(child.name, soak_fault.for_s)
            case "clock":
                self._offsets[child.name] = round(self._clock.uniform(*soak_fault.offset_ms))
                self._relaunch(child.name, soak_fault.for_s)

    def _relaunch(self, name: str, for_s: tuple[float, float]) -> None:
        """SIGKILL; the process is restarted once its exit is known."""
        self._stall_s[name] = for_s
        self._kill(self._children[name])

    def _end(self, what: str, who: str) -> None:
        child = self._children[who]
        if what == "resume" and child.alive:
            self._resume(child)
        elif what == "disarm" and child.armed:
            self._stall_s.pop(who, None)
            self._resume(child)
        elif what == "start" and not child.alive:
            self._launch(who)
            if self._offsets.get(who):
                text = f"its clock is {self._offsets[who]} ms ahead"
                self._emit(who, "note", text=text, injected=OFFSET)

    def _changed(self, child: Child, status: int) -> None:
        super()._changed(child, status)
        if os.WIFSTOPPED(status) and child.stopped:
            after_ms = self._draw_ms(self._stall_s.pop(child.name, (1.0, 1.0)))
            self._later.append((self._clock.boot_ms() + after_ms, "resume", child.name))

    def _ended(self, child: Child, code: int) -> None:
        super()._ended(child, code)
        after_ms = self._draw_ms(self._stall_s.pop(child.name, RELAUNCH_S))
        self._later.append((self._clock.boot_ms() + after_ms, "start", child.name))

    def _writers(self) -> list[Child]:
        return [child for child in self._children.values() if child.name != SERVER]

    # --- output ---

    def _record(self, happened: Event) -> None:
        self._history.write(happened.to_json() + "\n")
        self._commits += happened.kind == "published"
        if (kind := injected(happened)) is not None:
            self._made[kind] += 1

    def _sample(self) -> None:
        at_ms = round(self._clock.stamp_ms())
        living = [each for each in self._children.values() if each.alive]
        sizes = [(each.name, each.pid, rss_mb(each.pid)) for each in living]
        for name, pid, mb in (*sizes, (SELF, os.getpid(), own_mb())):
            if mb:  # it may have ended just now
                sample = {"at_ms": at_ms, "who": name, "pid": pid, "rss_mb": round(mb, 1)}
                self._memory.write(json.dumps(sample) + "\n")


def main(channel: Channel) -> int:
    plan, settings = Plan(**channel.settings["plan"]), SoakSettings(**channel.settings["soak"])
    return SoakSupervisor(plan, settings, channel).run()


if __name__ == "__main__":
    serve(main)
