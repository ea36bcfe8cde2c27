"""The record of requests: the truth lane of every picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from lockkit.events import STORE, Event, event, parse
from lockkit.lab.server.call import DialectRequest, Reply, RequestEffect
from lockkit.lab.server.objects import Objects
from lockkit.sinks import overheard

KEPT_IN_MEMORY = 50_000
"""The number of requests that a server without a file keeps: about 30 MB."""
PARSED_BYTES_MAX = 256 * 1024
SHOWN_BYTES_MAX = 4 * 1024
FENCE = ".hoodie/.locks/fence.json"
_CLIENT = re.compile(r"lockkit-client/([^\s;()]{1,100})")


class RequestLedger:
    """Keeps what each request did; a write's line is saved in the write's own transaction."""

    def __init__(self, objects: Objects, *, keep: int | None = None) -> None:
        self._objects = objects
        self._keep = keep
        self._unsaved: list[Event] = []
        self._since_forgotten = 0

    def save(self, now: list[Event]) -> None:
        """Save the unsaved lines, then `now`, in the current transaction if there is one."""
        lines = [each.to_json() for each in (*self._unsaved, *now)]
        if lines:
            self._objects.record(lines)

    def saved(self) -> None:
        """Call it when the transaction of the last `save` has committed."""
        self._unsaved.clear()

    def later(self, events: list[Event]) -> None:
        """These changed nothing: save them with the next write, or when there is time."""
        self._unsaved += events

    def drop(self) -> int:
        """Discard the lines that could not be saved; return how many."""
        lost = len(self._unsaved)
        self._unsaved.clear()
        return lost

    def notify(self, events: list[Event], listener: Callable[[Event], None] | None) -> None:
        for each in events:
            overheard("", each)
            if listener is not None:
                listener(each)
        self._since_forgotten += len(events)
        if self._keep is not None and self._since_forgotten > self._keep // 10:
            self._since_forgotten = 0
            self._objects.forget(self._keep)

    def read(self, since: int = 0) -> list[Event]:
        """Every request after the first `since`, in the order of their decisions."""
        return [parse(line) for line in self._objects.recorded(since)]


def events(call: DialectRequest, reply: Reply, began_ms: float, now_ms: float) -> list[Event]:
    """What a request did; for a batch, what each of its requests did."""
    named = _CLIENT.search(call.headers.get("user-agent", ""))
    client = named[1] if named else ""
    return [_event(call, each, client, began_ms, now_ms) for each in reply.inner or [reply]]


def _event(
    call: DialectRequest, reply: Reply, client: str, began_ms: float, now_ms: float
) -> Event:
    deed = reply.deed or RequestEffect(call.method.lower())
    more: dict[str, Any] = {"bucket": deed.bucket}
    if deed.generation:
        more["generation"] = deed.generation
    attempt, fields = "", None
    if deed.body is not None:
        more["size"] = len(deed.body)
        shown = _is_shown(deed.key, len(deed.body))
        if shown or b'"attempt"' in deed.body[:PARSED_BYTES_MAX]:
            attempt, fields = _attempt(deed.body)
        if fields is not None and deed.key.endswith(FENCE):
            shown, fields = shown or "round" in fields, _of_its_round(fields)
        if shown and fields is not None:
            more["body"] = fields
    return event(
        now_ms if deed.at_ms is None else deed.at_ms, STORE, "request",
        client=client, method=deed.method, key=deed.key, condition=deed.condition,
        status=reply.status, answer=deed.answer, applied=deed.applied, before=deed.before,
        version=deed.version, attempt=attempt, began_ms=began_ms, **more,
    )  # fmt: skip


def _is_shown(key: str, size: int) -> bool:
    return size <= SHOWN_BYTES_MAX and key.endswith(".json") and ".hoodie/" in key


def _of_its_round(fence: dict[str, Any]) -> dict[str, Any]:
    """A fence of group commit names its latest decisions; the record keeps those it has made."""
    window = fence.get("window")
    if "round" not in fence or not isinstance(window, list):
        return fence
    made = [each for each in window
            if isinstance(each, dict) and each.get("round") == fence["round"]]  # fmt: skip
    return fence | {"window": made}


def _attempt(body: bytes) -> tuple[str, Any]:
    """The attempt id in a small JSON body, and the body as parsed; ("", None) for anything else."""
    if len(body) > PARSED_BYTES_MAX or body[:1] != b"{":
        return "", None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return "", None
    attempt = fields.get("attempt") if isinstance(fields, dict) else None
    return (attempt if isinstance(attempt, str) else ""), fields
