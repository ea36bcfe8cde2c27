"""Faults as data: the fault, its request, how often, and before or after the write.

A fault strikes before or after the store applied the request. The caller cannot distinguish the two
apart: a `drop` after apply is a success that looks like a failure.
Nothing here does I/O: `proxy` carries faults out.

One file because a fault's fields, their checks and their JSON form must agree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from lockkit.errors import StatedError

T = TypeVar("T")

WHATS = ("drop", "reset", "status", "hang", "late", "delay")
WHENS = ("before", "after")
OPERATIONS = ("put", "get", "delete", "list", "part", "other")
ENDINGS = ("drop", "reset", "hang")
EVERY = "every"

HANG_CAP_S = 120.0
"""The longest hang, for a client that never gives up."""
WAIT_S_MAX = 3600.0
FAULTS_MAX = 1000
PLAN_CHARACTERS_MAX = 1_000_000


class FaultError(StatedError, ValueError):
    """An invalid fault or plan: names the field, what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts that select a fault's requests.

    :param method: the HTTP method.
    """

    client: str
    """The name behind `lockkit-client/` in the User-Agent; "" if there is none."""
    method: str
    operation: str
    """put, get, delete, list; part = a piece of an upload that is not visible yet; other."""
    key: str
    """bucket/key (container/blob on Azure), unquoted; only the bucket where no object is named."""
    attempt: str = ""
    """The `attempt` in the body, if any: joins a fault's event to the client's and the store's."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, its target and its times.

    `drop` ends the connection without an answer (FIN), `reset` breaks it (RST), `status` answers
    `code`, `hang` sends no answer until the client gives up, `delay` waits `delay_s`. `late` ends
    the client's request now (as `ending` says) and forwards it `delay_s` later: a write that
    is applied when no client expects it.

    It strikes `next` times, from the `nth` matching request on that no earlier fault took.

    :param what: the kind of fault: drop, reset, status, hang, late or delay.
    :param client: a glob for the client's name; None: any.
    :param operation: put, get, delete, list, part or other; None: any.
    :param nth: the first matching request that is struck, from 1.
    :param chance: the probability of each strike.
    :param code, retry_after_s: the HTTP status and `Retry-After` header (seconds) of `status`.
    :param delay_s: the wait of `delay` and `late`, in seconds.
    :param ending: how `late` ends the client's request: drop, reset or hang.
    :param cap_s: the longest that `hang` lasts, in seconds.
    :raises FaultError: if a value is not allowed, or does not fit the kind.
    """

    what: str
    _: KW_ONLY
    when: str | None = None
    """before or after the store applied it. The default is before for `late`, `delay` and refusals
    (a 4xx status), and after for the rest."""
    client: str | None = None
    operation: str | None = None
    key: str | None = None
    """A glob for bucket/key, or for its end from any slash on: `table_lock.json`, `.locks/*`."""
    nth: int = 1
    next: int | str | None = None
    """How often, or "every". The default is once, or every time with a chance or a delay."""
    chance: float = 1.0
    code: int | None = None
    body: str | None = None
    """Sent with `code` as it is; by default an error in the provider's format."""
    retry_after_s: int | None = None
    delay_s: float | None = None
    ending: str | None = None
    cap_s: float | None = None
    applied: bool | None = None
    """True: only if the store applied it (2xx); else the answer passes, and the fault waits."""

    def __post_init__(self) -> None:
        _check_types(self)
        if self.what not in WHATS:
            raise FaultError(
                "what:", f"no fault is called {short(self.what)}", f"one of {_or(WHATS)}"
            )
        _check_fit(self)
        _fill_in(self)
        _check_status(self)

    def covers(self, request: RequestFacts) -> bool:
        """Whether the fault is aimed at this request."""
        return (
            (self.operation is None or self.operation == request.operation)
            and (self.client is None or fnmatchcase(request.client, self.client))
            and (self.key is None or key_matches(request.key, self.key))
        )

    def due(self, count: int, *, seed: int = 0, index: int = 0) -> bool:
        """Whether it strikes the `count`-th request (from 1) that it covers."""
        if count < self.nth:
            return False
        if isinstance(self.next, int) and count >= self.nth + self.next:
            return False
        return self.chance >= 1.0 or draw(seed, index, count) < self.chance

    def to_fields(self) -> dict[str, Any]:
        """The fields that are not at their defaults, for JSON."""
        said = {each.name: getattr(self, each.name) for each in _FIELDS}
        return {
            name: value
            for name, value in said.items()
            if value is not None and value != _PLAIN.get(name)
        }

    @classmethod
    def from_fields(cls, said: Any) -> Fault:
        """A fault from a JSON object; `FaultError` says what is wrong with it."""
        if not isinstance(said, Mapping):
            raise FaultError(
                "a fault", f'is a JSON object such as {{"what": "drop"}}, not {short(said)}'
            )
        known = [each.name for each in _FIELDS]
        for name in said:
            if name not in known:
                raise FaultError(
                    f"unknown field {short(name)} in a fault", "", f"known: {', '.join(known)}"
                )
        if "what" not in said:
            raise FaultError("a fault", f"needs the field what: one of {_or(WHATS)}")
        return cls(**said)


@dataclass(slots=True)
class Counts:
    """The only state of a plan in use: the number of requests that each fault was tried on.

    :param matched: for each fault, the requests that it was tried on.
    """

    matched: list[int] = field(default_factory=list)

    def add(self, index: int) -> int:
        self.matched.extend([0] * (index + 1 - len(self.matched)))
        self.matched[index] += 1
        return self.matched[index]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults in order, and the seed of their chances. Equal seeds give equal faults.

    :param faults: in order; the first that is due strikes.
    :param seed: of the chances.
    """

    faults: tuple[Fault, ...] = ()
    _: KW_ONLY
    seed: int = 0
    why: str = ""
    """The published failure, or the question, that this plan represents."""

    def match(self, request: RequestFacts, counts: Counts) -> Fault | None:
        """The first fault that is due for this request; only `counts` changes."""
        for index, fault in enumerate(self.faults):
            if fault.covers(request):
                if fault.due(counts.add(index), seed=self.seed, index=index):
                    return fault
        return None

    def to_json(self) -> str:
        said: dict[str, Any] = {"why": self.why} if self.why else {}
        if self.seed:
            said["seed"] = self.seed
        return json.dumps(said | {"faults": [fault.to_fields() for fault in self.faults]}, indent=2)

    @classmethod
    def parse(cls, text: str | bytes) -> FaultPlan:
        """A plan from JSON, or a lone fault as one; `FaultError` says what is wrong and where."""
        said = from_json(text)
        if isinstance(said, dict) and "what" in said:
            return cls((Fault.from_fields(said),))
        return cls.from_fields(said)

    @classmethod
    def from_fields(cls, said: Any) -> FaultPlan:
        if not isinstance(said, Mapping):
            raise FaultError(
                "a plan", f"is a JSON object with a list of faults, not {short(said)}"
            )
        for name in said:
            if name not in ("why", "seed", "faults"):
                raise FaultError(
                    f"unknown field {short(name)} in a plan", "", "known: why, seed, faults"
                )
        seed, why, listed = said.get("seed", 0), said.get("why", ""), said.get("faults")
        if not _is_int(seed):
            raise FaultError("seed:", f"a whole number, not {short(seed)}")
        if not isinstance(why, str):
            raise FaultError("why:", f"a text, not {short(why)}")
        if not isinstance(listed, list):
            raise FaultError("faults:", f"a list of faults, not {short(listed)}")
        if len(listed) > FAULTS_MAX:
            raise FaultError("faults:", f"at most {FAULTS_MAX}, not {len(listed)}")
        return cls(each_of("faults", listed, Fault.from_fields), seed=seed, why=why)

    @classmethod
    def load(cls, path: str | Path) -> FaultPlan:
        """The plan in a file; the error names the file."""
        return loaded(path, cls.parse)


# --- what the plans of faults and of soaks share --------------------------------------------------


def from_json(text: str | bytes) -> Any:
    if len(text) > PLAN_CHARACTERS_MAX:
        raise FaultError("a plan", f"has at most {PLAN_CHARACTERS_MAX} characters, not {len(text)}")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FaultError("the text", f"is not JSON ({error})") from None


def each_of(name: str, listed: list[Any], parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse each item of a list; the error names its place."""
    found = []
    for index, each in enumerate(listed):
        try:
            found.append(parse(each))
        except FaultError as error:
            raise FaultError(f"{name}[{index}]:", str(error)) from None
    return tuple(found)


def loaded(path: str | Path, parse: Callable[[bytes], T]) -> T:
    """The plan in a file; the error names the file."""
    try:
        return parse(Path(path).read_bytes())
    except OSError as error:
        raise FaultError(f"{path}:", error.strerror or str(error)) from None
    except FaultError as error:
        raise FaultError(f"{path}:", str(error)) from None


def key_matches(key: str, pattern: str) -> bool:
    """Whether the glob matches the whole bucket/key, or the part after one of its slashes."""
    return fnmatchcase(key, pattern) or fnmatchcase(key, "*/" + pattern)


def draw(seed: int, index: int, count: int) -> float:
    """A number in [0, 1) for one fault and one request.

    A hash, not a generator: the chances of one fault do not depend on other faults, so a plan
    strikes the same requests of a client however the clients interleave.
    """
    digest = hashlib.sha256(f"{seed}/{index}/{count}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


# --- what a fault may say ----------------------------------------------------------------------

_FITS: dict[str, tuple[str, ...]] = {
    "drop": ("when",),
    "reset": ("when",),
    "status": ("when", "code", "body", "retry_after_s"),
    "hang": ("when", "cap_s"),
    "late": ("when", "delay_s", "ending", "cap_s"),
    "delay": ("when", "delay_s"),
}
"""Which of the optional fields mean something for which fault; matching fields fit them all."""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_wait(value: Any) -> bool:
    return is_number(value) and 0 <= value <= WAIT_S_MAX


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "what": (_is_text, f"one of {', '.join(WHATS)}"),
    "when": (lambda value: value in WHENS, "before or after"),
    "client": (_is_text, "a glob for the client's name, such as W1"),
    "operation": (lambda value: value in OPERATIONS, f"one of {', '.join(OPERATIONS)}"),
    "key": (_is_text, "a glob for bucket/key, such as */table_lock.json"),
    "nth": (lambda value: _is_int(value) and value >= 1, "a whole number from 1"),
    "next": (
        lambda value: value == EVERY or (_is_int(value) and value >= 1),
        'a whole number from 1, or "every"',
    ),
    "chance": (lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "code": (lambda value: _is_int(value) and 400 <= value <= 599, "an error status, 400 to 599"),
    "body": (_is_text, "a text"),
    "retry_after_s": (lambda value: _is_int(value) and _is_wait(value), "whole seconds, 0 to 3600"),
    "delay_s": (_is_wait, "seconds, 0 to 3600"),
    "ending": (lambda value: value in ENDINGS, f"one of {', '.join(ENDINGS)}"),
    "cap_s": (_is_wait, "seconds, 0 to 3600"),
    "applied": (lambda value: value is True, "true, or nothing"),
}
_NEEDED = {"what", "nth", "chance"}
_FIELDS = [each for each in fields(Fault) if each.name != "_"]
_PLAIN = {"nth": 1, "chance": 1.0}


def _check_types(fault: Fault) -> None:
    for name, (holds, allowed) in _TYPES.items():
        value = getattr(fault, name)
        if value is None and name not in _NEEDED:
            continue
        if not _is_hashable_scalar(value) or not holds(value):
            raise FaultError(f"{name}:", f"{allowed}, not {short(value)}")


def _check_fit(fault: Fault) -> None:
    """Refuse a field without a meaning for this fault, instead of ignoring it."""
    fits = _FITS[fault.what]
    for name in ("code", "body", "retry_after_s", "delay_s", "ending", "cap_s"):
        if getattr(fault, name) is not None and name not in fits:
            raise FaultError(
                name, f"means nothing for {fault.what}", f"it takes {', '.join(fits)}"
            )
    if fault.what == "status" and fault.code is None:
        raise FaultError("status", "needs a code, such as 503")
    if fault.what in ("late", "delay") and fault.delay_s is None:
        raise FaultError(fault.what, "needs delay_s, in seconds")
    if fault.what == "late" and fault.when == "after":
        raise FaultError(
            "late", "is always before: the client is cut off before the store has the request"
        )
    if fault.cap_s is not None and fault.what == "late" and fault.ending != "hang":
        raise FaultError("cap_s limits a hang:", "with late it takes ending=hang")
    if fault.applied and (fault.what in ("late", "delay") or fault.when == "before"):
        raise FaultError(
            "applied", "needs the store's answer: only a fault after the write (when=after) has one"
        )


def _fill_in(fault: Fault) -> None:
    """Fill in the defaults, so that equal faults compare equal."""

    def usual(name: str, value: Any) -> None:
        if getattr(fault, name) is None:
            object.__setattr__(fault, name, value)

    refusal = fault.code is not None and is_refusal(fault.code)
    usual("when", "before" if fault.what in ("late", "delay") or refusal else "after")
    usual("next", EVERY if fault.chance < 1.0 or fault.what == "delay" else 1)
    if fault.what == "late":
        usual("ending", "drop")
    if fault.what == "hang" or fault.ending == "hang":
        usual("cap_s", HANG_CAP_S)


def is_refusal(code: int) -> bool:
    """Whether the status promises that the store did nothing. 408 and 5xx do not promise it."""
    return code < 500 and code != 408


def _check_status(fault: Fault) -> None:
    if fault.code is not None and is_refusal(fault.code) and fault.when == "after":
        raise FaultError(
            f"code {fault.code}",
            "says that nothing was written, so it cannot come after the write",
            "use when=before, or 408 or a 5xx code",
        )


def _is_hashable_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _or(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
