"""What the server keeps: every version of every object, in one SQLite file.

A request is one transaction (`BEGIN IMMEDIATE`), so its condition and its write are one step, even
with several server processes on one file. WAL with synchronous=NORMAL survives `kill -9` of the
server (not a power cut).

One file because each operation is one transaction over the same tables.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from lockkit.clock import Clock

OLD_BODY_BYTES_MAX = 1 << 20
"""Past versions larger than this stay in the history without their bytes."""
BUSY_S_MAX = 10.0
"""The longest wait for another process that is writing to the same file."""
OPEN_TRIES_MAX = 100
OPEN_INTERVAL_S = 0.05

_TABLES = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versioned (bucket TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (
  id INTEGER PRIMARY KEY, bucket TEXT, key TEXT, etag TEXT, size INTEGER, at_ms REAL,
  deleted INTEGER, meta TEXT, metageneration INTEGER, body BLOB);
CREATE INDEX IF NOT EXISTS versions_by_key ON versions (bucket, key, id);
CREATE TABLE IF NOT EXISTS current (
  bucket TEXT, key TEXT, id INTEGER, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, bucket TEXT, key TEXT, meta TEXT);
CREATE TABLE IF NOT EXISTS parts (
  upload TEXT, name TEXT, number INTEGER, etag TEXT, size INTEGER, body BLOB,
  PRIMARY KEY (upload, name));
CREATE TABLE IF NOT EXISTS leases (
  bucket TEXT, key TEXT, id TEXT, seconds INTEGER, ends_ms REAL, breaks_ms REAL,
  PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (n INTEGER PRIMARY KEY, line TEXT);
"""
_COLUMNS = "v.id, v.bucket, v.key, v.etag, v.size, v.at_ms, v.deleted, v.meta, v.metageneration"
_LAST = "\U0010ffff"


class DiskFull(Exception):
    """SQLite could not write; nothing of the request was applied."""


class DatabaseBusy(Exception):
    """Another process kept the file for too long; nothing of the request was applied."""


class Object(NamedTuple):
    """One state of one object. `id` rises with every write anywhere: GCS calls it a generation."""

    id: int
    bucket: str
    key: str
    etag: str
    """MD5 of the bytes in hex (S3's form: content-derived), or `md5-N` after a multipart upload."""
    size: int
    at_ms: float
    deleted: bool
    meta: dict[str, Any]
    """HTTP's entity headers in lower case, and the user's own under `meta-<name>`."""
    metageneration: int = 1


Check = Callable[[Object | None], None]
"""Raises the dialect's answer if the object's current state does not match the condition."""


def anything(_present: Object | None) -> None:
    """The check of an unconditional request."""


class Objects:
    """All buckets. One connection; called from one thread (the server's loop)."""

    def __init__(
        self, path: str = ":memory:", clock: Clock | None = None, *, strict_buckets: bool = False
    ) -> None:
        self.clock = clock or Clock()
        self._strict = strict_buckets
        self._db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=BUSY_S_MAX
        )
        for left in range(OPEN_TRIES_MAX - 1, -1, -1):
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_TABLES)
                break
            except sqlite3.OperationalError as error:
                # The change to WAL does not wait for another process that is making it.
                if "locked" not in str(error) or not left:
                    raise
                self.clock.sleep(OPEN_INTERVAL_S)

    def close(self) -> None:
        self._db.close()

    def limit_pages(self, pages: int) -> None:
        """Limit the file to this many pages, to simulate a full disk."""
        self._db.execute(f"PRAGMA max_page_count={int(pages)}")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One atomic step: everything inside is applied, or nothing. The outermost one decides."""
        if self._db.in_transaction:
            yield self._db
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if not isinstance(error, sqlite3.OperationalError):
                raise
            if "full" in str(error) or "disk I/O" in str(error):
                raise DiskFull(str(error)) from None
            if "locked" in str(error) or "busy" in str(error):
                raise DatabaseBusy(str(error)) from None
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # SQLite may have done so by itself
            self._db.execute("ROLLBACK")

    # --- objects ---------------------------------------------------------------------------------

    def current(self, bucket: str, key: str) -> Object | None:
        """The object as it is; None if there is none (or only a delete marker)."""
        present = self.present(bucket, key)
        return None if present is None or present.deleted else present

    def present(self, bucket: str, key: str) -> Object | None:
        """The newest state, which may be a delete marker."""
        return self._one("FROM current c JOIN versions v USING (id) WHERE c.bucket = ? "
                         "AND c.key = ?", bucket, key)  # fmt: skip

    def as_of(self, bucket: str, key: str, at_ms: float) -> Object | None:
        """The object as it was before `at_ms`; None if there was none."""
        found = self._one("FROM versions v WHERE bucket = ? AND key = ? AND at_ms < ? "
                          "ORDER BY id DESC LIMIT 1", bucket, key, at_ms)  # fmt: skip
        return None if found is None or found.deleted else found

    def at(self, bucket: str, key: str, id: int) -> Object | None:
        return self._one("FROM versions v WHERE id = ? AND bucket = ? AND key = ?", id, bucket, key)

    def superseded_ms(self, object: Object) -> float | None:
        """When this object's next version (or delete marker) was made; None: it is current."""
        at_ms: float | None = self._db.execute(
            "SELECT min(at_ms) FROM versions WHERE bucket = ? AND key = ? AND id > ?",
            (object.bucket, object.key, object.id),
        ).fetchone()[0]
        return at_ms

    def body(self, object: Object, start: int = 0, end: int | None = None) -> bytes | None:
        """The bytes (start inclusive, end exclusive); None if they were not kept."""
        length = (object.size if end is None else end) - start
        if length <= 0:
            return b""  # SQLite's substr() of an empty blob is NULL
        row = self._db.execute(
            "SELECT substr(body, ?, ?) FROM versions WHERE id = ? AND body IS NOT NULL",
            (start + 1, length, object.id),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def write(
        self,
        bucket: str,
        key: str,
        body: bytes,
        check: Check = anything,
        *,
        etag: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> tuple[Object | None, Object]:
        """Check the condition and write, as one step; return the object before and after."""
        with self.writing() as db:
            before = self.current(bucket, key)
            check(before)
            after = Object(
                self._next_id(), bucket, key, etag or hashlib.md5(body).hexdigest(), len(body),
                self.clock.stamp_ms(), False, meta or {},
            )  # fmt: skip
            if before is None:
                db.execute("INSERT OR IGNORE INTO buckets VALUES (?)", (bucket,))
            self._keep(after, body, before)
        return before, after

    def keep_beside(self, object: Object, bucket: str, meta: dict[str, Any]) -> Object:
        """A copy as old as the object, in a bucket that no listing of buckets names."""
        with self.writing():
            body = self.body(object)
            assert body is not None, "the bytes of a current version are always kept"
            copy = object._replace(
                id=self._next_id(), bucket=bucket, meta=meta, metageneration=1
            )
            self._keep(copy, body, None)
        return copy

    def remove(
        self, bucket: str, key: str, check: Check = anything
    ) -> tuple[Object | None, Object | None]:
        """Delete under a condition; leaves a delete marker in the history. (before, marker)"""
        with self.writing():
            before = self.current(bucket, key)
            check(before)
            if before is None:
                return None, None
            marker = Object(self._next_id(), bucket, key, "", 0, self.clock.stamp_ms(), True, {})
            self._keep(marker, b"", before)
            self.set_lease(bucket, key, None)
        return before, marker

    def remove_version(self, bucket: str, key: str, id: int) -> None:
        """Delete one past version permanently."""
        with self.writing() as db:
            db.execute(
                "DELETE FROM versions WHERE id = ? AND bucket = ? AND key = ?", (id, bucket, key)
            )
            db.execute("DELETE FROM current WHERE bucket = ? AND key = ?", (bucket, key))
            db.execute(
                "INSERT INTO current SELECT bucket, key, max(id) FROM versions "
                "WHERE bucket = ? AND key = ? GROUP BY bucket, key",
                (bucket, key),
            )

    def annotate(self, object: Object, meta: dict[str, Any]) -> Object:
        """Replace an object's metadata in place (its metageneration rises)."""
        with self.writing() as db:
            db.execute(
                "UPDATE versions SET meta = ?, metageneration = metageneration + 1 WHERE id = ?",
                (json.dumps(meta), object.id),
            )
            found = self.at(object.bucket, object.key, object.id)
        assert found is not None
        return found

    def _one(self, where: str, *values: Any) -> Object | None:
        row = self._db.execute(f"SELECT {_COLUMNS} {where}", values).fetchone()
        return None if row is None else _object(row)

    def _keep(self, object: Object, body: bytes, before: Object | None) -> None:
        if before is not None and before.size > OLD_BODY_BYTES_MAX:
            self._db.execute("UPDATE versions SET body = NULL WHERE id = ?", (before.id,))
        self._db.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                object.id, object.bucket, object.key, object.etag, object.size, object.at_ms,
                object.deleted, json.dumps(object.meta) if object.meta else "{}",
                object.metageneration, body,
            ),
        )  # fmt: skip
        self._db.execute(
            "INSERT INTO current VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET id = excluded.id",
            (object.bucket, object.key, object.id),
        )

    def _next_id(self) -> int:
        """Microseconds since 1970, always above the last one, as GCS numbers generations."""
        last = self._db.execute("SELECT max(id) FROM versions").fetchone()[0] or 0
        return max(last + 1, round(self.clock.stamp_ms() * 1000))

    # --- listing ---------------------------------------------------------------------------------

    def under(
        self, bucket: str, prefix: str, after: str = "", limit: int = 1000, start: str = ""
    ) -> list[Object]:
        """Current objects with this prefix, by key (UTF-8): after `after`, and from `start` on."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM current c JOIN versions v USING (id) WHERE c.bucket = ? "
            "AND c.key >= ? AND c.key > ? AND c.key <= ? AND v.deleted = 0 ORDER BY c.key LIMIT ?",
            (bucket, max(prefix, start), after, prefix + _LAST, limit),
        )
        return [_object(row) for row in rows]

    def history(
        self, bucket: str, prefix: str, after: tuple[str, int] = ("", 0), limit: int = 1000
    ) -> list[Object]:
        """Every version, by key, newest first within a key; continues after (key, id)."""
        return self._versions(
            "(key > ? OR (key = ? AND id < ?)) ORDER BY key, id DESC", bucket, prefix, after, limit
        )

    def generations(
        self, bucket: str, prefix: str, after: tuple[str, int] = ("", 0), limit: int = 1000
    ) -> list[Object]:
        """Every version, by key, oldest first within a key; continues after (key, id)."""
        return self._versions(
            "(key > ? OR (key = ? AND id > ?)) ORDER BY key, id", bucket, prefix, after, limit
        )

    def _versions(
        self, behind: str, bucket: str, prefix: str, after: tuple[str, int], limit: int
    ) -> list[Object]:
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM versions v WHERE bucket = ? AND key >= ? AND key >= ? "
            f"AND key <= ? AND {behind} LIMIT ?",
            (bucket, prefix, after[0], prefix + _LAST, after[0], *after, limit),
        )
        return [_object(row) for row in rows]

    def buckets(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM buckets ORDER BY name")]

    def lacks(self, bucket: str) -> bool:
        """Whether buckets must be created before use, and this one was not."""
        named = "SELECT 1 FROM buckets WHERE name = ?"
        return self._strict and self._db.execute(named, (bucket,)).fetchone() is None

    def add_bucket(self, name: str) -> bool:
        """Returns False if the bucket existed."""
        with self.writing() as db:
            return db.execute("INSERT OR IGNORE INTO buckets VALUES (?)", (name,)).rowcount == 1

    def remove_bucket(self, name: str) -> None:
        with self.writing() as db:
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))

    def set_versioned(self, bucket: str, on: bool) -> None:
        """The owner's setting; every version is kept in any case."""
        with self.writing() as db:
            db.execute("DELETE FROM versioned WHERE bucket = ?", (bucket,))
            if on:
                db.execute("INSERT INTO versioned VALUES (?)", (bucket,))

    def is_versioned(self, bucket: str) -> bool:
        return bool(
            self._db.execute("SELECT 1 FROM versioned WHERE bucket = ?", (bucket,)).fetchone()
        )

    # --- uploads in pieces -----------------------------------------------------------------------

    def start_upload(self, upload: str, bucket: str, key: str, meta: dict[str, Any]) -> None:
        """`upload` is its id; the part before the first dash says whose dialect made it."""
        with self.writing() as db:
            db.execute(
                "REPLACE INTO uploads VALUES (?, ?, ?, ?)", (upload, bucket, key, json.dumps(meta))
            )

    def upload(self, upload: str) -> tuple[str, str, dict[str, Any]] | None:
        """(bucket, key, meta) of an upload under way."""
        row = self._db.execute(
            "SELECT bucket, key, meta FROM uploads WHERE id = ?", (upload,)
        ).fetchone()
        return None if row is None else (row[0], row[1], json.loads(row[2]))

    def uploads(
        self, dialect: str, bucket: str, prefix: str = ""
    ) -> list[tuple[str, str, dict[str, Any]]]:
        """(key, upload id, meta) of every upload under way in this dialect, in this order."""
        rows = self._db.execute(
            "SELECT key, id, meta FROM uploads WHERE bucket = ? AND key >= ? AND key <= ? "
            "AND id LIKE ? || '-%' AND meta NOT LIKE '{\"done\"%' ORDER BY key, id",
            (bucket, prefix, prefix + _LAST, dialect),
        )
        return [(row[0], row[1], json.loads(row[2])) for row in rows]

    def add_part(self, upload: str, name: str, number: int, body: bytes) -> str:
        """Keep one piece (again: replaces it); its MD5."""
        etag = hashlib.md5(body).hexdigest()
        with self.writing() as db:
            db.execute(
                "REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)",
                (upload, name, number, etag, len(body), body),
            )
        return etag

    def parts(self, upload: str) -> list[tuple[str, int, str, int]]:
        """(name, number, etag, size) of each piece kept so far."""
        rows = self._db.execute(
            "SELECT name, number, etag, size FROM parts WHERE upload = ? ORDER BY number, name",
            (upload,),
        )
        return [tuple(row) for row in rows]

    def part(self, upload: str, name: str) -> bytes | None:
        row = self._db.execute(
            "SELECT body FROM parts WHERE upload = ? AND name = ?", (upload, name)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def end_upload(self, upload: str) -> None:
        with self.writing() as db:
            db.execute("DELETE FROM uploads WHERE id = ?", (upload,))
            db.execute("DELETE FROM parts WHERE upload = ?", (upload,))

    # --- Azure's leases --------------------------------------------------------------------------

    def lease(self, bucket: str, key: str) -> tuple[str, int, float, float | None] | None:
        """(id, seconds, ends_ms, breaks_ms) of the last lease that was taken on it."""
        row = self._db.execute(
            "SELECT id, seconds, ends_ms, breaks_ms FROM leases WHERE bucket = ? AND key = ?",
            (bucket, key),
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def leased(self, bucket: str) -> set[str]:
        """The keys that were leased and not released."""
        rows = self._db.execute("SELECT key FROM leases WHERE bucket = ?", (bucket,))
        return {row[0] for row in rows}

    def set_lease(
        self, bucket: str, key: str, lease: tuple[str, int, float, float | None] | None
    ) -> None:
        with self.writing() as db:
            db.execute("DELETE FROM leases WHERE bucket = ? AND key = ?", (bucket, key))
            if lease is not None:
                db.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?)", (bucket, key, *lease))

    # --- the record ------------------------------------------------------------------------------

    def record(self, lines: list[str]) -> None:
        """Append to the request record."""
        with self.writing() as db:
            for line in lines:
                db.execute("INSERT INTO requests (line) VALUES (?)", (line,))

    def recorded(self, since: int = 0) -> list[str]:
        """The record's lines after the first `since`."""
        rows = self._db.execute("SELECT line FROM requests WHERE n > ? ORDER BY n", (since,))
        return [row[0] for row in rows]

    def forget(self, keep: int) -> None:
        """Delete the record's oldest lines, so that a long run in memory does not fill it."""
        with self.writing() as db:
            db.execute("DELETE FROM requests WHERE n <= (SELECT max(n) FROM requests) - ?", (keep,))


def _object(row: Any) -> Object:
    id, bucket, key, etag, size, at_ms, deleted, text, metageneration = row
    meta = {} if text == "{}" else json.loads(text)
    return Object(id, bucket, key, etag, size, at_ms, bool(deleted), meta, metageneration)
