"""`lockkit providers`: the lock services themselves, on loopback, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import OK, CommandError, command, option, say, warn
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.lab.processes.services.service import Service

ABOUT = """\
Starts real lock services on this machine, each on a free port of 127.0.0.1: the embedded object
server, ZooKeeper and a Hive Metastore (from the jars inside pip's pyspark; they need Java 17), a
DynamoDB API (npm's dynalite, or moto) and Azurite. Prints the address of each, the URL for
lockkit.open_lock, and the same lock in Apache Hudi's keys. If a service cannot be started, it
prints what to install. Ctrl-C (exit 130) and SIGTERM (exit 0) stop all services, and so does a
crash."""

EXAMPLE = """\
lockkit providers --only zookeeper,hive
python -c 'import lockkit; print(lockkit.open_lock("zookeeper://...").acquire(timeout=5))'"""


def add(commands: Any) -> None:
    from lockkit.lab.processes.services import KINDS

    parser = command(commands, "providers", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "--only", metavar="NAMES", default=",".join(KINDS),
        help=f"start only these: {', '.join(KINDS)}",
    )  # fmt: skip
    option(parser, "--folder", "DIR", "keep data and logs in DIR (default: deleted at the end)")
    parser.set_defaults(run=run, name="providers", extra="spark")


def run(args: argparse.Namespace) -> int:
    from lockkit.lab.processes.services import KINDS
    from lockkit.lab.processes.services.service import ServiceStartFailed
    from lockkit.lab.processes.temporary import TemporaryFolder

    names = [each.strip() for each in args.only.split(",") if each.strip()]
    if unknown := set(names) - set(KINDS):
        raise CommandError(
            f"there is no {plain(sorted(unknown)[0])!r}; there are {', '.join(KINDS)}"
        )
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with ExitStack() as stack:
        folder = args.folder
        if folder is None:
            temporary = TemporaryFolder("lockkit-providers-")
            stack.callback(temporary.remove)
            folder = temporary.path
        started = launched(dict.fromkeys(names), Path(folder).absolute(), stack)
        serving = 0
        for each in started:
            try:
                each.ready()
            except ServiceStartFailed as failed:
                warn(str(failed))
            else:
                serving += 1
                say(*described(each), "")
        if not serving:
            raise CommandError("none of these services can be started here")
        say(f"Ctrl-C ends {'it' if serving == 1 else 'them all'}. Logs are in {folder}.")
        over.wait()
    return OK


def launched(names: dict[str, None], folder: Path, stack: ExitStack) -> list[Service]:
    """Launch the services that can be launched, without a wait; the stack stops them."""
    from lockkit.lab.processes.services import open_service
    from lockkit.lab.processes.services.service import ServiceStartFailed, ServiceUnavailable

    found = []
    for name in names:
        try:
            each = open_service(name, folder / name)
            each.launch()
        except (ServiceUnavailable, ServiceStartFailed, ModuleNotFoundError) as missing:
            warn(f"{name}: cannot be started here: {missing}")
        else:
            stack.callback(each.stop)
            found.append(each)
    return found


def described(each: Service) -> list[str]:
    """A service's address, and the configuration to paste."""
    endpoint = getattr(each, "endpoint", "")
    return [
        f"{each.name}  {endpoint or each.address}",
        f"  {each.url}",
        *(f"  {key}={value}" for key, value in each.recipe().items()),
    ]
