"""A lock in ZooKeeper: Curator's InterProcessMutex, as Hudi uses it, with a local expiry.

Each contender creates an ephemeral node below the lock's node. The lowest number holds the lock;
each of the others watches the node before its own. A node lives as long as its session, which the
server ends. A client that was paused for longer cannot know, so a grant also expires locally.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from lockkit.clock import process_name
from lockkit.config import seconds
from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.lock.client import Wakeup
from lockkit.lock.hudi_keys import key_of_base_path
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.providers.zookeeper_session import CLOSE_S, ZookeeperSession
from lockkit.stores.arguments import SERVICE_S_MAX, check_texts

LOOK_S_MAX = 10.0
"""A watch wakes a waiter. It also looks at the queue this often."""
OWNER_CHARS = 200
HOLDER = "application_id="
"""What Hudi writes into a contender's node."""
PROCESS = "\nprocess="
"""What lockkit adds, for people."""
DELETE_OR_ADMIN = 0x08 | 0x10
"""ZooKeeper permissions that let a client delete the nodes of others."""


def order(name: str) -> str:
    """Curator's sort key of a contender: the text after the last `lock-`."""
    return name.rpartition("lock-")[2]


def in_order(name: str) -> str:
    """Return `name`; raise `StoreError` if its number is negative (after 2^31 contenders)."""
    if order(name).startswith("-"):
        raise StoreError(
            f"{name}: ZooKeeper's counter has overflowed. Curator sorts -1 before 1, so two "
            "clients would hold the lock; delete the lock's node while no client uses it"
        )
    return name


class ZookeeperLock(LeasedLock):
    """The lock at `base_path`/`lock_key`. The grant lasts as long as the session.

    With `auth` only that identity may touch the nodes. The lock's own node then needs an ACL that
    permits no other client to delete below it. The token is the node's czxid, which rises over the
    whole of ZooKeeper.

    :param hosts: the servers, as `host:port,host:port`.
    :param base_path: the node that the lock is in.
    :param lock_key: the lock's name below it.
    :param session_timeout_s: the length of the session to ask for, in seconds; the server may
        grant a shorter one.
    :param connection_timeout_s: how long to wait for a connection, in seconds.
    :param auth: scheme and credential, as in ("digest", "user:password"); None: anybody.
    :param kazoo: further arguments of kazoo's client.
    :param options: the keywords of every lock; `LeasedLock` lists them.
    """

    service = "zookeeper"
    lease_keyword = ("session_timeout_s", 1)

    def __init__(
        self,
        hosts: str,
        base_path: str,
        lock_key: str,
        *,
        session_timeout_s: float = 60.0,
        connection_timeout_s: float = 15.0,
        auth: tuple[str, str] | None = None,
        kazoo: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_texts(hosts=hosts, base_path=base_path, lock_key=lock_key)
        ports = re.findall(r":([^\[\]:,/]*)(?=[,/]|$)", hosts)
        if not all(re.fullmatch(r"[1-9]\d{0,4}", each) and int(each) < 65_536 for each in ports):
            raise ValueError("hosts is host:port,host:port: each port is from 1 to 65535")
        self.path = _joined(base_path, lock_key)
        session_timeout_s = seconds("session_timeout_s", session_timeout_s, SERVICE_S_MAX)
        connection_timeout_s = seconds("connection_timeout_s", connection_timeout_s, SERVICE_S_MAX)
        # The session's timeout holds until a server has granted another.
        super().__init__(f"zookeeper://{hosts}{self.path}", ttl_s=session_timeout_s, **options)
        self.address = self.url
        self._hosts, self._auth, self._kazoo = hosts, auth, dict(kazoo or {})
        self._timeouts_s = session_timeout_s, connection_timeout_s
        # Part of the name of each of our nodes: it identifies a node whose creation got no answer.
        self._guid = self.clock.unique()
        self._session: ZookeeperSession | None = None
        self._place: tuple[str, int] | None = None
        self._unsettled = self._deleting = False
        self._ahead: tuple[str, Wakeup] | None = None

    @classmethod
    def of_base_path(cls, hosts: str, base_path: str, **options: Any) -> ZookeeperLock:
        """The lock of this table as Hudi's ZookeeperBasedImplicitBasePathLockProvider names it."""
        return cls(hosts, f"/tmp/{key_of_base_path(base_path)}", "lock_key", **options)

    def contenders(self) -> list[str]:
        """The owners in queue order: the holder first, then those that wait. Reads each node."""
        self._guard_process()
        session = self._opened()
        return [self._owner(session, name) for name in self._contenders(session)]

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        session = self._opened()
        name, czxid = self._placed(session)
        names = self._contenders(session)
        if name not in names:
            self._place = None
            raise NoAnswer(f"{self}: our place in the queue is gone; the next try takes another")
        before = names.index(name) - 1
        if before >= 0:
            return self._behind(session, names[before], names[0])
        # The read may be stale: the session may have ended since, and our node been deleted.
        path = f"{self.path}/{name}"
        try:
            self._deleting = False
            return ServiceGrant(path, czxid, session.prove(path))
        except GrantOver as error:
            self._place = None
            raise NoAnswer(f"{self}: {error}; the next try takes another place") from None

    def _withdraw(self) -> None:
        session = self._session
        if session is None or session.over:
            return
        try:
            ours = self._ours(self._contenders(session))
            for name in ours:
                self._delete(session, f"{self.path}/{name}")
        except StoreError:
            self._abandon()
        else:
            if self._unsettled and not ours:
                self._abandon()  # the unanswered request may still arrive
        self._place, self._unsettled = None, False

    def _beat(self, taken: ServiceGrant) -> None:
        session = self._session
        if session is None or session.over:
            raise GrantOver(session.over if session else "its session was ended")
        session.prove(taken.handle)
        self._lasts(session.ttl_s, session.beat_s)

    def _give_back(self, taken: ServiceGrant) -> None:
        session = self._session
        if session is None or session.over:
            raise GrantOver(session.over if session else "its session was ended")
        try:
            if not self._delete(session, taken.handle) and not self._deleting:
                raise GrantOver("its node was gone: the session expired, or it was deleted by hand")
        except NoAnswer:
            self._deleting = True  # if it is gone at the next try, our request deleted it
            raise
        self._place, self._deleting = None, False

    def _is_held(self) -> bool:
        return bool(self._contenders(self._opened()))

    def _holder(self) -> ServiceHolder | None:
        from kazoo.exceptions import NoNodeError

        session = self._opened()
        for name in self._contenders(session):
            try:
                data, stat = session.ask("get", f"{self.path}/{name}")
            except NoNodeError:
                continue  # it has released the lock since
            owner, process = _said(data)
            names = self._contenders(session)
            waiting = tuple(self._owner(session, each) for each in names if each != name)
            if not stat.ephemeralOwner:
                return ServiceHolder(
                    owner, name, "never: only a break, or deleting its node, ends it",
                    stat.ctime, waiting=waiting, process=process,
                    no_holder="no session has its node, which is persistent: no client holds it",
                )  # fmt: skip
            return ServiceHolder(
                owner, name, "when its session times out, after its process has died", stat.ctime,
                waiting=waiting, process=process,
                kept_alive="its session lives, as ZooKeeper sees it",
                lease_s=session.granted_s,  # ZooKeeper shows no other session's time
            )  # fmt: skip
        return None

    def _break_grant(self, version: str) -> bool:
        """A node's name has the holder's id and a number that is never given twice."""
        session = self._opened()
        return version in self._contenders(session)[:1] and self._delete(
            session, f"{self.path}/{version}"
        )

    def _abandon(self) -> None:
        """End the session: it keeps our nodes alive for as long as this process runs."""
        session, self._session, self._place = self._session, None, None
        if session is not None:
            session.close("it was ended by its own client")

    def _shut(self) -> None:
        session, self._session, self._place = self._session, None, None
        if session is not None:
            session.close("the handle was closed", wait_s=CLOSE_S)
        if self._ahead is not None:
            self._ahead[1].set()

    # --- the session -----------------------------------------------------------------------------

    def _opened(self) -> ZookeeperSession:
        if self._session is None or self._session.over:
            timeout_s, connect_s = self._timeouts_s
            self._place, self._unsettled, self._deleting = None, False, False
            # A handle that is no longer referenced must end its session: otherwise kazoo's
            # threads would keep both alive.
            us = weakref.ref(self)
            session = ZookeeperSession(
                self._hosts, timeout_s=timeout_s, connect_s=connect_s, auth=self._auth,
                kazoo=self._kazoo, events=self._events,
                on_event=lambda what: _pass_on(us, session, what),
            )  # fmt: skip
            self._session = session
            weakref.finalize(self, session.close, "its handle is gone").atexit = False
        self._session.open()
        self._lasts(self._session.ttl_s, self._session.beat_s)
        return self._session

    def _hear(self, session: ZookeeperSession, what: str) -> None:
        if session is not self._session:
            return
        if what == "lost":
            self._note_lost(session.over)
        elif what == "suspended":
            self._doubt()
        else:
            self._hurry()  # connected again: prove the grant now

    # --- the queue -------------------------------------------------------------------------------

    def _placed(self, session: ZookeeperSession) -> tuple[str, int]:
        """Our node's name and czxid. Created unless an earlier request has created it."""
        if self._place is None and self._unsettled:
            # We may now be connected to another server of the ensemble, which may be behind.
            session.ask("sync", self.path)
            for name in self._ours(self._contenders(session)):
                stat = session.ask("exists", f"{self.path}/{name}")
                if stat is not None:
                    self._place = name, stat.czxid
                    break
            self._unsettled = False  # a session's requests stay in order: it arrived, or never will
        if self._place is None:
            self._place = self._created(session)
        return self._place

    def _created(self, session: ZookeeperSession) -> tuple[str, int]:
        from kazoo.exceptions import NoNodeError

        # Curator's `withProtection` and InterProcessMutex's `lock-`.
        said = f"{HOLDER}{self.owner}{PROCESS}{process_name()}"
        request = f"{self.path}/_c_{self._guid}-lock-", said.encode()
        acl = self._acl()
        how = {"acl": acl, "ephemeral": True, "sequence": True, "include_data": True}
        self._unsettled = True
        try:
            path, stat = session.ask("create", *request, **how)
        except NoNodeError:
            session.ask("ensure_path", self.path, acl)
            path, stat = session.ask("create", *request, **how)
        self._unsettled = False
        name = in_order(str(path).rpartition("/")[2])
        if self._auth is not None:
            self._refuse_open_door(session)
        return name, stat.czxid

    def _contenders(self, session: ZookeeperSession) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(session.ask("get_children", self.path), key=order)
        except NoNodeError:
            return []

    def _ours(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name.startswith(f"_c_{self._guid}-")]

    def _behind(self, session: ZookeeperSession, before: str, first: str) -> NotFree:
        """Set a watch on the node before ours."""
        seen = self._ahead
        if seen is None or seen[0] != before or seen[1].is_set():
            seen = self._ahead = before, Wakeup()
            woken = seen[1]
            stat = session.ask("exists", f"{self.path}/{before}", watch=lambda _: woken.set())
        else:
            stat = session.ask("exists", f"{self.path}/{before}")
        if stat is None:
            seen[1].set()  # the node is already gone
        return NotFree(self._owner(session, first), LOOK_S_MAX, seen[1])

    def _owner(self, session: ZookeeperSession, name: str) -> str:
        from kazoo.exceptions import NoNodeError

        try:
            data, _ = session.ask("get", f"{self.path}/{name}")
        except (NoNodeError, StoreError):
            return "somebody else"
        return _said(data)[0]

    def _delete(self, session: ZookeeperSession, path: str) -> bool:
        """Return whether the node existed."""
        from kazoo.exceptions import NoNodeError

        try:
            session.ask("delete", path)
        except NoNodeError:
            return False
        return True

    # --- access control --------------------------------------------------------------------------

    def _acl(self) -> list[Any] | None:
        from kazoo.security import CREATOR_ALL_ACL

        return list(CREATOR_ALL_ACL) if self._auth is not None else None

    def _refuse_open_door(self, session: ZookeeperSession) -> None:
        """A client that may delete below the lock's node can delete ours, whatever ACL ours has."""
        granted, _ = session.ask("get_acls", self.path)
        for each in granted:
            if each.id.scheme == "world" and each.perms & DELETE_OR_ADMIN:
                raise StoreError(
                    f"{self}: any client may delete below {self.path}, so credentials protect "
                    f"nothing; give it an ACL (setAcl {self.path} digest:USER:HASH:crd), or "
                    "lock without auth"
                )


def _said(data: bytes | None) -> tuple[str, str]:
    """The owner and the process that a contender's node names."""
    said = bytes(data or b"").decode("utf-8", "replace")
    owner, _, process = said.removeprefix(HOLDER).partition(PROCESS)
    return clipped(owner, OWNER_CHARS) or "a client that gave no name", process[:OWNER_CHARS]


def _joined(base_path: str, lock_key: str) -> str:
    path = f"{base_path.rstrip('/')}/{lock_key}"
    parts = path.split("/")[1:]
    if not path.startswith("/") or not all(parts) or {".", ".."} & set(parts) or "\0" in path:
        raise ValueError(
            f"base_path {base_path!r:.200} begins with / and lock_key {lock_key!r:.200} is not "
            "empty; neither has empty parts, . or .."
        )
    return path


def _pass_on(us: weakref.ref[ZookeeperLock], session: ZookeeperSession, what: str) -> None:
    lock = us()
    if lock is not None:
        lock._hear(session, what)
