"""Identifiers of the library carry the field's terms; odd words stay out."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from pathlib import Path

import lockkit

ROOT = Path(lockkit.__file__).parent
ODD = {
    "aim", "asked", "crew", "desk", "heard", "lake", "me", "onlooker", "pace", "plays", "pulse",
    "shelf", "sight", "told", "trouble", "voice", "weather", "whoever",
}  # fmt: skip
"""Words for which `recorded`, `identity`, `observation`, `polling`, `liveness`, ... exist."""


def odd(source: str) -> set[str]:
    """The identifiers of a program that have an odd word as one of their parts."""
    words = set(re.findall(r"\w+", source))
    if not any(ODD & set(each.lower().split("_")) for each in words):
        return set()  # most programs: to find the identifiers of all takes seconds
    names = {
        token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    }  # fmt: skip
    return {name for name in names if ODD & set(name.lower().split("_"))}


def test_a_banned_word_is_found_as_a_part_of_a_name_and_not_within_a_word() -> None:
    found = odd("told_ms = self._desk(me=1)\nmedium = unasked = TOLD\n'told'  # told")
    assert found == {"told_ms", "_desk", "me", "TOLD"}


def test_no_identifier_of_the_library_contains_a_banned_word() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    found = {
        name: sorted(names) for name, path in files.items()
        if (names := odd(path.read_text("utf-8")))
    }  # fmt: skip
    assert found == {}
