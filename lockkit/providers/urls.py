"""A lock from its URL, which names the service, its address and the lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from lockkit.lock.handle import Lock
from lockkit.providers.leased import LeasedLock
from lockkit.stores.secret import carries_secret

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file", "memory")
Options = dict[str, Any]


def lock_at(url: str, options: Options) -> Lock | LeasedLock:
    """Raises `ValueError` naming the part of the URL that is missing or invalid."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if carries_secret(url, with_port=scheme not in STORES):
        # Messages and histories show the URL, so it must not contain secrets.
        raise ValueError(
            f"a {scheme[:50]}:// URL carries no password, key, token or signature; give "
            "credentials as options"
        )
    if scheme in STORES:
        return Lock(url, **options)
    if scheme not in SERVICES:
        known = ", ".join(f"{each}://" for each in (*STORES, *SERVICES))
        raise ValueError(f"no lock has the scheme {scheme!r:.50}; known: {known}")
    lock = SERVICES[scheme](split(url), options)
    lock.address = url
    return lock


@dataclass(slots=True)
class LockUrl:
    """`scheme://host/parts?said`; `query` removes what it reads from `said`."""

    scheme: str
    host: str
    path: str
    said: dict[str, str] = field(default_factory=dict)

    def parts(self, *names: str) -> list[str]:
        """The path's parts, exactly these names."""
        found = [unquote(each) for each in self.path.strip("/").split("/")]
        if len(found) != len(names) or not all(found):
            raise ValueError(f"{self.scheme}:// needs {'/'.join(names)} after its host")
        return found

    def query(self, **kinds: Callable[[str], Any]) -> Options:
        """The parameters after `?`, with these names and types."""
        found = {}
        for name, value in self.said.items():
            if name not in kinds:
                known = ", ".join(kinds) or "none"
                raise ValueError(f"{self.scheme}:// has no option ?{name[:50]}=; known: {known}")
            try:
                found[name] = kinds[name](value)
            except ValueError:
                # The value is not shown: it may be a pasted secret.
                raise ValueError(
                    f"{self.scheme}://: the value of ?{name}= must be a number"
                ) from None
        return found


def split(url: str) -> LockUrl:
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    if "@" in host:
        raise ValueError(f"a {scheme}:// URL carries no password; give credentials as options")
    return LockUrl(scheme.lower(), host, slash + path, dict(parse_qsl(query)))


# --- one function per provider -------------------------------------------------------------------


def _azure_lease(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.azure_lease import AzureBlobLease

    if not at.host or not at.path.strip("/"):
        raise ValueError("azure-lease:// needs a container and a blob: azure-lease://container/blob")
    arguments = at.query(account_url=str, endpoint=str, ttl_s=float)
    return AzureBlobLease(f"az://{at.host}{at.path}", **arguments | AzureBlobLease.named(options))


def _filesystem(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.filesystem import FilesystemLock

    if at.host or not at.path.strip("/"):
        raise ValueError("filesystem:// needs an absolute folder: filesystem:///path/to/folder")
    arguments = at.query(expire_minutes=float) | FilesystemLock.named(options)
    return FilesystemLock(unquote(at.path), **arguments)


def _zookeeper(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.zookeeper import ZookeeperLock

    base_path, _, key = unquote(at.path).rstrip("/").rpartition("/")
    if not at.host or not base_path or not key:
        raise ValueError("zookeeper:// needs hosts, base path and key: zookeeper://h:2181/base/key")
    arguments = at.query(session_timeout_s=float, connection_timeout_s=float)
    return ZookeeperLock(at.host, base_path, key, **arguments | ZookeeperLock.named(options))


def _dynamodb(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.dynamodb import DynamoDBLock

    if not at.host:
        raise ValueError("dynamodb:// needs a region: dynamodb://us-east-1/table/key")
    table, key = at.parts("table", "key")
    arguments = at.query(endpoint=str, lease_s=float)
    endpoint = {"endpoint_url": arguments.pop("endpoint")} if "endpoint" in arguments else {}
    arguments = {"region": at.host} | endpoint | arguments | DynamoDBLock.named(options)
    return DynamoDBLock(table, key, **arguments)


def _hive(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.hive import HiveMetastoreLock

    database, table = at.parts("database", "table")
    uris = ",".join(f"thrift://{each}" for each in at.host.split(",") if each)
    arguments = at.query(heartbeat_interval_s=float) | HiveMetastoreLock.named(options)
    return HiveMetastoreLock(uris or None, database, table, **arguments)


def _process(at: LockUrl, options: Options) -> LeasedLock:
    from lockkit.providers.process import ProcessLock

    name = unquote(at.host + at.path)
    if not name:
        raise ValueError("process:// needs a name: process://name")
    return ProcessLock(name, **at.query() | ProcessLock.named(options))


SERVICES: dict[str, Callable[[LockUrl, Options], LeasedLock]] = {
    "zookeeper": _zookeeper,
    "dynamodb": _dynamodb,
    "hive": _hive,
    "azure-lease": _azure_lease,
    "filesystem": _filesystem,
    "process": _process,
}
