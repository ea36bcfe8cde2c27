"""Keeps what was parsed of the last short inputs, which a process reads again and again."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

Parse = TypeVar("Parse", bound=Callable[..., Any])


def kept(count: int, bytes_max: int) -> Callable[[Parse], Parse]:
    """`lru_cache`, but of inputs of so many bytes alone: parsed, these take many times as many."""

    def keeping(parse: Any) -> Any:
        def chosen(*of: Any) -> Any:
            return (known if sum(len(each or ()) for each in of) <= bytes_max else parse)(*of)

        known = lru_cache(count)(parse)
        return wraps(parse)(chosen)

    return keeping
