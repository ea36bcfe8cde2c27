"""Other services that grant a lock, behind the face of `lockkit.Lock`: one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.lock import Lock
    from lockkit.providers.leased import Leased


def open_lock(config_or_url: str | Mapping[str, str], **options: Any) -> Lock | Leased:
    """The lock that Hudi's configuration describes, or that a URL names.

    A configuration is a mapping with `hoodie.write.lock.provider=<class name>` and that provider's
    keys, Hudi's defaults where they are left out; the handle's `timeout`, which is that of `with`,
    is what Hudi's LockManager would wait in all (`LongWait` warns where that is long). URLs:

        s3://bucket/table  gs://...  az://...  abfss://...  file:///...  memory://...
        zookeeper://host:2181,host:2181/base/path/key
        dynamodb://region/table/key?endpoint=http://127.0.0.1:8000
        hive://host:9083,host:9083/database/table
        azure-lease://container/blob?account_url=https://account.blob.core.windows.net
        filesystem:///folder?expire_minutes=5
        process://name

    `options` are those of the lock's class and win over what the configuration says. Raises
    `ValueError` naming the key or the part of the URL that is missing or cannot be.
    """
    if isinstance(config_or_url, str):
        from lockkit.providers.urls import lock_at

        return lock_at(config_or_url, options)
    from lockkit.providers.hudi import lock_of

    return lock_of(config_or_url, options)
