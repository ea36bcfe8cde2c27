"""A lock that is a file: creating it takes the lock, deleting it releases the lock.

The format is that of Hudi's FileSystemBasedLockProvider: a file `lock`, created if there is none,
judged by its modification time, deleted on release. lockkit differs in four ways. The file appears
with its whole content (by a link, not an open) and is read-only. A holder renews a file that can
expire. A file is renewed or deleted only while it is still ours, and broken only while it is
still expired. Both happen under an flock on the folder. One race remains: a writer that does not
use flock (Hudi itself, or another host on a file system that does not share flocks) may replace the
file between that check and the deletion. (A process that is paused at that point keeps an expired
file from being broken. That is safer than deleting another owner's file when it resumes.)
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from lockkit.clock import process_name, utc
from lockkit.config import seconds
from lockkit.errors import LockBusy, NoAnswer, StoreError, clipped
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.providers.process_state import ProcessState, process_state
from lockkit.stores import folder_of
from lockkit.stores.arguments import check_texts
from lockkit.stores.local import SCRATCH, regular

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

NAME = "lock"
FILE_BYTES_MAX = 64 * 1024
"""Hudi's fields include the holder's whole stack."""
LEASE_S_MAX = 24 * 3600
BEATS_PER_LEASE = 10
BEAT_S = 30.0
"""Renewed even without an expiry, to detect a file that was deleted by hand."""
MISSED_MAX = 3
"""A holder that missed more renewals than this does not renew."""
AHEAD_NS = 5_000_000_000
"""A file that was renewed so much later than now shows that a clock is wrong."""
RETRY_S = 0.2
FLOCK_WAIT_S, FLOCK_POLL_S = 1.0, 0.002

_LASTING = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "check who owns the folder",
    errno.EPERM: "check who owns the folder, and that this file system has hard links",
    errno.EOPNOTSUPP: "this file system has no hard links; choose a folder on another",
    errno.EROFS: "it is mounted read-only",
    errno.ENOENT: "its parent does not exist; is it mounted?",
    errno.ENOTDIR: "a file is in the place of a folder; choose another folder",
    errno.EISDIR: "a folder has the lock file's name; find out what made it, and move it away",
    errno.ENXIO: "find out what made it, and move it away",
    errno.ELOOP: "a link there leads to itself; find out what made it, and remove it",
}


@dataclass(frozen=True, slots=True)
class LockFileContent:
    """The content of a lock file; Hudi's and foreign ones have neither attempt nor pid."""

    attempt: str
    said: str
    """Who created it, in words."""
    host: str
    pid: int
    modified_ns: int
    process: str = ""
    """`host/pid@start`."""
    lease_s: float | None = None
    """After how long without a renewal its holder lets others break it (0: never); None: unsaid."""

    @property
    def version(self) -> str:
        """Another one after each renewal."""
        return f"{self.attempt}@{self.modified_ns}"

    def left_behind(self) -> bool:
        """Whether its process ran on this host and has ended."""
        return process_state(self.process) is ProcessState.ENDED


class FilesystemLock(LeasedLock):
    """The lock file `lock` in `folder` (Hudi: `hoodie.write.lock.filesystem.path`).

    The age of the file is measured by the file system's clock.

    :param folder: the folder of the lock file.
    :param expire_minutes: as in Hudi, any writer may break a file that was not renewed for so many
        minutes. 0: never, so after a crash the file must be deleted by hand. All writers should use
        the same value; a longer one of a holder of lockkit's is in its file, and counts.
    :param options: the keywords of every lock; `LeasedLock` lists them.
    :raises ValueError: for an object store, on which creating a file is not atomic.
    """

    service = "filesystem"
    lease_keyword = ("expire_minutes", 1 / 60)

    def __init__(self, folder: str | Path, expire_minutes: float = 0, **options: Any) -> None:
        expire_minutes = seconds("expire_minutes", expire_minutes, LEASE_S_MAX // 60, 0.0)
        check_texts(folder=str(folder) if isinstance(folder, Path) else folder)
        self._folder = _local(str(folder))
        self._file = self._folder / NAME
        ttl_s = expire_minutes * 60 or None
        super().__init__(
            str(self._file), ttl_s=ttl_s, beat_s=ttl_s / BEATS_PER_LEASE if ttl_s else BEAT_S,
            **options,
        )  # fmt: skip
        self.address = f"filesystem://{quote(str(self._folder))}"
        self._attempt = ""
        self._orphan: LockFileContent | None = None

    def busy_error(self) -> LockBusy:
        said = super().busy_error()
        if self._orphan is None:
            return said
        who = f"process {self._orphan.pid} of {self._orphan.host}"
        return LockBusy(
            said.lock, owner=said.owner,
            cure=f"{said.cure}. It belongs to {who}, which no longer runs. If no other host has "
            f"that name, delete {self._file} by hand (with expire_minutes, lockkit would do it)",
        )  # fmt: skip

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        return self._ask("create", self._create)

    def _withdraw(self) -> None:
        if not self._attempt:
            return
        with suppress(GrantOver):
            self._give_back(ServiceGrant(self._attempt))

    def _beat(self, taken: ServiceGrant) -> None:
        def touch() -> None:
            os.utime(self._file)  # even without an expiry: another writer may use one

        self._ask("renew", lambda: self._while_mine(taken, touch))

    def _give_back(self, taken: ServiceGrant) -> None:
        self._ask("delete", lambda: self._while_mine(taken, self._file.unlink))
        self._attempt = ""

    def _is_held(self) -> bool:
        found = self._ask("read", self._read)
        if found is None or not self._expired(found, self._by_ours(found)):
            return found is not None
        return not self._expired(found, self._now_ns() or self.clock.wall_ns())

    def _holder(self) -> ServiceHolder | None:
        """Also of an expired file: it may be renewed yet."""
        found = self._ask("read", self._read)
        if found is None:
            return None
        lease_s = max(found.lease_s or 0.0, self.ttl_s or 0.0) or None
        beat_s = (lease_s if found.lease_s is None else found.lease_s) or BEATS_PER_LEASE * BEAT_S
        beat_s /= BEATS_PER_LEASE
        ends = f"{lease_s:g} s after its last renewal" if lease_s else "never: by a break"
        if self.ttl_s and self.ttl_s > (found.lease_s or 0.0):
            ends += " (by the expire_minutes of this URL)"
        now_ns, clock = self.clock.wall_ns(), "this machine's clock"
        in_time = -AHEAD_NS <= now_ns - found.modified_ns <= MISSED_MAX * beat_s * 1e9
        by_its = None if in_time else self._now_ns()
        if by_its is not None:
            now_ns, clock = by_its, "the file system's clock"
        if lease_s and now_ns - found.modified_ns > lease_s * 1e9:
            since = utc(found.modified_ns / 1e6 + lease_s * 1000)
            ends = f"{ends}: overdue since {since} by {clock}"
        gone = "; that process no longer runs" if found.left_behind() else ""
        return ServiceHolder(
            f"{found.said}{gone}", found.version, ends, renewed_ms=found.modified_ns / 1e6,
            process=found.process, lease_s=lease_s,
            overdue_s=MISSED_MAX * beat_s if found.attempt else None,  # Hudi renews no file
            clock="the file system's clock", now_ms=None if by_its is None else by_its / 1e6,
        )  # fmt: skip

    def _break_grant(self, version: str) -> bool:
        """A renewal changes the file's time, so the lock of a living holder is not broken."""

        def delete() -> bool:
            with self._alone():
                found = self._read()
                if found is None or found.version != version:
                    return False
                self._file.unlink()
            return True

        return self._ask("delete", delete)

    # --- the file --------------------------------------------------------------------------------

    def _create(self) -> ServiceGrant | NotFree:
        found = self._read()
        if found and not self._expired(found, self._by_ours(found)):
            return self._held(found)
        self._attempt = self.clock.unique()
        scratch = self._folder / f"{SCRATCH}-{self._attempt}"
        try:
            self._write(scratch)
            if found:
                self._break(found, scratch.stat().st_mtime_ns)
            if self._link(scratch):
                return ServiceGrant(self._attempt)
        finally:
            scratch.unlink(missing_ok=True)
        self._attempt = ""
        return self._held(self._read())

    def _write(self, scratch: Path) -> None:
        """Hudi's three fields as Jackson prints them, then ours; durable before it is linked."""
        now_ms, host, pid = self.clock.wall_ms(), socket.gethostname(), os.getpid()
        fields = {
            "lockCreateTime": f"{utc(now_ms)[:19].replace('T', ' ')}.{now_ms % 1000:03d}",
            "lockThreadName": threading.current_thread().name,
            "lockStacksInfo": [f"lockkit {self.owner} (pid {pid} on {host})"],
            "owner": self.owner, "attempt": self._attempt, "host": host, "pid": pid,
            "process": process_name(), "leaseS": self.ttl_s or 0,
        }  # fmt: skip
        self._folder.mkdir(exist_ok=True)
        with open(scratch, "x", encoding="utf-8", opener=_for_reading) as file:
            file.write(json.dumps(fields, indent=2, separators=(",", " : ")))
            file.flush()
            os.fsync(file.fileno())

    def _link(self, scratch: Path) -> bool:
        try:
            os.link(scratch, self._file)
        except FileExistsError:
            # NFS may lose the answer and find its own link on the retry (open(2), O_EXCL).
            return scratch.stat().st_nlink == 2
        return True

    def _break(self, seen: LockFileContent, now_ns: int) -> None:
        """Delete an expired file, unless it was renewed or replaced since."""
        with self._alone():
            found = self._read()
            if found and found.attempt == seen.attempt and self._expired(found, now_ns):
                self._file.unlink()
                said = clipped(found.said, 400)
                self._emit("note", text=f"broke the expired lock file of {said}")

    def _read(self) -> LockFileContent | None:
        try:
            with open(self._file, "rb", opener=regular) as file:
                modified_ns = os.fstat(file.fileno()).st_mtime_ns
                body = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        return read(body, modified_ns)

    def _expired(self, found: LockFileContent, now_ns: int) -> bool:
        """A holder with a longer lease than ours renews less often: its own counts then."""
        limit_s = max(self.ttl_s or 0, found.lease_s or 0)
        return self.ttl_s is not None and now_ns - found.modified_ns > limit_s * 1e9

    def _by_ours(self, found: LockFileContent) -> int:
        """The time by our clock; by the file system's, if the file is of a time to come."""
        now_ns = self.clock.wall_ns()
        return self._now_ns() or now_ns if found.modified_ns - now_ns > AHEAD_NS else now_ns

    def _now_ns(self) -> int | None:
        """The file system's clock: the time of a new file. None where this user can make none."""
        scratch = self._folder / f"{SCRATCH}-{self.clock.unique()}"
        try:
            with open(scratch, "xb") as file:
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None
        finally:
            with suppress(OSError):
                scratch.unlink()

    def _while_mine(self, taken: ServiceGrant, act: Callable[[], None]) -> None:
        with self._alone():
            found = self._read()
            if found is None:
                raise GrantOver("its file was deleted")
            if found.attempt != taken.handle:
                raise GrantOver(f"its file now belongs to {found.said}")
            act()

    def _held(self, found: LockFileContent | None) -> NotFree:
        self._orphan = found if found and found.left_behind() else None
        return NotFree(found.said if found else "an owner that has just released it", RETRY_S)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Excludes other lockkit processes, as far as the flock reaches."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            ends_ms = self.clock.boot_ms() + FLOCK_WAIT_S * 1000
            while not _flocked(descriptor):
                if self.clock.boot_ms() >= ends_ms:
                    raise NoAnswer(f"{self}: another process has flocked its folder; try again")
                self.clock.sleep(FLOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _ask(self, doing: str, act: Callable[[], T]) -> T:
        return self._events.ask(doing, lambda: self._answer(doing, act))

    def _answer(self, doing: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            what = f"{self}: cannot {doing} its file: {error.strerror or error}"
            advice = _LASTING.get(error.errno or 0)
            if advice is None:
                raise NoAnswer(f"{what}; try again") from None
            raise StoreError(f"{what}; {advice}") from None


def _for_reading(path: str, flags: int) -> int:
    # Hadoop checks whether a local file exists, then opens and truncates it. A file that appears in
    # between is read-only, so only root can overwrite it.
    return os.open(path, flags, 0o444)


def read(body: bytes, modified_ns: int) -> LockFileContent:
    """The content of a lock file. As in Hudi, any content counts as a lock."""
    if not body:
        # Hudi 1.2.0 (acquireLock) writes its fields only if the new file cannot be seen.
        said = f"a writer that left it empty, as Hudi does, since {utc(modified_ns / 1e6)}"
        return LockFileContent("", said, "", 0, modified_ns)
    fields: Any = None
    if len(body) <= FILE_BYTES_MAX:
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            pass
    if not isinstance(fields, dict):
        return LockFileContent("", "an unreadable lock file", "", 0, modified_ns)
    text = {key: clipped(value, 100) for key, value in fields.items() if isinstance(value, str)}
    since = text.get("lockCreateTime", "an unknown time")
    owner, host, pid = text.get("owner"), text.get("host", ""), fields.get("pid")
    if owner is None or type(pid) is not int or pid <= 0:
        said = f"Hudi's thread {text.get('lockThreadName', '?')} since {since}"
        return LockFileContent("", said, "", 0, modified_ns)
    said = f"{owner} (pid {pid} on {host}) since {since}"
    attempt, process = text.get("attempt", ""), text.get("process", "")
    lease_s: Any = fields.get("leaseS")
    known = type(lease_s) in (int, float) and 0 <= lease_s <= LEASE_S_MAX
    lease_s = float(lease_s) if known else None
    return LockFileContent(attempt, said, host, pid, modified_ns, process, lease_s)


def _local(folder: str) -> Path:
    if "://" not in folder:
        return Path(folder).absolute()
    path = folder_of(folder)
    if path is None:
        scheme = folder.partition("://")[0]
        raise ValueError(
            f"a lock file needs a file system that creates atomically, which {scheme}:// is not "
            "(Hudi refuses it too); use lockkit.Lock there, Hudi's StorageBasedLockProvider"
        )
    return path


def _flocked(descriptor: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system does not support it (NFS): the race described above remains
    return True
