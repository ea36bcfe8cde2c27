"""Locks of other services with the interface of `lockkit.Lock`, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.lock.handle import Lock
    from lockkit.providers.leased import LeasedLock


def open_lock(config_or_url: str | Mapping[str, str], **options: Any) -> Lock | LeasedLock:
    """The lock that Hudi's configuration describes, or that a URL names.

    A configuration is a mapping with `hoodie.write.lock.provider=<class name>` and that provider's
    keys. Missing keys have Hudi's defaults. By default `with` waits as long as Hudi's LockManager
    would; if that is long, a warning (`LongWait`) names the key to change. URLs:
        s3://bucket/table  gs://...  az://...  abfss://...  file:///...  memory://...
        zookeeper://host:2181,host:2181/base/path/key
        dynamodb://region/table/key?endpoint=http://127.0.0.1:8000
        hive://host:9083,host:9083/database/table
        azure-lease://container/blob?account_url=https://account.blob.core.windows.net
        filesystem:///folder?expire_minutes=5
        process://name

    `options` are those of the lock's class and override the configuration. Every lock takes
    `ttl_s`, `acquire_timeout` (the longest wait of `with`), `owner`, `client`, `on_danger`,
    `on_lost`, `emit` and `clock`. A service with leases of its own takes `ttl_s` as its setting for
    their length (ZooKeeper's session, DynamoDB's lease, a lock file's expiry; Hive's only if the
    metastore does not report its own). A lock in one process ends with that process. Raises
    `ValueError` naming the key or the part of the URL that is missing or invalid, and `TypeError`
    naming a keyword that the lock does not take.

    :param config_or_url: Hudi's configuration, or a URL.
    :param options: keywords of the lock's class; they override the configuration.
    """
    given: object = config_or_url
    if not isinstance(given, str | Mapping):
        from lockkit.stores.arguments import wrong_kind

        raise wrong_kind("config_or_url", given)
    if isinstance(config_or_url, str):
        from lockkit.providers.urls import lock_at

        return lock_at(config_or_url, options)
    from lockkit.providers.hudi import lock_of

    return lock_of(config_or_url, options)
