"""`lockkit tflock`: the lock file of a Terraform state: show it, take it, remove it by its ID."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    FOUND,
    OK,
    UNKNOWN,
    USAGE,
    CommandError,
    add_store,
    command,
    flag,
    option,
    report,
    seconds,
    store_options,
    warn,
)
from lockkit.errors import LockkitError
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.recipes.terraform.lockinfo import ForeignLock, LockInfo
    from lockkit.recipes.terraform.move import StateMove
    from lockkit.recipes.terraform.statelock import StateLock

ABOUT = """\
Works with the lock file beside a Terraform state (use_lockfile), as Terraform and OpenTofu write
and read it. The lock file never expires. Only its holder removes it, or a person who knows that
the holder is dead."""

SHOW = """\
Shows who holds the state's lock. It only reads. Exit 0: unlocked; 75: locked; 1: the object is not
a lock file, but Terraform respects it as one."""

LOCK = """\
Takes the state's lock and prints its ID, which unlock needs. While another owner holds the lock,
it tries again as Terraform does, after 1 s, doubling to 16 s, until the timeout. Exit 0: taken;
75: another owner holds it; 2: no answer, so the lock may be taken now or later."""

UNLOCK = """\
Removes the lock that has this ID, if your own user took it on this host. Exit 0: removed; 1: no
such lock, and nothing was removed; 2: no answer, so the lock may be removed or not."""

FORCE = """\
Removes the lock that has this ID, also if another user took it. First make sure that its holder is
dead: a holder that is alive continues without a lock. The exit codes are those of unlock."""

RUN = """\
Runs a command while holding the state's lock as a lease. The lock file is Terraform's own, and is
renewed three times per lease. If this machine dies, another tflock run takes the lock over after
one lease. A lock that Terraform itself took is never taken over. The command finds -lock=false in
TF_CLI_ARGS_plan, TF_CLI_ARGS_apply and so on, because the lock is held already. If the lease is
lost, the command and what it started are stopped (SIGTERM, then SIGKILL); requests that Terraform
sent before may still arrive. A guard, which is the command's parent process, does the same if
lockkit itself is killed. SIGTERM, SIGHUP, SIGQUIT and Ctrl-C go to the command and to what it
started, once each. The command may take its time to end; what it leaves behind is killed 5 s later,
and the lock is released. Only Linux tells all that it started; elsewhere that is its process group,
and in a terminal, where it shares the group of lockkit, the command alone. If it ends without a
signal, the lock is released, and what it left in the background runs on without it. Exit: the
command's own code (128 + n for signal n); 130 after Ctrl-C; 75 if another owner held the lock until
the timeout; 3 if the store did not answer, or the guard was killed; 76 if the lease was lost."""

MOVE = """\
Moves a state's lock from Terraform's DynamoDB table to the lock file, without a gap:
1. It takes the lock in the table. This item stays as a marker. It stops every run that is still
   configured for the table, and says what to configure.
2. It takes the lock file, and runs the command, if there is one, while it holds both locks.
3. It releases the lock file. From now on only the lock file counts.
If it cannot take the lock file, or the command fails, it removes the marker, and the table counts
as before, unless a move has ended before. If a move was interrupted, or somebody removed the marker
(terraform force-unlock does), run the same command again. The first signal takes the move back;
further ones are ignored while it does. A move that was killed (SIGKILL, a crash) may leave the lock
file, which never expires: remove it first with lockkit tflock force-unlock. --undo removes the
marker, and the checksum of the state in the table, which is out of date, while it holds the lock
file. Exit: 0; the command's own code; 75 if another run holds one of the locks."""

EXAMPLE = """\
lockkit tflock run s3://bucket/prod/terraform.tfstate --ttl 60 -- terraform apply
lockkit tflock move s3://bucket/prod/terraform.tfstate --table dynamodb://us-east-1/terraform-locks
lockkit tflock show s3://bucket/prod/terraform.tfstate
lockkit tflock lock s3://bucket/prod/terraform.tfstate --lock-timeout 60
lockkit tflock force-unlock s3://bucket/prod/terraform.tfstate 3f1c0d9e-..."""


def add(commands: Any) -> None:
    top = command(commands, "tflock", about=ABOUT, example=EXAMPLE)
    verbs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, about, help in (
        ("show", show, SHOW, "show who holds the lock"),
        ("run", run_command, RUN, "run a command while holding the lock as a lease"),
        ("move", move, MOVE, "move the lock from Terraform's DynamoDB table to the lock file"),
        ("lock", lock, LOCK, "take the lock, and print its ID"),
        ("unlock", unlock, UNLOCK, "remove your own lock, by its ID"),
        ("force-unlock", force_unlock, FORCE, "remove any lock, by its ID"),
    ):  # fmt: skip
        parser = command(verbs, name, help=help, about=about, example=EXAMPLE)
        parser.add_argument(
            "url", metavar="URL", help="URL of the state: s3://bucket/key, gs://, ..."
        )
        if name.endswith("unlock"):
            parser.add_argument(
                "id", metavar="ID", help="ID of the lock, as lockkit tflock show prints it"
            )
        if name == "move":
            parser.usage = "lockkit tflock move [options] URL --table URL [-- COMMAND ...]"
            parser.add_argument(
                "--table", required=True, metavar="URL",
                help="Terraform's table: dynamodb://REGION/TABLE, with ?endpoint=URL if needed",
            )  # fmt: skip
            flag(parser, "--undo", "move the lock back to the table")
        if name in ("lock", "move"):
            parser.add_argument(
                "--lock-timeout", type=seconds, default=0.0, metavar="S",
                help="longest wait (default: 0, try once)",
            )  # fmt: skip
        if name == "run":
            parser.usage = "lockkit tflock run [options] URL -- COMMAND [argument ...]"
            option(parser, "--ttl", "S", "length of the lease", 60.0)
            says = "longest wait (default: no limit; 0: try once)"
            option(parser, "--lock-timeout", "S", says, kind=seconds)
        if name in ("lock", "run"):
            parser.add_argument(
                "--operation", default="lockkit tflock", metavar="TEXT",
                help="shown to others as the reason of the lock (default: lockkit tflock)",
            )  # fmt: skip
        parser.add_argument(
            "--workspace", default="default", metavar="NAME", help="Terraform's workspace"
        )
        parser.add_argument(
            "--workspace-key-prefix", default="env:", metavar="PREFIX",
            help="workspace_key_prefix of the backend (default env:)",
        )  # fmt: skip
        if name == "run":
            add_store(parser, per_request=False)
        else:
            parser.add_argument("--json", action="store_true", help="JSON, for programs")
            alone = name in ("lock", "move")
            add_store(
                parser, time_is=f"limit {'per request' if alone else 'for all requests together'}"
            )
        parser.set_defaults(run=run, name=f"tflock {name}", extra="s3,gcs,azure")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[StateLock]:
    """Open it, with errors as exit codes. All requests of a look or unlock share one time limit."""
    from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
    from lockkit.recipes.terraform.statelock import StateLock
    from lockkit.stores.within import within

    def emit(kind: str, **data: Any) -> None:
        if kind == "note":
            warn(f"lockkit {args.name}: {plain(data['text'])}")

    state = StateLock(
        args.url, workspace=args.workspace, workspace_key_prefix=args.workspace_key_prefix,
        emit=emit, **store_options(args),
    )  # fmt: skip
    # `lock` has its own limit, and time afterwards to prove or to undo what it has written.
    limit_s = math.inf if args.name in ("tflock lock", "tflock move") else args.timeout_s
    with closing(state), within(limit_s):
        try:
            yield state
        except StateLocked as error:
            raise CommandError(plain(error, limit=1000), code=BUSY) from None
        except NotLocked as error:
            raise CommandError(plain(error, limit=1000), code=FOUND) from None
        except LockUnknown as error:
            raise CommandError(plain(error, limit=1000), code=UNKNOWN) from None


def show(args: argparse.Namespace) -> int:
    from lockkit.recipes.terraform.lockinfo import ForeignLock

    with opened(args) as state:
        found = state.show().info
        if isinstance(found, ForeignLock):
            lines = [f"is not a lock file: {plain(found.why)}; Terraform respects it as a lock"]
        else:
            lines = [f"is held by {found}" if found else "is unlocked"]
            lines += [f"  {plain(found.info)}"] if found and found.info else []
        lines[0] = f"{plain(state.key)} {lines[0]}"
        report(args, {"key": state.key, **fields(found)}, *lines)
    if found is None:
        return OK
    return FOUND if isinstance(found, ForeignLock) else BUSY


def run_command(args: argparse.Namespace) -> int:
    from lockkit.cli.acquire import WaitNotice, holding, under
    from lockkit.recipes.terraform.lease import StateLease, without_locking

    if not args.after:
        raise CommandError("name a command to run: lockkit tflock run URL -- COMMAND", code=USAGE)
    notice = WaitNotice(args.name)
    try:
        lease = StateLease(
            args.url, ttl_s=args.ttl, operation=args.operation, workspace=args.workspace,
            workspace_key_prefix=args.workspace_key_prefix, store_options=store_options(args),
            emit=notice,
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    notice.lock = None if args.lock_timeout == 0 else lease
    with closing(lease):
        return holding(
            lease, args.lock_timeout,
            lambda: under(lease.owned, args.after, without_locking(os.environ), args.name),
            args.name,
        )  # fmt: skip


class _CommandFailed(Exception):
    """The command of a move ended with another code than 0."""


def move(args: argparse.Namespace) -> int:
    from lockkit.cli.acquire import under
    from lockkit.recipes.terraform.lease import without_locking
    from lockkit.recipes.terraform.move import DynamoItems, StateMove

    try:
        table = DynamoItems(args.table, timeout_s=args.timeout_s)
    except ValueError as error:
        raise CommandError(plain(error), code=USAGE) from None
    with first_signal_ends(args.name), closing(table), opened(args) as state:
        way = StateMove(state, table, acquire_timeout=args.lock_timeout)
        if args.undo:
            with taken_back(way, args.name):
                done: dict[str, Any] = {"undone": way.undo()}
            line = "the table counts again" if done["undone"] else "there was no marker"
        else:
            code = 0
            try:
                with taken_back(way, args.name), to_its_end(way):
                    if args.after:
                        environment = without_locking(os.environ)
                        code = under(lambda: True, args.after, environment, args.name)
                    if code:
                        raise _CommandFailed
            except _CommandFailed:
                warn(f"lockkit {args.name}: the command failed: {in_force(way)}")
                return code
            marker = way.marker
            if way.rewritten:
                warn(
                    f"lockkit {args.name}: somebody removed the marker meanwhile (terraform "
                    "force-unlock?), so a run may have locked the table alone; it was written again"
                )
            done = {"moved": True, "marker": marker.id}
            line = f"moved: only the lock file counts; the table keeps the marker {done['marker']}"
    report(args, {"key": state.key, "table": table.url, **done}, plain(line))
    return OK


@contextmanager
def taken_back(way: StateMove, name: str) -> Iterator[None]:
    """A signal may cut short even what a failed move takes back: then it is done once more."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as signalled:
        try:
            way.take_back()
        except LockkitError as failed:
            stays = "the marker and the lock file may stay: repeat the move, or undo it"
            signalled.add_note(f"{stays}: {failed}")
        else:
            warn(f"lockkit {name}: {in_force(way)}")
        raise


def in_force(way: StateMove) -> str:
    """Which lock counts after a move that was taken back."""
    from lockkit.recipes.terraform.move import MOVED

    if way.stays is None:
        return "the lock table stays in force"
    if way.stays.operation == MOVED:
        return "a move has ended before, so only the lock file counts"
    return "the marker of another move has locked the table"


@contextmanager
def first_signal_ends(name: str) -> Iterator[None]:
    """The first signal takes back what the block has done, and no further one cuts that short.

    A lock file never expires, so one that stays blocks everybody until a human removes it.
    """
    from lockkit.cli.acquire import ends, handled, ignored
    from lockkit.cli.work import ENDING

    every, quiet = (signal.SIGINT, *ENDING), ExitStack()

    def first(number: int) -> None:
        quiet.enter_context(handled(every, ignored))
        with suppress(OSError):  # not `print`, which may be under way
            os.write(2, f"lockkit {name}: takes back what it has locked\n".encode())
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        ends(number)

    with handled(every, first), quiet:
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as signalled:
            for note in getattr(signalled, "__notes__", ()):
                warn(f"lockkit {name}: {plain(note, limit=1000)}")
            raise


@contextmanager
def to_its_end(way: StateMove) -> Iterator[None]:
    """The move, whose end no further signal cuts short."""
    from lockkit.cli.acquire import handled, ignored
    from lockkit.cli.work import ENDING

    with ExitStack() as quiet, way:
        try:
            yield
        finally:
            quiet.enter_context(handled((signal.SIGINT, *ENDING), ignored))


def lock(args: argparse.Namespace) -> int:
    with first_signal_ends(args.name), opened(args) as state:
        try:
            mine = state.lock(operation=args.operation, acquire_timeout=args.lock_timeout)
            report(args, {"key": state.key, **fields(mine)}, mine.id)
        except BaseException:
            if state.held is not None:
                state.unlock()  # nobody has learned its ID
            raise
    return OK


def unlock(args: argparse.Namespace) -> int:
    from lockkit.recipes.errors import NotLocked
    from lockkit.recipes.terraform.lockinfo import LockInfo, who

    with opened(args) as state:
        found = state.show().info
        if isinstance(found, LockInfo) and found.id == args.id and found.who != who():
            raise NotLocked(
                state.key,
                f"is held by {found}, and you are {who()}",
                "if the lock is yours, or its holder is dead: lockkit tflock "
                f"force-unlock URL {shlex.quote(plain(args.id))}",
            )
        return removed(args, state)


def force_unlock(args: argparse.Namespace) -> int:
    with opened(args) as state:
        return removed(args, state)


def removed(args: argparse.Namespace, state: StateLock) -> int:
    state.force_unlock(args.id)
    report(args, {"key": state.key, "unlocked": args.id}, f"{plain(state.key)} is unlocked")
    return OK


def fields(found: LockInfo | ForeignLock | None) -> dict[str, Any]:
    from lockkit.recipes.terraform.lockinfo import ForeignLock, as_fields

    match found:
        case None:
            return {"state": "unlocked"}
        case ForeignLock(why):
            return {"state": "foreign", "garbled": why}
        case _:
            return {"state": "locked", **as_fields(found)}
