"""What a program sees of its handles: log lines of `lockkit`, and their `repr`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from table_world import CONFIG, new_table, rows

from lockkit.errors import LockBusy
from lockkit.lab.faults import Fault, FaultPlan, Faulty, Proxy
from lockkit.lab.processes.fleet import Fleet
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.providers.both import DoubleLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.recipes.election import Election
from lockkit.recipes.queue import Queue
from lockkit.recipes.striped import StripedLock
from lockkit.recipes.terraform import StateLock
from lockkit.recipes.wal import Reader, Wal
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import CommitConflict
from lockkit.table.occ.conflict import SIMPLE

HELD = "acquired the lock epoch=1 until "


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4()}"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    logged = [each for each in caplog.records if each.levelno == level]
    assert all(each.name == "lockkit" for each in logged)
    return [each.getMessage() for each in logged]


def test_the_life_of_a_lock_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockkit")
    with closing(Lock(url, client="W1")) as lock, closing(Lock(url, client="W2")) as other:
        assert lock.acquire(timeout=0)
        assert not other.acquire(timeout=0)
        lock.renew()
        lock.release()
    who = f"{url} [W1] "
    logged = lines(caplog, logging.INFO)
    assert [each.split(" epoch=")[0] for each in logged] == [
        f"{who}acquired the lock", f"{url} [W2] waits for the lock owner={lock.owner}",
        f"{who}renewed the lock", f"{who}released the lock",
    ]  # fmt: skip
    assert logged[0].startswith(who + HELD) and logged[0].endswith("Z")


def test_a_lost_lock_is_logged_with_its_reason(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockkit")
    with closing(Lock(url, client="W1")) as lock:
        assert lock.acquire(timeout=0)
        lock._client.lose("the heartbeat died")
        assert lines(caplog, logging.INFO)[-1] == (
            f"{url} [W1] lost the lock epoch=1 why=the heartbeat died"
        )
        assert repr(lock) == f"<Lock {url}: lost, epoch 1: the heartbeat died>"


def test_each_request_of_a_lock_and_of_a_table_is_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lockkit")
    new_table(url)
    with Table(url, client="W1") as table:
        committed = table.append(rows([1]))
    logged = lines(caplog, logging.DEBUG)
    assert f"{url} get .hoodie/hoodie.properties: Found" in logged
    assert any("asks request=1 op=look key=" in each for each in logged)
    instant = f"instant={committed.instant}"
    logged = lines(caplog, logging.INFO)
    assert f"{url} [W1] began a commit {instant}" in logged
    assert f"{url} [W1] committed {instant} epoch=1" in logged


def test_a_conflict_is_logged_with_its_reason(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    new_table(url)
    with Table(url, client="W2") as other:
        other.append(rows([1]))

        def overtake(kind: str, **_: object) -> None:
            if kind == "began":
                other.upsert(rows([1]))

        caplog.set_level(logging.INFO, "lockkit")
        with Table(url, client="W1", emit=overtake) as table, pytest.raises(CommitConflict) as met:
            table.upsert(rows([1]))
    (refused,) = (each for each in lines(caplog, logging.INFO) if "was refused a commit" in each)
    assert refused.startswith(f"{url} [W1] was refused a commit instant={met.value.mine} ")
    assert "error=CommitConflict why=" in refused


def test_a_rollback_is_logged_with_its_instant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, dead = f"file://{tmp_path}", "20250101000000000"
    new_table(url)
    requested = tmp_path / ".hoodie" / f"{dead}.commit.requested"
    requested.write_bytes(b"")
    os.utime(requested, (0, 0))
    caplog.set_level(logging.INFO, "lockkit")
    with Table(url, client="W1") as table:
        assert len(table.roll_back_dead()) == 1
    logged = lines(caplog, logging.INFO)
    assert any(f"rolled {dead} back" in each and "[W1] notes" in each for each in logged), logged


def test_a_program_that_configures_no_logging_sees_no_line() -> None:
    program = "from lockkit import Lock\nwith Lock('memory://quiet'): print('held')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


def test_the_repr_of_a_lock_shows_its_state(url: str) -> None:
    with closing(Lock(url, owner="me")) as lock, closing(Lock(url)) as other:
        assert repr(lock) == f"<Lock {url}: not held>"
        with lock:
            assert repr(lock).startswith(f"<Lock {url}: held by me, epoch 1, until 20")
            with pytest.raises(LockBusy) as busy:
                other.acquire_timeout = 0
                other.__enter__()
            assert (busy.value.owner, busy.value.epoch) == ("me", 1)
            assert busy.value.until is not None
        assert repr(lock) == f"<Lock {url}: not held>"
    assert repr(lock) == f"<Lock {url}: closed>"


def test_the_repr_of_a_providers_lock_shows_its_state(url: str, tmp_path: object) -> None:
    old = FilesystemLock(str(tmp_path), owner="me")
    with closing(DoubleLock(old, Lock(url))) as both:
        assert repr(old) == f"<FilesystemLock {old.url}: not held>"
        with old:
            assert repr(old) == f"<FilesystemLock {old.url}: held by me>"
        assert repr(both) == f"<Both {old!r} <Lock {url}: not held>>"


def test_the_repr_of_a_table_and_of_its_store_shows_their_state(url: str) -> None:
    new_table(url, replace(CONFIG, name="orders"))
    with Table(url) as table:
        shown = f"optimistic_concurrency_control, <Lock {url}: not held>>"
        assert repr(table) == f"<Table {url}: not read yet, {shown}"
        table.append(rows([1]))
        assert repr(table) == f"<Table {url}: orders, fenced mode, {shown}"
        assert repr(table.store) == f"<MemoryStore {url}>"


def test_the_repr_of_a_conflict_strategy_names_it_and_no_function() -> None:
    """Python shows it as a default in the signature of `Table`."""
    assert repr(SIMPLE) == f"ConflictStrategy(name='simple', hudi={SIMPLE.hudi!r})"


def test_the_repr_of_what_the_lab_runs_shows_its_state() -> None:
    with Emulator() as server, Proxy(server.s3) as proxy:
        assert repr(server) == f"<Emulator aws: {server.s3} {server.gcs} {server.azure}>"
        at = f"<Proxy {proxy.url} before {server.s3}"
        assert repr(proxy) == f"{at}: 0 armed, 0 happened>"
    assert repr(server) == "<Emulator aws: not running>"
    assert repr(proxy) == f"<Proxy not running before {server.s3}: 0 armed, 0 happened>"
    faulty = Faulty(FaultPlan((Fault("drop"),)))
    assert repr(faulty) == "<Faulty: 1 armed, 0 happened>"
    assert repr(fleet := Fleet(writers=2)) == f"<Fleet {fleet.id}: not launched>"


def test_the_repr_of_a_recipes_handle_shows_its_state(url: str) -> None:
    election = Election(f"{url}/e")
    assert repr(election) == f"<Election {url}/e: no leader seen yet: campaign>"
    election.campaign()
    assert repr(election) == f"<Election {url}/e: leads in epoch 1>"
    assert repr(Queue(f"{url}/q", client="W1")) == f"<Queue {url}/q as W1>"
    wal = Wal(f"{url}/w")
    assert repr(wal) == f"<Wal {url}/w: epoch 1, next slot 1>"
    assert repr(Reader(f"{url}/w")).startswith(f"<Reader {url}/w: 0 entries, ")
    striped = StripedLock(f"{url}/s", stripes=4)
    assert repr(striped) == f"<StripedLock {url}/s: 4 stripes>"
    keys = striped.keys("a")
    with keys:
        assert repr(keys) == f"<Keys of {url}/s: stripes {keys.stripes}, held>"
    assert repr(keys) == f"<Keys of {url}/s: stripes {keys.stripes}, not held>"
    state = StateLock(f"{url}/prod.tfstate")
    assert repr(state) == f"<StateLock {state.path}: not held>"


def test_the_repr_of_a_store_shows_no_option() -> None:
    secret = {"aws_access_key_id": "planted", "aws_secret_access_key": "planted-key"}
    store = open_store("s3://b/t", endpoint="http://127.0.0.1:9", region_name="eu-1", **secret)
    assert repr(store).startswith("<S3Store s3://b/t") and "planted" not in repr(store)
