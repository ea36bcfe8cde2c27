"""A sub-store: the objects below a prefix of a store, through the same client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

from lockkit.protocol.outcome import Condition, IfVersion, ReadAnswer, Version, WriteAnswer
from lockkit.stores import Listing, ObjectVersion, Store


class SubStore:
    """Many share one client: an SDK's client costs some 10 MB. Closing one closes nothing."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.url = f"{store.url}/{prefix}"
        self.options, self.capabilities = store.options, store.capabilities
        self.server = store.server
        self._store, self._prefix = store, f"{prefix}/"

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        return self._store.get(self._prefix + key, unless=unless, limit=limit)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        return self._store.put(self._prefix + key, body, condition)

    def list(self, prefix: str, after: str = "") -> Listing:
        found = self._store.list(self._prefix + prefix, self._prefix + after if after else "")
        within = (replace(each, key=each.key[len(self._prefix) :]) for each in found)
        return Listing(within, snapshot=found.snapshot, last_page=found.last_page)

    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        return self._store.put_file(self._prefix + key, source, size)

    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        return self._store.get_file(self._prefix + key, into)

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        return self._store.delete(self._prefix + key, condition)

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        return self._store.versions(self._prefix + key)

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        return self._store.get_version(self._prefix + key, version)

    def close(self) -> None:
        """The code that opened the store closes it."""
