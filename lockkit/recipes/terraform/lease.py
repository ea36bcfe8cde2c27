"""Terraform's lock file with a lease: a holder that died blocks others for one lease, not for ever.

The file is Terraform's own, so Terraform and OpenTofu respect it. Its `Info` says how long the
lease is. The holder renews by overwriting the version that it wrote last. A waiter may take the
file over after seeing the same version for a whole lease by its own clock (the rule of AWS's
dynamodb-lock-client). A lock without a lease, as Terraform itself writes it, is never taken over.

A command whose lease was lost is stopped, but Terraform writes its state without a condition: what
it sent before may still arrive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from lockkit.clock import process_name, utc
from lockkit.errors import NoAnswer
from lockkit.protocol.outcome import Applied, Throttled, Version, over
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.providers.process_state import process_in
from lockkit.recipes.errors import LockUnknown, NotLocked
from lockkit.recipes.terraform.lockinfo import LockInfo, encode, time_ms, who
from lockkit.recipes.terraform.statelock import (
    StateLock,
    StateRead,
    is_ours,
    read_state,
    unlock,
)
from lockkit.runtime import Procedure
from lockkit.runtime.proven import put_once

BEATS_PER_LEASE = 3
LOOK_S = 1.0
"""How often a waiter looks."""
TRIES_MAX = 3
TTL_S_MAX = 86_400.0
_LEASE = re.compile(r"lease of (\d{1,5}(?:\.\d{1,3})?) s, renewed ", re.ASCII)
LOCKING = (
    "plan", "apply", "destroy", "refresh", "import", "init", "taint", "untaint", "state_mv",
    "state_rm", "state_push", "state_replace_provider", "workspace_new", "workspace_delete",
)  # fmt: skip
"""Terraform's commands that take the lock, and so have the flag `-lock`."""

T = TypeVar("T")


def lease_s(found: LockInfo) -> float | None:
    """The length of the lease that a lock file states; None: it has none, and never expires."""
    said = _LEASE.match(found.info)
    return float(said[1]) if said else None


def without_locking(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that switch off Terraform's own locking, for a command under a `StateLease`.

    `TF_CLI_ARGS_<command>` is Terraform's own way to add a flag. What is set there stays.
    """
    names = [f"TF_CLI_ARGS_{each}" for each in LOCKING]
    return {name: f"-lock=false {environment.get(name, '')}".strip() for name in names}


class StateLease(LeasedLock):
    """The lock of the Terraform state at `url`, held for `ttl_s` and renewed by a thread.

    :param url: of the state, `s3://bucket/path/terraform.tfstate` or of another store.
    :param ttl_s: the length of the lease, 60 s by default, at most a day.
    :param operation: what Terraform shows others as the holder's operation.
    :param workspace: Terraform's workspace, `default` by default.
    :param workspace_key_prefix: Terraform's option of that name, `env:` by default.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    :param options: the keywords of every lock.
    :raises ValueError: for another `ttl_s`; `StoreError` for a URL that names no state, and for a
        store without conditional overwrites.

    The other parameters are those of every lock: `acquire_timeout`, `on_lost`, ...
    """

    service = "terraform"
    lease_keyword = ("ttl_s", 1)

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 60.0,
        operation: str = "",
        workspace: str = "default",
        workspace_key_prefix: str = "env:",
        store_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not 1.0 <= ttl_s <= TTL_S_MAX:
            raise ValueError(f"ttl_s={ttl_s}: a lease must last 1 s to {TTL_S_MAX:.0f} s")
        options = {"owner": who(), **options}
        super().__init__(url, ttl_s=ttl_s, beat_s=ttl_s / BEATS_PER_LEASE, **options)
        self.address = url
        self._state = StateLock(
            url, workspace=workspace, workspace_key_prefix=workspace_key_prefix,
            clock=self.clock, emit=self._emit, **dict(store_options or {}),
        )  # fmt: skip
        self._operation, self._mine, self._version = operation, LockInfo(id=""), ""

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        if not self._mine.id:
            self._mine = replace(self._state.new_info(self._operation, ""), who=self.owner)
        for _ in range(TRIES_MAX):
            found, sent_ms = self._look(), self.clock.boot_ms()
            if not is_ours(found.info, self._mine):
                busy = self._judge(found)
                if busy is not None:
                    return busy
            # Ours is written anew: others may have counted from the version that is there.
            if self._wrote(found.version):
                self._prove()
                return ServiceGrant(self._mine.id, None, sent_ms)
        raise NoAnswer(f"{self}: its writes got no definite answer; try again")

    def _prove(self) -> None:
        """Test the store's conditions, once for each place, on the file that is ours by now."""
        try:
            self._state._prove(self._mine)
            standing = self._look()
            if standing.version is None or not is_ours(standing.info, self._mine):
                raise NoAnswer(f"{self}: it changed while the store was tested; try again")
            self._version = standing.version
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        if self._mine.id and is_ours(self._look().info, self._mine):
            self._delete(self._mine.id)
        self._mine = LockInfo(id="")

    def _beat(self, taken: ServiceGrant) -> None:
        for _ in range(TRIES_MAX):
            if self._wrote(self._version):
                return
            found = self._look()
            if found.version is None:
                raise GrantOver("its file was removed (lockkit tflock force-unlock, or by hand)")
            if not is_ours(found.info, self._mine):
                raise GrantOver(f"its file now belongs to {found.info}")
            self._version = found.version  # an earlier renewal landed without an answer
        raise NoAnswer(f"{self}: its writes got no definite answer; try again")

    def _give_back(self, taken: ServiceGrant) -> None:
        self._delete(taken.handle)
        self._mine = LockInfo(id="")

    def _holder(self) -> ServiceHolder | None:
        found = self._look()
        if found.version is None:
            return None
        info = found.info if isinstance(found.info, LockInfo) else LockInfo(id="")
        ttl_s = lease_s(info)
        ends = "never" if ttl_s is None else f"{ttl_s:g} s after its last renewal"
        foreign = info is not found.info
        return ServiceHolder(
            str(found.info), found.version, ends, time_ms(info.created),
            process=process_in(info.info), lease_s=ttl_s, clock="its holder's clock",
            overdue_s=ttl_s and ttl_s * (BEATS_PER_LEASE - 1) / BEATS_PER_LEASE,
            by_hand="find out who wrote it, then delete it by hand" if foreign else "",
        )  # fmt: skip

    def _break_grant(self, version: str) -> bool:
        """A renewal writes a new version, so a holder that lives is not broken."""
        found = self._look()
        if found.version != version:
            return False
        assert isinstance(found.info, LockInfo), "only a person may end another one"
        self._delete(found.info.id)
        return True

    def _shut(self) -> None:
        self._state.close()

    # --- requests --------------------------------------------------------------------------------

    def _look(self) -> StateRead:
        return self._run(read_state(self._state.key))

    def _judge(self, found: StateRead) -> NotFree | None:
        """None: it may be taken. A lease counts from our first answer that showed this version."""
        if found.version is None:
            return None
        ttl_s = lease_s(found.info) if isinstance(found.info, LockInfo) else None
        if ttl_s is None:
            return NotFree(str(found.info), LOOK_S)
        left_s = self._left_s(found.version, ttl_s)
        return NotFree(str(found.info), min(LOOK_S, left_s)) if left_s >= 0 else None

    def _wrote(self, version: Version | None) -> bool:
        """Write the file over `version`, or create it; False: read what is there."""
        # No two writes have the same bytes: S3's version of an object is a hash of them.
        text = f"{utc(self.clock.wall_ms())}, write {self.clock.unique()[:8]}, {process_name()}"
        self._mine = replace(self._mine, info=f"lease of {self.ttl_s:g} s, renewed {text}")
        # Sent once (not `settle_write`): the caller reads the file and decides what it holds.
        match self._run(put_once(self._state.key, encode(self._mine), over(version))):
            case Applied(applied):
                self._version = applied
                return True
            case Throttled():
                raise NoAnswer(f"{self}: throttled; try again")
            case _refused_or_unknown:
                return False

    def _delete(self, id: str) -> None:
        conditional = self._state.store.capabilities.conditional_delete
        try:
            self._run(unlock(self._state.key, id, conditional=conditional))
        except NotLocked as error:
            raise GrantOver(str(error)) from None
        except LockUnknown as error:
            raise NoAnswer(str(error)) from None

    def _run(self, way: Procedure[T]) -> T:
        return self._run_on(self._state.store, way)
