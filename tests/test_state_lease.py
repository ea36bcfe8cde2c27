"""Terraform's lock file as a lease: renewed, taken over after a whole lease, never without one."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lock_world import Suspendable, until
from test_cli import assert_says, run

from lockkit.errors import LockBusy, LockLost
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.recipes.errors import StateLocked
from lockkit.recipes.terraform.lease import LOCKING, StateLease, lease_s, without_locking
from lockkit.recipes.terraform.lockinfo import LockInfo
from lockkit.recipes.terraform.statelock import StateLock

_NAMES = itertools.count()
Leases = Callable[..., StateLease]


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture
def url() -> str:
    return f"s3://states/prod-{next(_NAMES)}/terraform.tfstate"


@pytest.fixture
def lease(server: Emulator, url: str) -> Iterator[Leases]:
    made: list[StateLease] = []

    def one(endpoint: str = "", **options: Any) -> StateLease:
        made.append(StateLease(url, store_options={"endpoint": endpoint or server.s3}, **options))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.fixture
def plain(server: Emulator, url: str) -> Iterator[StateLock]:
    """The lock as Terraform takes it."""
    state = StateLock(url, endpoint=server.s3)
    yield state
    state.close()


def held(plain: StateLock) -> LockInfo:
    found = plain.show().info
    assert isinstance(found, LockInfo)
    return found


def test_terraform_sees_a_lock_like_its_own_with_the_lease_in_its_info(
    lease: Leases, plain: StateLock
) -> None:
    with lease(ttl_s=60, operation="apply") as mine:
        found = held(plain)
        assert (found.operation, found.path) == ("apply", plain.path)
        assert found.info.startswith("lease of 60 s, renewed 20") and lease_s(found) == 60
        with pytest.raises(StateLocked, match=found.id):
            plain.lock()
        assert mine.holder().ends == "60 s after its last renewal"  # type: ignore[union-attr]
    assert plain.show().info is None
    with plain, pytest.raises(LockBusy), lease(acquire_timeout=0):
        pass


def test_an_unchanged_file_is_waited_for_a_whole_lease_of_its_own_and_a_changed_one_anew(
    lease: Leases,
) -> None:
    clock = Suspendable()
    holder, waiter = lease(ttl_s=60), lease(ttl_s=10, clock=clock)
    assert holder.acquire(timeout=5)
    assert not waiter.acquire(timeout=0)
    clock.slept_ms += 59_000
    assert not waiter.acquire(timeout=0), "the holder's lease counts, not the waiter's"
    holder.renew()
    clock.slept_ms += 59_000
    assert not waiter.acquire(timeout=0)
    clock.slept_ms += 61_000
    assert waiter.acquire(timeout=0)
    with pytest.raises(LockLost, match="its file now belongs to"):
        holder.renew()
    with pytest.raises(LockLost):
        holder.release()
    waiter.assert_held()
    waiter.release()


def test_a_lock_without_a_lease_is_never_taken_over(lease: Leases, plain: StateLock) -> None:
    clock = Suspendable()
    waiter = lease(ttl_s=1, clock=clock)
    with plain:
        for _ in range(3):
            assert not waiter.acquire(timeout=0)
            clock.slept_ms += 86_400_000
    assert waiter.acquire(timeout=5)
    waiter.release()


def test_a_lock_that_a_human_removed_is_lost(lease: Leases, plain: StateLock) -> None:
    mine = lease()
    assert mine.acquire(timeout=5)
    plain.force_unlock(held(plain).id)
    with pytest.raises(LockLost, match="force-unlock"):
        mine.renew()


def test_a_lost_request_or_answer_makes_neither_a_second_holder_nor_a_lost_grant(
    server: Emulator, lease: Leases, plain: StateLock
) -> None:
    with Proxy(server.s3) as proxy:
        other = lease()
        for when, (operation, nth) in itertools.product(
            ("before", "after"), (("get", 1), ("put", 1), ("put", 2), ("delete", 1))
        ):
            mine, made = lease(proxy.url), len(proxy.faults)
            proxy.inject(Fault("drop", when=when, operation=operation, nth=nth))
            assert mine.acquire(timeout=20), (when, operation, nth)
            mine.renew()
            assert not other.acquire(timeout=0)
            mine.release()
            assert [each["method"] for each in proxy.faults[made:]] == [operation]
            assert plain.show().info is None


def test_a_renewal_whose_answer_was_lost_is_recognised(
    server: Emulator, lease: Leases, plain: StateLock
) -> None:
    with Proxy(server.s3) as proxy:
        mine = lease(proxy.url)
        assert mine.acquire(timeout=5)
        before = plain.show().version
        proxy.inject(Fault("drop", when="after", operation="put", nth=1))
        mine.renew()
        assert proxy.faults and plain.show().version != before
        mine.renew()
        mine.release()


@pytest.mark.parametrize("ttl_s", [0, 0.5, float("nan"), 86_401])
def test_an_invalid_lease_is_refused(ttl_s: float, url: str) -> None:
    with pytest.raises(ValueError, match="a lease must last 1 s to 86400 s"):
        StateLease(url, ttl_s=ttl_s)


def test_terraforms_own_locking_is_switched_off_and_other_settings_stay() -> None:
    found = without_locking({"TF_CLI_ARGS_plan": "-input=false", "PATH": "/bin"})
    assert len(found) == len(LOCKING)
    assert found["TF_CLI_ARGS_plan"] == "-lock=false -input=false"
    assert found["TF_CLI_ARGS_state_mv"] == "-lock=false"


# --- the command ----------------------------------------------------------------------------------


def test_a_command_runs_under_the_lock_and_finds_terraforms_locking_off(
    server: Emulator, url: str, plain: StateLock, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    show = f"import os; open({str(seen)!r}, 'w').write(os.environ['TF_CLI_ARGS_apply']); exit(7)"
    done = run("tflock", "run", url, "--endpoint", server.s3, "--", sys.executable, "-c", show)
    assert done.returncode == 7, done.stderr
    assert seen.read_text() == "-lock=false"
    assert plain.show().info is None


def test_a_busy_lock_and_a_missing_command_have_exit_codes_of_their_own(
    server: Emulator, url: str, plain: StateLock
) -> None:
    to = ("tflock", "run", url, "--endpoint", server.s3)
    assert_says(run(*to), "name a command", code=64)
    assert_says(run(*to, "--ttl", "0", "--", "true"), "a lease must last", code=64)
    for bad in ("-1", "nan", "-inf"):
        line = ("tflock", "lock", url, "--endpoint", server.s3, f"--lock-timeout={bad}")
        assert_says(run(*line), "argument --lock-timeout: must be", code=64)
    with plain:
        busy = run(*to, "--lock-timeout", "0", "--", "true")
        assert_says(busy, "ID ", code=75)


def test_a_killed_runs_lock_is_taken_over_after_its_lease_and_ctrl_c_gives_it_back(
    server: Emulator, url: str, plain: StateLock
) -> None:
    line = [
        sys.executable, "-m", "lockkit", "tflock", "run", url, "--endpoint", server.s3,
        "--ttl", "2", "--", sys.executable, "-c",
        "import time; print('works', flush=True); time.sleep(60)",
    ]  # fmt: skip

    def start() -> subprocess.Popen[str]:
        found = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)  # fmt: skip
        assert found.stdout is not None and found.stdout.readline() == "works\n"
        return found

    one = start()
    first, held_by = held(plain).id, str(held(plain))
    renewed = held(plain).info
    assert until(lambda: held(plain).info != renewed), "it is renewed"
    os.killpg(one.pid, signal.SIGKILL)
    one.communicate()
    other = start()
    assert held(plain).id != first
    os.killpg(other.pid, signal.SIGINT)
    _, said = other.communicate(timeout=30)
    assert other.returncode == 130, said
    assert plain.show().info is None
    assert f"waiting for {held_by}" in said
