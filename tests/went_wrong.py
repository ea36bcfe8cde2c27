"""What went wrong in simulated worlds, each with the link that opens it, or its moment."""

from __future__ import annotations

from collections.abc import Iterable

from lockkit.lab.verify.sim import SeedOutcome, SimScenario
from lockkit.lab.widgets.links import link


def went_wrong(scenario: SimScenario, outcomes: Iterable[SeedOutcome]) -> list[str]:
    return [
        f"{each.violation}: {link(moment) or moment}"
        for each in outcomes if each.violation
        for moment in [f"{scenario.name}:{each.seed}@{each.steps}"]
    ]  # fmt: skip
