"""`lockkit lock acquire`: run a command while holding a lock, as flock(1) does."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from lockkit.cli.terminal import (
    BUSY,
    EXIT_FAILED,
    LOST,
    USAGE,
    CommandError,
    add_store,
    clock_time,
    command,
    option,
    seconds,
    store_options,
    warn,
)
from lockkit.cli.work import ENDING, POLL_S, Work
from lockkit.clock import Clock
from lockkit.errors import LockLost, StoreError
from lockkit.events import plain
from lockkit.providers import open_lock
from lockkit.sinks import Emit, silent

if TYPE_CHECKING:
    from lockkit.lock.handle import Lock
    from lockkit.providers.leased import LeasedLock

ABOUT = """\
Takes the table's lock, runs a command while it renews the lease, and releases the lock, like
flock(1). If the lease is lost, it stops the command and the processes that the command started
(SIGTERM, then SIGKILL). If lockkit itself is killed, a guard does the same; the guard is the
command's parent process.
It sends SIGTERM, SIGHUP, SIGQUIT and Ctrl-C on to the command and these processes, once each, and
waits for the command to end. It kills the processes that remain 5 s later, and releases the lock.
On Linux it finds all processes that the command started; elsewhere it finds the process group, and
in a terminal only the command itself. If the command ends without a signal, the lock is released,
and the command's background processes run on without it.
The command finds the epoch of its grant in the environment variable LOCKKIT_EPOCH, if the lock has
one; on a table the epoch is above that of the fence. While it waits, it names the holder on
standard error. Exit: the command's own code (128 + n for signal n); 130 after Ctrl-C; 75 if another
owner held the lock until the timeout; 3 if the store or the service did not answer, or the guard
was killed; 76 if the lease was lost.

Other services' locks have URLs too. Their options, except --timeout, follow a ?:
  zookeeper://host:2181,host:2181/base/path/key    dynamodb://region/table/key?endpoint=http://...
  hive://host:9083/database/table                  azure-lease://container/blob?account_url=...
  filesystem:///folder?expire_minutes=5"""

EXAMPLE = """\
lockkit lock acquire s3://bucket/table --timeout 60 -- python compact.py
lockkit lock acquire filesystem:///lake/orders/.hoodie --timeout 60 -- python compact.py"""

TTL_S = 30
OPENING_S_MIN = 10.0
"""A store may be opened for as long as the wait, and at least so long: it looks for credentials."""
NEWEST = 20
"""Generations of the lock object that are read to find when its holder took it."""


def add(verbs: Any) -> None:
    parser = command(
        verbs, "acquire", help="run a command while holding the lock", about=ABOUT, example=EXAMPLE
    )
    parser.usage = "lockkit lock acquire [options] URL -- COMMAND [argument ...]"
    parser.add_argument(
        "url",
        metavar="URL",
        help="URL of the table (s3://, gs://, az://, abfss://, file:///), or one of the above",
    )
    option(parser, "--ttl-s", "S", f"length of the lease (default {TTL_S})", kind=float)
    option(
        parser, "--renew-interval-s", "S",
        "seconds between renewals (default: a tenth of the lease)", kind=float,
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds, metavar="S",
        help="longest wait for the lock (default: no limit; 0: try once)",
    )  # fmt: skip
    add_store(parser, per_request=False)
    parser.set_defaults(run=run, name="lock acquire", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    if not args.after:
        raise CommandError("name a command to run: lockkit lock acquire URL -- COMMAND", code=USAGE)
    waits = args.timeout is None or args.timeout > 0
    notice = WaitNotice(args.name)
    from lockkit.stores.within import within

    opening_s = math.inf if args.timeout is None else max(OPENING_S_MIN, args.timeout)
    try:
        with within(opening_s):
            lock = opened(args, notice)
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    notice.lock = lock if waits else None

    def command() -> int:
        if not rise_above_fence(lock):
            return LOST
        epoch = lock.fence.epoch if lock.fence else None
        known = {} if epoch is None else {"LOCKKIT_EPOCH": str(epoch)}
        return under(lock.owned, args.after, known, args.name)

    return holding(lock, args.timeout, command, args.name)


def holding(
    lock: Lock | LeasedLock, timeout_s: float | None, command: Callable[[], int], name: str
) -> int:
    """Take the lock within `timeout_s` (0: one try; None: for ever), run the command, release.

    Returns the exit code; raises `CommandError` if another owner held it, or no answer came.
    """
    waits = timeout_s is None or timeout_s > 0
    # A signal here ends the wait, and gives a grant that has just come back, as Ctrl-C does.
    with handled(ENDING, ends):
        if not lock.acquire(blocking=waits, timeout=timeout_s if waits else None):
            code = EXIT_FAILED if unanswered(lock) else BUSY
            raise CommandError(plain(lock.busy_reason(), limit=1000), code=code)
        code = LOST
        try:
            code = command()
        finally:
            with handled((signal.SIGINT, *ENDING), ignored):
                code = released(lock, name) or code
    return code


def unanswered(lock: Lock | LeasedLock) -> bool:
    """Whether an acquire ended without a single answer that named the holder.

    Other services' locks raise `NoAnswer` then.
    """
    from lockkit.lock.handle import Lock

    return isinstance(lock, Lock) and lock._client.busy is None and bool(lock._client.last_failure)


class WaitNotice:
    """Names on standard error each holder that an acquire waits for, once, and a ghost it left."""

    def __init__(self, name: str) -> None:
        self.lock: Lock | LeasedLock | None = None
        self._of = name
        self._named: tuple[str, int] | None = None

    def __call__(self, kind: str, *, owner: str = "", epoch: int = 0, **more: Any) -> None:
        if more.get("ghost"):
            warn(f"lockkit {self._of}: {plain(more['text'])}")
        from lockkit.lock.oddities import GARBLED

        # A renewal is a new record of the same holder. Of a garbled one there is a warning.
        known = (owner, epoch) == self._named or owner.startswith(GARBLED)
        if kind != "waiting" or self.lock is None or known:
            return
        self._named = (owner, epoch)
        of = f", epoch {epoch}" if epoch else ""
        warn(f"lockkit {self._of}: waiting for {plain(owner, limit=100)}{of}{since(self.lock)}")


def since(lock: Lock | LeasedLock) -> str:
    """Since when its holder has it, by the store's clock; "" where that cannot be read."""
    from lockkit.lock.handle import Lock
    from lockkit.table.inspect.versions import generations, granted_ms

    try:
        if not isinstance(lock, Lock):
            held = lock.holder()
            if held is None or held.since_ms is None:
                return ""
            return f", which has it since {clock_time(held.since_ms)} ({held.clock})"
        kept = generations(lock.store, newest=NEWEST)
    except StoreError:
        return ""
    granted = granted_ms(kept)
    if granted is None:
        return ""
    # Older generations of the same grant may have been left out, or were never kept.
    earlier = " or before" if granted == kept[-1].number.modified_ms else ""
    return f", which has it since {clock_time(granted)}{earlier}"


def rise_above_fence(lock: Lock | LeasedLock) -> bool:
    """Raise the grant's epoch above the table's fence, as a commit does; False: the lease is lost.

    Epochs restart if the lock object was deleted, and the command would get an epoch that was
    granted before. Raises `TableError` if the fence cannot be read.
    """
    from lockkit.lock.handle import Lock
    from lockkit.runtime import run as carry_out
    from lockkit.table.occ.fence import read_fence

    if not isinstance(lock, Lock):
        return True
    fence = carry_out(read_fence(), lock.store, lock.clock).fence
    try:
        if fence is not None:
            lock.rise_above(fence.epoch)
    except LockLost as lost:
        warn(f"lockkit lock acquire: {plain(lost)}")
        return False
    return True


def opened(args: argparse.Namespace, emit: Emit = silent) -> Lock | LeasedLock:
    """Raises `ValueError` for an option that this kind of lock does not take."""
    from lockkit.cli.service_lock import STATE
    from lockkit.lock.handle import Lock
    from lockkit.providers.urls import SERVICES

    lease = {"ttl_s": args.ttl_s, "renew_interval_s": args.renew_interval_s}
    options = store_options(args) | {key: each for key, each in lease.items() if each is not None}
    scheme = args.url.partition("://")[0].lower()
    if scheme == "process":
        raise ValueError("process:// is a lock within one interpreter: it excludes no command")
    if args.url.endswith(STATE):
        raise ValueError("a Terraform state has its own lock: lockkit tflock run URL -- COMMAND")
    if scheme not in SERVICES:
        return Lock(args.url, emit=emit, **{"ttl_s": TTL_S} | options)
    if options:
        raise ValueError(f"{scheme}:// takes options after a ?, but not {', '.join(options)}")
    return open_lock(args.url, emit=emit)


def released(lock: Lock | LeasedLock, name: str) -> int:
    """Release the lock; `LOST` if the lease was lost before the command ended."""
    try:
        lock.release()
    except LockLost as lost:
        warn(f"lockkit {name}: {plain(lost)}")
        return LOST
    return 0


def under(
    owned: Callable[[], bool], line: list[str], environment: Mapping[str, str], name: str
) -> int:
    """Run the command, stop it as soon as the lease is lost, and return its exit code."""
    clock, received, signalled, code = Clock(), list[int](), False, None
    interrupted = False
    # Starts before the command: a signal in between would end us and leave the command running.
    with handled((signal.SIGINT, *ENDING), received.append), Work(line, environment) as work:
        while code is None:
            code = work.poll()  # before the signals: one may have ended it
            if code is None and not owned():
                work.stop(signal.SIGTERM)
                warn(f"lockkit {name}: the command was stopped, because the lease is lost")
                return LOST
            interrupted |= signal.SIGINT in received
            signalled |= work.pass_on(received)  # the loop ends with the command
            if code is None:
                clock.sleep(POLL_S)
        if signalled:
            work.stop(None)  # what the command has started, and not waited for
    if interrupted:
        raise KeyboardInterrupt  # the work has ended: now the lock can be released
    return code if code >= 0 else 128 - code


@contextmanager
def handled(numbers: Iterable[signal.Signals], handle: Callable[[int], object]) -> Iterator[None]:
    """While the block runs, these signals call `handle`. An ignored signal stays ignored: a shell
    starts background jobs like that, and a Ctrl-C on its terminal is not meant for them.
    """
    before = {
        each: signal.signal(each, lambda number, _: handle(number))
        for each in numbers
        if signal.getsignal(each) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ends(number: int) -> NoReturn:
    raise SystemExit(128 + number)


def ignored(_number: int) -> None:
    """A release is under way already."""
