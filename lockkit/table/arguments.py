"""The arguments of `Table` and its methods: each of the right kind, and a lock of the commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from lockkit.clock import Clock
from lockkit.lock.hudi_keys import KEYS
from lockkit.sinks import silent
from lockkit.stores.keywords import check_keywords  # why: see there
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import lowered
from lockkit.table.format.properties import FENCED, SERIAL, TableConfig
from lockkit.table.occ.concurrency import CONCURRENCY_KEY, SINGLE, concurrency_mode
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, ConflictStrategy

DESCRIBING = frozenset(KEYS) - {STRATEGY_KEY}
"""The keys of Hudi that describe a lock."""


def refuse_wrong(
    options: Mapping[str, Any], lock: object = None, strategy: object = SIMPLE,
    emit: object = silent, clock: object = None, *, url: object = "", client: object = "",
) -> None:  # fmt: skip
    """Raise `RefusedOption` for an argument that is not what it must be.

    Also for a lock that no commit would acquire, and for a handle if `options` describe another
    lock.
    """
    for option, value, fine, what in (
        ("lock=", lock, lock is None or isinstance(lock, Mapping) or hasattr(lock, "assert_held"),
         "a handle, as open_lock(url) returns it, or keywords of Lock in a dict"),
        ("url=", url, isinstance(url, str), "a text, as s3://lake/orders"),
        ("client=", client, isinstance(client, str), "a name"),
        ("strategy=", strategy, isinstance(strategy, ConflictStrategy), "a ConflictStrategy"),
        ("emit=", emit, callable(emit), "a function that is called with each event"),
        ("clock=", clock, clock is None or isinstance(clock, Clock), "a lockkit.Clock"),
    ):  # fmt: skip
        if not fine:
            raise RefusedOption(option, f"takes {what}; this is a {type(value).__name__}")
    if lock is not None:
        _refuse_other_lock(lowered(options), lock)


def check_store_options(who: Callable[..., Any], url: str, given: Mapping[str, Any]) -> None:
    """Raise `UnknownKeyword`, or `RefusedOption` for a time that is none."""
    if given:
        check_keywords(who, url, given)
    timeout_s = given.get("timeout_s")
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (number and timeout_s > 0):
        raise RefusedOption("timeout_s", "must be seconds above 0", value=repr(timeout_s)[:60])


def _refuse_other_lock(options: Mapping[str, Any], lock: object) -> None:
    handle = not isinstance(lock, Mapping)
    cure = "leave one of them out"
    if concurrency_mode(options) == SINGLE:
        why = f"was passed, but {CONCURRENCY_KEY}={SINGLE} takes no lock"
        raise RefusedOption("lock=", why, cure)
    said = {key for key, value in options.items() if value not in (None, "")}
    if handle and (other := sorted(said & DESCRIBING)):
        why = f"was passed, and {', '.join(other)} in the options would describe another lock"
        raise RefusedOption("lock=", why, cure)


def fields_of(option: str, named: object) -> str:
    """One name or several, as the properties have them; "" for None or no name."""
    several = list(named) if isinstance(named, Sequence | Set) else [named]
    names: list[object] = [named] if isinstance(named, str) else several
    if named is None or not names:
        return ""
    if not all(isinstance(each, str) and each for each in names):
        why, cure = "must be the name of a column, or a list of names", "leave it out for none"
        raise RefusedOption(option, why, cure, value=repr(named)[:60])
    return ",".join(map(str, names))


def config_of(
    record_key: object, partition_by: object, texts: Mapping[str, Any], *, version: int,
    buckets: int, hive_style: bool, urlencode: bool,
) -> TableConfig:  # fmt: skip
    """What `Table.create` makes, by its arguments; without a name it has that of the URL's end."""
    whole = {"buckets": buckets, "version": version}
    refuse_mistyped(texts, whole, hive_style=hive_style, urlencode=urlencode)
    defaults = {"mode": FENCED, "commit": SERIAL}
    named: dict[str, Any] = {
        name: defaults.get(name) if text is None else text for name, text in texts.items()
    }
    end = named.pop("url").rstrip("/").rpartition("/")[2]
    if named["name"] is None and not end:
        raise RefusedOption("url", "has no end to name the table by", value=repr(texts["url"])[:60])
    named["name"] = end if named["name"] is None else named["name"]
    return TableConfig(
        record_key=fields_of("record_key", record_key),
        partition_by=fields_of("partition_by", partition_by) or None,
        version=version, buckets=buckets, hive_style=hive_style, urlencode=urlencode, **named,
    )  # fmt: skip


def refuse_mistyped(texts: Mapping[str, Any], whole: Mapping[str, Any], **flags: Any) -> None:
    """Raise `RefusedOption` for an argument whose type would be read as something else."""
    left_out = ("name", "precombine", "mode", "commit")
    for option, value in texts.items():
        if not isinstance(value, str) and not (value is None and option in left_out):
            raise RefusedOption(option, "must be a str", value=repr(value)[:60])
    for option, number in whole.items():
        if type(number) is not int:
            raise RefusedOption(option, "must be an int", value=repr(number)[:60])
    for option, flag in flags.items():
        if not isinstance(flag, bool):
            raise RefusedOption(option, "must be True or False", value=repr(flag)[:60])


def overwriting(whole_table: object) -> str:
    """Hudi's operation of an overwrite."""
    if not isinstance(whole_table, bool):
        raise RefusedOption("whole_table", "must be True or False", value=repr(whole_table)[:60])
    return "insert_overwrite_table" if whole_table else "insert_overwrite"
