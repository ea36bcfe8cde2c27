"""The epochs of an election as a store holds them: names, rules, and what may be collected."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockkit.drive import Procedure
from lockkit.rules import Ambiguous, Expiry, Recognise, Rules
from lockkit.stores import Entry
from lockkit.table.ask import all_of, listing
from lockkit.table.pulse import discard

PREFIX = "lock_"
EPOCH_MAX = 10**10 - 1
"""Ten digits: beyond them, the order of names is not that of numbers."""
KEPT, COLLECT_MAX = 10, 1_000
_KEY = re.compile(r"lock_(\d{10})\.json")
RESIGNED = re.compile(rb'\s*\{\s*"expired"\s*:\s*true\s*\}\s*')
"""What Morling's own leader leaves behind, and what a hand writes to set an election free."""


class ElectionError(Exception):
    """The epochs are not what an election leaves behind. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """One safety decision each; `rules.Rules` says more about those that the lease has too."""

    expiry: Expiry = Expiry.STORE
    drift_ms: int = 500
    slack_ms: int = 2_000
    margin_ms: int = 1_000
    count_from_send: bool = True
    recognise: Recognise = Recognise.ATTEMPT
    create_412: Ambiguous = Ambiguous.READ_BACK
    create_unknown: Ambiguous = Ambiguous.READ_BACK
    renew_unknown: Ambiguous = Ambiguous.READ_BACK
    judge_at_send: bool = True
    """An epoch is over if it was so when the read was sent: it may have been renewed since."""
    in_time: bool = True
    """A renewal whose answer comes after the belief had ended extends nothing."""
    look_again: bool = True
    """A create is believed once a listing shows nothing higher."""
    resign_own: bool = True
    """Resigning overwrites the very version that is ours; else whatever epoch is the highest."""
    keep_highest: bool = True
    fence: bool = True
    """What a leader writes is refused once a later epoch has written."""

    @property
    def lease(self) -> Rules:
        return Rules(expiry=self.expiry, drift_ms=self.drift_ms, slack_ms=self.slack_ms)


def epoch_key(epoch: int) -> str:
    return f"{PREFIX}{epoch:010}.json"


def epochs_in(entries: list[Entry]) -> list[int]:
    """In rising order; whatever else has such a name is left alone."""
    names = (_KEY.fullmatch(each.key) for each in entries)
    return [int(match[1]) for match in names if match]


def collect(keep: int = KEPT, *, rules: ElectionRules = ElectionRules()) -> Procedure[int]:
    """Delete the objects of past epochs but the newest `keep`; how many. Never the highest."""
    epochs = epochs_in((yield from listing(PREFIX)))
    past = epochs[: -max(1, keep)] if rules.keep_highest else epochs
    doomed = past[:COLLECT_MAX]
    yield from all_of(discard(epoch_key(each)) for each in doomed)
    return len(doomed)
