"""The keyword arguments of a function and of the store behind it; unknown ones are named.

Loaded only if a caller passes a store's options: most pass none, and `inspect` is slow to load.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any
from urllib.parse import urlsplit

from lockkit.errors import StoreError, UnknownKeyword
from lockkit.stores import TIMEOUT_S_MAX, StoreOptions, adapter_of, open_store
from lockkit.stores.arguments import brief


def check_keywords(
    who: Callable[..., Any], url: str, given: Iterable[str], also: Iterable[str] = ()
) -> None:
    """`TypeError` for a keyword that neither `who` itself nor the store at `url` takes.

    `also` are keywords that `who` passes on elsewhere.

    A misspelt option must never be ignored: `Lock(url, ttl=30)` would hold for 300 s.
    """
    own = keywords_of(open_store)
    if foreign := set(given) - own:
        known = own | store_keywords(url)
        if foreign - known:
            raise unknown_keyword(
                f"{who.__name__}() for {url.partition('://')[0]}://", foreign - known,
                known.union(also, keywords_of(who)),
            )  # fmt: skip


def checked_options(url: str, options: StoreOptions) -> StoreOptions:
    """The same options, with Python's numbers for NumPy's.

    `TypeError` for an unknown keyword, `StoreError` for a value that cannot be used.
    """
    if not isinstance(url, str):
        raise StoreError(f"cannot open {brief(url)}", cure="give a URL as a str")
    scheme, _ = adapter_of(url)
    check_keywords(open_store, url, options.extra)
    has_server = scheme not in ("file", "memory")
    for name in ("endpoint", "faults"):
        if getattr(options, name) is not None and not has_server:
            raise StoreError(
                f"cannot open {url!r} with {name}=: {scheme}:// sends no HTTP requests",
                cure="leave it out",
            )
    timeout_s, attempts = options.timeout_s, options.attempts
    for name, fine, rule in (
        ("client", isinstance(options.client, str), "a name as a str"),
        ("timeout_s", _is(Real, timeout_s, 0) and 0 < timeout_s <= TIMEOUT_S_MAX,
         f"a number of seconds over 0 and up to {TIMEOUT_S_MAX:g}"),
        ("attempts", _is(Integral, attempts, 1), "a whole number from 1"),
        ("faults", options.faults is None or hasattr(options.faults, "install"),
         "a lockkit.Faulty, or None"),
    ):  # fmt: skip
        if not fine:
            value = brief(getattr(options, name))
            raise StoreError(f"cannot open {url!r} with {name}={value}", cure=f"give {rule}")
    check_endpoint(options.endpoint, f"cannot open {url!r}")
    return replace(options, timeout_s=float(timeout_s), attempts=int(attempts))


def _is(kind: Any, value: Any, least: int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value >= least)


def check_endpoint(endpoint: object, doing: str, name: str = "endpoint") -> None:
    """`StoreError` for an endpoint that is no `http://host:port/path`, with the reason."""
    if endpoint is None:
        return
    why = f"is a {type(endpoint).__name__}, no URL"
    if isinstance(endpoint, str):
        why = why_no_endpoint(endpoint)
    if why:
        secret = re.search(r"[@?#]|[^:/]:(?!\d*(?:/|$))", str(endpoint).rpartition("://")[2])
        shown = "" if secret else f"={brief(endpoint)}"
        raise StoreError(
            f"{doing}: its {name}{shown} {why}", cure="write http://host:port or https://host"
        )


def why_no_endpoint(endpoint: str) -> str:
    """Why requests could not be sent to it as it is written; "" if they could."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:  # an IPv6 address that cannot be
        return "is not a URL"
    if any(each.isspace() or not each.isprintable() for each in endpoint):
        return "contains a blank"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not a URL"
    if parts.query or parts.fragment or endpoint[-1] in "?#":
        return "has a part after ? or #, which no request would carry"
    try:
        fine = parts.port != 0
    except ValueError:
        fine = False
    return "" if fine else "has no port from 1 to 65535"


def store_keywords(url: str) -> frozenset[str]:
    """The options that the SDK's client for `url` takes; none for file:// and memory://."""
    keywords: frozenset[str] = adapter_of(url)[1].keywords()
    return keywords


def keywords_of(who: Callable[..., Any]) -> set[str]:
    """The optional parameters of a function or a class."""
    parameters = inspect.signature(who).parameters.values()
    return {each.name for each in parameters if each.default is not each.empty}


def unknown_keyword(who: str, unknown: Iterable[str], known: Iterable[str]) -> UnknownKeyword:
    """The error for unknown keywords: it names the most similar one, and all valid ones."""
    first, names = min(unknown), sorted(known)
    near = difflib.get_close_matches(first, names, n=1, cutoff=0.5)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return UnknownKeyword(f"{who} has no keyword {first!r}{meant}; valid: {', '.join(names)}")
