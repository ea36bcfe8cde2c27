"""Sliders over one simulated run: each move replays it, and draws it again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.export import replayed
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.panels import nothing_collected
from lockkit.lab.widgets.scene import text
from lockkit.lab.widgets.seeds.timed import TimedOutcome, Timing, play
from lockkit.lab.widgets.ui import Shown, choice, column, named, row

SLIDERS = (
    ("lease_s", "Lease (s)", 2.0, 20.0, 0.5),
    ("stall_s", "Pause of W1 (s)", 0.0, 30.0, 0.5),
    ("skew_s", "W2's clock ahead (s)", -15.0, 15.0, 0.5),
    ("latency_s", "Latency (s)", 0.1, 3.0, 0.1),
)
"""Field of `Timing`, label, smallest and largest value, step; all in seconds."""
CLOCKS = (
    ("by the store's clock", "store"), ("by the wall clock (Hudi)", "wall"),
    ("after watching it for a whole lease", "observed"),
)  # fmt: skip


class TimeSliders(Shown):
    """Two writers and one lock: set the times, and see what happens. `TimeSliders(stall_s=8)`.

    Keywords as in `Timing`. `outcome` is the run that is drawn.

    :param times: first values, by the fields of `Timing`, in seconds.
    """

    def __init__(self, **times: Any) -> None:
        start = Timing(**times)
        self._sliders = {
            field: named(widgets.FloatSlider(
                value=getattr(start, field), min=low, max=high, step=step, description=label,
                readout_format=".1f", style={"description_width": "initial"},
                layout=widgets.Layout(width="310px"),
            ), field.replace("_", "-")) for field, label, low, high, step in SLIDERS
        }  # fmt: skip
        self._expiry = choice("A lease ends", CLOCKS, start.expiry, "310px", name="expiry")
        self._fence = widgets.Checkbox(
            value=start.fence, description="Fence", indent=False,
            layout=widgets.Layout(width="auto"),
        )  # fmt: skip
        self.lanes = Lanes()
        self.view = column(
            "time-sliders", row(*self._sliders.values(), self._expiry, self._fence), self.lanes
        )
        self._draw()
        for each in (*self._sliders.values(), self._expiry, self._fence):
            each.observe(lambda _change: self._draw(), "value")

    def timing(self) -> Timing:
        """What the controls say."""
        times = {field: round(each.value, 3) for field, each in self._sliders.items()}
        return Timing(**times, expiry=self._expiry.value, fence=self._fence.value)

    def set(self, **times: Any) -> TimedOutcome:
        """The same as moving the sliders; returns the outcome."""
        for field, value in asdict(Timing(**asdict(self.timing()) | times)).items():
            ({"expiry": self._expiry, "fence": self._fence} | self._sliders)[field].value = value
        return self.outcome

    def _draw(self) -> None:
        with nothing_collected():
            self.outcome = outcome = play(self.timing())
            happened = sorted([*outcome.events, *outcome.commits], key=lambda each: each.at_ms)
            state = replayed(happened, outcome.verdict)
        with self.lanes.hold_sync():
            self.lanes.scene = state["scene"]
            self.lanes.status = state["status"] | {
                "verdict": outcome.kind, "because": text(str(outcome)),
            }  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.outcome.timing}: {self.outcome.kind}: {self.outcome}"
