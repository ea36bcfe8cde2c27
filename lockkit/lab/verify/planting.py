"""Plants a mistake: replaces a function of the library by a wrong one for a while.

The library has no switches for what it must never do. The explorer, the simulator, the stepper and
the tests name a mistake; within `planted`, the code that ships calls the wrong function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Literal

from lockkit.runtime import Procedure

Plants = Mapping[str, Callable[..., Any]]
"""What replaces which function, by its place (`lockkit.protocol.lease:step`)."""


def answering(value: Any) -> Callable[..., Procedure[Any]]:
    """A wrong procedure, whatever its arguments: it sends no request, and returns this value."""

    def answer(*_: Any, **__: Any) -> Procedure[Any]:
        yield from ()
        return value

    return answer


_LOCK = threading.Lock()
_SWITCHES: dict[str, _Switch] = {}


class _Switch:
    """Takes the place of a function: calls the wrong one in threads with a planted mistake."""

    def __init__(self, where: str) -> None:
        module, _, self.name = where.partition(":")
        self.module = import_module(module)
        self.right: Callable[..., Any] = getattr(self.module, self.name)
        self.wrong: dict[int, list[Callable[..., Any]]] = {}
        """By thread, the innermost last; 0 stands for all threads."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        stack = self.wrong.get(threading.get_ident()) or self.wrong.get(0)
        return (stack[-1] if stack else self.right)(*args, **options)


@contextmanager
def replaced(
    where: str, wrong: Callable[..., Any], *, threads: Literal["this", "all"] = "this"
) -> Iterator[None]:
    """`where` is `module:function`, in the module that calls it. May be nested and overlap."""
    thread = threading.get_ident() if threads == "this" else 0
    with _LOCK:
        switch = _SWITCHES.get(where)
        if switch is None:
            switch = _SWITCHES[where] = _Switch(where)
            setattr(switch.module, switch.name, switch)
        switch.wrong.setdefault(thread, []).append(wrong)
    try:
        yield
    finally:
        with _LOCK:
            stack = switch.wrong[thread]
            stack.remove(wrong)
            if not stack:
                del switch.wrong[thread]
            if not switch.wrong:
                setattr(switch.module, switch.name, switch.right)
                del _SWITCHES[where]


@contextmanager
def planted(plants: Plants, *, threads: Literal["this", "all"] = "this") -> Iterator[None]:
    """Replace these functions."""
    with ExitStack() as stack:
        for where, instead in plants.items():
            stack.enter_context(replaced(where, instead, threads=threads))
        yield
