"""The lock of a table's commits: which one Hudi's options name, and how its handle is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.lock.handle import Lock
from lockkit.lock.hudi_keys import AWS_KEYS, BASE_PATH, KEYS, PAUSE, PROVIDER, RETRIES, TABLE_NAME
from lockkit.sinks import Emit, silent
from lockkit.stores.secret import carries_secret
from lockkit.table.format.option_values import lowered

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle

WRITE_TABLE_NAME = "hoodie.datasource.write.table.name"


def open_table_lock(
    url: str, options: Mapping[str, Any], *, clock: Clock, emit: Emit = silent, client: str = "",
    how: Mapping[str, Any] | None = None, **store_options: Any,
) -> LockHandle:  # fmt: skip
    """The lock that the provider named by `options` grants; by default the table's own lock object.

    `how` are keywords of the lock itself, and win over `options`. `store_options` reach the table's
    store, and so only the lock object in it. Raises `TableError` for a provider or a value that
    cannot be.
    """
    said = {
        name: str(value) for name, value in lowered(options).items() if value not in (None, "")
    }
    config = {name: value for name, value in said.items() if name in KEYS or name in AWS_KEYS}
    base = _base_path(url, said)
    own = {"clock": clock, "emit": emit, "client": client, **(how or {})}
    try:
        if not config:
            return Lock.from_hudi({BASE_PATH: base}, **{**store_options, **own})
        from lockkit.providers.hudi import STORAGE_PROVIDER, lock_of

        if not said.get(PROVIDER):
            config[PROVIDER] = STORAGE_PROVIDER
            if RETRIES not in said and PAUSE not in said:
                config[RETRIES] = "0"  # without a provider that Hudi shares, its wait is one try's
        if config[PROVIDER] == STORAGE_PROVIDER:
            own = {**store_options, **own}
        config[BASE_PATH] = base
        if name := said.get(TABLE_NAME) or said.get(WRITE_TABLE_NAME):
            config[TABLE_NAME] = name
        return lock_of(config, own)
    except ValueError as error:
        raise TableError(str(error)) from None


def _base_path(url: str, said: Mapping[str, str]) -> str:
    """The path as `options` spell it, of which Hudi's implicit keys are made; else `url`."""
    named = said.get(BASE_PATH) or url
    if carries_secret(named) or carries_secret(url):
        raise TableError(
            "the table's URL carries a password or a signature; pass credentials in the provider's "
            "own environment variables, or as options"
        )
    if _plain(named) != _plain(url):
        raise TableError(
            f"{BASE_PATH}={named[:200]} is not the table that is written, {url[:200]}; leave it out"
        )
    return named


def _plain(url: str) -> str:
    url = url.rstrip("/")
    return "s3" + url[3:] if url.lower().startswith("s3a://") else url
