"""The Hive Metastore's lock of a table, as Hudi's HiveMetastoreBasedLockProvider takes it.

`lock` queues a request and says whether it was granted or is WAITING. `check_lock` polls it and
keeps its place. The metastore removes a request that sends nothing for longer than
`hive.txn.timeout`. A queued request blocks those behind it, even if its client has crashed.
"""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path
from typing import Any

from lockkit.clock import process_name, utc
from lockkit.config import seconds as seconds_of
from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.providers.hive_wire import MetastoreConnection, servers, uris_of_site
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.stores.arguments import check_texts

POLL_S = 1.0
COLUMN_CHARS = 128
"""The limit of the columns user, host and agent in the metastore's tables."""
TIMEOUT, TIMEOUT_DEFAULT = "hive.txn.timeout", "300s"
GRANTED, WAITING = 1, 2
SILENT_SHARE = 1 / 3
"""A holder that was silent for this share of its lease may be dead; waiters are shown this."""
PROCESS_CHARS = 80
"""Of our process's name: the metastore keeps 128 characters, and our id comes after it."""
UNITS_S = {
    "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip


def seconds(said: str) -> float:
    """Seconds of a time in Hive's configuration: `300s`, `5min`, `300`."""
    match = re.fullmatch(r"(\d+)\s*(ms|us|ns|s|m|h|d|)(ec|in|our|ay)?s?", said.strip().lower())
    if match is None:
        raise ValueError(f"{said!r:.50} is not a time in Hive's configuration, such as 300s")
    return int(match[1]) * UNITS_S[match[2]]


class HiveMetastoreLock(LeasedLock):
    """The exclusive lock of `database`.`table`, which need not exist. The metastore compares names
    as written: `Orders` and `orders` are two locks.

    A grant without a heartbeat lasts for the server's `hive.txn.timeout`, which is read from it.
    The token is the lock's id, which rises with every request. Requests are granted in that order.

    :param uris: the metastores, as `thrift://host:port,...`; None: those of hive-site.xml.
    :param database: the database's name, at most 128 characters.
    :param table: the table's name, at most 128 characters.
    :param heartbeat_interval_s: the longest time between renewals, in seconds; a short lease is
        renewed more often.
    :param answer_s: how long to wait for an answer, in seconds.
    :param lease_s: the length of the lease, in seconds, where the server does not report its own.
    :param conf_dir: the folder of hive-site.xml; None: HIVE_CONF_DIR.
    :param options: the keywords of every lock; `LeasedLock` lists them.
    """

    service = "hive"
    lease_keyword = ("lease_s", 1)

    def __init__(
        self,
        uris: str | None,
        database: str,
        table: str,
        *,
        heartbeat_interval_s: float = 60.0,
        answer_s: float = 10.0,
        lease_s: float | None = None,
        conf_dir: Path | None = None,
        **options: Any,
    ) -> None:
        heartbeat_interval_s = seconds_of("heartbeat_interval_s", heartbeat_interval_s)
        answer_s = seconds_of("answer_s", answer_s)
        lease_s = None if lease_s is None else seconds_of("lease_s", lease_s)
        check_texts(database=database, table=table, **({} if uris is None else {"uris": uris}))
        at = servers(uris or uris_of_site(conf_dir))
        for name in (database, table):
            if not 0 < len(name) <= COLUMN_CHARS:
                raise ValueError(f"a metastore's name must have 1 to 128 characters: {name!r:.150}")
        hosts = ",".join(f"{host}:{port}" for host, port in at)
        super().__init__(
            f"hive://{hosts}/{database}/{table}", ttl_s=lease_s, beat_s=heartbeat_interval_s,
            **options,
        )  # fmt: skip
        self.address = self.url
        self.database, self.table = database, table
        self._interval_s, self._answer_s = heartbeat_interval_s, answer_s
        self._wire = MetastoreConnection(at, answer_s=answer_s, events=self._events)
        # Part of each of our requests: it identifies one that got no answer.
        # Before the id: its process, for people.
        self._agent = f"{process_name()[-PROCESS_CHARS:]} lockkit/{self.clock.unique()}"
        self._id: int | None = None
        self._unsettled = self._releasing = False

    def contenders(self) -> list[str]:
        """The owners in request order: the holder first, then those that wait. One request."""
        self._guard_process()
        return [_named(row) for row in self._queue()]

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        self._learn_lease()
        if self._releasing and self._id is not None:
            # The unanswered unlock may still be carried out, and must not end the next grant.
            self._unlock(self._id)
            self._id, self._releasing = None, False
        if self._id is None and self._unsettled:
            self._id = self._found()
        sent_ms = self.clock.boot_ms()
        try:
            state = self._request_lock() if self._id is None else self._checked(self._id)
        except GrantOver as error:
            self._id = None
            raise NoAnswer(f"{self}: lost its place in the queue: {error}") from None
        assert self._id is not None
        if state == GRANTED:
            return ServiceGrant(self._id, self._id, sent_ms)
        if state == WAITING:
            return self._behind(self._id)
        self._id = None
        raise NoAnswer(f"{self}: the metastore dropped the request (state {state}); try again")

    def _withdraw(self) -> None:
        """A request left WAITING blocks everybody behind it until it times out."""
        try:
            if self._unsettled:
                self._found()
            if self._id is not None:
                self._releasing = True
                self._unlock(self._id)
        except StoreError as error:  # the next attempt withdraws it first
            text = f"{self}: a request may stay in the queue until it times out: {error}"
            self._emit("note", text=clipped(text, 500))
        else:
            self._id, self._releasing = None, False

    def _beat(self, taken: ServiceGrant) -> None:
        self._heartbeat(taken.handle)

    def _give_back(self, taken: ServiceGrant) -> None:
        try:
            # `unlock` succeeds even if there was nothing to unlock.
            self._heartbeat(taken.handle)
        except GrantOver:
            if not self._releasing:
                raise
        else:
            self._releasing = True
            self._unlock(taken.handle)
        self._id, self._releasing = None, False

    def _abandon(self) -> None:
        self._releasing = self._id is not None

    def _is_held(self) -> bool:
        return bool(self._queue())

    def _holder(self) -> ServiceHolder | None:
        rows = self._queue()
        first = next((row for row in rows if row.state == GRANTED), rows[0] if rows else None)
        if first is None:
            return None
        self._learn_lease()
        return ServiceHolder(
            _owner(first), _version(first),
            f"{self.ttl_s:g} s after its last heartbeat", renewed_ms=first.lastheartbeat,
            waiting=tuple(_named(row) for row in rows if row is not first),
            process=str(first.agentInfo or "").partition(" lockkit/")[0][:COLUMN_CHARS],
            lease_s=self.ttl_s, overdue_s=self.ttl_s and self.ttl_s * SILENT_SHARE,
        )  # fmt: skip

    def _break_grant(self, version: str) -> bool:
        """A heartbeat changes the version, so the lock of a living holder is not broken."""
        found = next((row for row in self._queue() if _version(row) == version), None)
        if found is None:
            return False
        self._unlock(found.lockid)
        return True

    def _shut(self) -> None:
        self._wire.close()

    # --- requests --------------------------------------------------------------------------------

    def _learn_lease(self) -> None:
        ttl_s = self.ttl_s
        if ttl_s is None:
            said = str(self._wire.ask("get_config_value", TIMEOUT, TIMEOUT_DEFAULT))
            try:
                ttl_s = seconds(said)
            except ValueError as error:
                raise StoreError(f"{self}: {TIMEOUT}: {error}; pass lease_s") from None
        self._lasts(ttl_s, min(self._interval_s, ttl_s / 3))
        self._wire.answer_s = min(self._answer_s, ttl_s / 3)

    def _request_lock(self) -> int:
        from lockkit.providers import hive_thrift as hive

        what = hive.LockComponent(
            type=hive.EXCLUSIVE, level=hive.TABLE_LEVEL,
            dbname=self.database, tablename=self.table,
            # A metastore in test mode refuses a request without this field.
            operationType=hive.NO_TXN,
        )  # fmt: skip
        request = hive.LockRequest(
            component=[what], user=clipped(self.owner, COLUMN_CHARS) or getpass.getuser(),
            hostname=socket.gethostname()[:COLUMN_CHARS], agentInfo=self._agent,
        )  # fmt: skip
        self._unsettled = True
        said = self._wire.ask("lock", request)
        self._id, self._unsettled = int(said.lockid), False
        return int(said.state)

    def _checked(self, lock_id: int) -> int:
        from lockkit.providers.hive_thrift import LockId

        return int(self._wire.ask("check_lock", LockId(lockid=lock_id)).state)

    def _heartbeat(self, lock_id: int) -> None:
        from lockkit.providers.hive_thrift import LockId

        self._wire.ask("heartbeat", LockId(lockid=lock_id))

    def _unlock(self, lock_id: int) -> None:
        from lockkit.providers.hive_thrift import LockId

        self._wire.ask("unlock", LockId(lockid=lock_id))

    def _queue(self) -> list[Any]:
        """The table's locks and requests, in order of their ids."""
        from lockkit.providers.hive_thrift import ShowLocksRequest

        request = ShowLocksRequest(dbname=self.database, tablename=self.table)
        rows = self._wire.ask("show_locks", request).locks or []
        if any(None in (row.lockid, row.state, row.lastheartbeat) for row in rows):
            raise StoreError(
                f"{self}: it lists a lock without an id, a state or a heartbeat, which every Hive "
                "Metastore has: check what answers there"
            )
        return sorted(rows, key=lambda row: row.lockid)

    # --- the queue -------------------------------------------------------------------------------

    def _found(self) -> int | None:
        """Our earliest request that got no answer; None: it did not arrive, or not yet."""
        ours = [row.lockid for row in self._queue() if row.agentInfo == self._agent]
        self._unsettled = bool(ours[1:])
        self._id = ours[0] if ours else None
        return self._id

    def _behind(self, lock_id: int) -> NotFree:
        rows = {row.lockid: row for row in self._queue()}
        for row in rows.values():
            if row.agentInfo == self._agent and row.lockid != lock_id:
                self._unlock(row.lockid)  # from an attempt of ours whose answer was lost
        own_row = rows.get(lock_id)
        before = rows.get(own_row.blockedByExtId) if own_row is not None else None
        if own_row is None or before is None:
            return NotFree("a lock on more than this table, or one that has just ended", POLL_S)
        assert self.ttl_s is not None
        first = next((row for row in rows.values() if row.state == GRANTED), before)
        # Both times are by the server's clock.
        silent_s = (own_row.lastheartbeat - first.lastheartbeat) / 1000
        return NotFree(_named(first, silent=silent_s > self.ttl_s * SILENT_SHARE), POLL_S)


def _version(row: Any) -> str:
    """A lock id is never given twice."""
    return f"{row.lockid}@{row.lastheartbeat}"


def _named(row: Any, *, silent: bool = False) -> str:
    what = "holds" if row.state == GRANTED else "waits for"
    since = f", silent since {utc(row.lastheartbeat)}" if silent else ""
    return f"{_owner(row)} ({what} lock {row.lockid}{since})"


def _owner(row: Any) -> str:
    return f"{clipped(str(row.user), COLUMN_CHARS)} on {row.hostname!s:.128}"
