"""A store in this process's memory: the reference for the other adapters.

It has every rule of the `Store` protocol in the fewest lines. Stores with one name are one store
(`memory://name`, with or without a prefix); all versions are kept until the process ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Version,
    WriteAnswer,
)
from lockkit.stores import (
    Capabilities,
    ListEntry,
    Listing,
    ObjectVersion,
    StoreOptions,
    shown,
    split_url,
)


@dataclass
class _Namespace:
    """The content of one name: per key its states, oldest first; a body of None is a deletion."""

    states: dict[str, list[tuple[int, int, bytes | None]]] = field(default_factory=dict)
    last_version: int = 0
    door: threading.Lock = field(default_factory=threading.Lock)

    def current(self, key: str) -> tuple[int, int, bytes] | None:
        number, modified_ms, body = self.states.get(key, [(0, 0, None)])[-1]
        return None if body is None else (number, modified_ms, body)

    def append(self, key: str, body: bytes | None, at_ms: int) -> int:
        self.last_version += 1
        self.states.setdefault(key, []).append((self.last_version, at_ms, body))
        return self.last_version


_NAMESPACES: dict[str, _Namespace] = {}
_NAMESPACES_DOOR = threading.Lock()


class MemoryStore:
    """`memory://name/prefix`, shared by name within one process."""

    server = ""
    capabilities = Capabilities(name="memory", poll_min_s=0.001)

    @staticmethod
    def keywords() -> frozenset[str]:
        return frozenset()

    def __init__(self, url: str, options: StoreOptions = StoreOptions()) -> None:
        self.url = url
        self.options = options
        name, self._prefix = split_url(url)
        with _NAMESPACES_DOOR:
            self._namespace = _NAMESPACES.setdefault(name, _Namespace())
        self._clock = Clock()
        self._pid = os.getpid()

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        with self._entered() as namespace:
            now_ms = self._clock.wall_ms()
            match namespace.current(self._full(key)):
                case None:
                    return Missing()
                case number, _, _ if str(number) == unless:
                    return NotModified(now_ms)
                case number, modified_ms, body:
                    part = body if limit is None else body[: limit + 1]
                    return Found(part, str(number), modified_ms, now_ms)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        with self._entered() as namespace:
            match condition, namespace.current(self._full(key)):
                case (IfAbsent(), None):
                    pass
                case (IfVersion(version), (number, _, _)) if str(number) == version:
                    pass
                case _:
                    return PreconditionFailed()
            return Applied(
                str(namespace.append(self._full(key), bytes(body), self._clock.wall_ms()))
            )

    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        return self.put(key, source.read(size), IfAbsent())

    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        answer = self.get(key)
        if isinstance(answer, Found):
            into.write(answer.body)
        return answer

    def list(self, prefix: str, after: str = "") -> Listing:
        with self._entered() as namespace:
            return Listing(
                ListEntry(key[len(self._full("")) :], len(now[2]), str(now[0]))
                for key in sorted(namespace.states)
                if key.startswith(self._full(prefix))
                and key > self._full(after)
                and (now := namespace.current(key))
            )

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        with self._entered() as namespace:
            now = namespace.current(self._full(key))
            if now is None:
                return Applied("")
            if condition is not None and condition.version != str(now[0]):
                return PreconditionFailed()
            namespace.append(self._full(key), None, self._clock.wall_ms())
            return Applied("")

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        with self._entered() as namespace:
            states = namespace.states.get(self._full(key), [])
            return [
                ObjectVersion(
                    version=str(number),
                    modified_ms=modified_ms,
                    size=len(body or b""),
                    current=body is not None and number == states[-1][0],
                    deleted=body is None,
                    id=str(number),
                )
                for number, modified_ms, body in reversed(states)
            ]

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        with self._entered() as namespace:
            for number, _, body in namespace.states.get(self._full(key), []):
                if str(number) == version.id and body is not None:
                    return body
        raise StoreError(f"{self.url}: {key} has no version {version.id}; list its versions again")

    def __repr__(self) -> str:
        return shown(self)

    def close(self) -> None:
        """Nothing to close; the content stays until the process ends."""

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    @contextmanager
    def _entered(self) -> Iterator[_Namespace]:
        """This name's content, locked for one operation."""
        # A forked child has a *copy*: two "locks" of one name that do not exclude each other.
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.url} was opened by process {self._pid} and used by {os.getpid()} after a "
                "fork: memory is not shared between processes; use file:/// or a real store"
            )
        with self._namespace.door:
            yield self._namespace
