"""A store in a directory: plain files that any reader of the table can open.

A key changes in three steps, under an exclusive flock on the key's directory:

1. stat the file and check the condition;
2. write the body to `.lockkit.tmp` beside it, give it a modification time later than any the key
   has had, fsync it;
3. rename it over the key, fsync the directory.

The version is that modification time (ns) plus the inode number. No second file stores it, so a
crash cannot leave the two different. `kill -9` before the rename leaves the old state and a
`.lockkit.tmp` that the next writer truncates; after it, the new state. The kernel releases a dead
process's flock, so no client waits for it. A reader takes no lock: it sees the whole file that the
name referred to.

One host only: NFS does not support flock on a directory (it fails there, with an error).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.stores import (
    CHUNK_BYTES,
    Capabilities,
    ListEntry,
    Listing,
    ObjectVersion,
    StoreOptions,
    folder_of,
    shown,
)

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

SCRATCH = ".lockkit.tmp"
FLOCK_POLL_S = 0.002
DIRECTORY_TRIES_MAX = 100
"""How often a directory may be removed between opening and locking it."""


class LocalStore:
    """`file:///directory`: objects are the files under it, versions are not kept."""

    server = ""
    capabilities = Capabilities(name="local", poll_min_s=0.005)

    @staticmethod
    def keywords() -> frozenset[str]:
        return frozenset()

    def __init__(self, url: str, options: StoreOptions = StoreOptions()) -> None:
        path = folder_of(url)
        if path is None or not path.is_absolute() or "\0" in str(path):
            why = "write file:/// and the absolute path of a folder"
            raise StoreError(f"cannot open {url!r}: {why}")
        if fcntl is None:
            raise StoreError(f"cannot open {url!r}: this system has no flock")
        self.url = url
        self.options = options
        self._root = path
        self._clock = Clock()

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        try:
            with open(self._path(key), "rb", opener=regular) as file:
                status = os.fstat(file.fileno())
                now_ms = self._clock.wall_ms()
                if _version(status) == unless:
                    return NotModified(now_ms)
                body = file.read() if limit is None else file.read(limit + 1)
                return Found(body, _version(status), status.st_mtime_ns // 1_000_000, now_ms)
        except OSError as error:
            return self._missing(f"read {key}", error)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        path = self._path(key)
        try:
            with self._locked(path.parent, timeout_s=self.options.timeout_s) as directory:
                status = _status(path)
                match condition:
                    case IfAbsent() if status is None:
                        pass
                    case IfVersion(version) if status and version == _version(status):
                        pass
                    case _:
                        return PreconditionFailed()
                version = self._prepare(path.parent / SCRATCH, body, status)
                _drop_checksum(path)
                os.rename(path.parent / SCRATCH, path)
                try:
                    os.fsync(directory)
                except OSError as error:
                    return Unknown(f"renamed, but the directory could not be synced: {error}")
                return Applied(version)
        except TimeoutError:
            return Throttled()
        except OSError as error:
            raise self._fault(f"write {key}", error) from None

    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        """Writers of large files do not wait for each other: the lock is held only for a link."""
        path = self._path(key)
        scratch = path.with_name(f"{SCRATCH}-{self._clock.unique()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("xb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
            with self._locked(path.parent, timeout_s=self.options.timeout_s) as directory:
                os.link(scratch, path)
                os.fsync(directory)
                return Applied(_version(path.stat()))
        except FileExistsError:
            return PreconditionFailed()
        except TimeoutError:
            return Throttled()
        except OSError as error:
            raise self._fault(f"write {key}", error) from None
        finally:
            scratch.unlink(missing_ok=True)

    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        try:
            with open(self._path(key), "rb", opener=regular) as file:
                shutil.copyfileobj(file, into, CHUNK_BYTES)
                return Found(b"", _version(os.fstat(file.fileno())))
        except OSError as error:
            return self._missing(f"read {key}", error)

    def list(self, prefix: str, after: str = "") -> Listing:
        """A snapshot, even if others write; see `local_listing`."""
        from lockkit.stores.local_listing import READINGS_MAX, keys_at_one_moment

        try:
            found = keys_at_one_moment(self._root, self._path, prefix, after, scratch=SCRATCH)
        except OSError as error:
            raise self._fault(f"list {prefix}*", error) from None
        if found is None:
            raise NoAnswer(
                f"{self.url}: the files under {prefix}* changed during each of {READINGS_MAX} "
                "readings of their folder; list again when fewer writers are active"
            )
        return Listing(ListEntry(key, at.st_size, _version(at)) for key, at in found)

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        from lockkit.stores.local_pruning import prune

        path = self._path(key)
        if not path.parent.is_dir():
            return Applied("")
        try:
            with self._locked(path.parent, timeout_s=self.options.timeout_s) as directory:
                status = _status(path)
                if status is None:
                    return Applied("")
                if condition is not None and condition.version != _version(status):
                    return PreconditionFailed()
                _drop_checksum(path)
                os.unlink(path)
                os.fsync(directory)
                prune(path.parent, self._root, SCRATCH, partial(self._locked, timeout_s=0.0))
                return Applied("")
        except TimeoutError:
            return Throttled()
        except OSError as error:
            raise self._fault(f"delete {key}", error) from None

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        status = _status(self._path(key))
        if status is None:
            return []
        modified_ms = status.st_mtime_ns // 1_000_000
        return [ObjectVersion(_version(status), modified_ms, status.st_size, current=True)]

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        match self.get(key):
            case Found(body, found) if found == version.version:
                return body
        raise StoreError(f"{self.url}: {key} is no longer at that version; files keep only one")

    def __repr__(self) -> str:
        return shown(self)

    def close(self) -> None:
        """Nothing is held open between operations, so a fork is harmless too."""

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if key.startswith("/") or ".." in parts or "\0" in key or SCRATCH in key:
            raise StoreError(f"{self.url}: {key!r} cannot be a key of a directory; choose another")
        return self._root / key

    def _prepare(self, scratch: Path, body: bytes, replaced: os.stat_result | None) -> Version:
        """The new state, durable under its temporary name; its version is already final."""
        with scratch.open("wb") as file:
            file.write(body)
            file.flush()
            # Strictly later than the state it replaces: inode numbers are reused, and the kernel's
            # own times move in steps of some ms, so two states could look alike.
            mtime_ns = self._clock.wall_ns()
            if replaced is not None:
                mtime_ns = max(mtime_ns, replaced.st_mtime_ns + 1)
            os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        if status.st_mtime_ns != mtime_ns:
            raise StoreError(
                f"{self.url}: this file system rounds modification times, so versions would "
                "collide; put the table on another (ext4, xfs, btrfs, apfs, tmpfs keep them)"
            )
        return _version(status)

    @contextmanager
    def _locked(self, directory: Path, *, timeout_s: float) -> Iterator[int]:
        """An exclusive flock on `directory`, created if missing; TimeoutError if it stays taken."""
        deadline_ms = self._clock.boot_ms() + int(timeout_s * 1000)
        for left in reversed(range(DIRECTORY_TRIES_MAX)):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # `prune` has removed it since, or it cannot be made
                if not left:
                    raise
                continue
            try:
                self._flock(descriptor, deadline_ms)
                if _same(descriptor, directory):
                    yield descriptor
                    return
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child has a copy of it
                os.close(descriptor)
        raise TimeoutError

    def _flock(self, descriptor: int, deadline_ms: int) -> None:
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.boot_ms() >= deadline_ms:
                    raise TimeoutError from None
                self._clock.sleep(FLOCK_POLL_S)

    def _missing(self, doing: str, error: OSError) -> Missing:
        below = isinstance(error, NotADirectoryError) and self._root.is_dir()
        if not (below or isinstance(error, FileNotFoundError)):
            raise self._fault(doing, error) from None  # also if the store itself is no directory
        return Missing()

    def _fault(self, doing: str, error: OSError) -> StoreError:
        from lockkit.stores.local_faults import fault

        return fault(self.url, doing, error)


def regular(path: str, flags: int) -> int:
    """Opens a file at once: a pipe would wait for a writer, and a device may have no end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if S_ISREG(kind) or S_ISDIR(kind):  # the caller's `open` refuses a directory
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, "it is a pipe or a device, not a file")


def _drop_checksum(path: Path) -> None:
    with suppress(OSError):  # Hadoop writes one beside each file, and refuses one that differs
        path.with_name(f".{path.name}.crc").unlink()


def _status(path: Path | str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _version(status: os.stat_result) -> Version:
    return f"{status.st_mtime_ns}-{status.st_ino}"


def _same(descriptor: int, directory: Path) -> bool:
    """Whether the locked directory is still the one with that name."""
    ours, named = os.fstat(descriptor), _status(directory)
    return named is not None and (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
