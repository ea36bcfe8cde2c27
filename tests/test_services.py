"""Table services: clean, clustering and rollback beside writers and readers, killed anywhere."""

from __future__ import annotations

import pytest

from lockkit.stores import Entry
from lockkit.table.timeline import V6, V9, parse_timeline

T = "20250101000000000"


@pytest.mark.parametrize(
    ("names", "completed", "pending"),
    [
        ((".commit", ".savepoint.inflight", ".savepoint"), "commit", None),
        ((".commit", ".rollback"), "commit", None),
        ((".clean.requested", ".commit.requested"), None, "commit"),
        ((".clean", ".commit.requested", ".inflight"), None, "commit"),
    ],
)
def test_what_shares_a_commits_instant_does_not_hide_it(
    names: tuple[str, ...], completed: str | None, pending: str | None
) -> None:
    """A savepoint has the instant of its commit; others may take the same millisecond."""
    now = parse_timeline([Entry(f"{V6.folder}{T}{name}", 0) for name in sorted(names)], V6)
    assert now.completed.get(T) == completed
    assert now.pending.get(T) == pending
    assert now.savepoints == ({T} if ".savepoint" in names else set())


def test_a_savepoint_does_not_change_its_commits_completion_time() -> None:
    done = ("20250101000000001.commit", "20250101000000009.savepoint")
    now = parse_timeline([Entry(f"{V9.folder}{T}_{name}", 0) for name in done], V9)
    assert (now.completed, now.completion) == ({T: "commit"}, {T: "20250101000000001"})
