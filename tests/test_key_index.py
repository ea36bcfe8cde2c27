"""Keys are found as Arrow finds them, whatever they are, and whatever their hashes are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockkit.table.read import key_index
from lockkit.table.read.key_index import FirstPlaces, KeyIndex, hashed

TEXTS = st.text(alphabet="ab\0é", max_size=20)


def strings(values: list[str | None]) -> pa.Array:
    """With an offset, as a slice of a larger column has one."""
    return pa.array(["before", *values, "behind"], pa.string()).slice(1, len(values))


def assert_as_arrow(index: list[str | None], sought: list[str | None]) -> None:
    keys, found = strings(index), KeyIndex(strings(index))
    assert found.distinct == (len(set(index)) == len(index))
    same = {(a, b) for a, b in zip(index, found.codes.to_pylist(), strict=True)}
    assert len(same) == len({a for a, _ in same}) == len({b for _, b in same})
    if found.distinct:
        chunks = pa.chunked_array([strings(sought), strings(sought[:1])], pa.string())
        assert found.places(chunks) == pc.index_in(chunks, value_set=keys).combine_chunks()


@given(st.lists(TEXTS | st.none()), st.lists(TEXTS | st.none()))
def test_keys_are_found_where_arrow_finds_them(
    index: list[str | None], sought: list[str | None]
) -> None:
    assert_as_arrow(index, sought)


@given(st.lists(TEXTS, unique=True), st.lists(TEXTS))
def test_distinct_keys_are_found_where_arrow_finds_them(
    index: list[str], sought: list[str]
) -> None:
    assert_as_arrow(list(index), list(sought))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 36])
def test_thousands_of_keys_of_one_length_are_found(size: int) -> None:
    every = [f"{n:0{size}d}" for n in range(0, 10 ** min(size, 4), 3)]
    sought = [f"{n:0{size}d}" for n in range(10 ** min(size, 4))]
    assert_as_arrow(list(every), list(sought))
    assert KeyIndex(strings([*every]))._by_words(strings([*sought])), "Arrow has to do the work"


@pytest.mark.parametrize("head", ["", "k", "orders-2026-"])
def test_keys_that_differ_at_their_end_alone_are_found_beside_others(
    head: str,
) -> None:
    index = [f"{head}{n:08d}" for n in range(0, 3000, 3)]
    sought = [f"{head}{n:08d}" for n in range(3000)]
    assert_as_arrow(list(index), list(sought))
    assert_as_arrow(list(index), [f"{head or 'k'}{n:08d}"[::-1] for n in range(3000)])
    assert_as_arrow(list(index), [f"K{each[1:]}" for each in sought])
    assert_as_arrow(list(index), [*sought, f"{head}9", "", None])
    assert_as_arrow([*index, index[5]], [])
    assert_as_arrow([index[0]], [*index[1:], index[0]])
    for shuffled in (index[::-1], index[1::2] + index[::2]):  # they fall once, or at each step
        assert_as_arrow(list(shuffled), list(sought))
        assert_as_arrow(list(index), [*shuffled, *shuffled[:3]])


@pytest.mark.parametrize("head", ["{}", "orders-{}-2026-", "{}0000000"])
def test_keys_that_differ_before_their_last_eight_bytes_too_are_told_apart(head: str) -> None:
    every = [head.format(first) + f"{n:08d}" for first in "ab" for n in range(50)]
    assert_as_arrow([*every[::2]], [*every])
    assert_as_arrow([*every[:50]], [*every])


def test_a_key_has_the_same_hash_beside_shorter_and_beside_longer_keys() -> None:
    every = ["k" * n for n in range(40)] + [f"{'k' * n}a" for n in range(40)]
    together = hashed(pa.array(every))
    for key, one in zip(every, together, strict=True):
        assert hashed(pa.array([key]))[0] == one
        assert hashed(pa.array([key, "k" * 70, "k"]))[0] == one
    assert len(set(together)) == len(every)
    for key in every:
        assert_as_arrow([key, "k" * 70], [key, "none"])


@pytest.mark.parametrize("every", [1, 2, 64])
def test_different_keys_with_equal_hashes_are_told_apart(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash of few values stands for keys that somebody made to collide."""
    monkeypatch.setattr(key_index, "hashed", lambda keys: hashed(keys) % every)
    index, sought = [f"k{n}" for n in range(100)], [f"k{n}" for n in range(50, 200)]
    assert_as_arrow(list(index), list(sought))
    assert_as_arrow(["k1", "k2", "k1"], ["k2"])
    assert_as_arrow(["k1"], ["k2", "k1"])  # equal hashes only between the index and what is sought


def test_many_keys_are_found_by_hashes_of_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MANY", 3)
    monkeypatch.setattr(key_index, "hashed", None)
    assert_as_arrow(["a", "b", "é"], ["b", "c", "a", None])
    assert_as_arrow(["a", "b", "a"], ["b"])
    assert_as_arrow(["a", None, "b"], ["b", None])
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(TypeError):
        KeyIndex(strings(["a", "b", "c"]))


@pytest.mark.parametrize("bits", [0, 1, 4, 64])
def test_keys_whose_hashes_have_the_same_first_bits_are_found(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may choose keys whose hashes differ at their end alone, or are the greatest."""
    last = {f"k{n}": (1 << 64) - 1 - (n << bits) % (1 << 63) for n in range(200)}

    def as_chosen(keys: pa.Array) -> Any:
        return np.array([last[each] for each in keys.to_pylist()], np.uint64)

    monkeypatch.setattr(key_index, "hashed", as_chosen)
    assert_as_arrow([f"k{n}" for n in range(1, 200, 2)], [*last])
    assert_as_arrow([f"k{n}" for n in range(0, 200, 2)], [*last])


def test_the_first_of_equal_places_is_kept_in_whichever_array_they_come() -> None:
    first = FirstPlaces(6)
    for places, kept in (
        ([], []), ([None, None], [None, None]), ([3, None, None, 4], [3, None, None, 4]),
        ([1, 1, 0, None, 1], [1, None, 0, None, None]), ([3, 2, 5, 2], [None, 2, 5, None]),
        ([0, 5, 4], [None, None, None]), ([None], [None]),
    ):  # fmt: skip
        assert first.of(pa.array(places, pa.int32())).to_pylist() == kept
