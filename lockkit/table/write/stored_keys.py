"""The record keys of the base files that earlier upserts of this process read.

A commit that inserts nothing into a file group adds no key to it. So an upsert does not read a file
group again that has none of its keys, although other writers have updated it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lockkit.table.format.base_file import Slice
from lockkit.table.format.properties import FENCED, TableConfig

if TYPE_CHECKING:
    from lockkit.stores import Store

KEPT_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class StoredKeys:
    """The keys of each file of one store that was read, by its path."""

    _kept: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, at: Slice) -> Any | None:
        """The keys of this very slice, if they are known."""
        return self._kept.get(at.path)

    def lacks(self, at: Slice, config: TableConfig, rows: Iterable[Any]) -> bool:
        """Whether the slice certainly has none of the record keys in `rows` (batches of keys).

        False for a table that Hudi may have written to: only lockkit's counts of inserts are exact.
        """
        import pyarrow.compute as pc

        keys = next((self._kept[path] for path in _files(at) if path in self._kept), None)
        if keys is None or config.mode != FENCED or config.switches or config.merged:
            return False
        return not any(pc.any(pc.is_in(each, value_set=keys)).as_py() for each in rows)

    def keep(self, at: Slice, keys: Any) -> None:
        """Keep what a read of this slice found. Over the limit, drop everything else."""
        if keys.nbytes > KEPT_BYTES_MAX:
            return
        for path in _files(at):
            self._bytes -= self._kept.pop(path).nbytes if path in self._kept else 0
        self._bytes += keys.nbytes
        if self._bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._bytes = keys.nbytes
        self._kept[at.path] = keys


def _files(at: Slice) -> tuple[str, ...]:
    """The slice's own file, then the earlier files that have all of its keys, latest first."""
    return at.path, *reversed(at.keys_in)


_OF_STORE: WeakKeyDictionary[Store, StoredKeys] = WeakKeyDictionary()


def stored_keys(store: Store) -> StoredKeys:
    """The keys that were read from this store; they are dropped with the store."""
    return _OF_STORE.setdefault(store, StoredKeys())
