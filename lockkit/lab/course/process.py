"""A client of an exercise is a process: it shares no variable with another client.

In the first worlds it is a process of the operating system, with a `hash` of its own. In the later
ones it is a copy in this process, which is quicker, and shares what it imports with the others.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from inspect import isgenerator
from io import BytesIO
from multiprocessing.connection import Connection, Pipe
from signal import SIGKILL
from subprocess import DEVNULL, Popen
from threading import Lock, RLock
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

from lockkit.lab.processes.process import die_with_parent, from_lasting_thread

REAL = 10
"""In so many worlds each client is a process of the operating system."""
ENDED = 64
Said = tuple[str, Any]
"""That the function "runs" as a generator, "yields" a request, "returns" or "raises"; and what."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({
        type(lru_cache(len)):
            lambda f: (_cached, (f.cache_parameters(),), {"__wrapped__": f.__wrapped__}),
        WeakKeyDictionary: lambda each: (WeakKeyDictionary, (dict(each),)),
        type(Lock()): lambda _: (Lock, ()), type(RLock()): lambda _: (RLock, ()),
    })  # fmt: skip


def _cached(parameters: dict[str, Any]) -> Any:
    cached: Any = lru_cache(**parameters)(lambda *args, **named: cached.__wrapped__(*args, **named))
    return cached


def packed(value: Any) -> bytes:
    """The value, with all that a function uses of its module, as another process can load it."""
    file, module = BytesIO(), sys.modules.get(getattr(value, "__module__", None) or "")
    if module and module.__name__ in cloudpickle.list_registry_pickle_by_value():
        module = None
    if module:
        cloudpickle.register_pickle_by_value(module)
    try:
        _Pickler(file).dump(value)
    finally:
        if module:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _unpacked(code: bytes) -> Any:
    """The value again, with classes of its own."""
    parts = cloudpickle.cloudpickle
    shared = parts._DYNAMIC_CLASS_TRACKER_BY_ID
    parts._DYNAMIC_CLASS_TRACKER_BY_ID = WeakValueDictionary()
    try:
        return pickle.loads(code)
    finally:
        parts._DYNAMIC_CLASS_TRACKER_BY_ID = shared


class Copy:
    """A client's own copy of the function."""

    def __init__(self, code: bytes) -> None:
        self.code, self.function, self.running = code, None, None  # type: Any, Any, Any

    def ask(self, kind: str, value: Any) -> Said:
        """Call the function with these arguments, or send an answer to it."""
        try:
            if kind == "send":
                return "yields", self.running.send(value)
            if not self.function:
                self.function = _unpacked(self.code)
            self.running = self.function(*value)
            return ("runs", None) if isgenerator(self.running) else ("returns", self.running)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the result
            if kind == "send" and isinstance(error, StopIteration):
                return "returns", error.value
            at, where = error.__traceback__, ""
            while at := at and at.tb_next:
                if at.tb_frame.f_code.co_name == getattr(self.function, "__name__", ""):
                    where = f" in line {at.tb_lineno} of its code"
            return "raises", f"{type(error).__name__}{where}: {error}"


class Interpreter:
    """A client that is a process of the operating system."""

    STARTED: ClassVar[dict[str, Interpreter]] = {}

    def __init__(self, name: str) -> None:
        self.name, (self.connection, theirs) = name, Pipe()
        path = os.pathsep.join(map(str, sys.path))
        own = {"PYTHONHASHSEED": str(sum(name.encode())), "PYTHONPATH": path}
        program = f"from {__name__} import serve; serve({theirs.fileno()}, {os.getpid()})"
        with theirs:
            self.process = from_lasting_thread(lambda: Popen(
                [sys.executable, "-Wignore", "-uc", program], pass_fds=[theirs.fileno()],
                env=os.environ | own, stdin=DEVNULL, start_new_session=True,
            ))  # fmt: skip
        self.STARTED[name] = self

    def ask(self, kind: str, value: Any) -> Said:
        try:
            self.connection.send((kind, value))
            said: Said = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.kill()
            return "raises", "an error that ended its process"
        return said

    def kill(self) -> None:
        del self.STARTED[self.name]
        os.killpg(self.process.pid, SIGKILL)
        self.process.wait()


@contextmanager
def interpreters(code: bytes) -> Iterator[Callable[[str], Interpreter]]:
    """Start a client by its name; it ends with the block. It finds what this process finds now."""

    def start(name: str) -> Interpreter:
        found = Interpreter.STARTED.get(name) or Interpreter(name)
        found.connection.send(("start", (code, sys.path, dict(os.environ), os.getcwd())))
        return found

    try:
        yield start
    except BaseException:  # an interrupt: an answer may still come
        for each in [*Interpreter.STARTED.values()]:
            each.kill()
        raise
    for each in Interpreter.STARTED.values():
        each.connection.send(("end", b""))


def serve(number: int, parent: int) -> None:
    """Serve each function in a child, so that nothing of an earlier one is left."""
    die_with_parent(parent)
    server = os.getpid()
    while os.fork():
        if os.waitstatus_to_exitcode(os.wait()[1]) != ENDED:
            return
    die_with_parent(server)
    with suppress(EOFError), Connection(number) as connection:
        while (request := connection.recv())[0] != "end":
            if request[0] == "start":
                code, sys.path[:], environment, folder = request[1]
                os.environ.update(environment)
                os.chdir(folder)
                copy = Copy(code)
                continue
            said = copy.ask(*request)
            try:
                body = packed(said)
            except Exception as error:  # noqa: BLE001 - whatever refuses to be packed
                why = f"it {said[0]} what another process cannot have ({error})"
                body = packed(("raises", f"TypeError: {why}"))
            connection.send_bytes(body)
        os._exit(ENDED)
