"""Planted mistakes in group commit as a table runs it: the tail, offers, publishing, rollbacks.

The scenario `group-table` finds them; the scenario `group` has those of the procedures alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.planting import answering
from lockkit.lab.verify.scenarios.group import evict_unproven, in_each, judge_alone
from lockkit.lab.verify.table.scenario import TOGETHER
from lockkit.protocol.outcome import IfVersion
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, put_once
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.fence import COMMIT, FENCE_KEY
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import process as group_process
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.fence import format_group_fence, read_group_fence
from lockkit.table.occ.group.offer import offered_as
from lockkit.table.occ.transaction import Transaction

SCENARIO = TOGETHER
RIGHT_CARRY = group_process.carry_on
RIGHT_OVER = group_commit.decided_over
RIGHT_WRITE_OF, RIGHT_KEYS_OF = group_publish._write_of, group_publish._keys_of
_D = "lockkit.table.occ.group.decision"
_U = "lockkit.table.occ.group.ahead"
_W = "lockkit.lab.verify.table.writers"
_F = "lockkit.table.occ.group.fence"
_P, _T = "lockkit.table.occ.group.publish", "lockkit.table.occ.group.tail"


def offered(client: Any, write: Any, **_: Any) -> Procedure[str]:
    """Acknowledge an offer, and have it decided by others."""
    key, body = offered_as(client.names, write.offer(), write.body)
    yield from create(key, body)
    return COMMIT


def write_with(**wrong: Any) -> Callable[..., Any]:
    def write_of(client: Any, prepared: Any) -> Any:
        write = RIGHT_WRITE_OF(client, prepared)
        for name, value in wrong.items():
            setattr(write, name, value)
        return write

    return write_of


def write_on_the_newest(client: Any, prepared: Any) -> Any:
    """Its owner counts what is decided as seen, whatever its listing shows."""
    write = RIGHT_WRITE_OF(client, prepared)
    write.base = client.known.last
    return write


def keys_without_completed(began: Transaction) -> frozenset[str]:
    keys = {each for each in RIGHT_KEYS_OF(began) if not each.endswith(".commit")}
    names = began.taken.names
    return frozenset(keys | {names.inflight(each, COMMIT) for each in began.timeline.inflight})


def proven_at_once(client: Any, view: Any, each: GroupDecision, bodies: Any) -> Procedure[None]:
    """Count it as published before it is."""
    yield from ()
    client.proven.add(each.seq)


def believed(client: Any, decisions: list[GroupDecision]) -> Procedure[bool]:
    """Count as published what others have decided, without a look."""
    yield from ()
    client.proven |= {each.seq for each in decisions}
    return True


def replaced_if_unchanged(client: Any, view: Any, after: GroupFence) -> Procedure[bool]:
    """Send a decision once, and take it for made."""
    yield from put_once(FENCE_KEY, format_group_fence(after), IfVersion(view.version))
    return True


def over_any_fence(client: Any, write: Any, _view: Any = None) -> Procedure[str]:
    """It is decided over the fence that its client knows by now, whatever its snapshot shows."""
    fence, write.only = (yield from read_group_fence()), client.version
    if fence[1] != client.version:
        client.knows(*fence)
        write.only = client.version
    return (yield from RIGHT_OVER(client, write))


def counts_as_seen(replaced: Any, write: Any) -> None:
    """What the threads of its process have decided meanwhile counts as seen."""
    before = write.only
    RIGHT_CARRY(replaced, write)
    if write.only != before:
        write.base = 10**6


def as_last_listed(client: Any, after: str) -> Any:
    """The last listing counts as all that the known fence decided."""
    return client.timeline and replace(client.timeline, fence=(client.known, client.version))


def as_known(client: Any, _found: Any) -> Any:
    """The fence that its client knew before the write was called."""
    return client.known


def of_that_group(own: Any, at: Any) -> bytes | None:
    """What this process has written last to the file group, whether it is the slice's or not."""
    found: tuple[str, bytes] = own._kept.get((at.partition, at.file_id), ("", None))
    return found[1]


def shared_groups(mine: frozenset[FileGroup], theirs: frozenset[FileGroup] | None) -> bool:
    """Compare only the file groups that both name, though one empties the other's partition."""
    return theirs is None or bool(mine & theirs)


LARGE = in_each(packed=lambda _: "") | {f"{_F}:packed": lambda _: ""}
"""No mistake: each commit is too large for the fence, so an offer has an inflight file beside it,
which stays when it is completed."""

_SAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "reader's tail": ("readers and rewrites leave out what is not published",
                      {f"{_T}:load_decided": load_timeline}),
    "tail given up": ("who meets an unpublished commit neither waits nor publishes it",
                      {f"{_T}:_published": answering(None)}),
    "acknowledged": ("a commit is acknowledged once it is offered", {f"{_P}:decided": offered}),
    "newest base": ("an owner counts as seen what its listing does not show",
                    {f"{_P}:_write_of": write_on_the_newest}),
    "blind rewrites": ("a rewrite is offered as an append",
                       {f"{_P}:_write_of": write_with(blind=True)}),
    "no conflict": ("offers are not compared with commits", {f"{_D}:conflicts": lambda *_: ""}),
    "partitions": ("an overwrite is compared by the file groups that it saw",
                   {f"{_D}:clash": shared_groups}),
    "batch": ("the offers of one batch are not compared with each other",
              {f"{_D}:judge": judge_alone}),
    "no order": ("a client waits for no earlier commit, and publishes its own in any order",
                 in_each(are_published=believed,
                         rounds=lambda fence: [list(reversed(fence.window))])),
    "unpublished": ("a commit counts as published before it is",
                    in_each(publish_one=proven_at_once)),
    "evict": ("decisions leave the window before their outcome is proven",
              {f"{_D}:evict": evict_unproven}),
    "completed ignored": ("an append's listing is used without its completed files",
                          {f"{_P}:_keys_of": keys_without_completed, **LARGE}),
    "known alone": ("an instant that was decided while its append listed is decided again",
                    in_each(outcome=answering(""))),
    "rollback": ("a rollback deletes though it has decided nothing",
                 in_each(decide_against=answering(True))),
    "rollback sent once": ("a rollback deletes though its decision may have failed",
                           in_each(replace_group_fence=replaced_if_unchanged)),
    "unlisted": ("a rewrite without a listing is decided over a fence that its snapshot lacks",
                 in_each(decided_over=over_any_fence)),
    "unlisted tail": ("a rewrite without a listing sees what its client listed last alone",
                      {f"{_U}:as_decided": as_last_listed}),
    "carried blindly": ("a rewrite counts as seen what other threads of its process decide",
                        {"lockkit.table.occ.group.process:carry_on": counts_as_seen}),
    "nothing at once": ("a rewrite without a listing that would change nothing reads no fence",
                        {f"{_W}:changes_nothing": answering(None)}),
    "begun as known": ("a rewrite among others begins on the fence that its client knew before",
                       {f"{_U}:_learned": as_known}),
    "begun late": ("a rewrite among others begins on a fence that names a later instant",
                   {f"{_U}:is_base": lambda _client, begun, _taken: begun is not None}),
    "own files": ("what a process has written last to a file group counts as the group's latest",
                  {"lockkit.lab.verify.table.rows:kept": of_that_group}),
}  # fmt: skip
MUTANTS = {name: Mutant(name, says, plants) for name, (says, plants) in _SAYS.items()}
