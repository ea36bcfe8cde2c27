"""Locks and table commits on object storage, and the workshop that breaks and proves them.

The map, in reading order; each package may import only those above it (tests/test_layers.py).

    errors     what a caller may catch: one family, below LockkitError
    protocol   the lease protocol without I/O; `protocol/lease.py` has the transition table
    events     the one event schema that everything emits and everything draws
    clock      the only place for time, sleep, randomness and ids
    sinks      where events go: the handle's observer, recorders, logging.getLogger("lockkit")
    stores     S3, Google Cloud Storage, Azure, files and memory behind one small protocol
    runtime    procedures (generators that yield requests), and their interpreter for real stores
    config     which leases are sound, and what Hudi's configuration keys say
    lock       Lock: acquire, hold, renew, release; the guard that it hands to a commit
    providers  the same interface over ZooKeeper, DynamoDB, Hive, Azure leases, files and threads
    table      tables in Apache Hudi's layout: format, occ, read, write, services
    spark      a DataFrame into a table and back; streaming, SQL, the streamer
    recipes    election, write-ahead log, queue, Terraform's lock, striped and granular locks
    cli        the command line
    lab        the workshop: server, faults, verify, probe, processes, incident, widgets, course

The library never imports the workshop. Nothing is imported until it is named, so `import lockkit`
is cheap and loads no SDK.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers treat it as True; importing `typing` would cost 5 ms
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from lockkit.clock import Clock as Clock
    from lockkit.errors import LockBusy as LockBusy
    from lockkit.errors import LockkitError as LockkitError
    from lockkit.errors import LockLost as LockLost
    from lockkit.errors import StoreError as StoreError
    from lockkit.errors import TableError as TableError
    from lockkit.errors import UnsafeStore as UnsafeStore
    from lockkit.events import Event as Event
    from lockkit.lab.faults import Fault as Fault
    from lockkit.lab.faults import FaultPlan as FaultPlan
    from lockkit.lab.faults import Faulty as Faulty
    from lockkit.lab.faults import Proxy as Proxy
    from lockkit.lab.processes.fleet import Fleet as Fleet
    from lockkit.lab.server import Emulator as Emulator
    from lockkit.lab.widgets import Workbench as Workbench
    from lockkit.lab.widgets.recording import Recording
    from lockkit.lock.aio import AsyncLock as AsyncLock
    from lockkit.lock.contract import LockHandle as LockHandle
    from lockkit.lock.handle import Lock as Lock
    from lockkit.protocol.policy import Expiry as Expiry
    from lockkit.protocol.policy import Policy as Policy
    from lockkit.providers import open_lock as open_lock
    from lockkit.stores import open_store as open_store
    from lockkit.table.errors import CommitConflict as CommitConflict
    from lockkit.table.errors import CommitUnknown as CommitUnknown

_EXPORTS = {
    "Lock": "lockkit.lock.handle",
    "AsyncLock": "lockkit.lock.aio",
    "LockHandle": "lockkit.lock.contract",
    "LockkitError": "lockkit.errors",
    "LockBusy": "lockkit.errors",
    "LockLost": "lockkit.errors",
    "open_lock": "lockkit.providers",
    "open_store": "lockkit.stores",
    "StoreError": "lockkit.errors",
    "UnsafeStore": "lockkit.errors",
    "TableError": "lockkit.errors",
    "CommitConflict": "lockkit.table.errors",
    "CommitUnknown": "lockkit.table.errors",
    "Policy": "lockkit.protocol.policy",
    "Expiry": "lockkit.protocol.policy",
    "Event": "lockkit.events",
    "Clock": "lockkit.clock",
    "Emulator": "lockkit.lab.server",
    "Fault": "lockkit.lab.faults",
    "FaultPlan": "lockkit.lab.faults",
    "Faulty": "lockkit.lab.faults",
    "Proxy": "lockkit.lab.faults",
    "Fleet": "lockkit.lab.processes.fleet",
    "Workbench": "lockkit.lab.widgets",
}

__all__ = ["__version__", "record", *_EXPORTS]


def record(path: str | Path, *, title: str = "") -> AbstractContextManager[Recording]:
    """`with lockkit.record("run.html"):` writes the block's lock events, even if it raises.

    :param path: the file, written atomically on exit; JSON lines if it ends in `.jsonl`.
    :param title: the page's heading.
    """
    from lockkit.lab.widgets.recording import record as recorded

    return recorded(path, title=title)


def __getattr__(name: str) -> Any:
    """A public name, imported from its module at its first use (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lockkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
