"""The findings at a table, in words: for a terminal, and for a page."""

from __future__ import annotations

import shlex

from lockkit.events import KINDS, Event, clock_time, narrate, plain
from lockkit.lab.incident.audit import Validation
from lockkit.lab.incident.diagnosis import Diagnosis

FINDINGS_MAX = 8


def audit_facts(said: Validation) -> list[str]:
    """The result of Hudi's own `locks audit validate`, and its first findings."""
    files = f"{said.files} file{'' if said.files == 1 else 's'}"
    head = f"Hudi's audit log: {said.outcome}, {files}, {said.skipped} lines skipped"
    return [head, *(plain(each) for each in said.findings[:FINDINGS_MAX])]


def proof(each: Event) -> str:
    """An event of the evidence in one line."""
    fields = " ".join(
        f"{name}={plain(each.get(name), limit=60)}"
        for name in KINDS[each.kind] if each.get(name) not in ("", None)
    )  # fmt: skip
    return f"{clock_time(each.at_ms)}  {plain(each.who, limit=20)}  {each.kind}  {fields}"


def sentence(each: Event) -> str:
    """The same in plain words: what happened, without the fields."""
    at, who, get = clock_time(each.at_ms)[11:], plain(each.who, limit=40), each.get
    name = plain(str(get("key", "")).rpartition("/")[2], limit=40)
    match each.kind:
        case "request":
            client = plain(get("client") or "a client", limit=40)
            until = get("valid_until_ms")
            state = "released" if get("expired") else f"until {clock_time(until)[11:]}"
            lease = f"; epoch {plain(get('epoch'))}, {state}" if type(until) is int else ""
            done = "applied" if get("applied") else plain(get("answer")).replace("_", " ")
            reported = f"{plain(get('method')).upper()} of {name}: {plain(get('status'))}, {done}"
            return f"{at}  the store: {client}'s {reported}{lease}"
        case "ask":
            return f"{at}  {who} sends: {plain(get('op'))} {name}"
        case "answer":
            outcome = plain(get("outcome")).replace("_", " ")
            return f"{at}  {who} gets the answer to its {plain(get('op'))}: {outcome}"
        case _:
            lines = narrate([each])
            return f"{at}  {lines[0].partition('  ')[2]}" if lines else proof(each)


def command_of(found: Diagnosis, url: str, flags: str = "") -> str:
    """The card's command for this table, quoted for a shell; `flags` as of `flags_of`."""
    return found.card.command.format(url=shlex.quote(url) + flags)
