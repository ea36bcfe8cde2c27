"""Hudi's keys that describe a lock. None of them is ignored silently."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockkit.stores.secret import carries_secret

PREFIX = "hoodie.write.lock."
PROVIDER = PREFIX + "provider"
STORAGE_LOCK = PREFIX + "storage."
RENEW_KEYS = frozenset({STORAGE_LOCK + "renew.interval.secs", STORAGE_LOCK + "heartbeat.poll.secs"})
STORAGE = "StorageBasedLockProvider"
BASE_PATH, TABLE_NAME = "hoodie.base.path", "hoodie.table.name"
WAIT = PREFIX + "wait_time_ms"
RETRIES = PREFIX + "client.num_retries"
PAUSE = PREFIX + "client.wait_time_ms_between_retry"
PROVIDERS_OWN = {
    PREFIX + "num_retries": 15,
    PREFIX + "wait_time_ms_between_retry": 1_000,
    PREFIX + "max_wait_time_ms_between_retry": 16_000,
}
"""Retries within one try (in practice, of ZooKeeper's connection), by default as in Hudi. lockkit
retries every request without an answer until the time is over."""
HEARTBEAT = PREFIX + "heartbeat_interval_ms"
AWS = "hoodie.aws."
AWS_KEYS = {
    "hoodie.aws.access.key": "aws_access_key_id",
    "hoodie.aws.secret.key": "aws_secret_access_key",
    "hoodie.aws.session.token": "aws_session_token",
}
"""boto3's names for them."""
AWS_ROLE = ("hoodie.aws.role.arn", "hoodie.aws.role.session.name", "hoodie.aws.role.external.id")
AWS_CATALOG = "hoodie.aws.glue."
LIKE = 0.93
"""Keys more similar than this are a misspelling: no two of Hudi's own keys are so similar."""
SHOWN = 80

KEYS = [
    WAIT, RETRIES, PAUSE, *PROVIDERS_OWN, PROVIDER, HEARTBEAT,
    *(PREFIX + each for each in (
        "conflict.resolution.strategy",
        "storage.validity.timeout.secs", "storage.renew.interval.secs",
        "storage.heartbeat.poll.secs",
        "azure.connection.string", "azure.sas.token", "azure.managed.identity.client.id",
        "azure.client.tenant.id", "azure.client.id", "azure.client.secret",
        "filesystem.path", "filesystem.expire",
        "zookeeper.url", "zookeeper.port", "zookeeper.base_path", "zookeeper.lock_key",
        "zookeeper.session_timeout_ms", "zookeeper.connection_timeout_ms",
        "hivemetastore.database", "hivemetastore.table", "hivemetastore.uris",
        "dynamodb.table", "dynamodb.partition_key", "dynamodb.region", "dynamodb.billing_mode",
        "dynamodb.read_capacity", "dynamodb.write_capacity", "dynamodb.table_creation_timeout",
        "dynamodb.endpoint_url",
    )),
]  # fmt: skip
READ = [*KEYS, BASE_PATH, TABLE_NAME, *AWS_KEYS]
"""Every key that can have an effect on a lock."""
_TEXT = (PROVIDER, BASE_PATH, TABLE_NAME, *AWS_KEYS)


class UnknownKey(UserWarning):
    """A key that looks as if it had an effect and has none."""


def checked(config: Mapping[str, str], *, stacklevel: int) -> dict[str, str]:
    """The configuration with lower-case keys, as a table's options are read too.

    Raises `ValueError` for an invalid key or value. Warns (`UnknownKey`) of a key without effect: a
    misspelt one, or one that is not Hudi's. Hudi's keys that do not concern locks pass unchanged.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if not isinstance(key, str):
            raise ValueError(f"a key of Hudi's configuration is text, not {type(key).__name__}")
        name = key.lower()
        if name in found and found[name] != value:
            raise ValueError(f"{name} is given twice, in upper and lower case, with two values")
        if name in READ:
            _check_value(key, name, value)
        elif name in AWS_ROLE:
            raise ValueError(
                f"{name} is not read: name the role in a profile of ~/.aws/config, and pass "
                "profile_name=..."
            )
        else:
            _warn_of(name, stacklevel + 1)
        found[name] = value
    return found


def _check_value(key: str, name: str, value: object) -> None:
    if value is None or value == "":
        raise ValueError(f"{key} is empty; leave it out, or give it a value")
    kinds = (str,) if name in _TEXT else (str, int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        wanted = "text" if name in _TEXT else "text or a number"
        raise ValueError(f"the value of {key} is {wanted}, not {type(value).__name__}")
    if name in (BASE_PATH, PREFIX + "filesystem.path") and carries_secret(str(value)):
        raise ValueError(f"{key} carries a password or a signature; give credentials as options")


def _warn_of(name: str, stacklevel: int) -> None:
    if name.startswith(PREFIX):
        longer = [each for each in KEYS if each.startswith(name)]
        near = longer or difflib.get_close_matches(name, KEYS, n=1)
    else:
        near = difflib.get_close_matches(name, READ, n=1, cutoff=LIKE)
    meant = f"; did you mean {near[0]}?" if near else ""
    if name.startswith(PREFIX):
        text = f"{name[:SHOWN]} is ignored: it is no key of Hudi's locks{meant}"
    elif not name.startswith("hoodie."):
        text = f"{name[:SHOWN]} is ignored: it is no key of Hudi{meant}"
    elif near or (name.startswith(AWS) and not name.startswith(AWS_CATALOG)):
        text = f"{name[:SHOWN]} is ignored: no lock reads it{meant}"
    else:
        return
    warnings.warn(UnknownKey(text), stacklevel=stacklevel)


def warn_of_unused(given: Iterable[str], why: str, *, stacklevel: int) -> None:
    """Credentials that nothing uses, because others are used or none are needed."""
    if unused := sorted(set(given) & AWS_KEYS.keys()):
        text = f"{', '.join(unused)} has no effect: {why}"
        warnings.warn(UnknownKey(text), stacklevel=stacklevel)


# --- the settings of a storage lock ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Where a lock is, how long its lease is, how often it is renewed, how long to wait for it."""

    url: str
    ttl_s: float
    renew_interval_s: float
    timeout_s: float


def from_hudi(config: Mapping[str, str]) -> LockSettings:
    """Hudi's keys, defaults and rules. Raises `ValueError` naming the invalid key."""
    base = config.get(BASE_PATH)
    if not base:
        raise ValueError("hoodie.base.path is missing: a storage lock lives in its table")
    older = number(config, STORAGE_LOCK + "heartbeat.poll.secs", 30)
    ttl_s = number(config, STORAGE_LOCK + "validity.timeout.secs", 300)
    renew_s = number(config, STORAGE_LOCK + "renew.interval.secs", older)
    wait_ms = number(config, WAIT, 60_000)
    if ttl_s < 10 or renew_s < 1:
        raise ValueError(
            f"{STORAGE_LOCK}validity.timeout.secs must be at least 10, "
            "renew.interval.secs at least 1"
        )
    return LockSettings(url=base, ttl_s=ttl_s, renew_interval_s=renew_s, timeout_s=wait_ms / 1000)


def number(
    config: Mapping[str, str], key: str, default: float, *,
    least: float = -math.inf, most: float = math.inf,
) -> float:  # fmt: skip
    """A numeric value: a string in Java's configuration, often a number in Python's."""
    said = config.get(key, default)
    try:
        value = float(said)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{key} is a number, not {said!r}")
    if not least <= value <= most:
        raise ValueError(f"{key} is from {least:g} to {most:g}, not {said!r}")
    return value
