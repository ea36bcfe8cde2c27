"""An incident for the diagram: its events, its lanes, and the place of each proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockkit.events import STORE, Event, event
from lockkit.lab.incident.dropped import NotUnderstood
from lockkit.lab.verify.check import FIELD_ERRORS
from lockkit.lab.widgets.export import log_lines
from lockkit.lab.widgets.models import HistoryModel
from lockkit.lab.widgets.scene import Scene, scene

LABEL_MAX = 24
"""What fits over a lane."""
HEAD = 12
GUESSED = "write"


@dataclass(frozen=True, slots=True)
class Picture:
    """What the lanes draw. `spots` are the ids of the evidence in it, "" if it is not shown."""

    scene: Scene
    log: list[str]
    spots: tuple[str, ...]


def picture(events: Sequence[Event], evidence: Sequence[Event]) -> Picture:
    """Raises `NotUnderstood` for a history with fields of a wrong type."""
    try:
        return _picture(events, evidence)
    except FIELD_ERRORS as error:
        raise NotUnderstood(
            "the history",
            f"is damaged, a field is not of its type ({type(error).__name__})",
            "read the files one by one to see which",
        ) from None


def _picture(events: Sequence[Event], evidence: Sequence[Event]) -> Picture:
    names = labels(_clients(events))
    drawn = seated(_renamed(each, names) for each in events)
    proofs = [_renamed(each, names) for each in evidence]
    story = HistoryModel()
    story.add(drawn)
    epochs = _fill_in(story, drawn)
    spots = tuple(_spot(scene(story, evidence=(each,))) for each in proofs)
    shown = scene(story, evidence=proofs)
    for row in shown["rows"]:
        row["epoch"] = row["epoch"] or epochs.get(row["id"], 0)
    return Picture(shown, log_lines(drawn), spots)


def seated(events: Iterable[Event]) -> list[Event]:
    """The events, and a lane for each client that only the bucket's versions show."""
    events = list(events)
    senders = {each.who for each in events}
    silent: dict[str, Event] = {}
    for each in events:
        if each.kind == "request" and each.who == STORE and each["client"] not in senders:
            silent.setdefault(str(each["client"]), each)
    silent.pop("", None)
    notes = [
        event(each.at_ms, who, "note", text="known only by what the bucket kept of it")
        for who, each in silent.items()
    ]
    return sorted([*notes, *events], key=lambda each: each.at_ms)


# --- names that fit ---------------------------------------------------------------------------


def labels(names: Iterable[str]) -> dict[str, str]:
    """A short name for each client that has one, unless two would have the same.

    lockkit's `host/process/client` by its client, Hudi's UUIDs by their head.
    """
    names = list(names)
    short = {each: _label(each) for each in names}
    taken = list(short.values())
    return {name: each for name, each in short.items() if each != name and taken.count(each) == 1}


def _label(name: str) -> str:
    last = name.rpartition("/")[2] or name
    return last if len(last) <= LABEL_MAX else f"{last[:HEAD]}…"


def _clients(events: Iterable[Event]) -> list[str]:
    named = (each["client"] if each.who == STORE and each.kind == "request" else each.who
             for each in events)  # fmt: skip
    return [each for each in dict.fromkeys(map(str, named)) if each not in ("", STORE)]


def _renamed(each: Event, names: Mapping[str, str]) -> Event:
    data: Mapping[str, Any] = each.data
    if each.get("client") in names:
        data = {**data, "client": names[each["client"]]}
    return replace(each, who=names.get(each.who, each.who), data=data)


# --- known from the records only -----------------------------------------------------------------


def _fill_in(story: HistoryModel, events: Iterable[Event]) -> dict[str, int]:
    """Fill in the purpose of each write of the lock if no client records it, and the epochs."""
    wrote = {
        (each.at_ms, str(each["version"])): each for each in events
        if each.kind == "request" and each["applied"]
    }  # fmt: skip
    epochs: dict[str, int] = {}
    before: tuple[Any, Any] | None = None
    for each in story.generations:
        known = wrote.get((each.at_ms, each.version))
        if known is None or "expired" not in known.data:
            before = None
            continue
        epoch, grant = known.get("epoch"), (known.get("owner"), known.get("epoch"))
        op = "release" if known["expired"] else "renew" if grant == before else "acquire"
        if each.exchange.op == GUESSED:
            each.exchange.op = op
        before = None if known["expired"] else grant
        epochs[f"g{each.n}"] = epoch if type(epoch) is int else 0
    return epochs


def _spot(shown: Scene) -> str:
    drawn = (each for part in ("arrows", "bars", "marks") for each in shown[part])
    return next((str(each["id"]) for each in drawn if each.get("evidence")), "")
