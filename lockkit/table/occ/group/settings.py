"""Group commit: a client reads the table's properties again, at most every ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.runtime import Parallel, Procedure, WallMs
from lockkit.table.format.properties import recheck_config
from lockkit.table.occ.group.client import GroupClient
from lockkit.table.occ.transaction import TakenInstant, Transaction, survey

if TYPE_CHECKING:
    from lockkit.table.format.timeline import Timeline

EVERY_MS = 10_000


def recheck(client: GroupClient, taken: TakenInstant) -> Procedure[None]:
    """Raises if the properties are no longer those that this commit began with."""
    now_ms = yield WallMs()
    if not 0 <= now_ms - client.checked_ms < EVERY_MS:
        yield from recheck_config(taken.known.config, taken.known.config_version)
        client.checked_ms = now_ms


def survey_checked(
    client: GroupClient, taken: TakenInstant, met: dict[str, int] | None = None
) -> Procedure[tuple[Transaction | None, Timeline]]:
    """`survey`, and in parallel the properties if they are due: the decision then need not wait."""
    found, _ = yield Parallel((survey(taken, met), recheck(client, taken)))
    surveyed: tuple[Transaction | None, Timeline] = found
    return surveyed
