"""The keyword arguments of a function and of the store behind it; unknown ones are named.

Loaded only if a caller passes a store's options: most pass none, and `inspect` is slow to load.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from lockkit.errors import StoreError, UnknownKeyword
from lockkit.stores import TIMEOUT_S_MAX, StoreOptions, adapter_of, open_store


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


def check_options(url: str, options: StoreOptions) -> None:
    """`TypeError` for an unknown keyword, `StoreError` for a value that cannot be used."""
    adapter_of(url)
    check_keywords(open_store, url, options.extra)
    usable = {
        "client": "a name as a str",
        "timeout_s": f"a number of seconds over 0 and up to {TIMEOUT_S_MAX:g}",
        "attempts": "a whole number from 1",
    }
    for name, rule in usable.items():
        value = getattr(options, name)
        if not StoreOptions(**{name: value}).sound():
            raise StoreError(f"cannot open {url!r} with {name}={value!r:.60}", cure=f"give {rule}")
    if not options.sound():
        raise StoreError(
            f"cannot open {url!r}: its endpoint is no URL",
            cure="write http://host:port or https://host",
        )


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
