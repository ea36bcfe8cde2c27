"""A simulated run as a history: the store's record and the nodes' events, in one order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from lockkit.events import STORE, Event
from lockkit.lab.verify.sim.memory_store import DecidedRequest, Sent
from lockkit.protocol.outcome import IfAbsent, IfVersion
from lockkit.runtime import Delete, Get, Put

_ANSWERS = {
    "Applied": ("applied", 200),
    "PreconditionFailed": ("precondition_failed", 412),
    "Throttled": ("throttled", 429),
    "Found": ("found", 200),
    "Missing": ("missing", 404),
    "NotModified": ("not_modified", 304),
    "list": ("listed", 200),
}


def history_of(
    truth: Iterable[DecidedRequest], recorded: Iterable[tuple[float, str, str, dict[str, Any]]]
) -> list[Event]:
    events = [_request(each) for each in truth]
    events += [Event(*each) for each in recorded]
    return sorted(events, key=lambda each: each.at_ms)


def _request(each: DecidedRequest) -> Event:
    answer, status = _ANSWERS[type(each.answer).__name__]
    data: dict[str, Any] = {
        "client": each.client, "method": type(each.request).__name__.lower(),
        "key": getattr(each.request, "key", "") or getattr(each.request, "prefix", ""),
        "condition": _condition(each.request), "status": status, "answer": answer,
        "applied": answer == "applied", "before": each.before, "version": each.version,
        "attempt": "", "began_ms": each.began_ms,
    }  # fmt: skip
    if isinstance(each.request, Put):
        fields = fields_of(each.request.body)
        if fields is not None:
            data["attempt"] = str(fields.get("attempt", ""))
            data["body"] = fields
            for name in ("epoch", "expired"):
                if name in fields:
                    data[name] = fields[name]
    return Event(each.at_ms, STORE, "request", data)


def _condition(request: Sent) -> str:
    match request:
        case Put(_, _, IfAbsent()):
            return "if-absent"
        case Put(_, _, IfVersion(version)) | Delete(_, IfVersion(version)):
            return f"if-version {version}"
        case Get(_, str(version)):
            return f"unless-version {version}"
        case _:
            return ""


@lru_cache(maxsize=4096)
def fields_of(body: bytes) -> dict[str, Any] | None:
    """The fields of a small JSON body, as a server's record contains them."""
    if body[:1] != b"{" or len(body) > 65536:
        return None
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
