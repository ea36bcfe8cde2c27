"""The times of a log's lines: by their own stamps, by the answers' Date, or by their order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

from lockkit.stores.endpoint import epoch_ms

_STAMP = re.compile(
    r"[\[(]?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z| ?[+-]\d\d:?\d\d)?"
)
QUARTER_MS = 15 * 60_000
"""Time zones differ by quarters of an hour."""
STEP_MS = 1.0
ZONES_MAX = 1_000


@dataclass(slots=True)
class LogTimes:
    """Fed with the lines in order; `now_ms` rises with each step, so that no two events tie."""

    now_ms: float = 0.0
    stamped: bool = False
    _ahead: list[float] = field(default_factory=list)

    def line(self, line: str) -> None:
        found = _STAMP.match(line)
        if not found:
            return
        day, hour, part, zone = found.groups()
        zone = (zone or "+00:00").strip().replace("Z", "+00:00")
        try:
            at = datetime.fromisoformat(f"{day}T{hour}{zone}").astimezone(UTC).timestamp() * 1000
        except (ValueError, OverflowError):
            return
        self.stamped = True
        self.now_ms = max(self.now_ms, at + float(f"0.{part or 0}") * 1000)

    def date(self, reported: str) -> None:
        """Take an answer's Date: the only clock if lines have no stamps, else it shows the zone."""
        date_ms = epoch_ms(reported)
        if date_ms is None:
            return
        if not self.stamped:
            self.now_ms = max(self.now_ms, float(date_ms))
        elif len(self._ahead) < ZONES_MAX:
            self._ahead.append(self.now_ms - date_ms)

    def step(self) -> float:
        self.now_ms += STEP_MS / 1000 if self.stamped else STEP_MS
        return self.now_ms

    @property
    def zone_ms(self) -> float:
        """How far the stamps are ahead of UTC, by the answers' Date."""
        return round(median(self._ahead) / QUARTER_MS) * QUARTER_MS if self._ahead else 0.0
