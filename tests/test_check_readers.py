"""What readers saw, and what writers were told, judged against the store's record."""

from __future__ import annotations

import pytest
from steps import steps
from test_check import TIMELINE, failed, hold, request

from lockkit.events import Event, event
from lockkit.lab.verify.check import Kind, Verdict, check

A, B = ["part=US", "f-a"], ["part=EU", "f-b"]
INSTANTS = [f"2025010610120{number}000" for number in range(9)]


def commit(at_ms: float, number: int, groups: list[list[str]], covered: list[int]) -> list[Event]:
    """Checked at `at_ms`, visible 2 ms later, acknowledged after 4."""
    instant = INSTANTS[number]
    names = [INSTANTS[each] for each in covered]
    return [
        event(at_ms, "W1", "checked", instant=instant, epoch=1, covered=names, writes=groups),
        request(at_ms + 2, "W1", f"{TIMELINE}{instant}.commit", "", f"c{number}"),
        event(at_ms + 4, "W1", "published", instant=instant, epoch=1),
    ]


def saw(began_ms: float, at_ms: float, *groups: tuple[list[str], int]) -> Event:
    seen = [[*group, INSTANTS[number]] for group, number in groups]
    return event(at_ms, "R1", "saw", began_ms=began_ms, groups=seen)


def table(*looks: Event) -> Verdict:
    """The first commit writes A, the second A and B, the third B: at 10, 30 and 50 ms."""
    events = [
        *hold(0, "W1", 1, ""), *commit(10, 0, [A], []), *commit(30, 1, [A, B], [0]),
        *commit(50, 2, [B], [0, 1]), *looks,
    ]  # fmt: skip
    return check(sorted(events, key=lambda each: each.at_ms))


WELL = [
    saw(0, 5),
    saw(0, 25, (A, 0)),
    saw(13, 29, (A, 0)),
    saw(20, 40, (A, 1), (B, 1)),  # published while it read
    saw(20, 40, (A, 0)),
    saw(5, 70, (A, 1), (B, 1)),
    saw(60, 70, (A, 1), (B, 2)),
]


def test_reads_of_whole_commits_in_their_order_are_valid() -> None:
    verdict = table(*WELL)
    assert verdict.kind is Kind.VALID, verdict.because
    assert "7 looks at whole commits" in verdict.because


@pytest.mark.parametrize(
    ("look", "because"),
    [
        (saw(5, 70, (A, 1)), "half a commit"),
        (saw(5, 70, (A, 0), (B, 1)), "half a commit"),
        (saw(5, 70, (A, 0), (B, 2)), "was published before it"),
        (saw(60, 70, (A, 1), (B, 1)), "began to read after"),
        (saw(60, 70, (A, 1)), "began to read after"),
        (saw(15, 25), "began to read after"),
        (saw(0, 9, (A, 0)), "was published after the read"),
        (saw(5, 70, (B, 0)), "did not write it"),
        (saw(5, 70, (A, 7)), "was never published"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_a_read_that_matches_no_state_of_the_table_is_invalid(look: Event, because: str) -> None:
    verdict = table(look)
    assert failed(verdict) == {"readers see whole commits, in order"}
    assert because in verdict.because
    assert 1 <= len(verdict.evidence) <= 4
    assert verdict.evidence[-1] is look


def test_a_read_of_a_commit_that_no_lane_recorded_is_unknown() -> None:
    strange = request(80, "spark", f"{TIMELINE}{INSTANTS[5]}.commit", "", "c5")
    verdict = check([*WELL, strange])
    assert {each.kind for each in verdict.findings if "readers" in each.check} == {Kind.UNKNOWN}


def test_one_commit_is_acknowledged_to_one_writer() -> None:
    other = event(99, "W2", "published", instant=INSTANTS[0], epoch=1)
    verdict = table(other)
    assert failed(verdict) == {"no acknowledged commit is lost"}
    assert [each.who for each in verdict.evidence] == ["W1", "W2"]


def test_an_acknowledged_write_that_the_record_has_not_was_lost() -> None:
    """As by a server that forgets what it answered to when it is killed."""
    history = [
        event(1, "W1", "ask", request=1, op="acquire", key="k/table_lock.json", attempt="a-1"),
        request(2, "W1", "k/table_lock.json", "", "v1", attempt="a-1"),
        event(3, "W1", "answer", request=1, op="acquire", outcome="Applied", version="v1", why=""),
        event(4, "W1", "ask", request=2, op="renew", key="k/table_lock.json", attempt="a-2"),
        event(6, "W1", "answer", request=2, op="renew", outcome="Applied", version="v2", why=""),
    ]
    verdict = check(history)
    assert failed(verdict) == {"no acknowledged write is lost"}
    assert "a-2 as applied with version v2" in verdict.because
    assert [each.kind for each in verdict.evidence] == ["ask", "answer"]
    assert failed(check(history[:3])) == set()


def test_cases_that_a_history_never_reached_are_reported() -> None:
    because = table(*WELL).because
    assert "not exercised: takeover, ghost, lost response, roll-forward" in because


def test_commits_and_reads_are_checked_in_n_log_n_steps() -> None:
    """Commits that know a horizon, and a reader of two file groups."""

    def instant(number: int) -> str:
        return f"20250106{number:09d}"

    def long(commits: int) -> list[Event]:
        events: list[Event] = []
        for n in range(1, commits + 1):
            at_ms, group = 10.0 * n, (A, B)[n % 2]
            covered = [instant(k) for k in range(max(1, n - 3), n)]
            more = {"horizon": covered[0] if n > 4 else ""}
            events += [
                event(at_ms, "W1", "checked", instant=instant(n), epoch=1, covered=covered,
                      writes=[group], **more),
                request(at_ms + 1, "W1", f"{TIMELINE}{instant(n)}.commit", "", f"c{n}"),
                event(at_ms + 2, "W1", "published", instant=instant(n), epoch=1),
            ]  # fmt: skip
            if n > 1:
                last = ((A, n), (B, n - 1)) if group is A else ((A, n - 1), (B, n))
                groups = [[*each, instant(number)] for each, number in last]
                events.append(event(at_ms + 6, "R1", "saw", began_ms=at_ms + 4, groups=groups))
        return events

    def valid(events: list[Event]) -> None:
        verdict = check(events)
        assert verdict.kind is Kind.VALID, verdict.because

    short, tenfold = long(100), long(1_000)
    assert steps(lambda: valid(tenfold)) < 12 * steps(lambda: valid(short))
