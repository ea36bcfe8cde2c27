"""A soak's plan: faults on the wire, as in any fault plan, and faults of the processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lockkit.lab.faults import Fault, FaultError, FaultPlan
from lockkit.lab.faults.plan import each_of, from_json, is_number, loaded, short

WHATS = {
    "stall": ("who", "at", "for_s"),
    "kill": ("who", "at", "for_s"),
    "clock": ("who", "for_s", "offset_ms"),
    "server": ("for_s",),
    "burst": ("fault",),
}
"""What each takes beside `every_s`. A `clock` is a kill whose successor has a wrong clock."""
AT = ("commit", "decided", "now", "combining")
TROUBLES_MAX = 50
SECONDS_MAX = 3600.0
OFFSET_MS_MAX = 3_600_000.0


@dataclass(frozen=True, slots=True)
class SoakFault:
    """A fault that hits one of the processes about every `every_s`, or all requests in a burst."""

    what: str
    every_s: float
    who: str = "W*"
    """A glob for the writers that it may befall."""
    at: str = "now"
    """A stall: now; while the lock is held, between the conflict check and the publication; or
    between the moment of commit and its file, which others must then make. A kill: now, or when a
    writer of a table with group commit decides for others (`combining`)."""
    for_s: tuple[float, float] = (0.5, 2.0)
    """How long a stall lasts, or how long after its end a process is started again."""
    offset_ms: tuple[float, float] = (0.0, 0.0)
    fault: Fault | None = None

    def may_befall(self, writer: str) -> bool:
        return fnmatchcase(writer, self.who)

    def to_fields(self) -> dict[str, Any]:
        said = {name: getattr(self, name) for name in ("what", "every_s", *WHATS[self.what])}
        return said | ({"fault": self.fault.to_fields()} if self.fault else {})

    @classmethod
    def from_fields(cls, said: Any) -> SoakFault:
        """From a JSON object; `FaultError` says what is wrong with it."""
        if not isinstance(said, Mapping) or said.get("what") not in WHATS:
            raise FaultError("what:", f"one of {', '.join(WHATS)}, not {short(said)}")
        known = ("what", "every_s", *WHATS[said["what"]])
        for name in said:
            if name not in known:
                raise FaultError(
                    short(name), "means nothing here", f"known: {', '.join(known)}"
                )
        for name, holds, allowed in _RULES:
            if name in said and not holds(said[name]):
                raise FaultError(f"{name}:", f"{allowed}, not {short(said[name])}")
        if "every_s" not in said or ("fault" in known and "fault" not in said):
            raise FaultError(said['what'], f"needs every_s{' and fault' * ('fault' in known)}")
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
        }
        if "fault" in given:
            given["fault"] = Fault.from_fields(given["fault"])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """The faults of a soak."""

    faults: FaultPlan = field(default_factory=FaultPlan)
    processes: tuple[SoakFault, ...] = ()

    def to_json(self) -> str:
        said = json.loads(self.faults.to_json())
        return json.dumps(said | {"processes": [each.to_fields() for each in self.processes]})

    def with_combiner_killed(self) -> SoakPlan:
        """Also a writer that is killed as it decides for others, about once a minute."""
        each_minute = SoakFault("kill", 60.0, at="combining", for_s=(0.5, 3.0))
        return replace(self, processes=(*self.processes, each_minute))

    @classmethod
    def parse(cls, text: str | bytes) -> SoakPlan:
        """A plan from JSON (any fault plan is one); `FaultError` says what is wrong and where."""
        said = from_json(text)
        if not isinstance(said, dict):
            raise FaultError(
                "a plan", f"is a JSON object with a list of faults, not {short(said)}"
            )
        listed = said.pop("processes", [])
        if not isinstance(listed, list) or len(listed) > TROUBLES_MAX:
            raise FaultError(
                "processes:", f"a list of at most {TROUBLES_MAX}, not {short(listed)}"
            )
        faults = each_of("processes", listed, SoakFault.from_fields)
        return cls(FaultPlan.from_fields(said), faults)

    @classmethod
    def load(cls, path: str | Path) -> SoakPlan:
        """The plan in a file; the error names the file."""
        return loaded(path, cls.parse)


# --- the fields of a fault ------------------------------------------------------------------------


def _is_number(value: Any, low: float, high: float) -> bool:
    return is_number(value) and low <= value <= high


def _is_range(value: Any, low: float, high: float) -> bool:
    pair = isinstance(value, list) and len(value) == 2
    return pair and all(_is_number(each, low, high) for each in value) and value[0] <= value[1]


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("every_s", lambda value: _is_number(value, 0.1, SECONDS_MAX), "seconds, 0.1 to 3600"),
    ("who", lambda value: isinstance(value, str), "a glob for the writers' names, such as W*"),
    ("at", lambda value: value in AT, f"one of {', '.join(AT)}"),
    (
        "for_s",
        lambda value: _is_range(value, 0, SECONDS_MAX),
        "[least, most] seconds, 0 to 3600",
    ),
    (
        "offset_ms",
        lambda value: _is_range(value, -OFFSET_MS_MAX, OFFSET_MS_MAX),
        "[least, most] milliseconds, at most an hour",
    ),
)


assert {each.name for each in fields(SoakFault)} >= {name for name, *_ in _RULES}
