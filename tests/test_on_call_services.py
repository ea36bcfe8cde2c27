"""Who holds it, does it live, may I break it: the commands and the console, at real services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from lock_world import until
from service_world import running

from lockkit import open_lock
from lockkit.cli.main import main
from lockkit.cli.service_lock import open_service
from lockkit.lab.processes.services.hive import HiveMetastore
from lockkit.lab.server import Emulator
from lockkit.recipes.terraform.lease import StateLease

HOLD = """
import sys
from lockkit import open_lock
lock = open_lock(sys.argv[1])
assert lock.acquire(timeout=20)
print("held", flush=True)
sys.stdin.read()
"""
SERVICES = [
    "filesystem", "dynamodb", "azure",
    pytest.param("zookeeper", marks=[pytest.mark.spark, pytest.mark.xdist_group("zookeeper")]),
    pytest.param("hive", marks=[pytest.mark.spark, pytest.mark.xdist_group("hive")]),
]  # fmt: skip


@pytest.fixture(scope="module")
def patient_metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shared one ends the lock of a silent holder after 6 s: on a busy machine before it was
    looked at.
    """
    yield from running(HiveMetastore, tmp_path_factory.mktemp("hive"), timeout_s=3600)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A lock of this test's own at the service; its holder must renew it for hours of silence."""
    match request.param:
        case "filesystem":
            yield f"filesystem://{tmp_path}/locks?expire_minutes=60"
        case "dynamodb":
            server = request.getfixturevalue("dynamodb")
            at = f"endpoint={server.endpoint}&lease_s=3600"
            yield f"dynamodb://us-east-1/locks/{tmp_path.name}?{at}"
        case "zookeeper":
            server = request.getfixturevalue("zookeeper")
            yield f"zookeeper://{server.address}/hudi/locks/{tmp_path.name}"
        case "hive":
            server = request.getfixturevalue("patient_metastore")
            yield f"hive://{server.address}/lake/{tmp_path.name[:60].rstrip('_').lower()}"
        case _:
            with Emulator(profile="azure") as server:
                yield f"azure-lease://lake/orders?endpoint={server.azure}"


@pytest.fixture
def holder(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock."""
    line = [sys.executable, "-c", HOLD, url]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        yield child
        child.kill()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> dict[str, Any]:
    """What the command prints as JSON."""
    capsys.readouterr()
    found = main([*words, "--json"])
    printed = capsys.readouterr()
    assert found == code, f"{printed}"
    answer: dict[str, Any] = json.loads(printed.out)
    return answer


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_a_living_holder_is_named_and_must_not_be_broken(
    url: str, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, "lock", "show", url, code=0)
    assert f"/{holder.pid}@" in found["process"] and found["process_lives"] is True
    assert found["breakable"] is False and "runs on this host" in found["why"]
    found = said(capsys, "incident", url, "--watch-s", "0", code=0)
    assert found["diagnosis"]["pattern"] == "healthy"
    found = said(capsys, "lock", "break", url, code=75)
    assert found["broken"] is False and found["breakable"] is False
    assert main(["lock", "break", url]) == 75
    assert "must not be broken now" in capsys.readouterr().out


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_the_one_that_waits_names_the_holder_and_ends_with_75(
    url: str, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE) as other:
        if url.startswith(("zookeeper", "hive")):  # who waits longer is no holder
            look: Any = open_lock(url)
            until(lambda: len(look.contenders()) == 2, 30)
            look.close()
        code = main(["lock", "acquire", url, "--timeout", "0.2", "--", "true"])
        other.kill()
    assert code == 75
    waiting, busy = capsys.readouterr().err.splitlines()
    for each in (waiting, busy):
        assert f"/{holder.pid}@" in each, "not a process that waits, nor somebody"
    if url.startswith(("zookeeper", "dynamodb")):
        assert ", which has it since 2" in waiting


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_a_killed_holder_is_dead_at_once_and_its_grant_can_be_broken(
    url: str, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    # The watch is not used up: the first look shows that the process has ended.
    found = said(capsys, "incident", url, "--watch-s", "3600", code=1)
    assert found["diagnosis"]["pattern"] == "holder died" and found["breakable"] is True
    assert said(capsys, "lock", "show", url, code=1)["process_lives"] is False
    found = said(capsys, "lock", "break", url, code=0)
    assert found["broken"] is False and found["breakable"] is True
    assert said(capsys, "lock", "break", url, "--version", found["version"], code=0)["broken"]
    assert said(capsys, "lock", "show", url, code=0)["state"] == "free"
    assert said(capsys, "incident", url, "--watch-s", "0", code=0)["state"] == "free"
    with open_lock(url, acquire_timeout=10):
        pass


@pytest.fixture
def work(url: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, psutil.Process]]:
    """`lock acquire`, killed; its guard, which is stopped and so ends nothing; and its command."""
    command = ["sh", "-c", "trap '' TERM; echo runs; exec sleep 600"]
    line = [sys.executable, "-m", "lockkit", "lock", "acquire", url, "--", *command]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "runs\n"
        (guard,) = psutil.Process(child.pid).children()
        (command_,) = guard.children()
        try:
            guard.suspend()
            until(lambda: guard.status() == psutil.STATUS_STOPPED, 30)
            child.kill()
            child.wait(30)
            yield child, guard, command_
        finally:
            for each in (guard, command_):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the command's environment is read from /proc")
@pytest.mark.parametrize("url", ["filesystem", "dynamodb"], indirect=True)
def test_a_killed_holder_whose_command_still_runs_is_not_broken(
    url: str, work: tuple[subprocess.Popen[str], psutil.Process, psutil.Process],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _, guard, command = work
    version = ""
    for _ in ("its guard lives", "its guard was killed too"):
        found = said(capsys, "lock", "show", url, code=1)
        assert "command that it ran under the lock still runs" in found["process_state"]
        assert found["process_lives"] is True and found["breakable"] is False
        version = found["version"]
        assert main(["lock", "break", url, "--version", version]) == 75
        assert "look again then, or end the command" in capsys.readouterr().err
        found = said(capsys, "incident", url, "--watch-s", "0", code=1)
        assert found["diagnosis"]["pattern"] == "holder stopped renewing"
        with suppress(psutil.NoSuchProcess):  # the second time
            guard.kill()
        until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, 30)
    command.kill()
    until(lambda: not command.is_running() or command.status() == psutil.STATUS_ZOMBIE, 30)
    assert said(capsys, "lock", "break", url, "--version", version, code=0)["broken"]


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_a_stopped_holder_is_shown_as_stopped_and_is_not_broken(
    url: str, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    holder.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED, 30)
    found = said(capsys, "lock", "show", url, code=1)
    assert "stopped on this host" in found["process_state"] and found["breakable"] is False
    found = said(capsys, "incident", url, "--watch-s", "0", code=1)
    assert found["diagnosis"]["pattern"] == "holder stopped renewing"
    assert said(capsys, "lock", "break", url, code=75)["broken"] is False
    holder.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_a_holder_that_cannot_be_judged_is_no_success(
    url: str, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert said(capsys, "lock", "show", url, code=2)["process_lives"] is None
    found = said(capsys, "incident", url, "--watch-s", "0", code=2)
    assert found["diagnosis"]["pattern"] == "unknown"


@pytest.mark.parametrize("url", SERVICES, indirect=True)
def test_the_console_names_a_dead_holder_at_each_service_and_breaks_its_grant(
    url: str, holder: subprocess.Popen[str]
) -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.lab.widgets import Console

    console = Console(url, watch_s=0.0)
    console.look()
    assert "data-pattern='healthy'" in console.panel.card.value
    console.dry_run()
    assert "Must not be broken now" in console.panel.plan.value
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    console.look()
    assert "data-pattern='holder died'" in console.panel.card.value
    console.dry_run()
    assert "Must not be broken now" not in console.panel.plan.value
    console.break_lock()
    assert "data-state='absent'" in console.panel.lock.value


def test_a_watch_reports_each_change_of_the_holder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"filesystem://{tmp_path}/locks"
    lock = open_lock(url)
    assert lock.acquire(timeout=5)
    ticks = iter([lambda: os.utime(tmp_path / "locks" / "lock", (2e9, 2e9)), lock.cancel])

    def tick(*_: object) -> None:
        try:
            next(ticks)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("lockkit.clock.Clock.sleep", tick)
    main(["lock", "watch", url])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "; renewed  2033-05-18" in lines[1] and "; renewed" not in lines[0]
    lock.close()


def test_a_terraform_state_is_not_locked_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["lock", "acquire", "s3://states/terraform.tfstate", "--", "true"]
    assert main([*line[:3], "--endpoint", "http://127.0.0.1:1", *line[3:]]) == 64
    assert "lockkit tflock run" in capsys.readouterr().err


def test_a_file_that_is_not_terraforms_is_not_offered_for_a_break_that_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.tfstate.tflock"
    file.write_text("<html>")
    line = ["lock", "break", f"file://{tmp_path}/x.tfstate"]
    found = said(capsys, *line, code=75)
    assert main(line) == 75
    assert "delete it by hand" in found["why"] and "to break it" not in capsys.readouterr().out
    assert main([*line, "--version", found["version"], "--force"]) == 75 and file.exists()
    assert "delete it by hand" in capsys.readouterr().err


def test_the_times_of_a_terraform_lock_are_its_holders() -> None:
    with Emulator() as server:
        options = {"endpoint": server.s3}
        with StateLease("s3://states/terraform.tfstate", ttl_s=60, store_options=options):
            look = open_service("s3://states/terraform.tfstate", options)
            found = look.holder()
            look.close()
    assert found is not None and found.clock == "its holder's clock"
