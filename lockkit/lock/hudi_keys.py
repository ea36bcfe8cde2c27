"""Hudi's keys that describe a lock. None of them is ignored silently."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from lockkit.errors import StoreError
from lockkit.stores.secret import carries_secret

PREFIX = "hoodie.write.lock."
PROVIDER = PREFIX + "provider"
STRATEGY = PREFIX + "conflict.resolution.strategy"
STORAGE = "StorageBasedLockProvider"
BASE_PATH, TABLE_NAME = "hoodie.base.path", "hoodie.table.name"


def _below(prefix: str, names: str) -> list[str]:
    return [prefix + each for each in names.split()]


WAITING = WAIT, RETRIES, PAUSE = _below(
    PREFIX, "wait_time_ms client.num_retries client.wait_time_ms_between_retry"
)
PROVIDERS_OWN = {
    PREFIX + "num_retries": 15,
    PREFIX + "wait_time_ms_between_retry": 1_000,
    PREFIX + "max_wait_time_ms_between_retry": 16_000,
}
"""Retries within one try (in practice, of ZooKeeper's connection), by default as in Hudi. lockkit
retries every request without an answer until the time is over."""
LEASE = VALIDITY, RENEW, POLL, HEARTBEAT = _below(
    PREFIX,
    "storage.validity.timeout.secs storage.renew.interval.secs storage.heartbeat.poll.secs "
    "heartbeat_interval_ms",
)
RENEW_KEYS = frozenset({RENEW, POLL})
AZURE = PREFIX + "azure."
SAS_TOKEN = AZURE + "sas.token"
AZURE_LOGINS = _below(
    AZURE,
    "connection.string managed.identity.client.id client.tenant.id client.id client.secret",
)
PLACES = _below(
    PREFIX,
    "filesystem.path zookeeper.url zookeeper.base_path zookeeper.lock_key hivemetastore.database "
    "hivemetastore.table hivemetastore.uris dynamodb.table dynamodb.partition_key dynamodb.region "
    "dynamodb.billing_mode dynamodb.endpoint_url",
)
PROVIDERS_NUMBERS = _below(
    PREFIX,
    "filesystem.expire zookeeper.port zookeeper.session_timeout_ms "
    "zookeeper.connection_timeout_ms dynamodb.read_capacity dynamodb.write_capacity "
    "dynamodb.table_creation_timeout",
)
AWS = "hoodie.aws."
AWS_KEYS = {
    AWS + "access.key": "aws_access_key_id",
    AWS + "secret.key": "aws_secret_access_key",
    AWS + "session.token": "aws_session_token",
}
"""boto3's names for them."""
AWS_ROLE = _below(AWS, "role.arn role.session.name role.external.id")
AWS_CATALOG = AWS + "glue."
LIKE = 0.93
"""Keys more similar than this are a misspelling: no two of Hudi's own keys are so similar."""
SHOWN = 80

KEYS = [
    *WAITING, *PROVIDERS_OWN, PROVIDER, STRATEGY, *LEASE, SAS_TOKEN, *AZURE_LOGINS, *PLACES,
    *PROVIDERS_NUMBERS,
]  # fmt: skip
"""Every key of Hudi's locks. `table.format.gate` says what a table does with each."""
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
        text = f"{name[:SHOWN]} is ignored: it is not a key of Hudi's locks{meant}"
    elif not name.startswith("hoodie."):
        text = f"{name[:SHOWN]} is ignored: it is not a key of Hudi{meant}"
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


def of_storage_lock(
    config: Mapping[str, str], options: Mapping[str, Any], *, stacklevel: int
) -> tuple[str, dict[str, Any]]:
    """The URL and the keywords of the `Lock` that the keys describe; `options` override them."""
    config = checked(config, stacklevel=stacklevel)
    if not config.get(PROVIDER, STORAGE).endswith(STORAGE):
        raise ValueError(f"{PROVIDER} names another lock than a {STORAGE}; call open_lock")
    warn_of_unused(config, "pass them as options, or call open_lock", stacklevel=stacklevel)
    return storage_url(config), storage_lock(config, options)


def storage_url(config: Mapping[str, str]) -> str:
    """Raises `ValueError` if the key of the table's URL is missing."""
    base = config.get(BASE_PATH)
    if not base:
        raise ValueError(f"{BASE_PATH} is missing: a storage lock lives in its table")
    return base


def storage_lock(config: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `Lock` by Hudi's keys, defaults and rules; `options` override them.

    Raises `ValueError` naming the invalid key.
    """
    ttl_s = number(config, VALIDITY, 300)
    renew_s = number(config, RENEW, number(config, POLL, 30))
    if ttl_s < 10 or renew_s < 1:
        raise ValueError(f"{VALIDITY} must be at least 10, renew.interval.secs at least 1")
    found: dict[str, Any] = {"ttl_s": ttl_s, "acquire_timeout": number(config, WAIT, 60_000) / 1000}
    if "ttl_s" not in options or not RENEW_KEYS.isdisjoint(config):
        found["renew_interval_s"] = renew_s  # Hudi's default belongs to Hudi's lease of 300 s
    return found | dict(options)


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


def key_of_base_path(base_path: str) -> str:
    """The key that Hudi's "implicit" providers derive from a table's path, so none is configured.

    Hudi's HashID (org.apache.hudi.common.util.hash): XXH64 of the path's UTF-8 bytes, as 16
    upper-case hex digits; `s3a://` becomes `s3://`. The seed is a Java int, sign-extended to long.
    """
    try:
        from xxhash import xxh64_hexdigest
    except ModuleNotFoundError:
        raise StoreError(
            f"the key of the lock is a hash of {base_path!r:.200}, and the Python package 'xxhash' "
            "is not installed",
            cure="pip install xxhash, or configure the key by a provider that is not implicit",
        ) from None
    path = re.sub("^s3a://", "s3://", base_path, flags=re.IGNORECASE)
    return xxh64_hexdigest(path.encode(), 0xFFFF_FFFF_DABA_DABA).upper()
