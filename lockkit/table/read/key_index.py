"""Finds record keys in a column of others, with numpy in loops over whole columns.

Arrow's `index_in` and `dictionary_encode` probe a table key by key, several times slower. Here a
key is a hash of 64 bits, and a table of hashes is filled and read in one step for all of them;
those that meet another one in their slot go into a smaller table. Equal hashes prove nothing: the
keys are compared. Where they differ, or without numpy, Arrow does the work. Many keys are hashed by
polars, if it is installed: in a fourth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

TABLES_MAX = 24
"""Each is an eighth of the one before, so that this many are used up only by keys made for it."""
MANY = 10_000
"""So many keys are worth the import of polars."""
ODD = 0x9E3779B97F4A7C15
WORD = 8


class KeyIndex:
    """Strings by which others are found."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys
        self._hash = _hash_of(len(keys))
        self._hashes: Any = None
        self._tables = list[Any]()
        first = self._filled(keys)
        self.distinct = first is None
        """Whether no string comes twice."""
        self._codes = first

    @property
    def codes(self) -> pa.Array:
        """A number for each string, the same one for equal strings alone."""
        import pyarrow as pa

        return pa.arange(0, len(self._keys)) if self._codes is None else self._codes

    def places(self, keys: pa.ChunkedArray) -> pa.Array:
        """Where each of `keys` stands in the index, if its strings are distinct; or null."""
        import pyarrow as pa

        found = [self._places(each) for each in keys.chunks]
        return pa.chunked_array(found, pa.int32()).combine_chunks()

    def _filled(self, keys: pa.Array) -> pa.Array | None:
        """Fill the tables; None if all keys are distinct, else the code of each."""
        import pyarrow.compute as pc

        found = _first_ones(keys, self._hash(keys))
        if found is None:
            codes = keys.dictionary_encode(null_encoding="encode").indices
            return None if pc.max(codes).as_py() in (None, len(keys) - 1) else codes
        self._hashes, self._tables, codes = found
        return codes

    def _places(self, keys: pa.Array) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        hashes = None if self._hashes is None or self._codes is not None else self._hash(keys)
        if hashes is None:
            return pc.index_in(keys, value_set=self._keys)
        place = _probe(hashes, self._hashes, self._tables)
        meets = place >= 0
        found = pa.array(place, mask=~meets)
        if not _equal(keys.filter(pa.array(meets)), self._keys.take(found.drop_null())):
            return pc.index_in(keys, value_set=self._keys)
        return found


def _hash_of(count: int) -> Callable[[pa.Array], Any]:
    """How this many keys are hashed, and those that are sought among them."""
    if count >= MANY:
        with suppress(ImportError):
            import polars

            return lambda keys: None if keys.null_count else polars.Series(keys).hash().to_numpy()
    return hashed


def hashed(keys: pa.Array) -> Any:
    """A hash of 64 bits of each string; None if numpy is missing or a string is null."""
    try:
        import numpy as np
    except ImportError:
        return None
    count = len(keys)
    if keys.null_count:
        return None
    if not count:
        return np.zeros(0, np.uint64)
    _, offsets, content = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    data = np.zeros(last - first + WORD, np.uint8)  # so that a word may begin at the last byte
    if last > first:
        data[:-WORD] = np.frombuffer(content, np.uint8)[first:last]
    words = np.ndarray(len(data) - WORD + 1, "<u8", data, 0, (1,))  # one from each byte on
    begin, size = ends[:-1] - first, np.diff(ends)
    least, most = int(size.min()), int(size.max())
    masks = np.array([(1 << 8 * n) - 1 for n in range(WORD + 1)], np.uint64)
    found = size.astype(np.uint64)
    for at in range(0, most, WORD):
        if least > at:
            rest = masks[np.minimum(least - at if least == most else size - at, WORD)]
            found = _mixed(found, words[begin + at], rest)
        else:  # a key's hash depends on no other key: the shorter ones are done
            longer = np.flatnonzero(size > at)
            rest = masks[np.minimum(size[longer] - at, WORD)]
            found[longer] = _mixed(found[longer], words[begin[longer] + at], rest)
    return found


def _mixed(hashes: Any, words: Any, masks: Any) -> Any:
    import numpy as np

    mixed = (hashes ^ (words & masks)) * np.uint64(ODD)
    return mixed ^ (mixed >> np.uint64(29))


def repeats(places: pa.Array) -> bool:
    """Whether one of these places, which are not negative, comes twice; nulls do not count."""
    import pyarrow.compute as pc

    there = places.drop_null()
    try:
        import numpy as np
    except ImportError:
        return bool(pc.count_distinct(there).as_py() < len(there))
    return len(there) > 0 and int(np.bincount(there.to_numpy()).max()) > 1


def _first_ones(keys: pa.Array, hashes: Any) -> Any:
    """The hashes, the tables of them, and the codes of strings of which some are equal, or None.

    None if Arrow has to do it.
    """
    import pyarrow as pa

    if hashes is None:
        return None
    import numpy as np

    left, tables = np.arange(len(keys), dtype=np.int32), list[Any]()
    codes = left.copy()
    while len(left):
        if len(tables) == TABLES_MAX:
            return None
        own = hashes[left]
        bits = max(4, len(left).bit_length() + 1)
        slots = _slots(own, len(tables), bits)
        table = np.full(1 << bits, -1, np.int32)
        table[slots] = left
        tables.append(table)
        there = table[slots]
        codes[left] = there  # of those that stay no other table decides
        left = left[hashes[there] != own]
    again = codes != np.arange(len(keys), dtype=np.int32)
    if not again.any():
        return hashes, tables, None
    twice, first = pa.array(again), pa.array(codes[again])
    if not _equal(keys.filter(twice), keys.take(first)):
        return None
    return hashes, tables, pa.array(codes)


def _slots(hashes: Any, number: int, bits: int) -> Any:
    import numpy as np

    factor = np.uint64((2 * number + 1) * ODD & (1 << 64) - 1)  # odd, and another for each table
    return ((hashes * factor) >> np.uint64(64 - bits)).view(np.int64)


def _probe(hashes: Any, of: Any, tables: list[Any]) -> Any:
    """The place in `of` of each of `hashes`, or -1."""
    import numpy as np

    place, left = np.full(len(hashes), -1, np.int32), None
    for number, table in enumerate(tables):
        own = hashes if left is None else hashes[left]
        there = table[_slots(own, number, len(table).bit_length() - 1)]
        hit = of[there] == own
        hit &= there >= 0
        miss = (there >= 0) ^ hit
        if left is None:
            place, left = np.where(hit, there, np.int32(-1)), np.flatnonzero(miss)
        else:
            place[left[hit]], left = there[hit], left[miss]
    return place


def _equal(one: pa.Array, other: pa.Array) -> bool:
    return bool(one.equals(other))
