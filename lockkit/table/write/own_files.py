"""The base files that a handle has written last: its next upsert need not fetch them.

A data file never changes, so its bytes are those that its writer has sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.layout import FileGroup

if TYPE_CHECKING:
    from lockkit.stores import Store

KEPT_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class OwnFiles:
    """Of one store, the latest of each file group, as far as there is room."""

    _kept: dict[FileGroup, tuple[str, bytes]] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def get(self, at: Slice) -> bytes | None:
        """The base file of this very slice."""
        path, body = self._kept.get((at.partition, at.file_id), ("", None))
        return body if path == at.path else None

    def keep(self, files: Iterable[BaseFile]) -> None:
        """Those of a commit; each takes the place of its group's file before."""
        with self._turn:
            for each in files:
                self._kept.pop(each.stat.group, None)
                self._kept[each.stat.group] = each.stat.path, each.body
            while sum(len(body) for _, body in self._kept.values()) > KEPT_BYTES_MAX:
                del self._kept[next(iter(self._kept))]


_OF_STORE: WeakKeyDictionary[Store, OwnFiles] = WeakKeyDictionary()


def own_files(store: Store) -> OwnFiles:
    """Those that were written to this store; they are dropped with it."""
    return _OF_STORE.setdefault(store, OwnFiles())
