"""The lock for a table's commits: which one Hudi's options name, and how its handle is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.lock.handle import Lock
from lockkit.sinks import Emit, silent
from lockkit.stores.secret import carries_secret
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import lowered

if TYPE_CHECKING:
    from lockkit.lock.contract import LockHandle

BASE_PATH = "hoodie.base.path"
WRITE_TABLE_NAME = "hoodie.datasource.write.table.name"


def open_table_lock(
    url: str, options: Mapping[str, Any], *, clock: Clock, emit: Emit = silent, client: str = "",
    how: Mapping[str, Any] | None = None, **store_options: Any,
) -> LockHandle:  # fmt: skip
    """The lock of the provider that `options` name; by default the table's own lock object.

    `how` are keywords of the lock itself and override `options`. `store_options` are used for the
    table's store, and so only for a lock object in it. Raises `TableError` for an invalid provider
    or value.
    """
    said = {
        name: str(value) for name, value in lowered(options).items() if value not in (None, "")
    }
    base = _base_path(url, said)
    own = {"clock": clock, "emit": emit, "client": client, **(how or {})}
    try:
        if not said:
            return Lock(base, **{**store_options, **own})
        from lockkit.lock import hudi_keys as hudi  # not needed for a table without options

        locks = {*hudi.KEYS, *hudi.AWS_KEYS}
        config = {name: value for name, value in said.items() if name in locks}
        if not config:
            return Lock.from_hudi({BASE_PATH: base}, **{**store_options, **own})
        from lockkit.providers.hudi import STORAGE_PROVIDER, lock_of

        # Without a provider, the place of a service's lock means Hudi's default one, ZooKeeper.
        if not said.get(hudi.PROVIDER) and config.keys().isdisjoint(hudi.PLACES):
            config[hudi.PROVIDER] = STORAGE_PROVIDER
            if hudi.RETRIES not in said and hudi.PAUSE not in said:
                # Without a provider that Hudi shares, Hudi's wait means one try.
                config[hudi.RETRIES] = "0"
        if config.get(hudi.PROVIDER) == STORAGE_PROVIDER:
            own = {**store_options, **own}
        config[BASE_PATH] = base
        if name := said.get(hudi.TABLE_NAME) or said.get(WRITE_TABLE_NAME):
            config[hudi.TABLE_NAME] = name
        return lock_of(config, own)
    except ValueError as error:
        raise RefusedOption("the lock's options", f"cannot be obeyed: {error}") from None


def _base_path(url: str, said: Mapping[str, str]) -> str:
    """The path as `options` spell it, from which Hudi's implicit keys are derived; else `url`."""
    named = said.get(BASE_PATH) or url
    if carries_secret(named) or carries_secret(url):
        raise RefusedOption(
            "the table's URL", "carries a password or a signature",
            "pass credentials in the provider's own environment variables, or as options",
        )  # fmt: skip
    if _plain(named) != _plain(url):
        raise RefusedOption(
            BASE_PATH, f"is not the table that is written, {url[:200]}", "leave it out",
            value=named[:200],
        )  # fmt: skip
    return named


def _plain(url: str) -> str:
    url = url.rstrip("/")
    return "s3" + url[3:] if url.lower().startswith("s3a://") else url
