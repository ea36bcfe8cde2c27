"""`lockkit lock break`: a guarded takeover, never a delete, of nothing but what was shown."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from lock_world import stands
from table_world import CLOCK, new_table

from lockkit import Lock, LockLost
from lockkit.cli.main import main
from lockkit.errors import BreakRefused
from lockkit.lab.faults import Fault, FaultPlan, Faulty
from lockkit.lab.server import Emulator
from lockkit.lock.oddities import UnexpectedRecord
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, Condition, Found, IfAbsent, over
from lockkit.protocol.record import EPOCH_MAX, Record, encode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import Table, TableConfig
from lockkit.table.inspect import standing
from lockkit.table.inspect.standing import LockHolder, watch
from lockkit.table.inspect.takeover import BREAKS, guard, planned, take_over
from lockkit.table.inspect.versions import highest_epoch


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/orders"


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


@pytest.fixture(autouse=True)
def written_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests have just written counts as not renewed."""
    monkeypatch.setattr(standing, "HUDI_LEASE_MS", -60_000)
    ends = lambda record, _written_ms, _policy: record.valid_until_ms  # noqa: E731
    monkeypatch.setattr(standing, "hudi_end_ms", ends)


def dead(epoch: int = 7) -> Record:
    """Of Hudi's kind (no ttl): over by `validUntil`, with nothing to wait for."""
    return Record("W1", CLOCK.wall_ms() - 60_000, epoch=epoch, attempt="W1/1")


def put(store: Store, record: Record, condition: Condition | None = None) -> str:
    answer = store.put(LOCK_KEY, encode(record), condition or IfAbsent())
    assert isinstance(answer, Applied)
    return answer.version


def look(store: Store) -> LockHolder:
    return run(watch(0), store, CLOCK)


def command(url: str, *more: str) -> int:
    return main(["lock", "break", url, *more, "--watch-s", "0"])


def test_a_dry_run_changes_nothing_and_prints_the_line_that_breaks_it(
    url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, dead())
    assert command(url) == 0
    assert stands(store).owner == "W1"
    assert not store.list(BREAKS)
    line = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("break it: ")[2])
    assert command(*line[3:]) == 0
    assert stands(store).expired


def test_a_broken_lock_is_free_for_the_next_epoch_and_the_break_is_logged(
    url: str, store: Store
) -> None:
    version = put(store, dead())
    assert command(url, "--version", version) == 0
    tombstone = stands(store)
    assert (tombstone.expired, tombstone.epoch) == (True, 8)
    (entry,) = store.list(BREAKS)
    found = store.get(entry.key)
    assert isinstance(found, Found)
    logged = json.loads(found.body)
    assert (logged["owner"], logged["epoch"], logged["version"]) == ("W1", 7, version)
    assert logged["attempt"] == tombstone.attempt
    with Lock(url, ttl_s=30, acquire_timeout=10) as lock:
        assert lock.fence.epoch == 9


def test_a_lock_that_changed_since_it_was_shown_is_not_broken(url: str, store: Store) -> None:
    shown = put(store, dead())
    put(store, replace(dead(), attempt="W1/2"), over(shown))
    assert command(url, "--version", shown) == 75
    assert stands(store).attempt == "W1/2"
    assert not store.list(BREAKS)


def test_a_lock_that_changes_during_the_break_is_not_broken(store: Store) -> None:
    shown = put(store, dead())
    holder = look(store)
    put(store, replace(dead(), attempt="W1/2"), over(shown))
    with pytest.raises(BreakRefused, match="changed in the same moment"):
        run(take_over(holder, shown=shown, epoch=None, by="me"), store, CLOCK)
    assert stands(store).attempt == "W1/2"


def test_a_current_lease_is_broken_only_by_its_epoch_and_its_holder_learns_of_it(
    url: str, store: Store
) -> None:
    lock = Lock(url, ttl_s=60, renew_interval_s=6)
    assert lock.acquire(timeout=10)
    shown = look(store).observation.version or ""
    assert command(url, "--version", shown) == 75
    assert command(url, "--version", shown, "--epoch", "2") == 75
    assert lock.owned()
    lock.renew()  # the epoch names the grant: another version of it is no other lock
    assert command(url, "--version", shown, "--epoch", "1") == 0
    with pytest.raises(LockLost):
        lock.renew()
    with pytest.raises(LockLost):
        lock.release()
    lock.close()


def test_a_renewing_holder_is_spared_even_if_its_lease_is_over_by_its_own_clock(
    store: Store,
) -> None:
    shown = put(store, dead())
    renewing = replace(look(store), renews=True, breakable=False)
    with pytest.raises(BreakRefused, match="--epoch 7"):
        guard(renewing, shown=shown, epoch=None)
    assert guard(renewing, shown=shown, epoch=7) == shown


def test_a_lease_of_hudis_has_no_epoch_and_is_guarded_by_its_version(store: Store) -> None:
    shown = put(store, dead(epoch=0))
    holder = look(store)
    with pytest.raises(BreakRefused, match="changed"):
        guard(holder, shown="another", epoch=0)
    done = run(take_over(holder, shown=shown, epoch=None, by="me"), store, CLOCK)
    assert (stands(store).expired, done.epoch) == (True, 0)


@pytest.mark.parametrize("what", ["reset", "status"])
def test_a_lost_answer_is_read_back(
    emulator: Emulator, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anybody")
    code = {"code": 503} if what == "status" else {}
    lost = Fault(what, operation="put", key="table_lock.json", nth=2, **code)  # type: ignore[arg-type]
    faulty = Faulty(FaultPlan((lost,)))
    store = open_store("s3://lake/orders", endpoint=emulator.s3, faults=faulty)
    shown = put(store, dead())
    run(take_over(look(store), shown=shown, epoch=None, by="me"), store, CLOCK)
    assert (stands(store).expired, stands(store).epoch) == (True, 8)


def test_the_last_epoch_leaves_a_record_that_can_be_read(store: Store) -> None:
    shown = put(store, dead(epoch=EPOCH_MAX - 1))
    run(take_over(look(store), shown=shown, epoch=None, by="me"), store, CLOCK)
    assert stands(store).expired


def test_no_lock_is_broken_if_it_has_no_holder(url: str) -> None:
    assert command(url, "--version", "x") == 0


def test_a_body_that_is_not_a_record_is_replaced_by_a_tombstone_once_it_was_shown(
    url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = store.put(LOCK_KEY, b"not ours", IfAbsent())
    assert isinstance(answer, Applied)
    assert command(url) == 0
    assert command(url, "--version", answer.version, "--epoch", "0") == 75
    assert command(url, "--version", "another") == 75
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    assert found.body == b"not ours"
    line = capsys.readouterr().out.partition("break it: ")[2].splitlines()[0]
    assert command(*shlex.split(line)[3:]) == 0
    assert stands(store).expired
    with Lock(url, ttl_s=30, acquire_timeout=10) as lock:
        assert lock.fence.epoch == stands(store).epoch > 0


def test_the_tombstone_over_an_invalid_record_has_an_epoch_above_the_fence(
    url: str, store: Store
) -> None:
    new_table(f"{url}-t", TableConfig(name="t", record_key="id"))
    with Table(f"{url}-t") as table:
        committed = [table.append(pa.table({"id": [str(n)]})) for n in range(3)][-1]
    store = open_store(f"{url}-t")
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    answer = store.put(LOCK_KEY, b"{", over(found.version))
    assert isinstance(answer, Applied)
    assert command(f"{url}-t", "--version", answer.version) == 0
    assert stands(store).epoch > committed.epoch
    with Table(f"{url}-t") as table:
        assert table.append(pa.table({"id": ["x"]})).epoch > stands(store).epoch - 1


def test_the_tombstone_over_an_invalid_record_has_an_epoch_above_every_old_version() -> None:
    store = open_store("memory://break/versions")
    version = put(store, replace(dead(), epoch=41))
    answer = store.put(LOCK_KEY, b"{", over(version))
    assert isinstance(answer, Applied)
    known, source = highest_epoch(store)
    assert (known, source) == (41, "an old version of the lock object")
    plan = planned(look(store), by="me", wall_ms=CLOCK.wall_ms(), known=known)
    assert plan.tombstone.epoch > 41
    assert not plan.refused


def garble(store: Store) -> str:
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    answer = store.put(LOCK_KEY, b"<html>", over(found.version))
    assert isinstance(answer, Applied)
    return answer.version


def granted(url: str) -> int:
    with Lock(url, ttl_s=30, acquire_timeout=10) as lock:
        return lock.fence.epoch


def test_no_epoch_is_granted_twice_although_the_lock_object_is_garbled_twice(
    url: str, store: Store
) -> None:
    """Files keep no old versions, and here is no fence: only the logs of breaks and the time."""
    epochs = [granted(url) for _ in range(3)]
    for _ in range(2):
        assert command(url, "--version", garble(store)) == 0
        epochs += [granted(url), granted(url)]
    assert epochs == sorted(set(epochs))


def test_a_garbled_lock_with_a_high_old_epoch_continues_above_it(url: str, store: Store) -> None:
    put(store, replace(dead(epoch=50_000), expired=True))
    last = granted(url)
    assert command(url, "--version", garble(store)) == 0
    assert granted(url) > last


def test_the_log_of_a_break_is_evidence_also_where_the_clock_is_wrong(store: Store) -> None:
    log = {"written": 10**15, "epoch": 3}
    store.put(f"{BREAKS}1_x.json", json.dumps(log).encode(), IfAbsent())
    put(store, dead())
    garble(store)
    known, source = highest_epoch(store)
    assert (known, source) == (10**15, "the log of an earlier break")
    assert planned(look(store), by="me", wall_ms=5, known=known).tombstone.epoch > 10**15


@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 60_000, b"[7]", b'{"written":true}', b'{"written":"9"}', b'{"written":1e300}',
     b'{"written":-7}', json.dumps({"written": EPOCH_MAX - 2}).encode(),
     b'{"written":7' + b" " * 70_000 + b"}"],
)  # fmt: skip
def test_a_foreign_log_file_of_breaks_closes_no_lock(store: Store, body: bytes) -> None:
    store.put(f"{BREAKS}1_x.json", body, IfAbsent())
    assert highest_epoch(store)[0] == 0


def test_only_the_newest_logs_of_breaks_are_read(store: Store) -> None:
    for number in range(105):
        log = json.dumps({"written": 1_000 - number}).encode()
        store.put(f"{BREAKS}{1_000 + number}_x.json", log, IfAbsent())
    assert highest_epoch(store)[0] == 1_000 - 5


@pytest.mark.parametrize("fence", [b'{"epoch":5000,"ins', b'{"format":99,"epoch":5000}'])
def test_an_unreadable_fence_does_not_count_as_missing(store: Store, fence: bytes) -> None:
    store.put(".hoodie/.locks/fence.json", fence, IfAbsent())
    put(store, dead(epoch=0))
    known, source = highest_epoch(store)
    assert "the fence could not be read" in source
    now_ms = CLOCK.wall_ms()
    assert planned(look(store), by="me", wall_ms=now_ms, known=known).tombstone.epoch >= now_ms
    garble(store)
    assert planned(look(store), by="me", wall_ms=now_ms, known=known).tombstone.epoch >= now_ms


def test_a_forged_epoch_that_leaves_no_room_is_not_followed(url: str, store: Store) -> None:
    shown = put(store, dead(epoch=EPOCH_MAX - 1))
    assert command(url, "--version", shown) == 0
    assert granted(url) + 1 == granted(url)


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("epoch", [2**62, EPOCH_MAX - 1, EPOCH_MAX, 10**30])
def test_an_epoch_that_leaves_no_room_is_not_granted_after_until_it_is_broken(
    url: str, store: Store, epoch: int, expired: bool
) -> None:
    """The next grant's record could not be read by anybody, its own holder included."""
    put(store, replace(dead(epoch=epoch), expired=expired))
    before = store.get(LOCK_KEY)
    with closing(Lock(url, ttl_s=30)) as lock:
        with pytest.warns(UnexpectedRecord, match=f"{epoch}.*leaves no room.*lock break"):
            assert not lock.acquire(timeout=0)
    after = store.get(LOCK_KEY)
    assert isinstance(before, Found) and isinstance(after, Found)
    assert after.version == before.version, "nothing was written"
    assert command(url, "--version", before.version) == 0
    assert 0 < stands(store).epoch < 2**60
    assert granted(url) + 1 == granted(url)


def test_an_epoch_that_leaves_no_room_is_nothing_to_rise_above(url: str) -> None:
    with Lock(url, ttl_s=30, acquire_timeout=10) as lock:
        for epoch in (2**62, EPOCH_MAX - 1, EPOCH_MAX):
            with pytest.raises(ValueError, match=r"leaves no room.*repair-fence"):
                lock.rise_above(epoch)
        assert lock.fence.epoch == 1
    assert granted(url) == 2


def test_a_lock_of_hudis_that_is_broken_on_a_fenced_table_gets_an_epoch_above_the_fence(
    store: Store,
) -> None:
    put(store, dead(epoch=0))
    plan = planned(look(store), by="me", wall_ms=CLOCK.wall_ms(), known=20)
    assert plan.tombstone.epoch > 20


def test_a_hostile_record_reaches_neither_the_terminal_nor_the_shell(
    url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, replace(dead(), owner="\x1b]0;owned\x07", holder="$(rm -rf /)\n\x1b[2J"))
    assert command(url) == 0
    said = capsys.readouterr().out
    assert all(each.isprintable() for each in said.replace("\n", ""))


def test_the_command_reads_an_epoch_only_with_what_was_shown(
    url: str,
) -> None:
    assert command(url, "--epoch", "1") == 64
    assert main(["lock", "break", url, "--watch-s", "-1"]) == 64


@pytest.mark.parametrize("commit", ["group", "serial"])
def test_a_free_lock_is_shown_with_what_it_is_for_if_commits_take_none(
    commit: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Table.create(url, record_key="id", commit=commit).close()
    said = "the table's commits take no lock (group commit)"
    for command in (["lock", "show", url], ["incident", url, "--watch-s", "0"]):
        assert main(command) == 0
        assert (said in capsys.readouterr().out) == (commit == "group"), command
    main(["lock", "show", url, "--json"])
    assert json.loads(capsys.readouterr().out).get("commit", "serial") == commit
