"""`lockkit lock show | watch | break` for the lock of a service (ZooKeeper, DynamoDB, ...) and for
that of a Terraform state.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    FOUND,
    OK,
    UNKNOWN,
    USAGE,
    CommandError,
    clock_time,
    completed,
    report,
    say,
    say_json,
    store_options,
    warn,
)
from lockkit.clock import Clock
from lockkit.errors import BreakRefused, NoAnswer, clipped
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.providers.holder import ServiceHolder
    from lockkit.providers.leased import LeasedLock

POLL_S = 1.0
WAITING_MAX = 20
OWNER_MAX = 1_000
"""Characters; another program's record may have an owner of some hundred kilobytes."""


STATE = ".tfstate"


def is_service(url: str) -> bool:
    """Whether the lock of this URL is a service's, or a Terraform state's: not a table's."""
    from lockkit.providers.urls import SERVICES

    return url.partition("://")[0].lower() in SERVICES or url.endswith(STATE)


def open_service(url: str, options: Mapping[str, Any]) -> LeasedLock:
    """The lock at `url`, to look at it and to break it. Raises `ValueError`, `StoreError`.

    `options` are those of a store; only a Terraform state's lock is in one.
    """
    from lockkit.providers import open_lock

    scheme = url.partition("://")[0].lower()
    if url.endswith(STATE):
        from lockkit.recipes.terraform.lease import StateLease

        return StateLease(url, store_options=options)
    if set(options) - {"timeout_s"}:
        raise ValueError(f"{scheme}:// takes its options after a ?")
    if scheme == "process":
        raise ValueError("process:// is a lock within one interpreter")
    lock: Any = open_lock(url)
    return lock  # type: ignore[no-any-return]


@contextmanager
def opened(args: argparse.Namespace, url: str) -> Iterator[LeasedLock]:
    """`open_service` for a command. Its mistakes are those of the call."""
    for name in ("newest",) if args.name == "incident" else ("newest", "watch_s"):
        if getattr(args, name, None) is not None:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} is for the lock of a table, not of a service", code=USAGE)
    try:
        lock = open_service(url, store_options(args))
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    with closing(lock):
        yield lock


def _within(seconds: float) -> AbstractContextManager[None]:
    from lockkit.stores.within import within

    return within(seconds)


def show(args: argparse.Namespace) -> int:
    with opened(args, args.url) as lock, _within(args.timeout_s):
        found = lock.holder()
    lines = (f"  {line}" for line in holder_lines(found))
    report(args, holder_fields(found), plain(args.url), *lines)
    missed = found is not None and found.missed(Clock().wall_ms())
    return {False: OK, True: FOUND, None: UNKNOWN}[missed]


def watch(args: argparse.Namespace) -> int:
    """Until Ctrl-C. If the service does not answer, that is printed once; requests continue."""
    clock, before, silent = Clock(), None, False
    lines: list[str] = []
    with opened(args, args.url) as lock:
        while True:
            try:
                with _within(args.timeout_s):
                    found, silent = lock.holder(), False
            except NoAnswer as error:
                if not silent:
                    warn(plain(error, limit=300))
                silent = True
            else:
                now = holder_fields(found)
                if now != before:
                    if args.json:
                        say_json({"at_ms": clock.wall_ms()} | now)
                    else:
                        said = holder_lines(found)
                        new = [each for each in said[1:] if each not in lines] if lines else []
                        new = new if lines[:1] == said[:1] else []
                        say(f"{clock_time(clock.wall_ms())}  {'; '.join([said[0], *new])}")
                        lines = said
                before = now
            clock.sleep(max(args.interval_s or 0.0, POLL_S))


def break_it(args: argparse.Namespace) -> int:
    """Show it, or, with the version that was shown, end that grant."""
    if args.epoch is not None:
        raise CommandError("a service's lock has no --epoch: use --version and --force", code=USAGE)
    if args.force and args.version is None:
        raise CommandError("--force needs the --version that was shown, too", code=USAGE)
    with opened(args, args.url) as lock, _within(args.timeout_s):
        found = lock.holder()
        if not args.json:
            say(plain(args.url), *(f"  {line}" for line in holder_lines(found)))
        if found is None:
            report(args, {"broken": False, "version": None}, "nothing to break")
            return OK
        if args.version is None:
            return _preview(args, found)
        try:
            lock.break_lock(args.version, force=args.force)
        except BreakRefused as refused:
            raise CommandError(plain(refused, limit=600), code=BUSY) from None
    report(args, {"broken": True, "version": args.version}, "broken: the lock is free now")
    return OK


def _preview(args: argparse.Namespace, found: ServiceHolder) -> int:
    words = ["lockkit", "lock", "break", args.url, "--version", found.version]
    line = f"nothing was changed; to break it: {completed(plain(shlex.join(words), limit=1000))}"
    breakable, why = found.breakable
    said = {"broken": False, "breakable": breakable, "why": why, "version": found.version}
    if breakable is False:
        report(args, said, "must not be broken now")
        return BUSY
    report(args, said, line)
    return OK


def holder_fields(found: ServiceHolder | None) -> dict[str, Any]:
    if found is None:
        return {"state": "free"}
    breakable, why = found.breakable
    return {
        "state": "held", "owner": clipped(found.owner, OWNER_MAX), "since_ms": found.since_ms,
        "renewed_ms": found.renewed_ms, "clock": found.clock, "ends": found.ends,
        "version": found.version, "waiting": list(found.waiting[:WAITING_MAX]),
        "waiting_count": len(found.waiting), "process": found.process,
        "process_lives": found.process_state.lives, "process_state": found.process_state.value,
        "breakable": breakable, "why": why,
    }  # fmt: skip


def holder_facts(found: ServiceHolder) -> list[tuple[str, str]]:
    """(name, value) of each fact that the service reports, the owner first."""
    facts = [("held", plain(found.owner, limit=300))]
    if found.process:
        said = found.process_state.value
        facts.append(("process", plain(found.process, limit=300) + (said and f"; {said}")))
    for name, at_ms in (("since", found.since_ms), ("renewed", found.renewed_ms)):
        if at_ms is not None:
            facts.append((name, f"{clock_time(at_ms)} ({found.clock})"))
    facts += [("renews", f"no: {each}")] if (each := found.overdue(Clock().wall_ms())) else []
    facts.append(("ends", found.ends))
    breakable, why = found.breakable
    said = {True: "yes", False: "no", None: "only a person can decide"}[breakable]
    facts.append(("break", f"{said}: {plain(why)}"))
    if found.version:
        note = "" if found.certain else " (another program's lease: the next one may have the same)"
        facts.append(("version", f"{plain(found.version)}{note}"))
    facts += [("waiting", plain(each, limit=300)) for each in found.waiting[:WAITING_MAX]]
    if len(found.waiting) > WAITING_MAX:
        facts.append(("waiting", f"and {len(found.waiting) - WAITING_MAX} more"))
    return facts


def holder_lines(found: ServiceHolder | None) -> list[str]:
    if found is None:
        return ["free"]
    (_, owner), *facts = holder_facts(found)
    return [f"held: {owner}", *(f"{name:8} {value}" for name, value in facts)]
