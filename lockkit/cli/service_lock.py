"""`lockkit lock show | watch | break` for the lock of a service: ZooKeeper, DynamoDB, Hive, ..."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    OK,
    USAGE,
    CommandError,
    clock_time,
    say,
    say_json,
    store_options,
    warn,
)
from lockkit.clock import Clock
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.providers.holder import ServiceHolder
    from lockkit.providers.leased import LeasedLock

POLL_S = 1.0
WAITING_MAX = 20


def is_service(url: str) -> bool:
    from lockkit.providers.urls import SERVICES

    return url.partition("://")[0].lower() in SERVICES


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[LeasedLock]:
    from lockkit.providers import open_lock

    scheme = args.url.partition("://")[0].lower()
    for name in ("newest", "watch_s"):
        if getattr(args, name, None) is not None:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} is for the lock of a table, not of a service", code=USAGE)
    given = {name for name in store_options(args) if name != "timeout_s"}
    if given:
        raise CommandError(f"{scheme}:// takes its options after a ?", code=USAGE)
    if scheme == "process":
        raise CommandError("process:// is a lock within one interpreter", code=USAGE)
    try:
        lock: Any = open_lock(args.url)
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    with closing(lock):
        yield lock


def _within(seconds: float) -> AbstractContextManager[None]:
    from lockkit.stores.within import within

    return within(seconds)


def show(args: argparse.Namespace) -> int:
    with _opened(args) as lock, _within(args.timeout_s):
        found = lock.holder()
    if args.json:
        say_json({"url": args.url} | _fields(found))
    else:
        say(plain(args.url), *(f"  {line}" for line in _lines(found)))
    return OK


def watch(args: argparse.Namespace) -> int:
    """Until Ctrl-C. A service that does not answer is named once, and asked again."""
    from lockkit.errors import NoAnswer

    clock, before, silent = Clock(), None, False
    with _opened(args) as lock:
        while True:
            try:
                with _within(args.timeout_s):
                    found, silent = lock.holder(), False
            except NoAnswer as error:
                if not silent:
                    warn(plain(error, limit=300))
                silent = True
            else:
                now = _fields(found)
                if now != before:
                    if args.json:
                        say_json({"at_ms": clock.wall_ms()} | now)
                    else:
                        say(f"{clock_time(clock.wall_ms())}  {_lines(found)[0]}")
                before = now
            clock.sleep(max(args.interval_s or 0.0, POLL_S))


def break_it(args: argparse.Namespace) -> int:
    """Show it, or, with the version that was shown, end that grant."""
    from lockkit.errors import BreakRefused

    if args.epoch is not None:
        raise CommandError("a service's lock is broken by --version alone", code=USAGE)
    with _opened(args) as lock, _within(args.timeout_s):
        found = lock.holder()
        if not args.json:
            say(plain(args.url), *(f"  {line}" for line in _lines(found)))
        if found is None:
            _tell(args, {"broken": False, "version": None}, "nothing to break")
            return OK
        if args.version is None:
            words = ["lockkit", "lock", "break", args.url, "--version", found.version]
            line = f"nothing was changed; to break it: {plain(shlex.join(words), limit=1000)}"
            if not args.json:
                say("make sure first that its holder is dead: the service does not stop it")
            _tell(args, {"broken": False, "version": found.version}, line)
            return OK
        try:
            lock.break_lock(args.version)
        except BreakRefused as refused:
            raise CommandError(plain(refused, limit=600), code=BUSY) from None
    _tell(args, {"broken": True, "version": args.version}, "broken: the lock is free now")
    return OK


def _tell(args: argparse.Namespace, fields: dict[str, Any], line: str) -> None:
    if args.json:
        say_json({"url": args.url} | fields)
    else:
        say(line)


def _fields(found: ServiceHolder | None) -> dict[str, Any]:
    if found is None:
        return {"state": "free"}
    return {
        "state": "held", "owner": found.owner, "since_ms": found.since_ms,
        "renewed_ms": found.renewed_ms, "ends": found.ends, "version": found.version,
        "waiting": list(found.waiting),
    }  # fmt: skip


def _lines(found: ServiceHolder | None) -> list[str]:
    if found is None:
        return ["free"]
    lines = [f"held: {plain(found.owner)}"]
    for name, at_ms in (("since", found.since_ms), ("renewed", found.renewed_ms)):
        if at_ms is not None:
            lines.append(f"{name:8} {clock_time(at_ms)} (the service's clock)")
    lines.append(f"ends     {found.ends}")
    if found.version:
        note = "" if found.certain else " (Azure gives the next grant the same)"
        lines.append(f"version  {plain(found.version)}{note}")
    lines += [f"waiting  {plain(each)}" for each in found.waiting[:WAITING_MAX]]
    if len(found.waiting) > WAITING_MAX:
        lines.append(f"         and {len(found.waiting) - WAITING_MAX} more")
    return lines
