"""Data files on their way to and from the store: whole, but never in memory at once.

Their names are their writer's own (instant and attempt are in them), so that asking again decides
nothing: the clients may retry, as those of the lock and the timeline may not.
"""

from __future__ import annotations

import socket
import tempfile
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, TableError, Unanswered
from lockkit.protocol.outcome import Applied, Found, Missing, PreconditionFailed, Throttled, Unknown
from lockkit.runtime.proven import TRIES_MAX, pause_s
from lockkit.stores import Store, folder_of

ATTEMPTS = 5
"""How often the SDK may send a request for a data file: `open_store(url, attempts=ATTEMPTS)`."""


def open_data_file(store: Store, key: str, clock: Clock) -> BinaryIO:
    """The file at `key`, seekable, for the caller to close; `TableError` if it is gone."""
    folder, why = folder_of(store.url), ""
    if folder is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (folder / key).open("rb")
        raise _gone(key)
    try:
        copy: Any = _LocalCopy(tempfile.TemporaryFile())  # noqa: SIM115 - handed to the caller
    except OSError as error:
        raise _disk_full(key, error) from None
    with ExitStack() as unless_found:
        unless_found.callback(copy.close)
        for tries in range(TRIES_MAX):
            copy.seek(0)
            copy.truncate()
            answer = store.get_file(key, copy)
            if copy.failed is not None:  # the SDK takes it for an error of its connection
                raise _disk_full(key, copy.failed)
            match answer:
                case Found():
                    unless_found.pop_all()
                    copy.seek(0)
                    file: BinaryIO = copy.file
                    return file
                case Missing():
                    raise _gone(key)
                case Throttled(after_s):
                    why = "throttled"
                    clock.sleep(pause_s(tries, after_s))
                case Unknown(why):
                    clock.sleep(pause_s(tries))
                case other:
                    raise AssertionError(f"not an answer to a read: {other!r}")
    raise Unanswered(
        f"{key} could not be read in {TRIES_MAX} tries ({why}); see that the store answers, then "
        "try again",
        doubt=False,
    )


class _LocalCopy:
    """A temporary file that remembers why it could not be written: its disk may be full."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.failed: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written: int = self.file.write(data)
            self.file.flush()
        except OSError as error:
            self.failed = error
            raise
        return written

    def close(self) -> None:
        with suppress(OSError):  # what could not be written is tried once more
            self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _disk_full(key: str, error: OSError) -> TableError:
    return TableError(
        f"{key} could not be copied to {tempfile.gettempdir()} of {socket.gethostname()} "
        f"({str(error)[:120]}): the store answered; make room there, or set TMPDIR, then try again"
    )


def _gone(key: str) -> TableError:
    return TableError(f"{key} is gone; it was cleaned while this write read it: begin again")


def put_data_file(store: Store, key: str, source: BinaryIO, size: int, clock: Clock) -> None:
    """Create `key` from the whole of `source`; `Unanswered` if that could not be made sure."""
    why = ""
    for tries in range(TRIES_MAX):
        source.seek(0)
        match store.put_file(key, source, size):
            case Applied():
                return
            case PreconditionFailed():
                # Nobody else writes under that name: an earlier copy of our own request landed.
                with suppress(NoAnswer):
                    if [(each.key, each.size) for each in store.list(key)] == [(key, size)]:
                        return
                    raise TableError(
                        f"{key} is there already, and is not what was to be written; begin again: "
                        "its name is spent"
                    )
                why = "refused, and it could not be listed"
            case Throttled(after_s):
                why = "throttled"
                clock.sleep(pause_s(tries, after_s))
            case Unknown(why):
                clock.sleep(pause_s(tries))
    raise Unanswered(
        f"{key} could not be written in {TRIES_MAX} tries ({why}); see that the store answers, "
        "then try again",
        doubt=True,
    )
