"""What the picture of a broken rule must show."""

from __future__ import annotations

from lockkit.lab.verify.sim import SeedOutcome
from lockkit.lab.widgets.seeds.objects import run_scene


def shows_its_harm(outcome: SeedOutcome, scenario: str) -> bool:
    """Whether a mark says where the rule broke, and a request or a bar proves it, all in lanes."""
    scene = run_scene(outcome, scenario)
    lanes = {each["id"] for each in scene["lanes"]}
    proofs = [each for part in ("arrows", "bars", "marks") for each in scene[part]
              if each.get("evidence") and each["lane"] in lanes]  # fmt: skip
    harms = [each for each in proofs if each["kind"] == "harm"]
    return bool(harms) and len(proofs) > len(harms)
