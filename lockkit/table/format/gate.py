"""The gate: every option of a write or a read is looked up before anything is written or read.

`hudi_options.txt` has the rule for each option, of Apache Hudi 1.2 and of lockkit; `options_page`
prints the rules.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from pathlib import Path
from pkgutil import get_data
from typing import Any, Literal, get_args

from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import lowered
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import (
    BUCKET_INDEX,
    BY_COMMIT,
    BY_EVENT,
    COMPLEX,
    EVENT_PAYLOAD,
    INDEX,
    KEY_CLASSES,
    KEY_TYPE,
    LATEST_PAYLOAD,
)
from lockkit.table.format.refusals import key_types

Fate = Literal["obeyed", "harmless", "refused"]
W = "hoodie.datasource.write."


@dataclass(frozen=True, slots=True)
class OptionRule:
    """Options that are treated alike.

    `values` says what they may be: `flag`, `whole`, `number`, `text`, or the values themselves.
    """

    fate: Fate
    keys: tuple[str, ...]
    values: str
    why: str
    reader: bool
    """It is an option of reads."""


def _rule(paragraph: str) -> OptionRule:
    head, *keys = paragraph.splitlines()
    start, _, why = head.partition(": ")
    name, _, reads = start.partition(" ")
    values = keys.pop(0).removeprefix("values: ") if keys[0].startswith("values: ") else ""
    fate: Fate = next(each for each in get_args(Fate) if each == name)
    return OptionRule(fate, tuple(keys), values, why, reads == "in reads")


_FILE = get_data(__name__, "hudi_options.txt")  # also out of an archive
assert _FILE is not None
_PARAGRAPHS = _FILE.decode().strip().split("\n\n")
TABLE = tuple(_rule(each) for each in _PARAGRAPHS if not each.startswith("#"))

NAMES: dict[str, tuple[str, ...]] = {
    "operation": (W + "operation",),
    "record_key": (W + "recordkey.field", "hoodie.table.recordkey.fields"),
    "precombine": (W + "precombine.field", "hoodie.table.precombine.field",
                   "hoodie.table.ordering.fields"),
    "partition_path": (W + "partitionpath.field", "hoodie.table.partition.fields"),
    "table_name": ("hoodie.table.name", W + "table.name"),
    "table_type": (W + "table.type", W + "storage.type", "hoodie.table.type"),
    "version": ("hoodie.write.table.version",),
    "mode": ("lockkit.commit.mode",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "hive_style": (W + "hive_style_partitioning",),
    "urlencode": (W + "partitionpath.urlencode",),
    "retries": ("hoodie.write.num.retries.on.conflict.failures",),
    "drop_duplicates": (W + "insert.drop.duplicates",),
    "combine": ("hoodie.combine.before.insert",),
    "partial": ("lockkit.partial.update",),
    "allow_empty": ("hoodie.allow.empty.commit",),
    "file_bytes_max": ("hoodie.parquet.max.file.size",),
    "tasks": ("hoodie.upsert.shuffle.parallelism",),
}  # fmt: skip
"""The options that a Python keyword stands for; of several the first that is given counts."""


SHOWN = 80
_SECRET = re.compile(r"secret|password|token|access\.key|api\.key|connection\.string|credential")
_EXACT = {key.lower(): each for each in TABLE for key in each.keys if not key.endswith("*")}
_PREFIXES = sorted(
    ((key[:-1].lower(), each) for each in TABLE for key in each.keys if key.endswith("*")),
    key=lambda found: -len(found[0]),
)
_SPELT = {key.lower(): key for each in TABLE for key in each.keys if not key.endswith("*")}
_FAMILIES = Path(__file__).with_name("hudi_families.txt")
"""The keys that a rule with `*` stands for, from Hudi 1.2's Spark bundle and its source for AWS."""
_STREAMER = Path(__file__).with_name("hudi_streamer.txt")
"""The keys of its streamer, which is not in that bundle. A key with `*` is a pattern."""


class UnknownOption(UserWarning):
    """A warning about a `hoodie.` option that neither Hudi nor lockkit has."""


def check_options(
    options: Mapping[str, Any], *, reading: bool = False, stacklevel: int = 3
) -> dict[str, Any]:
    """The options by their names in lower case. Raises `TableError` for a refused option.

    Warns (`UnknownOption`) about a `hoodie.` key that does not exist, and names the nearest one.
    """
    given = lowered(options)
    for key, value in given.items():
        entry = entry_of(key)
        if entry is None:
            _unknown(key, stacklevel + 1)
        elif value not in (None, "") and entry.reader == reading:
            _judge(entry, key, str(value))
    return given


_APPENDS = {
    "hoodie.datasource.write.operation": "insert|bulk_insert",
    "hoodie.datasource.write.partitions.to.delete": "",
    "hoodie.datasource.write.insert.drop.duplicates": "false",
    "hoodie.combine.before.insert": "false",
    "hoodie.allow.empty.commit": "false",
    "hoodie.parquet.max.file.size": "",
    "hoodie.upsert.shuffle.parallelism": "",
    "hoodie.write.num.retries.on.conflict.failures": "0",
    "hoodie.write.concurrency.early.conflict.detection.enable": "false",
    "hoodie.write.concurrency.early.conflict.check.commit.conflict": "false",
}
"""Options that only a Spark write obeys, and the values that `Table.append` accepts."""


def check_append_options(given: Mapping[str, Any]) -> None:
    """Raise `TableError` for an option (in lower case) that an append cannot obey."""
    for key, accepted in _APPENDS.items():
        value = given.get(key)
        if value not in (None, "") and not _fits(accepted, str(value)):
            cure = f"only {_in_words(accepted)} is accepted" if accepted else "leave it out"
            if key in NAMES["retries"]:
                cure = "pass retries= to each call"
            why = "is refused: a Spark write obeys it (lockkit.spark.write), Table.append does not"
            raise RefusedOption(key, why, cure, value=str(value)[:SHOWN])


def entry_of(key: str) -> OptionRule | None:
    """The rule for `key`, in lower case; None if neither Hudi nor lockkit has such an option."""
    if key in _EXACT:
        return _EXACT[key]
    found = next((each for prefix, each in _PREFIXES if key.startswith(prefix)), None)
    if found is None or found.fate == "refused" or key in _in_families():
        return found
    return found if any(fnmatchcase(key, each) for each in _in_families() if "*" in each) else None


@cache
def _in_families() -> dict[str, str]:
    """As Hudi spells them, by their names in lower case."""
    keys = _FAMILIES.read_text(encoding="utf-8").splitlines()
    _comment, *paragraphs = _STREAMER.read_text(encoding="utf-8").strip().split("\n\n")
    for prefixes, *endings in map(str.splitlines, paragraphs):
        keys += [prefix + each for prefix in prefixes.split() for each in endings]
    return {each.lower(): each for each in keys}


def _unknown(key: str, stacklevel: int) -> None:
    spelt = _SPELT | _in_families()
    near = difflib.get_close_matches(key, spelt, n=1, cutoff=0.6)
    meant = f"; did you mean {spelt[near[0]]}?" if near else ""
    if not key.startswith("hoodie."):
        raise RefusedOption(
            key[:SHOWN], f"is not an option of Hudi or lockkit{meant}",
            "" if meant else "leave it out",
        )  # fmt: skip
    text = f"{key[:SHOWN]} has no effect: it is not an option of Hudi 1.2 or of lockkit{meant}"
    warnings.warn(UnknownOption(text), stacklevel=stacklevel)


def _judge(entry: OptionRule, key: str, value: str) -> None:
    if entry.fate == "harmless" or _fits(entry.values, value):
        return
    shown = None if _SECRET.search(key) else value[:SHOWN]
    if entry.fate == "obeyed":
        raise RefusedOption(key, f"must be {_in_words(entry.values)}", value=shown)
    instead = f" (only {_in_words(entry.values)} is accepted)" if entry.values else ""
    raise RefusedOption(key, f"is refused: {entry.why}{instead}", value=shown)


def _fits(values: str, value: str) -> bool:
    match values:
        case "":
            return False
        case "text":
            return True
        case "flag":
            return value.lower() in ("true", "false")
        case "whole":
            return value.isascii() and value.isdecimal() and len(value) <= 18
        case "number":
            try:
                return math.isfinite(float(value))
            except ValueError:
                return False
    return value.lower() in values.lower().split("|")


def _in_words(values: str) -> str:
    kinds = {"flag": "true or false", "whole": "a whole number from 0", "number": "a number"}
    return kinds.get(values, values.replace("|", " or "))


# --- what options say of the table ----------------------------------------------------------------

_DESCRIBES = {
    "partition_by": NAMES["partition_path"], "name": NAMES["table_name"],
    "commit_mode": NAMES["mode"],
} | {
    field: NAMES[field] for field in (
        "record_key", "precombine", "table_type", "version", "buckets", "hive_style", "urlencode",
    )
}  # fmt: skip
"""The fields of a table's config, and the options that set them."""
_ORDERS = {
    BY_EVENT: True, BY_COMMIT: False, EVENT_PAYLOAD: True, LATEST_PAYLOAD: False,
    "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5": True, "ce9acb64-bde0-424c-9b91-f6ebba25356d": False,
}  # fmt: skip
_ORDERING = (
    "hoodie.record.merge.mode", "hoodie.write.record.merge.mode",
    "hoodie.datasource.write.payload.class", "hoodie.compaction.payload.class",
    "hoodie.table.legacy.payload.class", "hoodie.record.merge.strategy.id",
    "hoodie.write.record.merge.strategy.id", "hoodie.compaction.record.merger.strategy",
    "hoodie.datasource.write.record.merger.strategy",
)  # fmt: skip
_KEYGEN = (
    "hoodie.datasource.write.keygenerator.class", "hoodie.table.keygenerator.class",
    "hoodie.datasource.write.keygenerator.type", "hoodie.table.keygenerator.type",
)  # fmt: skip
_COMPACTS = "hoodie.compact.inline"
_CLUSTERS = ("hoodie.clustering.inline", "hoodie.clustering.async.enabled")
_INDEX = INDEX.lower()
_ENCODING = "hoodie.write.complex.keygen.new.encoding"
_ORDERS_LOWER = {name.lower(): ordered for name, ordered in _ORDERS.items()}


def described(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe the table."""
    single = {_ENCODING, _COMPACTS, _INDEX}
    keys = single.union(_ORDERING, _KEYGEN, _CLUSTERS, *_DESCRIBES.values())
    return {key: value for key, value in options.items() if key in keys}


def refuse_other(options: Mapping[str, Any], config: TableConfig) -> None:
    """Raise `TableError` if an option contradicts the table's properties.

    `options` are in lower case, as `check_options` returns them.
    """
    if str(options.get(_COMPACTS)).lower() == "true" and not config.merged:
        why = "is refused: a copy-on-write table has no log files that could be compacted"
        raise RefusedOption(_COMPACTS, why, "leave it out", value="true")
    for key in _CLUSTERS if config.merged or config.hashed else ():
        if str(options.get(key)).lower() == "true":
            why = "is refused: the table's file groups are buckets and stay apart"
            raise RefusedOption(key, why, "leave it out", value="true")
    said_index = str(options.get(_INDEX) or "")
    if said_index and says_hashed(options) != config.hashed:
        has = f"Hudi's buckets ({BUCKET_INDEX})" if config.hashed else "lockkit's own buckets"
        raise RefusedOption(
            INDEX, f"is not the table's: the table has {has}",
            "leave it out to take the table's, or choose another place", value=said_index[:SHOWN],
        )  # fmt: skip
    for field, keys in _DESCRIBES.items():
        theirs = getattr(config, field)
        said = "" if theirs is None else str(theirs)
        for key in keys:
            mine = str(options.get(key) or "")
            if field in ("record_key", "partition_by"):
                mine = mine.replace(" ", "")
            if mine and mine.lower() != said.lower():
                raise RefusedOption(
                    key, f"is not the table's: the table has {said!r}",
                    "leave it out to take the table's, or choose another place; for a new table, "
                    f"pass {field}= in place of it", value=mine[:SHOWN],
                )  # fmt: skip
    for key in _ORDERING:
        ordered = _ORDERS_LOWER.get(str(options.get(key) or "").lower())
        if ordered is not None and ordered != (config.precombine is not None):
            has = f"precombine field {config.precombine!r}" if config.precombine else "none"
            raise RefusedOption(
                key,
                "merges rows by "
                f"{'their precombine field' if ordered else 'the order of commits'}, but of "
                f"precombine fields the table has {has}", "leave it out to merge as the table does",
                value=str(options[key])[:SHOWN],
            )  # fmt: skip
    _refuse_other_keys(options, config)


def says_hashed(options: Mapping[str, Any]) -> bool:
    """Whether options, in lower case, select the buckets of Hudi's index."""
    return str(options.get(_INDEX)).upper() == BUCKET_INDEX


def says_complex(options: Mapping[str, Any]) -> bool:
    """Whether options, in lower case, name `ComplexKeyGenerator`."""
    wanted = (COMPLEX.lower(), KEY_CLASSES[COMPLEX].lower())
    return any(str(options.get(key)).lower() in wanted for key in _KEYGEN)


def _refuse_other_keys(options: Mapping[str, Any], config: TableConfig) -> None:
    """Raise `TableError` if a key generator would make other keys or paths than the table has."""
    fitting = key_types(config.record_key, config.partition_by, config.named)
    fitting = [dict(config.generator)[KEY_TYPE]] if config.generator else fitting
    fine = {name.lower() for each in fitting for name in (each, KEY_CLASSES[each])}
    for key in _KEYGEN:
        said = str(options.get(key) or "")
        if said and said.lower() not in fine:
            raise RefusedOption(
                key,
                "makes other keys or partitions than the table's, with record key "
                f"{config.record_key!r} and partitions by {config.partition_by!r}",
                f"leave it out, or write {fitting[0]} or {KEY_CLASSES[fitting[0]]}",
                value=said[:SHOWN],
            )
    one_key = config.composite and len(config.record_keys) == 1
    if config.version < 9 and one_key and str(options.get(_ENCODING)).lower() == "true":
        raise RefusedOption(
            _ENCODING,
            "is refused: a complex key generator's keys of one field are spelt "
            f"{config.record_key}:VALUE here", "leave it out", value="true",
        )  # fmt: skip


# --- the page -------------------------------------------------------------------------------------

_INTRO = """\
# Hudi's options in lockkit

This page lists Hudi's options and says for each what lockkit does with it, before a row is written.

- **obeyed**: it does what Hudi's documentation says.
- **refused**: if lockkit ignored it, rows, guarantees or what other systems see would change. The
  error names the option and the reason. Values that request the built-in behaviour are accepted.
- **harmless**: it tunes a part of Hudi's engine that lockkit does not have. Rows, conflicts and
  readers are the same with it and without it.

A `hoodie.` key that is not listed gives a warning (`UnknownOption`) with the nearest listed key.
Any other unknown key is refused. `*` stands for every key of Hudi 1.2 with that beginning. Writes
ignore options of reads, and reads ignore options of writes.

<!-- Made by `lockkit.table.format.gate.options_page`; a test compares. -->
"""


def options_page() -> str:
    """`docs/options.md`."""
    lines = [_INTRO]
    order = {"obeyed": 0, "refused": 1, "harmless": 2}
    for reader, title in ((False, "Writes"), (True, "Reads")):
        entries = sorted(
            (each for each in TABLE if each.reader == reader), key=lambda each: order[each.fate]
        )
        for fate, found in groupby(entries, key=lambda each: each.fate):
            about = {"obeyed": "Values", "refused": "Accepted", "harmless": ""}[fate]
            lines.append(f"## {title}: {fate}\n")
            lines.append(f"| Option | {about} | What it does |" if fate == "obeyed" else
                         f"| Option | {about} | Why |" if about else "| Option | Why |")
            lines.append("| --- | --- | --- |" if about else "| --- | --- |")
            for each in found:
                keys = "<br>".join(f"`{key}`" for key in each.keys)
                values = _cell(each.values)
                lines.append(f"| {keys} | {values} | {each.why} |" if about else
                             f"| {keys} | {each.why} |")
            lines.append("")
    return "\n".join(lines)


def _cell(values: str) -> str:
    kinds = {"": "nothing", "flag": "true or false", "whole": "a whole number",
             "number": "a number", "text": "text"}  # fmt: skip
    return kinds.get(values) or " or ".join(f"`{each}`" for each in values.split("|"))


