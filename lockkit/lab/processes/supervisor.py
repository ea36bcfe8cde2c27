"""The supervisor: one process that owns a fleet's writers, their store and their faults.

It is never paused itself. It sees every child stop, continue and end (waitpid), and merges their
events with the store's record of requests into one history. When its input ends, its parent ends or
a stop command arrives, it kills all processes below it; if it is killed, the kernel does that.

One file because its threads share one table of children, and only this class may change it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import termios
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from lockkit.clock import Clock
from lockkit.events import Event, event
from lockkit.lab.processes.child import (
    Channel,
    ChildProcess,
    Said,
    last_words,
    message_line,
    serve,
)
from lockkit.lab.processes.fleet import Plan
from lockkit.lab.processes.process import (
    FLEET,
    freeze,
    guarded,
    kill_tree,
    leftovers,
    send_signal,
    tree,
)
from lockkit.lab.processes.writer_plan import WriterPlan

TICK_S = 0.25
GRACE_S = 1.0
"""How long a writer may take, after a stop command, to finish its round and release the lock."""
DRAIN_S = 1.0
LAST_OUTPUT_MS = 200
PROFILES = {"s3": "aws", "gcs": "gcs", "azure": "azure"}
"""By default the embedded server behaves like this provider's store."""
STOPS = {
    "commit": "at its commit, while it held the lock",
    "decided": "its commit decided and not yet visible",
}
WRITER = "lockkit.lab.processes.writer"
SPARK = "spark"
"""The lane of the Connect server's process events."""
# The embedded server takes any credentials; the user's own must never be sent to it.
PLAY_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "lockkit",
    "AWS_SECRET_ACCESS_KEY": "lockkit",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
OWN_CREDENTIALS = (
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_PASSWORD",
)


@dataclass(slots=True)
class Child:
    """One process of the fleet and what is known of it."""

    name: str
    popen: subprocess.Popen[str]
    log: Path
    lines: ChildProcess | None = None
    """Its JSON lines; None for a server, which speaks none."""
    reader: threading.Thread | None = None
    alive: bool = True
    stopped: bool = False
    killed: bool = False
    armed: str = ""
    """The point in its next commit at which it is to stop itself."""
    freeze_tree: bool = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    def send(self, **command: Any) -> None:
        if self.lines is not None:
            self.lines.send(**command)


class Supervisor:
    """Owns the processes from its main thread; other threads only put messages in its inbox."""

    def __init__(
        self, plan: Plan, channel: Channel, waiting: Mapping[str, ChildProcess] | None = None
    ) -> None:
        """`waiting`: writers that were started ahead, and wait for their settings."""
        self._plan = plan
        self._waiting = dict(waiting or {})
        self._channel = channel
        self._clock = Clock()
        self._inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._children: dict[str, Child] = {}
        self._hosts = ExitStack()
        self._proxy: Any = None
        self._run_dir = Path(plan.run_dir)
        self._scratch = self._run_dir.absolute() / "tmp"
        """Temporary files of the JVMs, removed when all of them have ended."""
        self._history = (self._run_dir / "history.jsonl").open("w", buffering=1)
        self._out: SimpleQueue[str | None] = SimpleQueue()
        self._output = threading.Thread(target=_write_lines, args=(self._out, channel), daemon=True)
        self._output.start()
        self._beat_ms = self._turn_ms = self._clock.boot_ms()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._inbox.put(("command", {"do": "stop"})))
        # SimpleQueue.put may be called from a signal handler
        signal.signal(signal.SIGCHLD, lambda *_: self._inbox.put(("child", None)))
        threading.Thread(target=self._listen, name="stdin", daemon=True).start()
        try:
            self._open()
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - sent to the fleet; everything is killed below
            self._control(error=f"{type(error).__name__}: {error}" if _bare(error) else str(error))
        finally:
            self._close()
        return 0

    # --- opening ---

    def _open(self) -> None:
        plan = self._plan
        env = writers_env(plan)
        endpoint = self._host() if plan.hosted else plan.endpoint
        if plan.kind != "plain":
            from lockkit.spark.java import spark_env

            env = spark_env(env, scratch=self._scratch)
        if plan.kind != "plain" or not plan.hosted:  # their environment differs
            self._end_waiting()
        remote = None
        if plan.kind == "connect":
            from lockkit.spark import connect

            server = connect.Server.plan(self._run_dir)
            remote = server.remote
            env |= server.client_env
            self._serve(SPARK, guarded(*server.command), env | server.env)
        for index in range(plan.writers):
            name = f"W{index + 1}"
            writer = asdict(self._writer(name, index, endpoint, remote))
            self._start(name, WRITER, writer, env)
        self._end_waiting()

    def _host(self) -> str:
        """Start the embedded server, with the faults' proxy in front of it; the proxy's URL."""
        from lockkit.lab.faults import Proxy
        from lockkit.lab.server import Emulator

        plan = self._plan
        emulator = self._hosts.enter_context(
            Emulator(
                db=str(self._run_dir / "store.sqlite"),
                profile=plan.profile or PROFILES[plan.provider],
            )
        )
        place = urlsplit(plan.url)

        def requested(each: Event) -> None:
            here = each.get("bucket") == place.netloc
            if here and str(each["key"]).startswith(place.path.strip("/")):
                self._inbox.put(("event", each))

        emulator.on_request = requested
        direct = getattr(emulator, plan.provider)
        self._proxy = self._hosts.enter_context(Proxy(direct, latency_ms=plan.latency_ms))
        self._proxy.on_fault = lambda each: self._inbox.put(("event", each))
        self._control(endpoint=direct)
        return str(self._proxy.url)

    def _writer(
        self, name: str, index: int, endpoint: str | None, remote: str | None, **more: Any
    ) -> WriterPlan:
        plan = self._plan
        return WriterPlan(
            name=name, url=plan.url, endpoint=endpoint, dataset=plan.dataset, remote=remote,
            slice=(index + 1, plan.writers), rounds=plan.rounds, overlap=plan.overlap,
            ttl_s=plan.ttl_s, renew_interval_s=plan.renew_interval_s, pause_s=plan.pause_s,
            fence=plan.fence, **({"kind": plan.kind} | more),
        )  # fmt: skip

    # Linux kills a child when the thread that started it ends: both are called by the main thread.

    def _start(self, name: str, module: str, settings: dict[str, Any], env: dict[str, str]) -> None:
        """Start a child that speaks JSON lines, or send a writer that waits its settings."""
        lines = self._waiting.pop(name, None)
        if lines is not None and lines.alive:
            lines.send(**settings)
        else:
            lines = start_child(self._plan, name, module, settings, env)
        child = self._children[name] = Child(name, lines.process, lines.log, lines)
        child.reader = lines.listen(partial(self._on_message, name))
        self._emit(name, "started", pid=child.pid)

    def _end_waiting(self) -> None:
        for child in self._waiting.values():
            child.end()
        self._waiting.clear()

    def _serve(self, name: str, command: list[str], env: dict[str, str]) -> None:
        """Start a server that ends when its input does."""
        log = self._run_dir / f"{name}.log"
        with log.open("a") as file:
            popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, text=True,
                process_group=0, cwd=self._run_dir, env=env | {FLEET: self._plan.fleet},
            )  # fmt: skip
        self._children[name] = Child(name, popen, log)
        self._emit(name, "started", pid=popen.pid)

    # --- the threads that only enqueue ---

    def _listen(self) -> None:
        for command in self._channel.commands():
            self._inbox.put(("command", command))
        self._inbox.put(("command", {"do": "stop", "grace_s": 0.0}))

    def _on_message(self, name: str, said: Said | None) -> None:
        if isinstance(said, Event):
            self._inbox.put(("event", said))
        elif said is not None:
            text = f"{name} wrote a line that is not an event: {said.get('why') or said}"
            self._inbox.put(("event", event(self._clock.stamp_ms(), name, "note", text=text)))

    # --- one turn ---

    def _turn(self) -> bool:
        """Handle one message, and what has no message; False when it is time to close."""
        try:
            what, value = self._inbox.get(timeout=TICK_S)
        except Empty:
            what, value = "tick", None
        match what:
            case "event":
                self._record(value)
            case "command" if value.get("do") == "stop":
                self._finish(float(value.get("grace_s", GRACE_S)))
                return False
            case "command":
                self._obey(value)
        if what in ("child", "tick"):
            self._reap()
        return self._watched(what)

    def _watched(self, what: str) -> bool:
        """Whether our parent is alive, and (if required) still sends signs of life."""
        now_ms = self._clock.boot_ms()
        asleep_ms = max(0, now_ms - self._turn_ms - int(2000 * TICK_S))
        self._turn_ms = now_ms
        self._beat_ms += asleep_ms  # a suspended machine is not the client's silence
        if os.getppid() != self._channel.parent:
            return False
        silent_s = (now_ms - self._beat_ms) / 1000
        if self._plan.deadman_s is None or silent_s <= self._plan.deadman_s or what == "command":
            return True
        self._control(
            error=f"no sign of life from the notebook for {silent_s:.0f} s: every writer was "
            "stopped; launch again when you are back"
        )
        return False

    def _obey(self, command: dict[str, Any]) -> None:
        match command:
            case {"do": "beat"}:
                self._beat_ms = self._clock.boot_ms()
            case {"do": "stall", "writer": name, "at": at}:
                self._stall(self._children[name], at, bool(command.get("tree")))
            case {"do": "resume", "writer": name}:
                self._resume(self._children[name])
            case {"do": "kill", "writer": name}:
                self._kill(self._children[name])
            case {"do": "hold", "writer": name, "on": on}:
                self._children[name].send(do="hold", on=on)
            case {"do": "fence", "on": on}:
                for child in self._writers():
                    child.send(do="fence", on=bool(on))
            case {"do": "lose_response"}:
                self._lose_response(command.get("writer"))
            case _:
                self._control(error=f"unknown command {command.get('do')!r}")

    def _stall(self, child: Child, at: str, whole: bool) -> None:
        child.freeze_tree = whole
        if at in STOPS:
            child.armed = at
            child.send(do="stall", at=at)
        elif child.alive:
            if whole:
                freeze(child.pid)
            else:
                send_signal(tree(child.pid)[:1], signal.SIGSTOP)

    def _resume(self, child: Child) -> None:
        child.armed = ""
        child.send(do="stall", at="never")
        if child.alive:
            send_signal(reversed(tree(child.pid)), signal.SIGCONT)

    def _kill(self, child: Child) -> None:
        if child.alive and not child.killed:
            child.killed = True
            kill_tree(child.pid)
            self._emit(child.name, "killed", pid=child.pid)

    def _lose_response(self, writer: str | None) -> None:
        if self._proxy is None:
            self._control(error="no response can be lost here: no proxy is in front of this store")
            return
        aimed = {"client": writer} if writer else {}
        self._inject("drop", when="after", applied=True, operation="put", key=".locks/*", **aimed)

    def _inject(self, what: str, **fields: Any) -> None:
        from lockkit.lab.faults import Fault

        self._proxy.inject(Fault(what, **fields))

    # --- the children's exits ---

    def _writers(self) -> list[Child]:
        return [child for child in self._children.values() if child.name != SPARK]

    def _reap(self) -> None:
        for child in self._children.values():
            while child.alive:
                pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                self._changed(child, status)

    def _changed(self, child: Child, status: int) -> None:
        if os.WIFSTOPPED(status):
            if not child.killed:  # a killed tree is stopped first
                why = STOPS.get(child.armed, "by hand")
                child.stopped, child.armed = True, ""
                self._read_last_output(child)
                self._emit(child.name, "stalled", pid=child.pid, why=why)
                if child.freeze_tree:
                    freeze(child.pid)
        elif os.WIFCONTINUED(status):
            child.stopped = False
            self._emit(child.name, "resumed", pid=child.pid)
        else:
            self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        child.alive, child.stopped, child.popen.returncode = False, False, code
        try:
            os.killpg(child.pid, signal.SIGKILL)  # its JVM, if it had one
        except (ProcessLookupError, PermissionError):
            pass
        if child.reader:
            child.reader.join(DRAIN_S)  # its last output comes before its end
            self._drain()
        wrong = code != 0 and not child.killed
        more = {"stderr": last_words(child.log, lines=12)} if wrong else {}
        self._emit(child.name, "exited", pid=child.pid, code=code, **more)
        if wrong:
            what = "the Spark Connect server" if child.name == SPARK else f"writer {child.name}"
            said = last_words(child.log)
            self._control(error=f"{what} ended with code {code}: {said} (all of it: {child.log})")
        if child.name == SPARK and not child.killed:
            # Connect clients hang in retries once their server is gone: end them as well.
            for writer in self._writers():
                self._kill(writer)

    def _read_last_output(self, child: Child) -> None:
        """Record what a stopped child had sent, before its stop is recorded."""
        end_ms = self._clock.boot_ms() + LAST_OUTPUT_MS
        while child.popen.stdout is not None and self._clock.boot_ms() < end_ms:
            waiting = fcntl.ioctl(child.popen.stdout, termios.FIONREAD, b"\0" * 4)
            self._clock.sleep(0.005)
            if not any(waiting):
                break
        self._drain()

    def _drain(self) -> None:
        later = []
        try:
            while True:
                what, value = self._inbox.get_nowait()
                if what == "event":
                    self._record(value)
                elif what != "child":
                    later.append((what, value))
        except Empty:
            for message in later:
                self._inbox.put(message)

    # --- closing ---

    def _alive(self) -> list[Child]:
        return [child for child in self._children.values() if child.alive]

    def _finish(self, grace_s: float) -> None:
        """Let running writers end their round and release the lock; stopped ones cannot."""
        waiting = [child for child in self._writers() if child.alive and not child.stopped]
        for child in waiting:
            child.send(do="stop")
        end_ms = self._clock.boot_ms() + grace_s * 1000
        while any(child.alive for child in waiting) and self._clock.boot_ms() < end_ms:
            self._clock.sleep(0.02)
            self._drain()
            self._reap()

    def _close(self) -> None:
        for child in self._children.values():
            child.killed = child.killed or child.alive
            if child.alive:
                kill_tree(child.pid)
        end_ms = self._clock.boot_ms() + DRAIN_S * 1000
        while self._alive() and self._clock.boot_ms() < end_ms:
            self._reap()
            self._clock.sleep(0.01)
        self._drain()
        for pid in leftovers(self._plan.fleet):  # Spark's Python workers have groups of their own
            if pid != os.getpid():
                kill_tree(pid)
        shutil.rmtree(self._scratch, ignore_errors=True)
        hosts = threading.Thread(target=self._hosts.close, daemon=True)
        hosts.start()
        hosts.join(DRAIN_S)  # a hung request must not keep the fleet alive
        self._drain()
        self._history.close()
        self._out.put(None)
        self._output.join(DRAIN_S)

    # --- output ---

    def _emit(self, who: str, kind: str, **fields: Any) -> None:
        self._record(event(self._clock.stamp_ms(), who, kind, **fields))

    def _record(self, happened: Event) -> None:
        line = happened.to_json() + "\n"
        self._history.write(line)
        self._out.put(line)

    def _control(self, **fields: Any) -> None:
        self._out.put(message_line("fleet", **fields))


def writers_env(plan: Plan) -> dict[str, str]:
    env = dict(os.environ)
    if plan.hosted:
        env = {name: value for name, value in env.items() if name not in OWN_CREDENTIALS}
        env |= PLAY_CREDENTIALS | directly(env)
    if plan.kind == "plain":
        env.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # 22 MB less each
    return env


def start_child(
    plan: Plan, name: str, module: str, settings: dict[str, Any], env: dict[str, str]
) -> ChildProcess:
    return ChildProcess(
        module, settings, log=Path(plan.run_dir) / f"{name}.log",
        env=env | {FLEET: plan.fleet}, cwd=Path(plan.run_dir),
    )  # fmt: skip


def start_ahead(plan: Plan, others: list[str]) -> dict[str, ChildProcess]:
    """Start a fleet's plain writers before its launch, and import what the store needs.

    They import what a commit to the plan's table needs, then what the stores of `others` need.
    """
    warmed = {"ahead": {"url": plan.url, "dataset": plan.dataset, "others": others}}
    env, names = writers_env(plan), [f"W{number + 1}" for number in range(plan.writers)]
    waiting = {name: start_child(plan, name, WRITER, warmed, env) for name in names}
    from lockkit.lab.faults import Proxy  # noqa: F401 - `_host` uses it
    from lockkit.lab.server import Emulator  # noqa: F401 - the same

    return waiting


def _write_lines(lines: SimpleQueue[str | None], channel: Channel) -> None:
    """Write from a thread of its own: a client that does not read must not stop the supervisor."""
    try:
        while (line := lines.get()) is not None:
            channel.write(line, flush=lines.empty())
        channel.write("")
    except (OSError, ValueError):
        return


def directly(env: dict[str, str]) -> dict[str, str]:
    """Settings that keep requests to this machine (the Spark client's too) off an HTTP proxy."""
    said = [env.get("no_proxy") or env.get("NO_PROXY", ""), "127.0.0.1", "localhost"]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(filter(None, said)))


def _bare(error: Exception) -> bool:
    """Whether the error's text needs its class to be understood."""
    bare = KeyError | AssertionError | AttributeError | ImportError
    return isinstance(error, bare) or not str(error)


def main(channel: Channel) -> int:
    waiting: dict[str, ChildProcess] = {}
    if "ahead" in channel.settings:
        waiting = start_ahead(Plan(**channel.settings["ahead"]), channel.settings["others"])
        if not channel.await_settings():
            return 0  # the kernel kills the writers, as they are our children
    return Supervisor(Plan(**channel.settings["plan"]), channel, waiting).run()


if __name__ == "__main__":
    serve(main)
