"""`lockkit tflock`: the lock file of a Terraform state: show it, take it, remove it by its ID."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    FOUND,
    OK,
    UNKNOWN,
    CommandError,
    add_store,
    command,
    say,
    say_json,
    store_options,
    warn,
)
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.recipes.terraform.lockinfo import ForeignLock, LockInfo
    from lockkit.recipes.terraform.statelock import StateLock

ABOUT = """\
The lock file beside a Terraform state (`use_lockfile`), as Terraform and OpenTofu write and read
it. It never expires: only its holder, or a human who knows that its holder is dead, removes it."""

SHOW = """\
Who holds the state's lock. Reads only. Exit 0: unlocked; 75: locked; 1: what is there is no lock
file, which locks all the same."""

LOCK = """\
Take the state's lock and print its ID; `unlock` it by that ID. Waits for others as Terraform does,
1 s doubling to 16 s, until the time-out. Exit 75: another owner holds it; 2: no answer, so the lock
may be taken now or later."""

UNLOCK = """\
Remove the lock of your own user and host that has this ID. Exit 1: no such lock, and nothing was
removed; 2: no answer, so it may be removed or not."""

FORCE = """\
Remove the lock that has this ID, whosoever it is. Its holder, if it lives, works on without a lock:
make sure that it is dead. Exit as `unlock`."""

EXAMPLE = """\
lockkit tflock show s3://bucket/prod/terraform.tfstate
lockkit tflock lock s3://bucket/prod/terraform.tfstate --lock-timeout 60
lockkit tflock force-unlock s3://bucket/prod/terraform.tfstate 3f1c0d9e-..."""


def add(commands: Any) -> None:
    top = command(
        commands, "tflock", about=ABOUT, example=EXAMPLE
    )
    verbs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, about, help in (
        ("show", show, SHOW, "who holds it"),
        ("lock", lock, LOCK, "take it"),
        ("unlock", unlock, UNLOCK, "remove one's own"),
        ("force-unlock", force_unlock, FORCE, "remove anybody's, by its ID"),
    ):
        parser = command(verbs, name, help=help, about=about, example=EXAMPLE)
        parser.add_argument("url", metavar="URL", help="of the state: s3://bucket/key, gs://, ...")
        if name.endswith("unlock"):
            parser.add_argument("id", metavar="ID", help="of the lock, as show prints it")
        if name == "lock":
            parser.add_argument(
                "--lock-timeout", type=float, default=0.0, metavar="S", help="wait (default 0 s)"
            )
            parser.add_argument("--operation", default="lockkit tflock", metavar="TEXT")
        parser.add_argument("--workspace", default="default", metavar="NAME")
        parser.add_argument("--workspace-key-prefix", default="env:", metavar="PREFIX")
        parser.add_argument("--json", action="store_true", help="JSON, for programs")
        add_store(parser, time_is="per request" if name == "lock" else "for all requests together")
        parser.set_defaults(run=run, name=f"tflock {name}", extra="s3,gcs,azure")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[StateLock]:
    """Open it, with errors as exit codes. All requests of a look or unlock share one time limit."""
    from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
    from lockkit.recipes.terraform.statelock import StateLock
    from lockkit.stores.within import within

    def report(kind: str, **data: Any) -> None:
        if kind == "note":
            warn(f"lockkit {args.name}: {plain(data['text'])}")

    state = StateLock(
        args.url, workspace=args.workspace, workspace_key_prefix=args.workspace_key_prefix,
        emit=report, **store_options(args),
    )  # fmt: skip
    # `lock` has its own limit, and time afterwards to prove or to undo what it has written.
    limit_s = math.inf if args.name == "tflock lock" else args.timeout_s
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
        if args.json:
            say_json({"url": args.url, "key": state.key, **fields(found)})
        elif isinstance(found, ForeignLock):
            say(f"{plain(state.key)} is no lock file: {plain(found.why)}; it locks all the same")
        else:
            say(f"{plain(state.key)} {f'is held by {found}' if found else 'is unlocked'}")
            if found and found.info:
                say(f"  {plain(found.info)}")
    if found is None:
        return OK
    return FOUND if isinstance(found, ForeignLock) else BUSY


def lock(args: argparse.Namespace) -> int:
    with opened(args) as state:
        mine = state.lock(operation=args.operation, acquire_timeout=args.lock_timeout)
    if args.json:
        say_json({"url": args.url, "key": state.key, **fields(mine)})
    else:
        say(mine.id)
    return OK


def unlock(args: argparse.Namespace) -> int:
    from lockkit.recipes.errors import NotLocked
    from lockkit.recipes.terraform.lockinfo import LockInfo
    from lockkit.recipes.terraform.statelock import who

    with opened(args) as state:
        found = state.show().info
        if isinstance(found, LockInfo) and found.id == args.id and found.who != who():
            raise NotLocked(
                f"{state.key} is held by {found}, and you are {who()}; if it is yours all the same "
                "or its holder is dead: lockkit tflock force-unlock"
            )
        return removed(args, state)


def force_unlock(args: argparse.Namespace) -> int:
    with opened(args) as state:
        return removed(args, state)


def removed(args: argparse.Namespace, state: StateLock) -> int:
    state.force_unlock(args.id)
    if args.json:
        say_json({"url": args.url, "key": state.key, "unlocked": args.id})
    else:
        say(f"{plain(state.key)} is unlocked")
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
