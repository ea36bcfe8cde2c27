"""The options of the plugin: which faults, which cases and how many."""

from __future__ import annotations

from typing import Any

import pytest

NAME = "lockkit.lab.testing.plugin"
FIXTURE = "lost_responses"
FAULTS = {
    "lost": "the store applied the request, and its answer was lost",
    "late": "the client was cut off, and its write reached the store later",
    "throttle": "the store refused the request with 503",
    "reset": "the store applied the request, and the connection broke before its answer",
    "error": "the store applied the request, and answered 500",
}
DEFAULT = "lost,late,throttle"
CASES_MAX = 200
BLOCK_S_MAX = 600
WHOLE_MAX = 1_000_000
RUN = pytest.StashKey[Any]()
"""The `CaseRun` of a test that is under way."""
PROPERTY = "lockkit"


def said(config: pytest.Config, name: str) -> str:
    """The value of an option: from the command line, or else from pytest's configuration."""
    given = config.getoption(name)
    return str(config.getini(name) if given is None else given).strip()


def faults_of(text: str, where: str) -> list[str]:
    kinds = [each.strip() for each in text.split(",")]
    unknown = [each for each in kinds if each not in FAULTS]
    if unknown:
        raise pytest.UsageError(
            f"{where}: no fault is called {unknown[0]!r}; there are {', '.join(FAULTS)}"
        )
    return list(dict.fromkeys(kinds))


def cases_max(config: pytest.Config) -> int:
    return _whole(config, "lockkit_cases_max", CASES_MAX)


def block_s_max(config: pytest.Config) -> int:
    return _whole(config, "lockkit_block_s_max", BLOCK_S_MAX)


def _whole(config: pytest.Config, name: str, default: int) -> int:
    number = said(config, name) or str(default)
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= WHOLE_MAX):
        option = f"--{name.replace('_', '-')}"
        raise pytest.UsageError(f"{option}: a whole number from 1 to {WHOLE_MAX}, not {number!r}")
    return int(number)


def kinds_of(case: str) -> list[str]:
    """The faults that a case or glob names."""
    from fnmatch import fnmatchcase

    kind, colon, _ = case.partition(":")
    return [each for each in FAULTS if colon and fnmatchcase(each, kind)]
