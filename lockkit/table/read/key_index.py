"""Finds record keys in a column of others, with numpy in loops over whole columns.

Arrow's `index_in` and `dictionary_encode` probe a table key by key, several times slower. Here a
key is a hash of 64 bits, and a table of hashes is filled and read in one step for all of them;
those that meet another one in their slot go into a smaller table. A slot is one word: the high bits
of a hash, whether the next table has others of its slot, and the key's place. Equal hashes prove
nothing: the keys are compared. Where they differ, or without numpy, Arrow does the work. Many keys
are hashed by polars, if it is installed: in a fourth of the time. Keys of one length that differ in
their last eight bytes alone, as padded numbers do, are these bytes: no text is hashed or compared.
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

    def __init__(self, keys: pa.Array, *, short: bool = True) -> None:
        self._keys = keys
        self._words = _last_words(keys) if short else None
        self._whole: KeyIndex | None = None
        """The same keys, for those that are not like them."""
        self._hash = _hash_of(len(keys))
        self._tables: list[Any] | None = None
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

        hashes = self._hash(keys) if self._words is None else _of_words(self._words[1])
        found = _first_ones(keys, hashes)
        if found is None:
            codes = keys.dictionary_encode(null_encoding="encode").indices
            return None if pc.max(codes).as_py() in (None, len(keys) - 1) else codes
        self._tables, codes = found
        return codes

    def _places(self, keys: pa.Array) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        tables = None if self._codes is not None else self._tables
        words, hashes, known = None, None, self._words
        if tables is not None and known is None:
            hashes = self._hash(keys)
        elif tables is not None and known is not None:
            if (words := _last_words(keys)) is None:
                self._whole = self._whole or KeyIndex(self._keys, short=False)
                return self._whole._places(keys)
            if words[0] != known[0]:
                return pa.nulls(len(keys), pa.int32())
            hashes = _of_words(words[1])
        if tables is None or hashes is None:
            return pc.index_in(keys, value_set=self._keys)
        import numpy as np

        place = _probe(hashes, len(self._keys), tables)
        meets = place >= 0
        hits, bits = np.flatnonzero(meets), pa.py_buffer(np.packbits(meets, bitorder="little"))
        met = place[hits]
        if known is not None and words is not None:
            same = bool((words[1][hits] == known[1][met]).all())
        else:
            mask = pa.Array.from_buffers(pa.bool_(), len(place), [None, bits])
            same = _equal(keys.filter(mask), self._keys.take(pa.array(met)))
        if not same:
            return pc.index_in(keys, value_set=self._keys)
        return pa.Array.from_buffers(pa.int32(), len(place), [bits, pa.py_buffer(place)])


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


def _last_words(keys: pa.Array) -> tuple[bytes, Any] | None:
    """What all keys begin with, and the last eight bytes of each; None if they differ before."""
    try:
        import numpy as np
    except ImportError:
        return None
    count = len(keys)
    if keys.null_count or not count:
        return None
    _, offsets, content = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + count + 1]
    first, size = int(ends[0]), int(ends[1] - ends[0])
    if size < WORD or (np.diff(ends) != size).any():
        return None
    head = size - WORD
    for at in range(0, head, WORD):
        words = np.ndarray(count, "<u8", content, first + at, (size,))
        if ((words ^ words[0]) & np.uint64((1 << 8 * min(WORD, head - at)) - 1)).any():
            return None
    last = np.ndarray(count, ">u8", content, first + head, (size,))  # its low bits differ most
    return bytes(content[first : first + head]), last.astype(np.uint64)


def _of_words(words: Any) -> Any:
    import numpy as np

    mixed = words * np.uint64(ODD)
    return mixed ^ (mixed >> np.uint64(29))


def _mixed(hashes: Any, words: Any, masks: Any) -> Any:
    import numpy as np

    mixed = (hashes ^ (words & masks)) * np.uint64(ODD)
    return mixed ^ (mixed >> np.uint64(29))


class FirstPlaces:
    """Keeps the first of equal places, which come in one array or in several."""

    def __init__(self, count: int) -> None:
        """Each place is less than `count`."""
        import pyarrow as pa

        self._seen: Any = pa.array([], pa.int32())
        self._met = 0
        with suppress(ImportError):
            import numpy as np

            self._seen = np.zeros(count, np.bool_)

    def of(self, places: pa.Array) -> pa.Array:
        """`places`, with null for each that came before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = places.drop_null()
        if isinstance(self._seen, pa.Array):
            known, self._seen = self._seen, pa.concat_arrays([self._seen, found]).unique()
        else:
            import numpy as np

            values = found.to_numpy()
            seen = self._seen[values]
            self._seen[values] = True
            met, self._met = self._met, int(np.count_nonzero(self._seen))
            if self._met == met + len(values):
                return places
            known = pa.array(values[seen])
        rows = pa.table({"place": places, "row": pa.arange(0, len(places))})
        first = rows.group_by("place").aggregate([("row", "min")])["row_min"]
        is_first = pc.is_in(rows["row"].combine_chunks(), value_set=first)
        return pc.if_else(pc.and_not(is_first, pc.is_in(places, value_set=known)), places, None)


def _first_ones(keys: pa.Array, hashes: Any) -> Any:
    """The tables of the hashes, and the codes of strings of which some are equal, or None.

    None if Arrow has to do it.
    """
    import pyarrow as pa

    if hashes is None:
        return None
    import numpy as np

    place, others, low = _parts(len(keys))
    left, tables = np.arange(len(keys), dtype=np.uint64), list[Any]()
    codes, distinct = left.astype(np.int32), True
    while len(left):
        if len(tables) == TABLES_MAX:
            return None
        if tables:
            hashes = _anew(hashes)
        table = np.zeros(1 << max(4, len(left).bit_length() + 1), np.uint64)
        own, slots = hashes & ~low | left, _slots(hashes, len(table))
        table[slots] = own
        tables.append(table)
        lost = np.flatnonzero(table[slots] != own)
        there = table[slots[lost]]
        same = (there ^ own[lost]) <= place
        codes[left[lost[same]]] = there[same] & place
        distinct, stay = distinct and not same.any(), lost[~same]
        table[slots[stay]] |= others
        left, hashes = left[stay], hashes[stay]
    if distinct:
        return tables, None
    again = codes != np.arange(len(keys), dtype=np.int32)
    twice, first = pa.array(again), pa.array(codes[again])
    if not _equal(keys.filter(twice), keys.take(first)):
        return None
    return tables, pa.array(codes)


def _parts(count: int) -> tuple[Any, Any, Any]:
    """Of a slot's word: the bits of a place, the one that says that others share it, and both."""
    import numpy as np

    others = 1 << count.bit_length()
    return np.uint64(others - 1), np.uint64(others), np.uint64(2 * others - 1)


def _slots(hashes: Any, size: int) -> Any:
    import numpy as np

    return (hashes & np.uint64(size - 1)).view(np.int64)


def _anew(hashes: Any) -> Any:
    """Other hashes, different ones if these are, for the next table."""
    import numpy as np

    mixed = hashes * np.uint64(ODD)
    return mixed ^ (mixed >> np.uint64(32))


def _probe(hashes: Any, count: int, tables: list[Any]) -> Any:
    """The place of each of `hashes` among `count` others, or -1.

    An empty slot's word is 0. A hash whose high bits are 0 meets it, and the keys differ.
    """
    import numpy as np

    place, others, low = _parts(count)
    found: Any = np.full(len(hashes), -1, np.int32)
    left: Any = None
    for table in tables:
        there = table[_slots(hashes, len(table))]
        hit = (there ^ hashes) <= low
        hits, on = np.flatnonzero(hit), np.flatnonzero((there & others != 0) > hit)
        found[hits if left is None else left[hits]] = there[hits] & place
        left = on if left is None else left[on]
        hashes = _anew(hashes[on])
    return found


def _equal(one: pa.Array, other: pa.Array) -> bool:
    return bool(one.equals(other))
