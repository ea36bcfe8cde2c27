"""A client of an exercise is a process: it shares no variable with another client.

In the first worlds it is a process of the operating system, with a `hash` of its own. The later
worlds are played in one more process, where each client is a copy, which is quicker: the copies
share what they import. So nothing that a reader's function does can end, or change, the notebook.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import lru_cache
from io import BytesIO, StringIO
from multiprocessing.connection import Connection, Pipe
from signal import ITIMER_PROF, SIGKILL, SIGPROF, setitimer
from subprocess import DEVNULL, Popen
from threading import Lock, RLock
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

from lockkit.lab.processes.process import (
    die_with_parent,
    from_lasting_thread,
    group_sizes,
    limit_memory,
    used_s,
)

REAL = 10
"""In so many worlds each client is a process of the operating system."""
ENDED = 64
OWN = 2
"""A client has so many processes: one for each function, and the one that starts it."""
LIMIT_S = 10.0
"""A client may compute for so long in one world, and do nothing for so long in one call."""
MEMORY_BYTES = 2**30
"""A function may use so much memory. macOS has no such limit: there only time ends it."""
PRINTED_CHARS_MAX = 1_000
LOOKS_MAX = 60
"""So many times half of that is a call waited for, however slowly it computes."""
Said = tuple[str, Any]
"""That the function "runs" as a generator, "yields" a request, "returns" or "raises", and what;
that it "ends" its process or is "endless", and how."""


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


def hinders(value: Any, name: str, *outer: Any) -> str:
    """The name of what cannot be packed: a function's, or of what it uses, at any depth."""
    used: dict[str, Any] = {}
    if code := getattr(value, "__code__", None):
        names = cloudpickle.cloudpickle._extract_code_globals(code)
        used = {each: value.__globals__.get(each) for each in names}
        cells = [each.cell_contents for each in value.__closure__ or ()]
        used |= zip(code.co_freevars, cells, strict=True)
    for each, its in used.items():
        if not any(its is one for one in (value, *outer)):
            try:
                packed(its)
            except Exception:  # noqa: BLE001 - whatever refuses to be packed
                return hinders(its, each, value, *outer)
    return name


def _unpacked(code: bytes) -> Any:
    """The value again, with classes of its own."""
    parts = cloudpickle.cloudpickle
    shared = parts._DYNAMIC_CLASS_TRACKER_BY_ID
    parts._DYNAMIC_CLASS_TRACKER_BY_ID = WeakValueDictionary()
    try:
        return pickle.loads(code)
    finally:
        parts._DYNAMIC_CLASS_TRACKER_BY_ID = shared


class _Printed(StringIO):
    """The beginning of what is printed."""

    def write(self, text: str) -> int:
        super().write(text[: PRINTED_CHARS_MAX - self.tell()])
        return len(text)

    def close(self) -> None:
        """A function may close `sys.stdout`; what it has printed is read after that."""


class Copy:
    """A client's own copy of the function."""

    printed = ""
    """By the newest call, or while it answered."""

    def __init__(self, code: bytes, limit_s: float) -> None:
        self.code, self.function, self.running = code, None, None  # type: Any, Any, Any
        self.left_s = limit_s

    def ask(self, kind: str, value: Any) -> Said:
        with redirect_stdout(_Printed()) as out:
            said = self._run(kind, value)
        self.printed = out.getvalue()
        return said

    def _run(self, kind: str, value: Any) -> Said:
        """Call the function with these arguments, or send an answer to it."""
        try:
            setitimer(ITIMER_PROF, self.left_s)  # then SIGPROF ends this process
            if kind == "send":
                return "yields", self.running.send(value)
            if not self.function:
                self.function = _unpacked(self.code)
            self.running = self.function(*value)
            if isinstance(self.running, Generator):
                return "runs", getattr(self.running, "__name__", "")
            return "returns", self.running
        except BaseException as error:  # noqa: BLE001 - it is the result
            if kind == "send" and isinstance(error, StopIteration):
                return "returns", error.value
            at, where = error.__traceback__, ""
            while at := at and at.tb_next:
                if at.tb_frame.f_code.co_name == getattr(self.function, "__name__", ""):
                    where = f" in line {at.tb_lineno} of its code"
            used = f"it has used {MEMORY_BYTES // 2**20:,} MB"
            said = str(error) or (used if isinstance(error, MemoryError) else "")
            return "raises", f"{type(error).__name__}{where}" + (f": {said}" if said else "")
        finally:
            self.left_s = max(setitimer(ITIMER_PROF, 0)[0], 0.001)


class Interpreter:
    """A client that is a process of the operating system."""

    STARTED: ClassVar[dict[str, Interpreter]] = {}
    printed = ""

    def __init__(self, name: str, loads: str) -> None:
        self.name, (self.connection, theirs) = name, Pipe()
        path = os.pathsep.join(map(str, sys.path))
        own = {"PYTHONHASHSEED": str(sum(name.encode())), "PYTHONPATH": path}
        serving = f"serve({theirs.fileno()}, {os.getpid()})"
        program = f"import {loads}; from {__name__} import serve; {serving}"
        with theirs:
            self.process = from_lasting_thread(lambda: Popen(
                [sys.executable, "-Wignore", "-uc", program], pass_fds=[theirs.fileno()],
                env=os.environ | own, stdin=DEVNULL, start_new_session=True,
            ))  # fmt: skip
        self.STARTED[name] = self

    def ask(self, kind: str, value: Any) -> Said:
        used = -1.0
        try:
            self.connection.send((kind, value))
            for _ in range(LOOKS_MAX):
                if self.connection.poll(LIMIT_S / 2):
                    said: Said
                    said, self.printed = pickle.loads(self.connection.recv_bytes())
                    return said
                if used == (used := used_s(self.process.pid)):
                    break
        except (EOFError, OSError):
            self.kill()
            if self.process.returncode != SIGPROF:
                return "ends", "ended its process"
            what = "computed for {} s in this world"
        else:
            self.kill()
            what = "waited for {} s outside its world"
        return "endless", f"did not return: it has {what.format(round(LIMIT_S))}"

    def kill(self) -> None:
        del self.STARTED[self.name]
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, SIGKILL)
        self.process.wait()


@contextmanager
def interpreters(code: bytes) -> Iterator[Callable[..., Interpreter]]:
    """Start a client by its name; it ends with the block. It finds what this process finds now."""

    def start(name: str, loads: str = "lockkit.runtime.proven") -> Interpreter:
        about = (code, LIMIT_S), sys.path, dict(os.environ), os.getcwd()
        found = Interpreter.STARTED.get(name)
        if found and found.process.poll() is not None:  # it has ended since
            found.kill()
        found = Interpreter.STARTED.get(name) or Interpreter(name, loads)
        found.connection.send(("start", about))
        return found

    try:
        yield start
    except BaseException:  # an interrupt: an answer may still come
        for each in [*Interpreter.STARTED.values()]:
            each.kill()
        raise
    groups = group_sizes()
    for each in [*Interpreter.STARTED.values()]:
        try:
            each.connection.send(("end", b""))
            usable = groups[each.process.pid] <= OWN  # one that the function forked would answer
        except OSError:  # it has ended
            usable = False
        if not usable:
            each.kill()


def serve(number: int, parent: int) -> None:
    """Serve each function in a child, so that nothing of an earlier one is left."""
    die_with_parent(parent)
    server = os.getpid()
    while os.fork():
        if (ended := os.waitstatus_to_exitcode(os.wait()[1])) != ENDED:
            sys.exit(abs(ended))
    die_with_parent(server)
    limit_memory(MEMORY_BYTES)
    with Connection(number) as connection:
        while (request := _or_end(connection.recv))[0] != "end":
            if request[0] == "start":
                made, sys.path[:], environment, folder = request[1]
                os.environ.update(environment)
                os.chdir(folder)
                copy = Copy(*made)
                continue
            if request[0] == "play":
                play, *about = request[1]
                said = "returns", play(*about, lambda _client, made=made: Copy(*made))
            else:
                said = copy.ask(*request)
            try:
                body = packed((said, copy.printed))
            except Exception as error:  # noqa: BLE001 - whatever refuses to be packed
                why = f"TypeError: it {said[0]} {_unsendable(said[1], error)}"
                body = packed((("raises", why), copy.printed))
            _or_end(connection.send_bytes, body)
    os._exit(ENDED)


def _or_end(exchange: Callable[..., Any], *what: Any) -> Any:
    """Receive or send, or end this process in silence: the notebook has ended, or the function has
    closed the connection, or it forked, and another process read a part of the message.
    """
    try:
        return exchange(*what)
    except Exception as error:  # noqa: BLE001 - a part of a message can raise anything
        os._exit(ENDED if isinstance(error, EOFError) else 1)


def _unsendable(value: Any, error: Exception) -> str:
    """What was returned or yielded, and how to write it right, if that is known."""
    if isinstance(value, Generator):
        return "a generator: write `yield from` before it"
    if hasattr(value, "cr_code"):
        return "a coroutine: leave out `async`"
    return f"{value!r}, which another process cannot receive ({error})"
