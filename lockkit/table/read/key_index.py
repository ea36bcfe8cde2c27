"""Finds record keys in a column of others, with numpy in steps over whole columns.

Arrow's `index_in` and `dictionary_encode` probe a table key by key, several times slower. Here each
key has a word of 64 bits, and those of the index are sorted. A word is the key's hash, whose first
bits say about where it stands; equal hashes prove nothing: the keys are compared. Where they
differ, Arrow does the work. Many keys are hashed by polars, if it is installed: in a fourth of the
time. Keys of one length that differ in their last eight bytes alone, as padded numbers do, have
these as their words: no text is hashed or compared. Those that are sought are sorted too, and both
are merged, which costs little if they rise already, as in most files. In a process that reads many
rows, loops in machine code do this, if numba is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockkit.table.format.compiled import loops

if TYPE_CHECKING:
    import pyarrow as pa

STEPS_MAX = 8
"""So few have the first bits of many, unless the keys were made for it."""
MANY = 10_000
"""So many keys are worth the import of polars."""
ODD = 0x9E3779B97F4A7C15
WORD = 8
Finding = Callable[[Any], tuple[Any, Any] | None]


class KeyIndex:
    """Strings by which others are found."""

    def __init__(self, keys: pa.Array, *, short: bool = True) -> None:
        self._keys, self._hash = keys, _hash_of(len(keys))
        self._loops = loops(len(keys))
        self._whole: KeyIndex | None = None
        """The same keys, for those that are not like them."""
        self._head: bytes | None
        alike = _last_words(keys, self._loops) if short else None
        self._head, words = alike or (None, self._hash(keys))
        self._rising: Any = None if words is None else _rising(words)
        self._find: Finding | None = None
        self._codes = self._coded()
        self.distinct = self._codes is None
        """Whether no string comes twice."""

    @property
    def codes(self) -> pa.Array:
        """A number for each string, the same one for equal strings alone."""
        import pyarrow as pa

        return pa.arange(0, len(self._keys)) if self._codes is None else self._codes

    def places(self, keys: pa.ChunkedArray) -> pa.Array:
        """Where each of `keys` stands in the index, if its strings are distinct; or null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = [
            self._by_words(each) or pc.index_in(each, value_set=self._keys) for each in keys.chunks
        ]
        return pa.chunked_array(found, pa.int32()).combine_chunks()

    def _coded(self) -> pa.Array | None:
        """None if all keys are distinct, else the code of each."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._rising is not None:
            import numpy as np

            order, words = self._rising
            same = words[1:] == words[:-1]
            if not same.any():
                return None
            pairs = np.flatnonzero(same)
            if self._are_equal(order[pairs], self._keys, order[pairs + 1]):
                codes = np.zeros(len(order), np.int64)
                codes[order[1:]] = np.cumsum(~same)
                return pa.array(codes)
        self._rising = None
        codes = self._keys.dictionary_encode(null_encoding="encode").indices
        return None if pc.max(codes).as_py() in (None, len(codes) - 1) else codes

    def _are_equal(self, ours: Any, keys: pa.Array, theirs: Any) -> bool:
        """Whether our keys at these places are those of `keys` at theirs; their words are equal."""
        import pyarrow as pa

        if self._head is not None:
            return True
        return bool(self._keys.take(pa.array(ours)).equals(keys.take(pa.array(theirs))))

    def _by_words(self, keys: pa.Array) -> pa.Array | None:
        """The places of `keys`; None if Arrow has to find them."""
        import pyarrow as pa

        if self._rising is None or not self.distinct or not len(keys):
            return None
        if self._head is None:
            words = self._hash(keys)
        elif (last := _last_words(keys, self._loops)) is None:
            self._whole = self._whole or KeyIndex(self._keys, short=False)
            return self._whole.places(pa.chunked_array([keys]))
        elif last[0] != self._head:
            return pa.nulls(len(keys), pa.int32())
        else:
            words = last[1]
        if words is None or (place := self._placed(keys, words)) is None:
            return None
        import numpy as np

        bits = np.packbits(place >= 0, bitorder="little")
        return pa.Array.from_buffers(pa.int32(), len(place), list(map(pa.py_buffer, (bits, place))))

    def _placed(self, keys: pa.Array, words: Any) -> Any:
        """The place of each key, or -1; None if Arrow has to find them."""
        import numpy as np

        place, (order, ours) = np.empty(len(words), np.int32), self._rising
        if self._head is not None and self._loops is not None:
            begin = ours.searchsorted(words[0])
            if self._loops.merge(ours[begin:], order[begin:], words, place):
                return place
        if self._find is None:
            self._find = (_probing if self._head is None else _merging)(order, ours)
        met = self._find(words)
        if met is None or not self._are_equal(met[0], keys, met[1]):
            return None
        place[:] = -1
        place[met[1]] = met[0]
        return place


def _rising(words: Any) -> tuple[Any, Any]:
    """The places of `words` in the order in which they rise, and these words in it."""
    import numpy as np

    falls = np.count_nonzero(words[1:] < words[:-1])
    if not falls:
        return np.arange(len(words)), words
    order = np.argsort(words, kind="stable" if 8 * falls < len(words) else None)
    return order, words[order]


def _merging(ours: Any, words: Any) -> Finding:
    """Finds the places of `words`, which rise, and of others where they are equal.

    None if one of the others comes twice.
    """
    import numpy as np

    def merged(others: Any) -> tuple[Any, Any] | None:
        theirs, others = _rising(others)
        if (others[1:] == others[:-1]).any():
            return None
        begin, end = words.searchsorted(others[0]), words.searchsorted(others[-1], "right")
        both = np.concatenate([words[begin:end], others])
        order = np.argsort(both, kind="stable")
        both = both[order]
        pairs = np.flatnonzero(both[1:] == both[:-1])
        return ours[begin + order[pairs]], theirs[order[pairs + 1] - (end - begin)]

    return merged


def _probing(ours: Any, words: Any) -> Finding:
    """As `_merging`, of hashes: each is sought from where those with its first bits begin."""
    import numpy as np

    shift = np.uint64(63 - len(words).bit_length())
    counts = np.bincount((words >> shift).view(np.int64), minlength=1 << int(64 - shift))
    begins, words = np.cumsum(counts) - counts, np.append(words, np.uint64(2**64 - 1))

    def probed(others: Any) -> tuple[Any, Any]:
        at = begins[(others >> shift).view(np.int64)]
        left = np.flatnonzero(words[at] < others)
        for _ in range(STEPS_MAX):
            at[left] += 1
            left = left[words[at[left]] < others[left]]
        at[left] = words.searchsorted(others[left])
        found = np.flatnonzero((words[at] == others) & (at < len(ours)))
        return ours[at[found]], found

    return probed


def _hash_of(count: int) -> Callable[[pa.Array], Any]:
    """How this many keys are hashed, and those that are sought among them."""
    if count >= MANY:
        with suppress(ImportError):
            import polars

            return lambda keys: None if keys.null_count else polars.Series(keys).hash().to_numpy()
    return hashed


def hashed(keys: pa.Array) -> Any:
    """A hash of 64 bits of each string; None if a string is null."""
    import numpy as np

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


def _last_words(keys: pa.Array, compiled: Any) -> tuple[bytes, Any] | None:
    """What all keys begin with, and the last eight bytes of each; None if they differ before.

    :param compiled: the module `loops`, if it is worth its import.
    """
    import numpy as np

    count = len(keys)
    if keys.null_count or not count:
        return None
    _, offsets, content = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + count + 1]
    first, size = int(ends[0]), int(ends[1] - ends[0])
    head = size - WORD
    if compiled is not None:
        words = compiled.words_of(np.frombuffer(content or b"", np.uint8))
        last = np.empty(count, np.uint64)
        if compiled.last_words(words, ends, last) < 0:
            return None
        return bytes(content[first : first + head]), last
    if size < WORD or (np.diff(ends) != size).any():
        return None
    for at in range(0, head, WORD):
        words = np.ndarray(count, "<u8", content, first + at, (size,))
        if ((words ^ words[0]) & np.uint64((1 << 8 * min(WORD, head - at)) - 1)).any():
            return None
    last = np.ndarray(count, ">u8", content, first + head, (size,))  # its low bits differ most
    return bytes(content[first : first + head]), last.astype(np.uint64)


def _mixed(hashes: Any, words: Any, masks: Any) -> Any:
    import numpy as np

    mixed = (hashes ^ (words & masks)) * np.uint64(ODD)
    return mixed ^ (mixed >> np.uint64(29))


class FirstPlaces:
    """Keeps the first of equal places, which come in one array or in several."""

    def __init__(self, count: int) -> None:
        """Each place is less than `count`."""
        import numpy as np

        self._seen = np.zeros(count, np.bool_)

    def of(self, places: pa.Array) -> pa.Array:
        """`places`, with null for each that came before."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        valid, data = places.buffers()
        if valid is not None and len(self._seen) and (compiled := loops(0)) is not None:
            first, before = places.offset, self._seen.copy()
            bits = np.frombuffer(valid, np.uint8)
            numbers = np.frombuffer(data, np.int32)[first : first + len(places)]
            if not compiled.mark(bits, first, numbers, self._seen):
                return places
            self._seen = before
        values = places.drop_null().to_numpy()
        met, seen = np.count_nonzero(self._seen), self._seen[values]
        self._seen[values] = True
        if np.count_nonzero(self._seen) == met + len(values):
            return places
        known = pa.array(values[seen])
        rows = pa.table({"place": places, "row": pa.arange(0, len(places))})
        first = rows.group_by("place").aggregate([("row", "min")])["row_min"]
        is_first = pc.is_in(rows["row"].combine_chunks(), value_set=first)
        return pc.if_else(pc.and_not(is_first, pc.is_in(places, value_set=known)), places, None)
