"""Processes that are killed at each write of an archiver of version 6, in mode hudi.

As `kill_points_merged`, for merge-on-read and copy-on-write. The pending writer's instant is later
than what leaves. Then another process archives, before the dead one's lease is over and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kill_points import BUCKET, main
from kill_points_merged import BRIEF, LEASE, NAMES, Between, Deed, World, mortal
from kill_points_sliced import BESIDE, PLAIN, clean_until_done
from test_merge_on_read import Row

from lockkit.lab.server import Emulator
from lockkit.table import Table
from lockkit.table.occ import commit, late

KINDS = {
    "merge-on-read": {"table_type": "MERGE_ON_READ", "index": "BUCKET"},
    "copy-on-write": {"table_type": "COPY_ON_WRITE"},
}
MADE = {
    "record_key": "id", "partition_by": "region", "precombine": "ts", "version": 6, "mode": "hudi",
    "buckets": 1,
}  # fmt: skip
KEPT = {"keep_min": 2, "keep_max": 3}


def archive(*place: str) -> None:
    # All commits are of this minute: none is left alone for a process that may still publish it.
    late.SETTLED_MS, commit.LATE_MS = -10_000, -1
    with mortal(*place, PLAIN) as table:
        assert table.archive(**KEPT) is not None


def with_old_commits(kind: str, server: Emulator) -> World:
    url = f"s3://{BUCKET}/archived-{next(NAMES)}"
    how: dict[str, Any] = MADE | KINDS[kind]
    with Table.create(url, endpoint=server.s3, options=PLAIN, lock=LEASE, **how) as table:
        world = World(server, url, {}, PLAIN)
        for n in range(1, 5):
            world.write(("a", "EU", n, n), (f"n{n}", "US", n, n))
            if table.refresh().config.merged:
                table.compact()
        table.clean()
    return world


def shown_after(world: World, slow: Between, dead: list[Row]) -> bool:
    """Always False: an archiver changes no row."""
    assert not world.judge(dead)
    before = instants(world.opened())
    with mortal(*world.place, BRIEF, PLAIN) as other:
        other.archive(**KEPT)
    assert not world.judge(dead)
    assert instants(world.opened()) == before, "each commit is there once"
    slow.commit()
    assert not world.judge(dead)
    world.write(("a", "EU", 9, 9), ("c", "US", 1, 1))
    with world.opened() as table:
        table.clean()
    clean_until_done(world)
    with world.opened() as table:
        if table.refresh().config.merged:
            table.compact()
        done = table.archive(**KEPT)
        assert done is not None and done.instants
    assert not world.judge(dead)
    assert instants(world.opened()) > before
    return False


def instants(table: Table) -> set[str]:
    with table:
        found = [each.instant for each in table.history()]
    assert len(found) == len({*found}), found
    return {*found}


def _deed(kind: str) -> Deed:
    new: Callable[[Emulator], World] = partial(with_old_commits, kind)
    return Deed(archive, new, (), "PUT archived/.commits_.archive.1_1-0-1", BESIDE, shown_after)


DEEDS = {kind: _deed(kind) for kind in KINDS}

if __name__ == "__main__":
    main(globals())
