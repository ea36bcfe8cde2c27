"""The processes of the next launch, started while a page shows the panel.

Without them a launch takes two seconds more, for imports. They start with the page, and again with
a run's first commit, so that a launch right after a stop finds them ready; with little memory, only
with the stop. Without a page there is no Launch to press, so a notebook that runs without a browser
starts none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lockkit.errors import LockkitError
from lockkit.lab.widgets.launch import LaunchSettings


class Ahead:
    """A fleet whose processes wait for a launch, or None."""

    def __init__(
        self, likely: Callable[[], LaunchSettings], make: Callable[[LaunchSettings], Any],
        discard: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """`likely`: the settings of the next launch, as far as they are known."""
        self._likely, self._make, self._discard = likely, make, discard
        self._fleet: Any = None

    @property
    def waits(self) -> bool:
        return self._fleet is not None

    def start(self) -> None:
        """Start plain writers; Spark's would take too much memory to wait."""
        settings = self._likely()
        if settings.kind != "plain" or self.waits:
            return
        with suppress(LockkitError, OSError):  # the launch will fail as well, and say why
            fleet = self._make(settings)
            fleet.prepare()
            self._fleet = fleet

    def take(self, settings: LaunchSettings) -> dict[str, Any]:
        """The option that gives the processes to a fleet with these settings, if it can use it."""
        if settings.kind != "plain" or not (self.waits and self._fleet.waits):
            self.drop()
            return {}
        fleet, self._fleet = self._fleet, None
        return {"prepared": fleet}

    def drop(self) -> None:
        if self.waits:
            self._fleet.stop()
            self._discard(self._fleet)
            self._fleet = None
