"""Real locks on an embedded server, with everything that is asked, answered and believed kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lockkit.check import check
from lockkit.clock import Clock
from lockkit.emulator import Emulator
from lockkit.faults import Fault, Proxy
from lockkit.history import Event, event
from lockkit.lock import Lock

LOCK = "table_lock.json"
SCHEMES = {"s3": ("s3", "aws"), "gcs": ("gs", "gcs"), "azure": ("az", "azure")}
"""By provider: of its URLs, and the embedded server's profile."""


class Ground:
    """`with Ground("gcs") as ground:` a store that behaves like that provider's, and its locks.

    `clock` is the server's. Raises `ValueError` for a provider that isn't in `SCHEMES`.
    """

    def __init__(self, provider: str = "s3", *, clock: Clock | None = None) -> None:
        if provider not in SCHEMES:
            raise ValueError(f"no provider {provider!r}; there are {', '.join(SCHEMES)}")
        self.provider = provider
        self._scheme, self._profile = SCHEMES[provider]
        self._open = ExitStack()
        self._told: list[Event] = []
        self._clock = Clock()
        self._servers = clock

    def __enter__(self) -> Ground:
        self.server = self._open.enter_context(
            Emulator(profile=self._profile, clock=self._servers)
        )
        self.proxy = self._open.enter_context(Proxy(getattr(self.server, self.provider)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://lake/orders"

    def lock(self, name: str, *, fast_s: float = 0.0, **options: Any) -> Lock:
        """A lock of the table for `name`, whose wall clock is fast by so much; closed at the end.

        Options as `Lock` takes them.
        """
        clock = Clock(offset_ms=round(fast_s * 1000))
        lock = Lock(self.url, endpoint=self.proxy.url, owner=name, client=name, clock=clock,
                    emit=self._emit(name), **options)  # fmt: skip
        self._open.callback(lock.close)
        return lock

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
        told = [*self.requests, *self._told, *self.proxy.faults]
        return sorted(told, key=lambda each: each.at_ms)

    @property
    def verdict(self) -> Any:
        return check(self.events)

    def _emit(self, who: str) -> Callable[..., None]:
        def emit(kind: str, **fields: Any) -> None:
            self._told.append(event(self._clock.stamp_ms(), who, kind, **fields))

        return emit
