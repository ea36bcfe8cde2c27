"""`with lockkit.record("run.html"):` the events of all locks within the block, as one file."""

from __future__ import annotations

import html
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.verify.check import Verdict, check
from lockkit.lab.widgets.export import page_of
from lockkit.lab.widgets.scene import text
from lockkit.sinks import listening

EVENTS_MAX = 500_000
"""Most events of one recording; later ones are counted but not kept."""
KINDS = (".html", ".jsonl")
WORST_FIRST = ("INVALID", "UNKNOWN", "VALID")


@dataclass(slots=True)
class Recording:
    """The events so far, by the URL of the lock that emitted them."""

    path: Path
    recorded: list[tuple[str, Event]] = field(default_factory=list)
    missed: int = 0

    def hear(self, url: str, event: Event) -> None:
        if len(self.recorded) < EVENTS_MAX:
            self.recorded.append((url, event))
        else:
            self.missed += 1

    @property
    def locks(self) -> list[str]:
        """The URLs of the locks and tables that emitted events, in order of appearance."""
        return list(dict.fromkeys(url for url, _ in list(self.recorded) if url))

    def events(self, url: str = "") -> list[Event]:
        """Events in order of time: all, or those of one lock with its embedded store's events."""
        bucket, path = _place(url)
        kept = [
            each
            for of, each in list(self.recorded)
            if not url or of == url or (not of and _concerns(each, bucket, path))
        ]
        return sorted(kept, key=lambda each: each.at_ms)

    def verdicts(self) -> dict[str, Verdict]:
        """One history for each lock; under "" if only a store emitted events."""
        urls = self.locks or ([""] if self.recorded else [])
        return {url: check(self.events(url)) for url in urls}


@contextmanager
def record(path: str | Path, *, title: str = "") -> Iterator[Recording]:
    """Record the events of every lock, table, embedded server and proxy of this process.

    `path` is written atomically at the end of the block, even if the block raises: a page (`.html`)
    with the verdict, or the events as JSON lines (`.jsonl`), each with its `lock`. If several locks
    emitted events, the page shows the one with the worst verdict. Other processes are not
    recorded. Raises `ValueError` or `FileNotFoundError` before the block for an invalid path, and
    `OSError` after it (only a warning if the block itself has raised).
    """
    wanted = Path(path)
    if wanted.suffix not in KINDS:
        raise ValueError(f"{wanted}: a recording is a page (.html) or JSON lines (.jsonl)")
    if not wanted.parent.is_dir():
        raise FileNotFoundError(f"{wanted}: there is no folder {wanted.parent}; make it first")
    recording = Recording(wanted)
    try:
        with listening(recording.hear):
            yield recording
    except BaseException as error:
        _save_after_error(recording, title, type(error).__name__)
        raise
    _save(wanted, _said(recording, title, ""))


def _save_after_error(recording: Recording, title: str, ending: str) -> None:
    try:
        _save(recording.path, _said(recording, title, ending))
    except Exception as error:  # noqa: BLE001 - the block's own error must not be hidden by it
        warnings.warn(f"{recording.path} was not written: {error}", RuntimeWarning, stacklevel=3)


def _said(recording: Recording, title: str, ending: str) -> str:
    if recording.path.suffix == ".jsonl":
        return "".join(_line(url, each) for url, each in recording.recorded)
    return _page(recording, title or f"lockkit: {recording.path.stem}", ending)


def _line(url: str, each: Event) -> str:
    more: dict[str, Any] = {"lock": url} if url else {}
    return Event(each.at_ms, each.who, each.kind, {**each.data, **more}).to_json() + "\n"


def _page(recording: Recording, title: str, ending: str) -> str:
    verdicts = recording.verdicts()
    url = min(verdicts, key=lambda each: WORST_FIRST.index(verdicts[each].kind), default="")
    said = [f"Recorded: {text(url)}." if url else "No lock emitted an event within the block."]
    said += [
        f"{text(each)} has a verdict, too: {verdict.kind}."
        for each, verdict in verdicts.items()
        if each != url
    ]
    if ending:
        said.append(f"The block ended with {ending}.")
    if recording.missed:
        said.append(f"{recording.missed} more events were not kept: this is only the beginning.")
    above = f"<p>{html.escape(' '.join(said))}</p>"
    return page_of(recording.events(url), verdicts.get(url), title=title, above=above)


def _save(path: Path, said: str) -> None:
    """Write atomically: an existing file stays until the new one is complete."""
    part = path.with_name(f".{path.name}.{Clock().unique()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(said)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _place(url: str) -> tuple[str, str]:
    """The bucket of a lock's URL, and the path of its objects."""
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


def _concerns(each: Event, bucket: str, path: str) -> bool:
    """Whether a store's own event is about an object below that path."""
    key = str(each.get("key", "")).strip("/")
    inside = not path or key == path or key.startswith(f"{path}/")
    return inside and str(each.get("bucket", bucket)) == bucket
