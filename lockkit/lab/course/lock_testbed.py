"""Real locks on an embedded server; all requests, answers and beliefs are recorded."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any
from urllib.error import HTTPError

from lockkit.clock import Clock
from lockkit.events import Event, event
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lock.handle import Lock
from lockkit.protocol.record import Record
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table.inspect.standing import watch
from lockkit.table.inspect.takeover import take_over

LOCK = "table_lock.json"
SCHEMES = {"s3": ("s3", "aws"), "gcs": ("gs", "gcs"), "azure": ("az", "azure")}
"""By provider: of its URLs, and the embedded server's profile."""
PUT_S_MAX = 10.0
VERSIONED = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_standing: LockTestbed | None = None


class LockTestbed:
    """`with Ground("gcs") as ground:` a store that behaves like that provider's, and its locks.

    `clock` is the server's. Raises `ValueError` for a provider that isn't in `SCHEMES`.
    """

    def __init__(self, provider: str = "s3", *, clock: Clock | None = None) -> None:
        if provider not in SCHEMES:
            raise ValueError(f"no provider {provider!r}; there are {', '.join(SCHEMES)}")
        self.provider = provider
        self._scheme, self._profile = SCHEMES[provider]
        self._open = ExitStack()
        self._reported: list[Event] = []
        self._clock = Clock()
        self._servers = clock

    def __enter__(self) -> LockTestbed:
        self.server = self._open.enter_context(Emulator(profile=self._profile, clock=self._servers))
        self.proxy = self._open.enter_context(Proxy(getattr(self.server, self.provider)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://lake/orders"

    def lock(self, name: str, *, fast_s: float = 0.0, **options: Any) -> Lock:
        """A lock of the table for `name`; its wall clock may be fast. Closed at the end.

        Options as `Lock` takes them.
        """
        clock = Clock(offset_ms=round(fast_s * 1000))
        lock = Lock(self.url, owner=name, clock=clock, **self.of(name), **options)
        self._open.callback(lock.close)
        return lock

    def of(self, name: str) -> dict[str, Any]:
        """For `Lock`, `Table` and `open_lock`: the store's options, and `name`'s observer."""
        return {"endpoint": self.proxy.url, "client": name, "emit": self._emit(name)}

    def put(self, name: str, key: str, body: bytes, **condition: str) -> int:
        """Send a plain PUT of S3's API as `name`; return its status."""
        headers = {each.replace("_", "-"): said for each, said in condition.items()}
        return self._put(f"orders/{key}", body, {"User-Agent": f"lockkit-client/{name}"} | headers)

    def keep_versions(self) -> None:
        """Switch versioning on: from now on the bucket keeps overwritten objects, as S3 can."""
        assert self._put("?versioning", VERSIONED, {}) == 200, "the bucket is there for everybody"

    def _put(self, place: str, body: bytes, headers: dict[str, str]) -> int:
        place = f"{self.server.s3}/lake/{place}"
        put_request = urllib.request.Request(place, data=body, headers=headers, method="PUT")
        try:
            with _DIRECT.open(put_request, timeout=PUT_S_MAX) as answer:
                return int(answer.status)
        except HTTPError as refused:
            with refused:
                return refused.code

    def break_lock(self, by: str = "colleague") -> None:
        """Break the lock of its holder, as `lockkit lock break` does."""
        with closing(open_store(self.url, endpoint=self.proxy.url, client=by)) as store:
            holder = run(watch(0), store, Clock())
            record, shown = holder.observation.record, holder.observation.version
            assert isinstance(record, Record) and shown is not None, holder.why
            run(take_over(holder, shown=shown, epoch=record.epoch, by=by), store, Clock())

    def record(self, name: str, kind: str, **fields: Any) -> None:
        """Add a belief of `name` to the history."""
        self._emit(name)(kind, **fields)

    def lose(self) -> None:
        """The next write of the lock object is applied, and its answer dropped."""
        self.proxy.inject(Fault("drop", operation="put", key=LOCK))

    @property
    def requests(self) -> list[Event]:
        """The store's own record."""
        return self.server.requests()

    @property
    def events(self) -> list[Event]:
        """Truth, beliefs and faults, in order of time."""
        reported = [*self.requests, *self._reported, *self.proxy.faults]
        return sorted(reported, key=lambda each: each.at_ms)

    @property
    def verdict(self) -> Any:
        return check(self.events)

    def _emit(self, who: str) -> Callable[..., None]:
        def emit(kind: str, **fields: Any) -> None:
            self._reported.append(event(self._clock.stamp_ms(), who, kind, **fields))

        return emit


def stand(provider: str = "s3") -> LockTestbed:
    """A testbed that lasts from cell to cell, until another one is requested."""
    global _standing
    if _standing is not None:
        _standing.__exit__()
    _standing = LockTestbed(provider).__enter__()
    return _standing


def said(verdict: Any) -> str:
    """A verdict in a sentence, without the list of what was not exercised."""
    return f"{verdict.kind}: {verdict.said.partition('; not exercised')[0]}"
