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
RUN = pytest.StashKey[Any]()
"""The `CaseRun` of a test that is under way."""
PROPERTY = "lockkit"


def said(config: pytest.Config, name: str) -> str:
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
    number = said(config, "lockkit_cases_max") or str(CASES_MAX)
    if not (number.isascii() and number.isdigit() and int(number) >= 1):
        raise pytest.UsageError(f"--lockkit-cases-max: a whole number from 1, not {number!r}")
    return int(number)


def kinds_of(case: str) -> list[str]:
    """The faults that a case or glob names."""
    from fnmatch import fnmatchcase

    kind, colon, _ = case.partition(":")
    return [each for each in FAULTS if colon and fnmatchcase(each, kind)]
