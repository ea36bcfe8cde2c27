"""A table's address, as a value that can be sent to executors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockkit.stores import Store, open_store
from lockkit.table.format.data_files import ATTEMPTS

OPEN_MAX = 8
_OPEN: dict[tuple[int, bytes], Store] = {}


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table's address. Has no client, and a credential only if the caller passed one."""

    url: str
    endpoint: str | None = None
    client: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def open(self, *, attempts: int = 1) -> Store:
        return open_store(
            self.url, endpoint=self.endpoint, client=self.client, attempts=attempts, **self.options
        )

    def data(self) -> Store:
        """This process's client for data files, made once and reused by later tasks."""
        name = os.getpid(), pickle.dumps(self)
        if name not in _OPEN:
            while len(_OPEN) >= OPEN_MAX:
                _OPEN.pop(next(iter(_OPEN)))
            _OPEN[name] = self.open(attempts=ATTEMPTS)
        return _OPEN[name]
