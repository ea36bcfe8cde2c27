"""The errors for arguments and URLs that cannot be used, and the checks of services' arguments.

`Lock` and `open_store` load it only to refuse something.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from lockkit.errors import StatedError, StoreError

SHOWN = 60
SERVICE_S_MAX = 1e9
"""The longest lease or session of a lock service; 30 years."""
KINDS = {
    "url": "a text, as s3://lake/orders, in UTF-8",
    "owner": "a name of 1 to 1000 characters in UTF-8, or None",
    "client": "a name of at most 1000 characters in UTF-8",
    "policy": "a lockkit.Policy",
    "emit": "a function that is called with each event",
    "on_danger": "a function, or None",
    "on_lost": "a function, or None",
    "clock": "a lockkit.Clock, or None",
    "store": "an open store, as open_store(url) returns it, or None",
    "lock": "a lock's URL, or a handle as open_lock(url) returns it",
    "config_or_url": "a lock's URL, or Hudi's configuration in a dict",
    "epoch": "a whole number from 0",
    "blocking": "True or False; the longest wait is timeout=",
}
"""What each argument takes, in words; `config.check` compares."""
CURES = {
    "timeout": "None waits for ever",
    "acquire_timeout": "None waits for ever",
    "renew_interval_s": "ttl_s must be at least 10 renew intervals (Hudi's rule)",
}


class RefusedArgument(StatedError, ValueError):
    """An argument that cannot be used. Nothing was begun.

    `option` names it as the caller wrote it, `value` is the beginning of its value.
    """

    def __init__(self, option: str, why: str, cure: str = "", *, value: str) -> None:
        self.option, self.value = option, value
        super().__init__(f"{option}={value}", why, cure)


def wrong_kind(option: str, value: object) -> RefusedArgument:
    return refused(option, value, f"must be {KINDS[option]}")


def wrong_number(option: str, value: object, least: float, most: float) -> RefusedArgument:
    """The range is in the option's unit; an option's name ends in it, or it is seconds."""
    unit = "minutes" if option.endswith("_minutes") else "seconds"
    limits = f"{least:g} or more" if most > 1e15 else f"from {least:g} to {most:g}"
    return refused(option, value, f"must be a number of {unit}, {limits}", CURES.get(option, ""))


def check_texts(**given: object) -> None:
    """`RefusedArgument` for a text that is empty, or that is not UTF-8."""
    for option, value in given.items():
        fine = isinstance(value, str) and value != ""
        if not fine or str(value).encode(errors="ignore").decode() != value or "\0" in str(value):
            raise refused(option, value, "must be a text in UTF-8, not empty and without NUL")


def whole(option: str, value: Any) -> int:
    """`value`, which may be NumPy's, as a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int | Integral) or int(value) < 1:
        raise refused(option, value, "must be a whole number from 1")
    return int(value)


def refused(option: str, value: object, why: str, cure: str = "") -> RefusedArgument:
    return RefusedArgument(option, why, cure, value=brief(value))


def brief(value: Any) -> str:
    """The beginning of a value's `repr`, in characters that every output can show."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a class of the caller's, or an int of over 4,300 digits
        text = f"a {type(value).__name__}"
    if "@" in text or "?" in text or ("://" in text and not isinstance(value, str)):
        text = f"a {type(value).__name__}"  # it may carry a password or a signature
    return f"{text[:SHOWN]}{'...' * (len(text) > SHOWN)}".encode(errors="replace").decode()


def unknown_scheme(url: str, scheme: str) -> StoreError:
    return StoreError(
        f"cannot open {url!r}: no store has the scheme {scheme!r}; use s3://, gs://, az://, "
        "abfss://, file:/// or memory://"
    )


def not_installed(url: str, scheme: str, package: str) -> StoreError:
    extra = {"s3a": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
    return StoreError(
        f"cannot open {url!r}: the Python package {package!r} is not installed; "
        f"pip install 'lockkit[{extra.get(scheme, scheme)}]'"
    )


def secret_in(url: str) -> StoreError:
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    return StoreError(
        f"cannot open a URL ({scheme[:50]}://...) that carries a password or a signature; pass "
        "credentials in the provider's own environment variables, or as options"
    )
