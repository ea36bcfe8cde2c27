"""One lock protocol for object stores, and the means to break it and to prove it.

The map, in reading order. Each room may import only rooms above it (tests/test_layers.py).

    outcome    the four answers of a conditional write, and what an ambiguous one turns out to mean
    lockfile   the body of the lock object, in Hudi's wire format
    rules      every safety decision, as a switch
    mutants    each of them switched off: the mistakes that the proofs must find
    state      what a client knows, hears and asks for
    lease      the whole protocol: step(me, state, event, rules)
    history    the one event schema that everything emits and everything draws
    check      verdicts over a history: VALID, UNKNOWN or INVALID, with the events that prove it

    clock      the only place for time, sleep, randomness and ids
    stores     S3, Google Cloud Storage, Azure, files and memory behind one small protocol
    drive      procedures (generators that yield requests) and the interpreter for real stores
    voice      who hears what a handle tells: its own observer, and whoever records the process
    pace       how often a waiter looks, and when a releaser may compete again
    client     one client of a lock object: carries out what the lease asks, and tells the history
    heartbeat  renews a grant, and reports danger and loss on time
    proof      tests that a store enforces write conditions, before anything relies on them
    settings   which leases are sound, and what Hudi's configuration keys say
    hudi_keys  which keys of Hudi describe a lock, and which have no effect
    lock       Lock: acquire, hold, renew, release; the guard that it hands to a commit
    providers  the same face over ZooKeeper, DynamoDB, Hive, Azure leases, files and threads

    emulator   an object server that speaks the dialects of S3, GCS and Azure to the real SDKs
    faults     lost responses, stalls and throttles as data; a proxy applies them, or the client
    sim        whole runs under a seed: virtual clocks, faults, stores of every provider
    explore    exhaustive search over that very step: the shortest story in which a rule is missed
    probe      tests whether a store can hold a lock

    table      tables in Apache Hudi's layout: commits, services and readers
    incident   what stands at a table in trouble, which known pattern it is, and what to do
    spark      a DataFrame into a table and back; writer processes, and their supervisor
    services   ZooKeeper, Hive, DynamoDB, ... themselves, on this machine, to try their locks
    workbench  the notebook's controls and pictures
    course     what one notebook shows, where no other room has it
    soak       real writers for minutes or hours, in all kinds of trouble, and what it came to
    commands   what each command of the command line does
    cli        the command line

Nothing below is imported until it is named, so `import lockkit` is cheap and loads no SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

__version__ = "0.1.0"

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lockkit.clock import Clock as Clock
    from lockkit.emulator import Emulator as Emulator
    from lockkit.faults import Fault as Fault
    from lockkit.faults import FaultPlan as FaultPlan
    from lockkit.faults import Faulty as Faulty
    from lockkit.faults import Proxy as Proxy
    from lockkit.history import Event as Event
    from lockkit.lock import Lock as Lock
    from lockkit.lock import LockBusy as LockBusy
    from lockkit.lock import LockLost as LockLost
    from lockkit.providers import open_lock as open_lock
    from lockkit.rules import Rules as Rules
    from lockkit.spark.fleet import Fleet as Fleet
    from lockkit.stores import StoreError as StoreError
    from lockkit.stores import UnsafeStore as UnsafeStore
    from lockkit.stores import open_store as open_store
    from lockkit.workbench import Workbench as Workbench
    from lockkit.workbench.recording import Recording

_ROOM = {
    "Lock": "lockkit.lock",
    "LockBusy": "lockkit.lock",
    "LockLost": "lockkit.lock",
    "open_lock": "lockkit.providers",
    "open_store": "lockkit.stores",
    "StoreError": "lockkit.stores",
    "UnsafeStore": "lockkit.stores",
    "Rules": "lockkit.rules",
    "Event": "lockkit.history",
    "Clock": "lockkit.clock",
    "Emulator": "lockkit.emulator",
    "Fault": "lockkit.faults",
    "FaultPlan": "lockkit.faults",
    "Faulty": "lockkit.faults",
    "Proxy": "lockkit.faults",
    "Fleet": "lockkit.spark.fleet",
    "Workbench": "lockkit.workbench",
}

__all__ = ["__version__", "record", *_ROOM]


def record(path: str | Path, *, title: str = "") -> AbstractContextManager[Recording]:
    """`with lockkit.record("run.html"):` what locks tell within the block, as a page with verdict.

    As JSON lines where `path` ends in `.jsonl`. Written at the end at one blow, also where the
    block raises; more in `lockkit.workbench.recording`.
    """
    recording = import_module("lockkit.workbench.recording")
    return cast("AbstractContextManager[Recording]", recording.record(path, title=title))


def __getattr__(name: str) -> Any:
    """A public name, imported from its room when first asked for (PEP 562)."""
    if name not in _ROOM:
        raise AttributeError(f"module 'lockkit' has no attribute {name!r}")
    return getattr(import_module(_ROOM[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
