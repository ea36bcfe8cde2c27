"""From Terraform's DynamoDB lock to the lock file, without a moment in which neither counts.

Terraform's S3 backend locks a state by an item of a DynamoDB table: `LockID` is `bucket/key`, and
`Info` is the `LockInfo` of the lock file. `DynamoItems` shows such items as objects, so the
procedures of the lock file run on them unchanged.

A move takes the item and never gives it back: it stays as a marker that refuses every run which is
still configured for the table, and tells it what to set. Then the lock file is taken as well. Once
the marker says that the move has ended, the file is released. Then runs that use the lock file
continue, and no run can lock by the table alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO, NoReturn, TypeVar

from lockkit.clock import Clock, process_name
from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    ReadAnswer,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.providers.dynamodb_table import DynamoTable
from lockkit.providers.lease_events import LeaseEvents
from lockkit.providers.urls import split
from lockkit.recipes.errors import NotLocked
from lockkit.recipes.terraform.lockinfo import LockInfo, encode
from lockkit.recipes.terraform.statelock import StateLock, lock, read_state, unlock
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import delete, settle_write
from lockkit.sinks import silent
from lockkit.stores import Capabilities, ObjectVersion, StoreOptions

KEY, INFO, DIGEST = "LockID", "Info", "-md5"
MOVING, MOVED = "moving to the lock file", "moved to the lock file"
"""What a marker says: its move has not ended, and a move that fails removes it; it has ended."""
TELLS = (
    "this state is locked by its lock file only: set use_lockfile = true and remove dynamodb_table "
    "from the backend (undo: lockkit tflock move --undo)"
)
MOVES = (
    "this state's lock is moving to its lock file: wait; if no move is under way, repeat it, or "
    "undo it: lockkit tflock move --undo"
)
TABLE_URL = "dynamodb://region/table"

T = TypeVar("T")


class DynamoItems:
    """The items of a Terraform lock table as objects: the key is `LockID`, the body is `Info`.

    The version is a hash of `Info`, which has an ID of its own for each lock. A write or a delete
    of a version is a condition on exactly that `Info`.
    """

    capabilities = Capabilities(name="dynamodb", poll_min_s=1.0)

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        at = split(url)
        if at.scheme != "dynamodb" or not at.host:
            said = clipped(repr(url), 200)
            raise ValueError(f"the URL of a lock table is {TABLE_URL}, not {said}")
        (name,) = at.parts("table")
        endpoint = at.query(endpoint=str).get("endpoint")
        self.url, self.server = f"dynamodb://{at.host}/{name}", endpoint or ""
        region = {"region_name": at.host}
        self.options = StoreOptions(endpoint=endpoint, timeout_s=timeout_s, extra=region)
        self._seen: dict[Version, str] = {}
        self._table = DynamoTable(
            name, f"the lock table {self.url}", self.options, clock=Clock(),
            events=LeaseEvents(silent, self.url), billing_mode="PAY_PER_REQUEST",
            read_capacity=1, write_capacity=1, creation_timeout_s=0.0,
        )  # fmt: skip

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        try:
            said = self._table.ask("read it", "get_item", Key=_key(key), ConsistentRead=True)
        except NoAnswer as error:
            return Unknown(str(error))
        if said is None:
            raise StoreError(
                f"{self.url} does not exist: name Terraform's lock table (its dynamodb_table)"
            )
        item = said.get("Item")
        if not item:
            return Missing()
        info = str(item.get(INFO, {}).get("S", ""))
        return Found(info.encode(), self._version(info))

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        info = body.decode()
        guard = self._guard(condition)
        item = {**_key(key), INFO: {"S": info}}
        answer = self._table.write("write it", "put_item", Item=item, **guard)
        return Applied(self._version(info)) if isinstance(answer, Applied) else answer

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        guard = {} if condition is None else self._guard(condition)
        return self._table.write("delete it", "delete_item", Key=_key(key), **guard)

    def close(self) -> None:
        self._table.close()

    def _guard(self, condition: Condition) -> dict[str, Any]:
        if isinstance(condition, IfAbsent):
            return {"ConditionExpression": f"attribute_not_exists({KEY})"}
        seen = {"S": self._seen[condition.version]}
        return {
            "ConditionExpression": f"{INFO} = :seen", "ExpressionAttributeValues": {":seen": seen}
        }  # fmt: skip

    def _version(self, info: str) -> Version:
        version = hashlib.sha256(info.encode()).hexdigest()[:32]
        self._seen[version] = info
        return version

    # --- what a table of locks does not have -----------------------------------------------------

    def list(self, prefix: str, after: str = "") -> NoReturn:
        raise StoreError(f"{self.url}: a DynamoDB lock table cannot be listed")

    def put_file(self, key: str, source: BinaryIO, size: int) -> NoReturn:
        raise StoreError(f"{self.url}: a DynamoDB lock table has no files")

    def get_file(self, key: str, into: BinaryIO) -> NoReturn:
        raise StoreError(f"{self.url}: a DynamoDB lock table has no files")

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        return ()

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        raise StoreError(f"{self.url}: a DynamoDB lock table keeps no versions")


class StateMove:
    """The move of one state's lock, from the table to the lock file. `with` holds both.

    After the block only the lock file counts; if the block raises, only the table does, as before.
    An interrupted move may be repeated: it finds its marker, and continues from there.

    Two moves of one state may meet. Each makes the marker its own while it holds the lock file, and
    removes no other. A move that fails leaves the marker of one that has ended. It removes that of
    one that has not: such a move either was interrupted, or still waits for the lock file.

    :param state: the lock file.
    :param table: the table that locked the state until now.
    :param acquire_timeout: the longest wait for each of the two, in seconds; 0 tries once.
    :raises StateLocked: if another holds one of them; then nothing was changed.
    """

    def __init__(
        self, state: StateLock, table: DynamoItems, *, acquire_timeout: float = 0.0
    ) -> None:
        self.state, self.table, self._wait_s = state, table, acquire_timeout
        self.marker = self._next(MOVING)
        self._first = True
        """Whether no move has ended before, so that this one may take its marker back."""
        self.rewritten = False
        """Whether the marker was removed during the move, and written again."""
        self.stays: LockInfo | None = None
        """The marker of another move, which this one left when it failed: the table is locked."""

    def __enter__(self) -> StateMove:
        try:
            self._first = self._run(mark(self.state.path, self.marker, timeout_s=self._wait_s))
            self.state.lock(operation="lockkit tflock move", acquire_timeout=self._wait_s)
        except BaseException:
            self._remove_marker()
            raise
        try:
            found = self._own(MOVING)
            self._first = found is None or found.operation == MOVING
        except BaseException:
            self._end(failed=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._end(failed=kind is not None)

    def undo(self) -> bool:
        """Remove the marker while the lock file is held; False: there was none.

        Terraform keeps a checksum of the state beside it, which runs by the lock file did not
        update, and which refuses every run of the table. It is removed first.
        """
        self.state.lock(operation="lockkit tflock move --undo", acquire_timeout=self._wait_s)
        try:
            found = self.standing()
            if found is None:
                return False
            self._run(delete(self.state.path + DIGEST))
            self._run(unlock(self.state.path, found.id))
            return True
        finally:
            self._unlock()

    def standing(self) -> LockInfo | None:
        """The marker that is in the table now, of any move."""
        found = self._run(read_state(self.state.path)).info
        return found if isinstance(found, LockInfo) and is_marker(found) else None

    def _end(self, *, failed: bool) -> None:
        try:
            if failed:
                self._remove_marker()  # while the file is held no run can lock by the file alone
            else:
                before = self.marker
                self.rewritten = self._own(MOVED) != before
                self._first = False
        finally:
            self._unlock()

    def _own(self, state: str) -> LockInfo | None:
        """While the lock file is held: make the marker this move's own, and return what it was.

        None: there was none, as after `terraform force-unlock` with its ID. If a run has locked the
        table since then, this waits for it, or raises `StateLocked`, and the table counts.
        """
        way = own(self.state.path, self.marker, self._next(state), timeout_s=self._wait_s)
        self.marker, was = self._run(way)
        return was

    def take_back(self) -> None:
        """What `with` does when its block fails, once more: a signal may have cut that short."""
        try:
            self._remove_marker()
        finally:
            if self.state.held is not None:
                with suppress(NotLocked):  # the signal came after its deletion
                    self.state.unlock()

    def _remove_marker(self) -> None:
        if self._first:
            with suppress(NotLocked):  # somebody removed it, or another move made it its own
                self._run(unlock(self.state.path, self.marker.id))
            self._first = False
        self.stays = self.standing()

    def _unlock(self) -> None:
        try:
            self.state.unlock()
        except (KeyboardInterrupt, SystemExit):  # a signal: the lock file never expires
            if self.state.held is not None:
                with suppress(NotLocked):
                    self.state.unlock()
            raise

    def _next(self, state: str) -> LockInfo:
        tells = TELLS if state == MOVED else MOVES
        return self.state.new_info(state, f"{tells}; {process_name()}")

    def _run(self, way: Procedure[T]) -> T:
        return run(way, self.table, self.state.clock)


def is_marker(found: object) -> bool:
    """Whether an item is a move's marker, which no run gives back."""
    return isinstance(found, LockInfo) and found.operation in (MOVING, MOVED)


def mark(path: str, mine: LockInfo, *, timeout_s: float) -> Procedure[bool]:
    """Lock the table's item for good; False: it holds the marker of another move.

    Waits for the run that holds it. Raises `StateLocked`, `LockUnknown`.
    """
    if is_marker((yield from read_state(path)).info):
        return False
    yield from lock(path, mine, timeout_s=timeout_s)
    return True


def own(
    path: str, mine: LockInfo, again: LockInfo, *, timeout_s: float
) -> Procedure[tuple[LockInfo, LockInfo | None]]:
    """The marker that stands now, and the one that was found.

    It is `again`, unless `mine` stands and says the same. `again` has an ID that nobody knows, so a
    late removal of an earlier marker does not remove it.
    """
    while True:
        standing = yield from read_state(path)
        if standing.version is None or not is_marker(standing.info):
            yield from lock(path, again, timeout_s=timeout_s)
            return again, None
        assert isinstance(standing.info, LockInfo)
        if standing.info.operation == MOVED:  # a move that has ended stays so, whoever owns it
            again = replace(again, operation=MOVED, info=standing.info.info)
        if standing.info.id == mine.id and standing.info.operation == again.operation:
            return standing.info, standing.info
        over = IfVersion(standing.version)
        if isinstance((yield from settle_write(path, encode(again), over)), str):
            return again, standing.info


def _key(value: str) -> dict[str, Any]:
    return {KEY: {"S": value}}
