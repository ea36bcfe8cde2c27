"""A lock from Hudi's own configuration: the provider's class name, its keys and its waits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockkit.lock.handle import Lock
from lockkit.lock.hudi_keys import (
    AWS_KEYS,
    AZURE,
    BASE_PATH,
    HEARTBEAT,
    PAUSE,
    PREFIX,
    PROVIDER,
    PROVIDERS_OWN,
    RETRIES,
    SAS_TOKEN,
    TABLE_NAME,
    WAIT,
    UnknownKey,
    checked,
    key_of_base_path,
    number,
    storage_lock,
    storage_url,
    warn_of_unused,
)
from lockkit.providers.leased import LeasedLock
from lockkit.sinks import silent

ZOOKEEPER_PORT = 2181
DEFAULT_PROVIDER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
STORAGE_PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"

Config = Mapping[str, str]
Options = dict[str, Any]


def lock_of(config: Config, options: Options) -> Lock | LeasedLock:
    """The provider's lock. Raises `ValueError` naming the key that is missing or invalid."""
    config = checked(config, stacklevel=4)
    name = config.get(PROVIDER, DEFAULT_PROVIDER)
    if name not in PROVIDERS:
        known = "\n  ".join(PROVIDERS)
        raise ValueError(f"{PROVIDER} is {name!r:.200}, which is not known; known:\n  {known}")
    on_s3 = config.get(BASE_PATH, "").lower().startswith(("s3://", "s3a://"))
    if not name.startswith(_AWS) and not (name == STORAGE_PROVIDER and on_s3):
        warn_of_unused(config, "this lock does not use AWS", stacklevel=4)
    patience = patience_of(config)
    return PROVIDERS[name](config, {"acquire_timeout": patience.longest_s} | options)


# --- one function per provider -------------------------------------------------------------------


def _storage(config: Config, options: Options) -> Lock:
    url = storage_url(config)
    for key in config:
        if key.startswith(AZURE) and key != SAS_TOKEN:
            raise ValueError(
                f"{key} is not read: log in by the Azure SDK's environment variables "
                "(AZURE_STORAGE_CONNECTION_STRING, AZURE_CLIENT_ID, ...), or pass credential=..."
            )
    if SAS_TOKEN in config:
        if not url.lower().startswith(("az://", "abfs://", "abfss://")):
            raise ValueError(f"{SAS_TOKEN} is for Azure, and {BASE_PATH} is not on Azure")
        options = {"credential": config[SAS_TOKEN]} | options
    if url.lower().startswith(("s3://", "s3a://")):
        options = aws_credentials(config) | options
    from lockkit.providers.audit import AuditLog

    keywords = storage_lock(config, options)
    audit = AuditLog(keywords.pop("emit", silent))
    return audit.of(Lock(url, emit=audit, **keywords))


def _filesystem(config: Config, options: Options) -> LeasedLock:
    """Set the path if Hudi also writes: by default its releases use `.hoodie`, its next release
    `.hoodie/.aux`.
    """
    from lockkit.providers.filesystem import FilesystemLock

    prefix = PREFIX + "filesystem."
    folder = config.get(prefix + "path")
    if not folder:
        folder = _needed(config, BASE_PATH, f"or {prefix}path").rstrip("/") + "/.hoodie"
    minutes = number(config, prefix + "expire", 0, least=0)
    return FilesystemLock(folder, **{"expire_minutes": minutes} | FilesystemLock.named(options))


def _zookeeper(config: Config, options: Options) -> LeasedLock:
    from lockkit.providers.zookeeper import ZookeeperLock

    prefix, hosts = PREFIX + "zookeeper.", _hosts(config)
    key = config.get(prefix + "lock_key") or config.get(TABLE_NAME)
    if not key:
        raise ValueError(f"{prefix}lock_key is missing (or {TABLE_NAME})")
    path = _needed(config, prefix + "base_path")
    arguments = _session(config) | ZookeeperLock.named(options)
    return ZookeeperLock(hosts, path, str(key), **arguments)


def _zookeeper_implicit(config: Config, options: Options) -> LeasedLock:
    from lockkit.providers.zookeeper import ZookeeperLock

    base = _needed(config, BASE_PATH)
    arguments = _session(config) | ZookeeperLock.named(options)
    return ZookeeperLock.of_base_path(_hosts(config), base, **arguments)


def _hosts(config: Config) -> str:
    """Every host with its port. Hudi connects to `url` as written and never reads `port`."""
    url = _needed(config, f"{PREFIX}zookeeper.url", f"or name another {PROVIDER}")
    port = f"{PREFIX}zookeeper.port"
    port_number = int(number(config, port, ZOOKEEPER_PORT, least=1, most=65535))
    hosts = [each if ":" in each else f"{each}:{port_number}" for each in url.split(",")]
    if port_number != ZOOKEEPER_PORT and ":" not in url:
        text = f"Hudi does not read {port}: if it shares this lock, write its url as {hosts[0]}"
        warnings.warn(UnknownKey(text), stacklevel=5)
    return ",".join(hosts)


def _session(config: Config) -> Options:
    prefix = PREFIX + "zookeeper."
    return {
        "session_timeout_s": number(config, prefix + "session_timeout_ms", 60_000) / 1000,
        "connection_timeout_s":
            number(config, prefix + "connection_timeout_ms", 15_000) / 1000,
    }  # fmt: skip


def _hive(config: Config, options: Options) -> LeasedLock:
    """Without uris: those in hive-site.xml."""
    from lockkit.providers.hive import HiveMetastoreLock

    prefix = PREFIX + "hivemetastore."
    database, table = (_needed(config, prefix + each) for each in ("database", "table"))
    beat_ms = number(config, HEARTBEAT, 60_000, least=1)
    beat: Options = {"heartbeat_interval_s": beat_ms / 1000}
    arguments = beat | HiveMetastoreLock.named(options)
    return HiveMetastoreLock(config.get(prefix + "uris"), database, table, **arguments)


def _process(config: Config, options: Options) -> LeasedLock:
    from lockkit.providers.process import ProcessLock

    return ProcessLock(_needed(config, BASE_PATH), **ProcessLock.named(options))


def _dynamodb(config: Config, options: Options) -> LeasedLock:
    said = config.get(f"{PREFIX}dynamodb.partition_key") or config.get(TABLE_NAME)
    if not said:
        raise ValueError(f"{PREFIX}dynamodb.partition_key is missing (or {TABLE_NAME})")
    return _dynamodb_item(config, str(said), options)


def _dynamodb_implicit(config: Config, options: Options) -> LeasedLock:
    return _dynamodb_item(config, key_of_base_path(_needed(config, BASE_PATH)), options)


def _dynamodb_item(config: Config, key: str, options: Options) -> LeasedLock:
    """In Hudi the lease is the wait: `hoodie.write.lock.wait_time_ms`."""
    from lockkit.providers.dynamodb import DynamoDBLock

    prefix = PREFIX + "dynamodb."
    endpoint = config.get(prefix + "endpoint_url")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"  # most of Hudi's examples omit the scheme
    capacity = {
        name: int(number(config, prefix + name, default, least=1))
        for name, default in (("read_capacity", 20), ("write_capacity", 10))
    }
    creation_ms = number(config, prefix + "table_creation_timeout", 600_000, least=0)
    lease: Options = {
        "region": config.get(prefix + "region"),
        "endpoint_url": endpoint,
        "lease_s": number(config, WAIT, 60_000, least=1) / 1000,
        "billing_mode": config.get(prefix + "billing_mode", "PAY_PER_REQUEST"),
        "creation_timeout_s": creation_ms / 1000,
    }
    arguments = lease | capacity | DynamoDBLock.named(options)
    arguments["aws"] = aws_credentials(config) | dict(arguments.get("aws") or {})
    return DynamoDBLock(_needed(config, prefix + "table"), key, **arguments)


def aws_credentials(config: Config) -> Options:
    """Hudi's keys for AWS credentials, as boto3's client names them. `ValueError` for half."""
    found: Options = {name: str(config[key]) for key, name in AWS_KEYS.items() if config.get(key)}
    if found and not {"aws_access_key_id", "aws_secret_access_key"} <= found.keys():
        raise ValueError(
            "hoodie.aws.access.key and hoodie.aws.secret.key belong together; give both, and "
            "hoodie.aws.session.token with temporary credentials"
        )
    return found


def _needed(config: Config, key: str, otherwise: str = "") -> str:
    said = config.get(key)
    if not said:
        raise ValueError(f"{key} is missing{f' ({otherwise})' if otherwise else ''}")
    return str(said)


_CLIENT = "org.apache.hudi.client.transaction.lock."
_AWS = "org.apache.hudi.aws.transaction.lock."
PROVIDERS: dict[str, Callable[[Config, Options], Lock | LeasedLock]] = {
    f"{_CLIENT}StorageBasedLockProvider": _storage,
    f"{_CLIENT}FileSystemBasedLockProvider": _filesystem,
    f"{_CLIENT}InProcessLockProvider": _process,
    f"{_CLIENT}ZookeeperBasedLockProvider": _zookeeper,
    f"{_CLIENT}ZookeeperBasedImplicitBasePathLockProvider": _zookeeper_implicit,
    "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider": _hive,
    "org.apache.hudi.hive.HiveMetastoreBasedLockProvider": _hive,  # its name before 0.12
    f"{_AWS}DynamoDBBasedLockProvider": _dynamodb,
    f"{_AWS}DynamoDBBasedImplicitPartitionKeyLockProvider": _dynamodb_implicit,
}


LONG_S = 600.0
"""From this wait on, a job looks stuck rather than waiting for its lock."""
WAIT_MS_MAX, RETRIES_MAX = 86_400_000, 1_000_000


class LongWait(UserWarning):
    """The configuration lets a writer wait much longer than its numbers suggest."""


@dataclass(frozen=True, slots=True)
class WaitSchedule:
    """One try waits `wait_s`. After a failed try comes a pause of `pause_s`, `retries` times.

    lockkit also polls during the pauses, because a waiter that leaves loses its place in the queue.
    The handle's `timeout` is the sum, `longest_s`.
    """

    wait_s: float = 60.0
    retries: int = 50
    pause_s: float = 5.0

    @property
    def longest_s(self) -> float:
        return (self.retries + 1) * self.wait_s + self.retries * self.pause_s


def patience_of(config: Mapping[str, str]) -> WaitSchedule:
    """Raises `ValueError` naming the key. Warns (`LongWait`) of an unexpectedly long wait."""
    wait_ms = number(config, WAIT, 60_000, least=0, most=WAIT_MS_MAX)
    retries = number(config, RETRIES, 50, least=0, most=RETRIES_MAX)
    if retries != int(retries):
        raise ValueError(f"{RETRIES} must be a whole number, not {retries:g}")
    pause_ms = number(config, PAUSE, 5_000, least=0, most=WAIT_MS_MAX)
    for key, default in PROVIDERS_OWN.items():
        number(config, key, default, least=0)
    found = WaitSchedule(wait_ms / 1000, int(retries), pause_ms / 1000)
    if found.longest_s > LONG_S:
        text = (
            f"a writer may wait {found.longest_s / 60:.0f} minutes for this lock: "
            f"{found.retries + 1} tries of {found.wait_s:g} s ({WAIT}) and {found.retries} pauses "
            f"of {found.pause_s:g} s ({RETRIES}, {PAUSE}); set {RETRIES}=0 to wait for {WAIT} only "
            "(writers of a table with group commit take no lock)"
        )
        warnings.warn(LongWait(text), stacklevel=4)
    return found
