"""Table services that several writes of one process share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.sinks import Emit, silent
from lockkit.stores import open_store
from lockkit.table.occ.concurrency import control_of
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.services.upkeep import Upkeep

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle


@contextmanager
def keep(
    url: str, options: Mapping[str, Any], *, clock: Clock | None = None, emit: Emit = silent,
    client: str = "", **store_options: Any,
) -> Iterator[Upkeep]:  # fmt: skip
    """The services of all writes of this process that are given it, over many commits.

        with keep("s3://lake/orders", {"hoodie.clean.async.enabled": "true", ...}) as upkeep:
            write(df, "s3://lake/orders", upkeep=upkeep)
    """
    from lockkit.table.format.gate import check_options

    if store_options:
        from lockkit.stores.keywords import check_keywords  # why: see there

        check_keywords(keep, url, store_options)
    clock, url, options = clock or Clock(), url.rstrip("/"), check_options(options, stacklevel=5)
    store = open_store(url, client=client, **store_options)

    def lock() -> LockHandle:
        return open_table_lock(url, options, clock=clock, emit=emit, client=client, **store_options)

    concurrency_control = control_of(options, lock)
    with closing(store), closing(concurrency_control):
        upkeep = Upkeep(options, url, store, concurrency_control, clock=clock, emit=emit)
        with closing(upkeep):
            yield upkeep
