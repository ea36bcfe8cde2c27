"""The proof that a store refuses a write whose condition is false, made before a grant is used.

A store that ignores conditions (Spaces documents it; s3rver, incus #3651) makes every client the
winner of every race. Documents do not tell which one stands behind an endpoint; two writes do.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from lockkit.client import LOCK_KEY, Client
from lockkit.drive import Put
from lockkit.lockfile import encode
from lockkit.outcome import Applied, Condition, IfAbsent, IfVersion, PreconditionFailed, Throttled
from lockkit.state import Beat, Pause, Phase, Renewed
from lockkit.stores import StoreError, UnsafeStore
from lockkit.stores.endpoint import host

TRIES_MAX = 3
WAIT_FIRST_S = 0.05
ENVIRONMENT = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3a": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
}
"""How each SDK is pointed at another server than the provider's own, without a word in the code."""

_proven: set[tuple[str, str]] = set()
"""Stores that were seen, by this process, to enforce their conditions."""


def prove_conditions(client: Client) -> None:
    """Once per process and endpoint that is not a provider's own: see the store refuse.

    The client holds the lock, and writes it under two conditions that are false. Raises
    `UnsafeStore` if either lands. An unanswered one proves nothing: the next grant tries again.
    """
    scheme = urlsplit(client.where).scheme
    names = ENVIRONMENT.get(scheme, ())
    named = (os.environ.get(name) for name in names)
    elsewhere = client.store.options.endpoint or next(filter(None, named), None)
    if not elsewhere or (scheme, elsewhere) in _proven:
        return
    stale = _past_version(client)
    if stale is None:
        return
    for condition in (IfAbsent(), IfVersion(stale)):
        match _false_write(client, condition):
            case PreconditionFailed():
                continue
            case Applied(version):
                _let_go(client, version)
                where = f"{urlsplit(elsewhere).scheme}://{host(elsewhere)}"
                raise UnsafeStore(
                    f"{client.where} cannot hold a lock: its store at {where} ignored a write "
                    f"condition ({type(condition).__name__}); two writers would both win. Use a "
                    "store with conditional writes (lockkit probe tells which is)"
                )
            case _:
                return
    _proven.add((scheme, elsewhere))


def _past_version(client: Client) -> str | None:
    """A version that the object had once; a renewal makes one where the grant created it."""
    for tries in range(TRIES_MAX):
        if client.past is not None or client.state.phase is not Phase.HELD:
            break
        told = client.feed(Beat(client.clock.now()))
        pause = next((each for each in told if isinstance(each, Pause)), None)
        if any(isinstance(each, Renewed) for each in told):
            break
        if pause is None or not _wait(client, pause.seconds, tries):
            break
    return client.past if client.state.phase is Phase.HELD else None


def _false_write(client: Client, condition: Condition) -> object:
    grant = client.state.grant
    assert grant is not None
    record = replace(grant, attempt=f"{grant.attempt}!{type(condition).__name__}")
    answer: object = None
    for tries in range(TRIES_MAX):
        answer = client.ask("prove", record.attempt, Put(LOCK_KEY, encode(record), condition))
        if not isinstance(answer, Throttled) or not _wait(client, answer.retry_after_s, tries):
            break
    return answer


def _wait(client: Client, after_s: float | None, tries: int) -> bool:
    """Sleep as the store asks, unless that would cost the half of what is left of the lease."""
    interval_s = client.store.capabilities.write_interval_min_s
    wait_s = max(after_s or 0.0, interval_s, WAIT_FIRST_S * 8**tries)
    until_ms = client.state.until_ms
    if until_ms is None or wait_s * 2000 > until_ms - client.clock.boot_ms():
        return False
    client.clock.sleep(wait_s)
    return True


def _let_go(client: Client, version: str) -> None:
    """Nothing stays held on a store that cannot hold a lock; one try, then the lease runs out."""
    grant = client.state.grant
    assert grant is not None
    client.lose("its store ignores write conditions")
    tombstone = replace(grant, expired=True, attempt=f"{grant.attempt}!expired")
    with suppress(StoreError):
        put = Put(LOCK_KEY, encode(tombstone), IfVersion(version))
        client.ask("release", tombstone.attempt, put)
    client.forget()
