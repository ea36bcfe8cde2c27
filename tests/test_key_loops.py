"""Keys are found by loops in machine code as Arrow finds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_key_index import (  # noqa: F401  (the same tests)
    assert_as_arrow,
    strings,
    test_distinct_keys_are_found_where_arrow_finds_them,
    test_keys_that_differ_at_their_end_alone_are_found_beside_others,
    test_keys_that_differ_before_their_last_eight_bytes_too_are_told_apart,
    test_the_first_of_equal_places_is_kept_in_whichever_array_they_come,
    test_thousands_of_keys_of_one_length_are_found,
)

from lockkit.table.format import compiled
from lockkit.table.read import key_index
from lockkit.table.read.key_index import FirstPlaces, KeyIndex

pytestmark = pytest.mark.xdist_group("loops")  # compiled once


@pytest.fixture(scope="module", autouse=True)
def _by_loops() -> Iterator[None]:
    pytest.importorskip("numba", reason="it compiles loops that find keys: pip install numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_rows", compiled.ROWS_BEFORE)
        yield


@given(st.data(), st.integers(8, 17))
def test_keys_of_one_length_are_found_where_arrow_finds_them(
    data: st.DataObject, size: int
) -> None:
    texts = st.text(alphabet="ab\0", min_size=size, max_size=size)
    alike = data.draw(texts).encode()[:-8]
    tails = st.integers(0, 40).map(lambda n: alike.decode() + f"{n:08d}")
    index, sought = (data.draw(st.lists(tails | texts, unique=unique)) for unique in (True, False))
    assert_as_arrow(list(index), list(sought))


def test_keys_that_rise_are_merged_without_their_being_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sought = [f"k{n}00000" for n in range(1000, 1012)]
    found = KeyIndex(strings([sought[9], sought[2], sought[5]]))
    monkeypatch.setattr(key_index, "_merging", None)
    places = found.places(pa.chunked_array([strings([*sought])])).to_pylist()
    assert places == [None, None, 1, None, None, 2, None, None, None, 0, None, None]
    with pytest.raises(TypeError):
        found.places(pa.chunked_array([strings([sought[3], sought[2]])]))


def test_a_longer_key_that_begins_like_another_is_not_that_one() -> None:
    assert_as_arrow(["k00000002", "k00000001"], ["k00000002", "k00000001x"])
    assert_as_arrow(["k00000002", "k00000001x"], ["k00000002", "k00000001"])


def test_places_are_first_ones_whatever_their_offset() -> None:
    first = FirstPlaces(20)
    assert first.of(pa.array([None, 1], pa.int32())).to_pylist() == [None, 1]
    assert first.of(pa.array([0, None], pa.int32())).to_pylist() == [0, None]
    first, places = FirstPlaces(20), pa.array([7, None, 3, 4], pa.int32())
    assert first.of(places.slice(2)).to_pylist() == [3, 4]
    assert first.of(pa.array([7, None], pa.int32())).to_pylist() == [7, None]
    assert first.of(places.slice(1)).to_pylist() == [None, None, None]


@pytest.mark.parametrize("left", [0, 20], ids=["no place", "cut short"])
def test_the_loops_are_compiled_anew_if_what_numba_kept_cannot_be_used(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba keeps them in a directory that may be full, and a machine may lose its power."""
    from numba import config
    from numba.core import caching

    from lockkit.table.format import loops

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    if not left:
        def full(*_: object) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    for _ in range(2):
        assert loops._compiled(loops.int64, loops.int64)(_one_more)(1) == 2
        for each in tmp_path.rglob("*.nbi"):
            each.write_bytes(each.read_bytes()[:left])


def _one_more(number: int) -> int:
    return number + 1
