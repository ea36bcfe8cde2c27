"""A lock that a caller passes: it must be one, and be the one that guards the commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockkit.lock.hudi_keys import KEYS
from lockkit.table.errors import RefusedOption
from lockkit.table.occ.concurrency import CONCURRENCY_KEY, SINGLE, concurrency_mode
from lockkit.table.occ.conflict import STRATEGY_KEY

DESCRIBING = frozenset(KEYS) - {STRATEGY_KEY}
"""The keys of Hudi that describe a lock."""


def refuse_wrong_lock(options: Mapping[str, Any], lock: object) -> None:
    """Raise `TypeError` unless `lock` is a handle or keywords of `Lock`; `RefusedOption` if no
    commit would acquire it, or if it is a handle and `options`, in lower case, describe another.
    """
    handle = not isinstance(lock, Mapping)
    if handle and not hasattr(lock, "assert_held"):
        raise TypeError(
            "lock= takes a handle, as open_lock(url) returns it, or keywords of Lock in a dict; "
            f"this is a {type(lock).__name__}"
        )
    cure = "leave one of them out"
    if concurrency_mode(options) == SINGLE:
        why = f"was passed, but {CONCURRENCY_KEY}={SINGLE} takes no lock"
        raise RefusedOption("lock=", why, cure)
    said = {key for key, value in options.items() if value not in (None, "")}
    if handle and (other := sorted(said & DESCRIBING)):
        why = f"was passed, and {', '.join(other)} in the options would describe another lock"
        raise RefusedOption("lock=", why, cure)
