"""The picture of the protocol: every change of phase that an exploration met, as Mermaid."""

from __future__ import annotations

from dataclasses import replace

from lockkit.explore.parts import Bounds
from lockkit.explore.rows import STORE
from lockkit.explore.search import search
from lockkit.explore.world import LeaseWorld
from lockkit.state import Phase

# Both alone with everything that can go wrong, and with a rival; small, since only phases count.
ALONE = Bounds(acquires=(2, 0), tries=(3, 0), renewals=(1, 0), faults=2, gives_up=True)
WITH_A_RIVAL = Bounds(renewals=(1, 0), faults=1, gives_up=True)


def state_diagram() -> str:
    """A Mermaid `stateDiagram-v2`, each arrow labelled with what made a client go along it."""
    rules = replace(STORE, slack_ms=0)
    met: dict[tuple[Phase, Phase], dict[str, None]] = {}
    for bounds in (ALONE, WITH_A_RIVAL):
        world = LeaseWorld(rules, bounds)
        search(world)
        for before, why, after in world.transitions:
            if before is not after:
                met.setdefault((before, after), {})[why] = None
    order = list(Phase)
    arrows = sorted(met, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    lines = [
        f"    {before.value} --> {after.value}: {', '.join(sorted(met[before, after]))}"
        for before, after in arrows
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.IDLE.value}", *lines])
