"""Which entry of a key stands: the rule of merge on read, over Arrow columns.

Of one key the later entry wins, or the one with the greater ordering values (equal: the later;
null is the least, NaN the greatest, and -0.0 is less than 0.0, as in Java). A delete without an
ordering value always wins, and only a row ends it. As in Hudi, log files are merged among
themselves before the base file: after such a delete a row with a smaller value than the base file's
brings that one back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from lockkit.table.read.key_index import KeyIndex

ROW, FLAGGED, DELETE, DELETE_ALWAYS = range(4)
"""What an entry is: a row, a row that says that it is deleted, a delete with ordering values, or
one without."""


def standing(index: KeyIndex, kinds: pa.Array, order: Sequence[pa.Array]) -> pa.Array:
    """The place of the entry that stands for each key, in rising order.

    `order` are the entries' ordering columns; without them the later entry wins.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    code = index.codes
    place = pa.arange(0, len(code))
    if order:
        place = place.filter(_after_deletes(code, place, kinds))
    columns = {"code": code}
    for number, column in enumerate(map(comparable, order)):
        if column.null_count:
            columns[f"valid {number}"] = column.is_valid().cast(pa.int8())
        columns[f"value {number}"] = column
    rising = [(name, "ascending") for name in columns]
    entries = pa.table(columns).take(place)
    place = place.take(pc.sort_indices(entries, sort_keys=rising))  # it keeps equal ones in order
    ends = pc.run_end_encode(code.take(place), run_end_type=pa.int64()).run_ends
    last = place.take(pc.subtract(ends, 1))
    return last.take(pc.array_sort_indices(last))


def replaces(stored: Sequence[Any], kinds: pa.Array, order: Sequence[pa.Array]) -> pa.Array:
    """Whether each entry wins against the base file's row, whose ordering values are `stored`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    less: Any = pa.repeat(pa.scalar(False), len(kinds))
    equal: Any = pa.repeat(pa.scalar(True), len(kinds))
    for old, new in zip(stored, order, strict=True):
        less = pc.or_(less, pc.and_(equal, is_less(new, old)))
        equal = pc.and_not(equal, pc.or_(is_less(new, old), is_less(old, new)))
    return pc.or_(pc.invert(less), pc.equal(kinds, DELETE_ALWAYS))


def all_replace(stored: Sequence[Any], order: Sequence[pa.Array]) -> bool:
    """Whether every entry surely wins against every row of the base file.

    It is so if the table's rows rise in time. One ordering column is compared.
    """
    import pyarrow.compute as pc

    if len(order) != 1 or order[0].null_count:
        return False
    least = pc.min_max(comparable(order[0]))["min"]
    most = pc.min_max(comparable(stored[0]))["max"]
    return not most.is_valid or pc.less_equal(most, least).as_py() is True


def is_less(one: Any, other: Any) -> Any:
    """Null is less than any value."""
    import pyarrow.compute as pc

    found = pc.fill_null(pc.less(comparable(one), comparable(other)), False)
    return pc.or_(found, pc.and_(pc.is_null(one), pc.is_valid(other)))


def comparable(column: Any) -> Any:
    """Numbers with a point as the integers of Java's order: -0.0 is less than 0.0, NaN greatest."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_

    if not is_.is_floating(column.type):
        return column
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    numbers = column.cast(pa.float64())
    bits = pc.if_else(pc.is_nan(numbers), math.nan, numbers).view(pa.int64())
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, (1 << 63) - 1), bits)


def _after_deletes(code: Any, place: Any, kinds: Any) -> Any:
    """Where entries count: not before a delete that always wins, nor other deletes behind it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    always = pc.equal(kinds, DELETE_ALWAYS)
    if not pc.any(always).as_py():
        return pa.repeat(pa.scalar(True), len(place))
    gone = _looked_up(code, _of_each(code.filter(always), place.filter(always), "max"))
    later = pc.and_(pc.less_equal(kinds, FLAGGED), pc.fill_null(pc.greater(place, gone), False))
    ended = _looked_up(code, _of_each(code.filter(later), place.filter(later), "min"))
    since = pc.coalesce(ended, gone)
    return pc.case_when(
        pc.make_struct(pc.is_null(gone), pc.is_valid(ended)),
        True, pc.greater_equal(place, since), pc.equal(place, since),
    )  # fmt: skip


def _of_each(code: Any, value: Any, which: str) -> tuple[Any, Any]:
    """Each code, and the `max` or `min` of its values."""
    import pyarrow as pa

    pairs = pa.table({"code": code, "value": value}).group_by("code", use_threads=False)
    found = pairs.aggregate([("value", which)])
    return found["code"].combine_chunks(), found[f"value_{which}"].combine_chunks()


def _looked_up(code: Any, found: tuple[Any, Any]) -> Any:
    import pyarrow.compute as pc

    return found[1].take(pc.index_in(code, value_set=found[0]))
