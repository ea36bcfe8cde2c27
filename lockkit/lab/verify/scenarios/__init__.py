"""The patterns' scenarios for the simulator: one file each, with its planted mistakes.

A scene has `SCENARIO`, and `MUTANTS` by name.
"""

from __future__ import annotations

from types import ModuleType

from lockkit.lab.verify.scenarios import election, group, queue, shared, statelock, striped, wal

_SCENES: tuple[ModuleType, ...] = (wal, queue, striped, election, statelock, group, shared)
SCENES: dict[str, ModuleType] = {each.SCENARIO.name: each for each in _SCENES}
"""By the name of the scenario."""
