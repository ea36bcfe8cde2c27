"""Copies data files to and from the store without holding them in memory.

Only one writer uses a data file's name, which has its instant and attempt. So a repeated request
does no harm, and the SDK may retry it (it may not retry requests for the lock and the timeline).
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
from lockkit.table.errors import TableChanged

ATTEMPTS = 5
"""How often the SDK may send a request for a data file: `open_store(url, attempts=ATTEMPTS)`."""


def open_data_file(store: Store, key: str, clock: Clock) -> BinaryIO:
    """The file at `key`, seekable, for the caller to close; `TableError` if it is gone."""
    folder, why = folder_of(store.url), ""
    if folder is not None:
        from lockkit.stores.local import regular

        try:
            return open(folder / key, "rb", opener=regular)
        except (FileNotFoundError, NotADirectoryError):
            raise _gone(key) from None
        except OSError as error:
            from lockkit.stores.local_faults import fault

            raise fault(store.url, f"read {key}", error) from None
    try:
        copy: Any = _LocalCopy(tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise _disk_full(key, error) from None
    with ExitStack() as unless_found:
        unless_found.callback(copy.close)
        for tries in range(TRIES_MAX):
            copy.seek(0)
            copy.truncate()
            answer = store.get_file(key, copy)
            if copy.failed is not None:  # the SDK treats it as a connection error
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
        key, f"could not be read in {TRIES_MAX} tries ({why})",
        "check that the store answers, then try again", doubt=False,
    )  # fmt: skip


class _LocalCopy:
    """A temporary file that keeps the error of a failed write, such as a full disk."""

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
        with suppress(OSError):  # a failed write is tried once more
            self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _disk_full(key: str, error: OSError) -> TableError:
    return TableError(
        tempfile.gettempdir(),
        f"of {socket.gethostname()} has no room for a copy of {key} ({str(error)[:120]}): the "
        "store answered", "make room there, or set TMPDIR, then try again",
    )  # fmt: skip


def _gone(key: str) -> TableError:
    return TableChanged(key, "is gone; it was cleaned while this write read it", "begin again")


def put_data_file(store: Store, key: str, source: BinaryIO, size: int, clock: Clock) -> None:
    """Create `key` from all of `source`; `Unanswered` if the outcome stays unknown."""
    why = ""
    for tries in range(TRIES_MAX):
        source.seek(0)
        match store.put_file(key, source, size):
            case Applied():
                return
            case PreconditionFailed():
                # No other writer uses this name: an earlier copy of our own request landed.
                with suppress(NoAnswer):
                    if [(each.key, each.size) for each in store.list(key)] == [(key, size)]:
                        return
                    raise TableChanged(
                        key, "is there already, with other bytes", "begin again: its name is used",
                    )  # fmt: skip
                why = "refused, and it could not be listed"
            case Throttled(after_s):
                why = "throttled"
                clock.sleep(pause_s(tries, after_s))
            case Unknown(why):
                clock.sleep(pause_s(tries))
    raise Unanswered(
        key, f"could not be written in {TRIES_MAX} tries ({why})",
        "check that the store answers, then try again", doubt=True,
    )  # fmt: skip
