"""What the server keeps: every version of every object, in one SQLite file.

Check and write happen inside one `BEGIN IMMEDIATE`, so that a condition is judged and acted on as one
step, also between several server processes on one file. WAL with synchronous=NORMAL survives
`kill -9` of the server (not a power cut).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lockkit.clock import Clock

OLD_BODY_BYTES_MAX = 1 << 20
"""Past versions larger than this keep their place in the history, but not their bytes."""

_TABLES = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY) WITHOUT ROWID;
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
CREATE TABLE IF NOT EXISTS requests (n INTEGER PRIMARY KEY, line TEXT);
"""
_COLUMNS = "id, bucket, key, etag, size, at_ms, deleted, meta, metageneration"


class DiskFull(Exception):
    """SQLite could not write; nothing of the request was applied."""


@dataclass(frozen=True, slots=True)
class Object:
    """One state of one object. `id` rises with every write anywhere: GCS calls it a generation."""

    id: int
    bucket: str
    key: str
    etag: str
    """MD5 of the bytes in hex (S3's form: content-derived), or `md5-N` after a multipart upload."""
    size: int
    at_ms: float
    deleted: bool
    meta: dict[str, Any] = field(default_factory=dict)
    metageneration: int = 1


Check = Callable[[Object | None], None]
"""Raises what the dialect answers if the object's present state does not suit the request."""


def anything(_present: Object | None) -> None:
    """The check of an unconditional request."""


class Objects:
    """All buckets. One connection; called from one thread (the server's loop)."""

    def __init__(self, path: str = ":memory:", clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)

    def close(self) -> None:
        self._db.close()

    def limit_pages(self, pages: int) -> None:
        """Stand-in for a full disk: the file may not grow beyond this many pages."""
        self._db.execute(f"PRAGMA max_page_count={int(pages)}")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One atomic step: everything inside is applied, or nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if "full" in str(error) or "disk I/O" in str(error):
                raise DiskFull(str(error)) from None
            raise

    # --- objects ---------------------------------------------------------------------------------

    def current(self, bucket: str, key: str) -> Object | None:
        """The object as it is; None if there is none (or only a delete marker)."""
        present = self.present(bucket, key)
        return None if present is None or present.deleted else present

    def present(self, bucket: str, key: str) -> Object | None:
        """The newest state, which may be a delete marker."""
        row = self._db.execute(
            f"SELECT {', '.join('v.' + c for c in _COLUMNS.split(', '))} FROM current c "
            "JOIN versions v ON v.id = c.id WHERE c.bucket = ? AND c.key = ?",
            (bucket, key),
        ).fetchone()
        return None if row is None else _object(row)

    def at(self, bucket: str, key: str, id: int) -> Object | None:
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM versions WHERE id = ? AND bucket = ? AND key = ?",
            (id, bucket, key),
        ).fetchone()
        return None if row is None else _object(row)

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
        """Judge the condition and write, as one step: the object before, and after."""
        with self.writing() as db:
            return self.write_within(db, bucket, key, body, check, etag=etag, meta=meta)

    def write_within(
        self,
        db: sqlite3.Connection,
        bucket: str,
        key: str,
        body: bytes,
        check: Check,
        *,
        etag: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> tuple[Object | None, Object]:
        before = self.current(bucket, key)
        check(before)
        after = Object(
            self._next_id(db), bucket, key, etag or hashlib.md5(body).hexdigest(), len(body),
            self.clock.stamp_ms(), False, meta or {},
        )  # fmt: skip
        self._keep(db, after, body)
        return before, after

    def remove(
        self, bucket: str, key: str, check: Check = anything
    ) -> tuple[Object | None, Object | None]:
        """Delete under a condition; leaves a delete marker in the history. (before, marker)"""
        with self.writing() as db:
            before = self.current(bucket, key)
            check(before)
            if before is None:
                return None, None
            marker = Object(self._next_id(db), bucket, key, "", 0, self.clock.stamp_ms(), True)
            self._keep(db, marker, b"")
            return before, marker

    def remove_version(self, bucket: str, key: str, id: int) -> None:
        """Forget one past version for good."""
        with self.writing() as db:
            db.execute(
                "DELETE FROM versions WHERE id = ? AND bucket = ? AND key = ?", (id, bucket, key)
            )
            row = db.execute(
                "SELECT max(id) FROM versions WHERE bucket = ? AND key = ?", (bucket, key)
            ).fetchone()
            if row[0] is None:
                db.execute("DELETE FROM current WHERE bucket = ? AND key = ?", (bucket, key))
            else:
                db.execute("REPLACE INTO current VALUES (?, ?, ?)", (bucket, key, row[0]))

    def annotate(self, object: Object, meta: dict[str, Any]) -> Object:
        """Replace an object's metadata in place (GCS: the metageneration rises)."""
        with self.writing() as db:
            db.execute(
                "UPDATE versions SET meta = ?, metageneration = metageneration + 1 WHERE id = ?",
                (json.dumps(meta), object.id),
            )
        found = self.at(object.bucket, object.key, object.id)
        assert found is not None
        return found

    def _keep(self, db: sqlite3.Connection, object: Object, body: bytes) -> None:
        db.execute("INSERT OR IGNORE INTO buckets VALUES (?)", (object.bucket,))
        db.execute(
            "UPDATE versions SET body = NULL WHERE size > ? AND id = "
            "(SELECT id FROM current WHERE bucket = ? AND key = ?)",
            (OLD_BODY_BYTES_MAX, object.bucket, object.key),
        )
        db.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                object.id, object.bucket, object.key, object.etag, object.size, object.at_ms,
                object.deleted, json.dumps(object.meta), object.metageneration, body,
            ),
        )  # fmt: skip
        db.execute("REPLACE INTO current VALUES (?, ?, ?)", (object.bucket, object.key, object.id))

    def _next_id(self, db: sqlite3.Connection) -> int:
        """Microseconds since 1970, and always above the last one: as GCS numbers generations."""
        last = db.execute("SELECT max(id) FROM versions").fetchone()[0] or 0
        return max(last + 1, round(self.clock.stamp_ms() * 1000))

    # --- listing ---------------------------------------------------------------------------------

    def list(
        self, bucket: str, prefix: str, after: str = "", limit: int = 1000, start: str = ""
    ) -> list[Object]:
        """Current objects with this prefix and a key greater than `after`, in key order (UTF-8)."""
        rows = self._db.execute(
            f"SELECT {', '.join('v.' + c for c in _COLUMNS.split(', '))} FROM current c "
            "JOIN versions v ON v.id = c.id WHERE c.bucket = ? AND c.key >= ? AND c.key > ? "
            "AND substr(c.key, 1, ?) = ? AND v.deleted = 0 ORDER BY c.key LIMIT ?",
            (bucket, max(prefix, start), after, len(prefix), prefix, limit),
        )
        return [_object(row) for row in rows]

    def history(
        self, bucket: str, prefix: str, after: tuple[str, int] = ("", 0), limit: int = 1000
    ) -> list[Object]:
        """Every version, by key, newest first within a key; continues behind (key, id)."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM versions WHERE bucket = ? AND substr(key, 1, ?) = ? "
            "AND (key > ? OR (key = ? AND id < ?)) ORDER BY key, id DESC LIMIT ?",
            (bucket, len(prefix), prefix, after[0], after[0], after[1], limit),
        )
        return [_object(row) for row in rows]

    def buckets(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM buckets ORDER BY name")]

    def add_bucket(self, name: str) -> bool:
        """False if it was there."""
        with self.writing() as db:
            return db.execute("INSERT OR IGNORE INTO buckets VALUES (?)", (name,)).rowcount == 1

    def remove_bucket(self, name: str) -> None:
        with self.writing() as db:
            db.execute("DELETE FROM buckets WHERE name = ?", (name,))

    # --- uploads in pieces -------------------------------------------------------------------------

    def start_upload(self, bucket: str, key: str, meta: dict[str, Any]) -> str:
        upload = self.clock.unique().replace("-", "")
        with self.writing() as db:
            db.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?)", (upload, bucket, key, json.dumps(meta))
            )
        return upload

    def upload(self, upload: str) -> tuple[str, str, dict[str, Any]] | None:
        """(bucket, key, meta) of an upload under way."""
        row = self._db.execute(
            "SELECT bucket, key, meta FROM uploads WHERE id = ?", (upload,)
        ).fetchone()
        return None if row is None else (row[0], row[1], json.loads(row[2]))

    def uploads(self, bucket: str, prefix: str = "") -> list[tuple[str, str]]:
        """(key, upload id) of every upload under way."""
        rows = self._db.execute(
            "SELECT key, id FROM uploads WHERE bucket = ? AND substr(key, 1, ?) = ? ORDER BY key, id",
            (bucket, len(prefix), prefix),
        )
        return [(row[0], row[1]) for row in rows]

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

    # --- the record ----------------------------------------------------------------------------------

    def record(self, lines: list[str]) -> None:
        """Append to the request record."""
        with self.writing() as db:
            db.executemany("INSERT INTO requests (line) VALUES (?)", ((line,) for line in lines))

    def recorded(self, limit: int) -> list[str]:
        rows = self._db.execute("SELECT line FROM requests ORDER BY n DESC LIMIT ?", (limit,))
        return [row[0] for row in rows][::-1]


def _object(row: Any) -> Object:
    id, bucket, key, etag, size, at_ms, deleted, meta, metageneration = row
    return Object(
        id, bucket, key, etag, size, at_ms, bool(deleted), json.loads(meta), metageneration
    )
