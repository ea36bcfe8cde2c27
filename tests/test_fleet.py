"""A fleet of real processes: its report, the faults that it survives, and its clean end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from suite_plugin import rest_in_soak
from waiting import until

from lockkit.clock import Clock
from lockkit.events import Event, read
from lockkit.lab.processes import writer
from lockkit.lab.processes.fleet import Fleet, FleetError, leftovers
from lockkit.lab.processes.process import tree
from lockkit.lab.processes.services.objects import ObjectServer
from lockkit.lab.processes.supervisor import OWN_CREDENTIALS, PLAY_CREDENTIALS
from lockkit.runtime import run
from lockkit.spark.orders import TABLE
from lockkit.stores import open_store
from lockkit.table import create_table, read_table
from lockkit.table.format.timeline import V9, load_timeline

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[1]
WRITERS = ("W1", "W2", "W3")


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets that run in the test's folder; none may leave a process behind."""
    made: list[Fleet] = []

    def make(**options: object) -> Fleet:
        settings = {"pause_s": 0.1, "ttl_s": 2.0, "renew_interval_s": 0.2} | options
        made.append(Fleet(run_dir=tmp_path / f"run{len(made)}", **settings))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()
    assert until(lambda: not [pid for fleet in made for pid in leftovers(fleet.id)])


def saw(fleet: Fleet, who: str, *kinds: str, since: int = 0, timeout_s: float = 30.0) -> Event:
    """The first such event from number `since` on; fails the test if there is none in time."""

    def such(each: Event) -> bool:
        return each.who == who and each.kind in kinds

    assert fleet.wait(such, timeout_s, since=since), (
        f"no {kinds} of {who}; error: {fleet.error}; states: {fleet.writers}; "
        f"last: {[(e.who, e.kind) for e in fleet.events()[-8:]]}"
    )
    return next(each for each in fleet.events(since) if such(each))


def ready(fleet: Fleet) -> None:
    for name in fleet.writers:
        saw(fleet, name, "published")


def commits(fleet: Fleet) -> list[str]:
    return [each["instant"] for each in fleet.events() if each.kind == "published"]


def timeline(fleet: Fleet) -> set[str]:
    """The instants that a reader of the table sees, read from the store itself."""
    store = open_store(fleet.url, endpoint=fleet.endpoint)
    return set(run(load_timeline(V9), store, Clock()).commits)


def verdict(fleet: Fleet) -> str:
    from lockkit.lab.verify.check import check

    found = check(fleet.events())
    return f"{getattr(found.kind, 'value', found.kind)}".upper()


def assert_lanes_join(fleet: Fleet) -> None:
    """Every acknowledged write is in the store's record, with the same version."""
    events = fleet.events()
    truth = {each["attempt"]: each for each in events if each.kind == "request" and each["applied"]}
    asked = {(each.who, each["request"]): each for each in events if each.kind == "ask"}
    recorded = [
        (asked[each.who, each["request"]], each)
        for each in events
        if each.kind == "answer" and each["outcome"] == "Applied"
    ]
    locks = [
        (ask, answer) for ask, answer in recorded if ask["op"] in ("acquire", "renew", "release")
    ]
    assert len(locks) >= 4
    for ask, answer in locks:
        record = truth[ask["attempt"]]
        assert record["client"] == ask.who
        assert record["key"].endswith(ask["key"])
        assert record["version"].strip('"') == answer["version"].strip('"')


# --- the life of a fleet ---


def test_three_writers_commit_to_one_table_and_leave_nothing(fleets):
    fleet = fleets(rounds=3)
    fleet.launch()
    for name in WRITERS:
        assert saw(fleet, name, "exited")["code"] == 0, fleet.error
    assert len(commits(fleet)) == 9
    assert timeline(fleet) == set(commits(fleet))
    rows = read_table(open_store(fleet.url, endpoint=fleet.endpoint))
    keys = rows["order_id"].to_pylist()
    assert len(keys) == len(set(keys)) > 500
    fleet.stop()
    assert fleet.writers == dict.fromkeys(WRITERS, "exited")
    assert fleet.error is None
    assert verdict(fleet) == "VALID"


@pytest.mark.parametrize("provider", ["gcs", "azure"])
def test_the_same_writers_commit_through_every_providers_sdk(fleets, provider):
    # Google allows one write a second to the lock: a lease there has to be longer
    fleet = fleets(provider=provider, writers=2, rounds=2, ttl_s=10.0, renew_interval_s=1.0)
    with fleet:
        for name in ("W1", "W2"):
            assert saw(fleet, name, "exited", timeout_s=60)["code"] == 0, fleet.error
        assert len(commits(fleet)) == 4
    assert verdict(fleet) == "VALID"
    assert_lanes_join(fleet)


def test_launch_returns_long_before_the_first_request_of_a_writer(fleets):
    fleet = fleets()
    began = time.monotonic()
    fleet.launch()
    launched_s = time.monotonic() - began
    assert fleet.wait(lambda each: each.who in WRITERS and each.kind == "ask", 20)
    took_s = time.monotonic() - began
    assert launched_s < took_s / 2  # both on one machine, so under one load


CASES = ["1 of 1", "2 of 1", "1 of 2", "1 of 1 gcs", "1 of 1 connect"]


@pytest.mark.parametrize("case", rest_in_soak(CASES, "1 of 1"))
def test_the_writers_that_were_started_ahead_are_the_ones_that_commit(fleets, case):
    """Surplus writers are ended. Missing ones, and those of another kind, are started."""
    started, _, writers, *other = case.split()
    ahead = fleets(writers=int(started))
    ahead.prepare()
    assert ahead.waits and not ahead.alive
    assert until(lambda: len(leftovers(ahead.id)) == 1 + int(started))
    pids = set(leftovers(ahead.id))
    options = {"kind": "connect"} if "connect" in other else {"provider": (other or ["s3"])[0]}
    fleet = fleets(writers=int(writers), prepared=ahead, **options)
    with fleet:
        first = saw(fleet, "W1", "started")
        assert fleet.pid in pids and (first["pid"] in pids) == ("connect" not in other)
        for name in fleet.writers:
            saw(fleet, name, "published", timeout_s=60)
        expected = int(writers) if "connect" not in other else 0
        assert "connect" in other or len(leftovers(fleet.id)) == 1 + expected
    assert not ahead.waits and fleet.error is None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="/proc tells what a process has loaded")
def test_writers_that_wait_load_the_library_of_every_store_that_may_be_chosen(fleets):
    ahead = fleets(writers=1)
    ahead.prepare()

    def loaded() -> int:
        mapped = (Path(f"/proc/{pid}/maps").read_text() for pid in leftovers(ahead.id))
        return sum("cygrpc" in each for each in mapped)

    assert until(lambda: loaded() == 1, 30), "Google's library loads gRPC, that of S3 does not"


def test_writers_that_were_started_ahead_end_with_their_fleet_or_with_the_kernel(fleets, tmp_path):
    ahead = fleets(writers=1)
    ahead.prepare()
    ahead.stop()
    assert not ahead.waits and until(lambda: leftovers(ahead.id) == [])
    program = tmp_path / "client.py"
    program.write_text(textwrap.dedent(WAITING_CLIENT))
    with subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "run")], stdout=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        fleet = process.stdout.readline().strip()
        assert until(lambda: len(leftovers(fleet)) == 2)
        process.kill()
        process.wait()
        assert until(lambda: leftovers(fleet) == []), leftovers(fleet)


WAITING_CLIENT = """
    import sys, time
    from lockkit.lab.processes.fleet import Fleet
    fleet = Fleet(run_dir=sys.argv[1], writers=1)
    fleet.prepare()
    print(fleet.id, flush=True)
    time.sleep(600)
"""


def test_the_history_on_disk_has_every_event_that_the_fleet_reported(fleets):
    fleet = fleets(rounds=1, writers=1)
    with fleet:
        saw(fleet, "W1", "exited")
    with (fleet.run_dir / "history.jsonl").open() as lines:
        assert list(read(lines)) == fleet.events()


def test_the_stores_own_record_is_part_of_the_history(fleets):
    fleet = fleets(rounds=2, writers=2)
    with fleet:
        saw(fleet, "W1", "exited")
        saw(fleet, "W2", "exited")
    asked = [each for each in fleet.events() if each.who == "store" and each.kind == "request"]
    assert {each["client"] for each in asked} == {"W1", "W2"}
    assert_lanes_join(fleet)


def test_stop_may_be_called_at_once_twice_and_before_anything_runs(fleets):
    fleet = fleets(writers=1)
    fleet.stop()
    fleet.launch()
    fleet.stop()
    fleet.stop()
    assert not fleet.alive
    with pytest.raises(FleetError, match="launched before"):
        fleet.launch()


# --- trouble on demand ---


def test_a_writer_stalled_at_its_commit_is_overtaken_and_then_refused(fleets):
    fleet = fleets(overlap=1.0)
    with fleet:
        ready(fleet)
        fleet.stall("W1", at="commit")
        stalled = saw(fleet, "W1", "stalled")
        mark = len(fleet.events())
        assert fleet.writers["W1"] == "stalled"
        assert psutil.Process(stalled["pid"]).status() == psutil.STATUS_STOPPED
        assert until(lambda: _step(fleet, "W1") == "checked"), "before the write that decides"
        _next(fleet, mark, "published", not_by="W1")
        fleet.resume("W1")
        saw(fleet, "W1", "resumed", since=mark)
        late = saw(fleet, "W1", "refused", "published", since=mark)
        assert (late.kind, late["error"]) == ("refused", "LockLost")
        again = len(fleet.events())
        saw(fleet, "W1", "published", since=again)
    assert verdict(fleet) == "VALID"


def _step(fleet: Fleet, who: str) -> str:
    """How far the writer's commit has got."""
    steps = ("began", "held", "checked", "fenced", "published", "refused", "released")
    return [each.kind for each in fleet.events() if each.who == who and each.kind in steps][-1]


def _next(fleet: Fleet, since: int, kind: str, *, not_by: str, timeout_s: float = 30.0) -> Event:
    def such(each: Event) -> bool:
        return each.kind == kind and each.who != not_by

    assert fleet.wait(such, timeout_s, since=since), fleet.error
    return next(each for each in fleet.events(since) if such(each))


@pytest.mark.soak
def test_without_the_fence_the_late_commit_is_accepted_and_the_checker_finds_it(fleets):
    fleet = fleets(overlap=1.0, fence=False)
    with fleet:
        ready(fleet)
        fleet.stall("W1", at="commit")
        saw(fleet, "W1", "stalled")
        mark = len(fleet.events())
        _next(fleet, mark, "published", not_by="W1")
        fleet.resume("W1")
        late = saw(fleet, "W1", "refused", "published", since=mark)
        assert late.kind == "published"
    assert verdict(fleet) == "INVALID"


def test_the_fence_can_be_switched_off_while_the_writers_run(fleets):
    fleet = fleets(writers=1)
    with fleet:
        saw(fleet, "W1", "fenced")
        fleet.fence(on=False)
        assert fleet.wait(lambda each: "fence is off" in str(each.get("text")), 10)
        mark = len(fleet.events())
        for _ in range(3):  # the commit that was under way may still be fenced
            saw(fleet, "W1", "published", since=mark)
            kinds = [each.kind for each in fleet.events(mark)]
            mark = len(fleet.events())
        assert "fenced" not in kinds


def test_a_writer_whose_response_was_lost_commits_again(fleets):
    fleet = fleets()
    with fleet:
        ready(fleet)
        fleet.lose_response("W2")
        assert fleet.wait(lambda each: each.kind == "fault" and each["client"] == "W2", 20)
        mark = len(fleet.events())
        saw(fleet, "W2", "published", since=mark)
        assert timeline(fleet) >= set(commits(fleet)[:-3])
    assert verdict(fleet) == "VALID"


def test_a_killed_writer_is_reported_and_the_others_continue(fleets):
    fleet = fleets()
    with fleet:
        ready(fleet)
        fleet.kill("W2")
        assert saw(fleet, "W2", "exited")["code"] == -signal.SIGKILL
        assert any(each.kind == "killed" and each.who == "W2" for each in fleet.events())
        mark = len(fleet.events())
        saw(fleet, "W1", "published", since=mark)
        saw(fleet, "W3", "published", since=mark)
        assert fleet.writers["W2"] == "exited"
        assert fleet.error is None, "a kill that was asked for is no error"


def test_a_writer_stalled_by_hand_goes_on_once_it_is_resumed(fleets):
    fleet = fleets(writers=2)
    with fleet:
        ready(fleet)
        fleet.stall("W2", at="now")
        saw(fleet, "W2", "stalled")
        assert fleet.writers == {"W1": "running", "W2": "stalled"}
        fleet.resume("W2")
        saw(fleet, "W2", "resumed")
        assert until(lambda: fleet.writers["W2"] == "running")
        saw(fleet, "W2", "published", since=len(fleet.events()))


# --- no orphan, whatever ends ---


def test_stop_ends_a_stopped_writer_too(fleets):
    fleet = fleets()
    fleet.launch()
    ready(fleet)
    fleet.stall("W1", at="now")
    saw(fleet, "W1", "stalled")
    fleet.stop()
    assert leftovers(fleet.id) == []


def test_kill_of_the_supervisor_ends_every_writer_also_a_stopped_one(fleets):
    fleet = fleets()
    fleet.launch()
    ready(fleet)
    fleet.stall("W1", at="now")
    saw(fleet, "W1", "stalled")
    os.kill(fleet.pid, signal.SIGKILL)
    assert until(lambda: leftovers(fleet.id) == []), leftovers(fleet.id)
    assert until(lambda: not fleet.alive)
    assert "supervisor ended with code -9" in fleet.error
    assert set(fleet.writers.values()) == {"exited"}


def test_stop_works_also_where_the_supervisor_does_not_answer(fleets):
    fleet = fleets()
    fleet.launch()
    ready(fleet)
    os.kill(fleet.pid, signal.SIGSTOP)
    fleet.stop()
    assert not fleet.alive
    assert fleet.error is None, "a stop that was asked for is no failure"
    assert until(lambda: leftovers(fleet.id) == []), leftovers(fleet.id)


GUARD = """
    import sys, lockkit.lab.processes.process as process
    process.DEATH_SIGNAL = False  # as on macOS
    sys.exit(process.main(sys.argv[1:]))
"""
PARENT = """
    import os, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), "sleep", "600"])
    print(child.pid, flush=True)
    child.wait()
"""


def test_where_there_is_no_death_signal_a_guard_watches_the_parent():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), textwrap.dedent(GUARD)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as parent:
        guard = psutil.Process(int(parent.stdout.readline()))
        assert until(lambda: [each.name() for each in guard.children()] == ["sleep"])
        sleeper = guard.children()[0]
        parent.kill()
    assert until(lambda: not guard.is_running() and not sleeper.is_running())


CLIENT = """
    import sys, time
    from lockkit.lab.processes.fleet import Fleet
    fleet = Fleet(pause_s=0.1, ttl_s=2.0, renew_interval_s=0.2)
    print(fleet.id, flush=True)
    with fleet:
        for name in fleet.writers:
            assert fleet.wait(lambda each: each.who == name and each.kind == "published", 30)
        fleet.stall("W1", at="now")
        assert fleet.wait(lambda each: each.kind == "stalled", 10)
        print("ready", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program like a kernel, in a process group like a terminal's, with a fleet of its own.
    Whichever way it ends, its temporary files are removed.
    """
    program, temporary = tmp_path / "client.py", tmp_path / "temporary"
    program.write_text(textwrap.dedent(CLIENT))
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    ) as process:
        fleet = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        assert len(leftovers(fleet)) == 4 and list(temporary.glob("lockkit-fleet-*"))
        yield process, fleet
        process.kill()
    assert until(lambda: leftovers(fleet) == [])
    assert until(lambda: not any(temporary.iterdir())), list(temporary.rglob("*"))


def test_kill_of_the_kernel_ends_its_fleet_also_a_stopped_writer(client):
    process, fleet = client
    process.kill()
    assert until(lambda: leftovers(fleet) == []), leftovers(fleet)


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.15, 0.4, 1.0])
def test_kill_of_the_kernel_while_the_fleet_starts_leaves_no_process(tmp_path, after_s):
    program = tmp_path / "client.py"
    program.write_text(textwrap.dedent(CLIENT))
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        fleet = process.stdout.readline().strip()
        time.sleep(after_s)  # any point of the start
        process.kill()
        process.wait()
        assert until(lambda: leftovers(fleet) == []), leftovers(fleet)
        time.sleep(0.3)  # whoever was being started would be there by now, and ends as well
        assert until(lambda: leftovers(fleet) == []), leftovers(fleet)


def test_ctrl_c_in_the_terminal_ends_the_fleet(client):
    process, fleet = client
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(15) != 0
    assert until(lambda: leftovers(fleet) == []), leftovers(fleet)


def test_an_interrupt_of_the_kernels_group_does_not_reach_the_writers(fleets):
    fleet = fleets(writers=1)
    with fleet:
        saw(fleet, "W1", "published")
        groups = {os.getpgid(each.pid) for each in tree(fleet.pid)}
        assert os.getpgid(0) not in groups
        assert os.getsid(fleet.pid) != os.getsid(0)


def test_a_fleet_with_a_deadman_time_ends_once_its_client_is_silent(fleets):
    fleet = fleets(writers=1, deadman_s=1.5)
    fleet.launch()
    for _ in range(8):  # longer than deadman_s
        fleet.beat()
        time.sleep(0.3)
    assert fleet.alive
    assert until(lambda: not fleet.alive)
    assert "no sign of life" in fleet.error
    assert leftovers(fleet.id) == []


# --- nothing acknowledged is lost ---


@pytest.mark.soak
def test_a_suspended_machine_loses_no_acknowledged_commit(fleets):
    fleet = fleets(overlap=1.0)
    with fleet:
        ready(fleet)
        everyone = tree(fleet.pid)
        for each in everyone:
            each.suspend()
        time.sleep(3.5)  # longer than a lease
        for each in reversed(everyone):
            each.resume()
        mark = len(fleet.events())
        for name in WRITERS:
            saw(fleet, name, "published", since=mark)
        recorded = commits(fleet)
        assert set(recorded) <= timeline(fleet)
        assert len(recorded) == len(set(recorded))
    assert verdict(fleet) == "VALID"


@pytest.mark.slow
@pytest.mark.parametrize("seed", rest_in_soak(range(3), 0))
def test_kill_at_random_points_loses_no_acknowledged_commit(fleets, seed):
    dice = random.Random(seed)
    fleet = fleets(overlap=0.7, pause_s=0.05)
    with fleet:
        ready(fleet)
        for name in dice.sample(WRITERS, 2):
            # any point of a round: so many events of that writer from now
            begun = sum(each.who == name for each in fleet.events())
            point = begun + dice.randrange(1, 40)
            assert until(lambda n=name, p=point: sum(e.who == n for e in fleet.events()) >= p)
            fleet.kill(name)
            saw(fleet, name, "exited")
        alive = next(name for name, state in fleet.writers.items() if state != "exited")
        for _ in range(3):
            saw(fleet, alive, "published", since=len(fleet.events()), timeout_s=20)
        assert set(commits(fleet)) <= timeline(fleet)
        rows = read_table(open_store(fleet.url, endpoint=fleet.endpoint))
        assert rows.num_rows == len(set(rows["order_id"].to_pylist()))
    assert verdict(fleet) != "INVALID"


@pytest.mark.slow
@pytest.mark.parametrize("point", [0, 3, 30, 200, 500])
def test_a_kill_of_the_server_and_its_writers_loses_no_acknowledged_commit(fleets, point):
    from lockkit.lab.server import Emulator
    from lockkit.lab.verify.check import check

    fleet = fleets(overlap=0.7, pause_s=0.05)
    fleet.launch()
    assert until(lambda: fleet.pid and len(fleet.events()) >= point, 30)
    os.kill(fleet.pid, signal.SIGKILL)  # the store is one of the supervisor's threads
    assert until(lambda: not fleet.alive)
    assert until(lambda: leftovers(fleet.id) == []), leftovers(fleet.id)
    if not (fleet.run_dir / "history.jsonl").exists():
        assert point == 0 and fleet.events() == [], "it had not begun"
        return
    with Emulator(db=str(fleet.run_dir / "store.sqlite"), port=0) as again:
        store = open_store(fleet.url, endpoint=again.s3)
        if commits(fleet):
            assert set(commits(fleet)) <= set(run(load_timeline(V9), store, Clock()).commits)
    with (fleet.run_dir / "history.jsonl").open() as lines:
        history = list(read(lines))
    assert len(history) >= len(fleet.events())
    assert f"{check(history).kind}" != "INVALID"


# --- bad input ---


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "fast"}, "plain, connect, jvm"),
        ({"provider": "ftp"}, "s3, gcs, azure"),
        ({"writers": 0}, "1 to 8"),
        ({"overlap": 1.5}, "from 0 to 1"),
        ({"ttl_s": 1.0, "renew_interval_s": 0.5}, "at most ttl_s / 10"),
        ({"rounds": 0}, "at least 1"),
    ],
)
def test_an_impossible_fleet_is_refused_by_the_settings_name(tmp_path, wrong, says):
    with pytest.raises(FleetError, match=says):
        Fleet(run_dir=tmp_path, **wrong)


def test_a_writer_that_fails_shows_its_last_words(fleets, tmp_path):
    empty = tmp_path / "nothing"
    empty.mkdir()
    fleet = fleets(writers=1, dataset=empty)
    with fleet:
        ended = saw(fleet, "W1", "exited")
        assert ended["code"] == 1
        assert until(lambda: fleet.error is not None)
        assert "holds no orders" in ended["stderr"] and "generate.py" in ended["stderr"]
        assert "--dataset" in fleet.error


def grouped(monkeypatch: pytest.MonkeyPatch, server: ObjectServer) -> dict[str, str]:
    """A table of the orders on this server, with group commit, and a fleet's options for it."""
    for name, value in PLAY_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    place = {"url": "s3://lake/orders", "endpoint": server.endpoint}
    run(create_table(replace(TABLE, commit="group")), open_store(**place), Clock())
    return place


def test_writers_use_group_commit_if_the_table_has_it(fleets, monkeypatch, tmp_path):
    with ObjectServer(tmp_path / "server") as server:
        fleet = fleets(writers=2, rounds=2, **grouped(monkeypatch, server))
        with fleet:
            for name in fleet.writers:
                assert saw(fleet, name, "exited")["code"] == 0, fleet.error
            assert timeline(fleet) == set(commits(fleet)) and len(commits(fleet)) == 4
            assert not [each for each in fleet.events() if each.kind == "granted"]


def test_a_fence_that_cannot_be_switched_off_is_not_ignored(fleets, monkeypatch, tmp_path):
    with ObjectServer(tmp_path / "server") as server:
        place = grouped(monkeypatch, server)
        with fleets(writers=1, fence=False, **place) as refused:
            said = saw(refused, "W1", "exited")["stderr"]
            assert said.endswith("group commit only the fence decides; leave the fence on"), said
        with fleets(writers=1, **place) as fleet:
            saw(fleet, "W1", "published")
            fleet.fence(on=False)
            assert fleet.wait(lambda each: "stays on" in str(each.data.get("text")), 10.0)


def test_an_unknown_writer_is_refused_with_the_names_that_exist(fleets):
    with pytest.raises(FleetError, match="W1, W2"):
        fleets(writers=2).stall("W9")


def test_the_users_own_credentials_are_not_sent_to_the_embedded_server(fleets, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *OWN_CREDENTIALS):
        monkeypatch.setenv(name, "real-secret")
    fleet = fleets(writers=1)
    with fleet:
        saw(fleet, "W1", "ask")
        pid = saw(fleet, "W1", "started")["pid"]
        env = psutil.Process(pid).environ()
        assert env["AWS_ACCESS_KEY_ID"] == "lockkit"
        assert "real-secret" not in json.dumps(env)
    assert "real-" not in (fleet.run_dir / "history.jsonl").read_text()


def test_a_child_survives_the_thread_that_started_it(tmp_path: Path) -> None:
    """Linux kills a child that dies with its parent when the thread that started it ends."""
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(ObjectServer(tmp_path).start).result()
    try:
        time.sleep(0.5)
        assert server.answers()
    finally:
        server.stop()


@pytest.mark.parametrize(("launched_after", "warmed"), [
    (1, ["gs"]), (2, ["gs", "memory"]), (3, ["gs", "memory", "s3"]),
    (9, ["gs", "memory", "s3", "az"]),
])  # fmt: skip
def test_a_launch_that_comes_early_does_not_wait_for_the_libraries_of_other_stores(
    launched_after: int, warmed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()

    def opens(url: str) -> None:
        done.append(url.partition(":")[0])

    monkeypatch.setattr(writer.TableAddress, "open", lambda place: opens(place.url))
    monkeypatch.setattr(writer, "commit_orders", lambda plan, *_: opens(plan.url))
    monkeypatch.setattr(writer, "_Silent", lambda _channel: None)
    channel: Any = SimpleNamespace(has_news=lambda: len(done) >= launched_after)
    writer.warm_up(channel, "gs://bucket/orders", "orders", ["s3://bucket/orders", "az://c/orders"])
    assert done == warmed
