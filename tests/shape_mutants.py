"""Planted mistakes of shape: pure functions of data that are replaced by what is plausible.

The property tests (test_shapes) are to find them; the simulator and the explorer, which look for
bad orders, meet few of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from lockkit.clock import Clock, back_off_s
from lockkit.protocol.outcome import NotOurs, Ours, StillOut, resolve
from lockkit.protocol.record import Garbled, Record, decode, encode
from lockkit.stores.endpoint import seconds
from lockkit.table.format.timeline import Timeline, instant_ms, next_instant_ms, parse_timeline
from lockkit.table.occ.conflict import SIMPLE, find_conflict
from lockkit.table.read.bucket_groups import generations


@dataclass(frozen=True, slots=True)
class Mistake:
    """What stands in the place of a function of the library, and the property that must fail."""

    says: str
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    found_by: str


def forgets_the_epoch(body: bytes) -> Record | Garbled:
    found = decode(body)
    return replace(found, epoch=found.epoch & 0x7FFFFFFF) if isinstance(found, Record) else found


def any_object_is_a_record(body: bytes) -> Record | Garbled:
    found = decode(body)
    if isinstance(found, Garbled) and body[:1] == b"{":
        return Record("", json.loads(body).get("validUntil", 0))
    return found


def unescaped(record: Record) -> bytes:
    return encode(record).replace(b"\\u", b"u")


def moved_on_means_never_landed(
    version: str | None, seen: str | None, *, attempt: str, wrote_over: str | None
) -> Any:
    found = resolve(version, seen, attempt=attempt, wrote_over=wrote_over)
    return StillOut() if isinstance(found, NotOurs) else found


def unmoved_means_lost(
    version: str | None, seen: str | None, *, attempt: str, wrote_over: str | None
) -> Any:
    found = resolve(version, seen, attempt=attempt, wrote_over=wrote_over)
    return found if isinstance(found, Ours) else NotOurs()


def only_what_is_completed(mine: Any, others: Any, *, pending: Any = (), strategy: Any = SIMPLE):  # type: ignore[no-untyped-def]
    return find_conflict(mine, others, strategy=strategy)


def the_newest_first(mine: Any, others: Any, *, pending: Any = (), strategy: Any = SIMPLE):  # type: ignore[no-untyped-def]
    found = [find_conflict(mine, [each], strategy=strategy) for each in others]
    found += [find_conflict(mine, [], pending=[each], strategy=strategy) for each in pending]
    return max(filter(None, found), key=lambda each: each.instant, default=None)


def by_the_file_id_alone(mine: Any, others: Any, *, pending: Any = (), strategy: Any = SIMPLE):  # type: ignore[no-untyped-def]
    return find_conflict(mine, others, pending=pending, strategy=SIMPLE)


def the_wall_clock_alone(newest: str, wall_ms: int, *rest: Any) -> int:
    next_instant_ms(newest, wall_ms, *rest)
    return wall_ms


def to_the_second(instant: str) -> int:
    return instant_ms(instant) // 1000 * 1000


def any_script(entries: Sequence[Any], names: Any) -> Timeline:
    """Digits are what `\\d` takes for digits."""
    found = parse_timeline(entries, names)
    said = [re.fullmatch(r"(\d{14,17})(_\d+)?\.commit", name) for name in found.foreign]
    more = {match[1]: "commit" for match in said if match}
    return replace(found, completed=found.completed | more)


def without_a_limit(tries: int, clock: Clock, *, first_s: float, longest_s: float) -> float:
    return first_s * 2.0 ** min(tries, 32)


def whatever_is_asked(retry_after: str | None) -> float | None:
    try:
        return float(retry_after or "")
    except ValueError:
        return seconds(retry_after)


def how_many_there_were(snapshot: Any) -> dict[Any, int]:
    return dict.fromkeys(generations(snapshot), 0)


MISTAKES = (
    Mistake("epochs are read as 31 bits", decode, forgets_the_epoch,
            "test_a_record_comes_back_as_it_was"),
    Mistake("any JSON object is a lock record", decode, any_object_is_a_record,
            "test_any_body_is_a_record_or_garbled_with_a_reason"),
    Mistake("an owner's name loses its escapes", encode, unescaped,
            "test_a_record_comes_back_as_it_was"),
    Mistake("a version that moved on is taken for one that may yet land", resolve,
            moved_on_means_never_landed, "test_an_ambiguous_write_is_judged_as_it_went"),
    Mistake("a version that did not move is taken for a lost race", resolve,
            unmoved_means_lost, "test_an_ambiguous_write_is_judged_as_it_went"),
    Mistake("the conflict check does not look at what is pending", find_conflict,
            only_what_is_completed, "test_of_any_two_kinds_hudis_rules_say_which_go_together"),
    Mistake("of many conflicts the newest is told", find_conflict, the_newest_first,
            "test_of_many_conflicts_the_oldest_completed_one_is_reported_first"),
    Mistake("conflicts of buckets are looked for by file id", find_conflict, by_the_file_id_alone,
            "test_of_any_two_kinds_hudis_rules_say_which_go_together"),
    Mistake("a new instant is the wall clock's, whatever is newest", next_instant_ms,
            the_wall_clock_alone, "test_a_new_instant_is_later_than_the_newest"),
    Mistake("an instant is read to the second", instant_ms, to_the_second,
            "test_an_instant_is_its_milliseconds"),
    Mistake("digits of other scripts make an instant", parse_timeline, any_script,
            "test_a_file_name_without_an_instant_is_no_commit"),
    Mistake("a back-off has no limit", back_off_s, without_a_limit,
            "test_a_back_off_stays_within_its_bounds"),
    Mistake("a server may ask for a wait without end", seconds, whatever_is_asked,
            "test_a_wait_that_a_server_requests_is_a_length_of_time"),
    Mistake("a bucket's next file group has an old one's name", generations, how_many_there_were,
            "test_the_next_generation_was_never_used_before"),
)  # fmt: skip


@contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    """Everywhere that the function was imported to, the tests' own names too."""
    name = mistake.right.__name__
    homes = [
        module for key, module in list(sys.modules.items())
        if key.startswith(("lockkit", "test_shapes"))
        and getattr(module, name, None) is mistake.right
    ]  # fmt: skip
    assert homes, name
    with ExitStack() as all_:
        for module in homes:
            all_.enter_context(patch.object(module, name, mistake.wrong))
        yield
