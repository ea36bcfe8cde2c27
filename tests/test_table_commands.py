"""`lockkit table`: what it shows, what it does and what it refuses; Ctrl-C leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table_history import add, publish
from table_world import CLOCK, Holder, new_table, prepare_inserts, prepare_upserts, rows

from lockkit.cli.main import main
from lockkit.clock import process_name
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.protocol.record import Record, decode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import FENCE_KEY, Prepared, Table, commit, load_snapshot, read_table
from lockkit.table.format.plans import (
    OURS,
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    format_cluster_plan,
)
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import V6, Timeline, load_timeline
from lockkit.table.occ.commit import decide
from lockkit.table.occ.condition import ReaderHeldBack
from lockkit.table.occ.heartbeat import Heartbeat

ROOT = Path(__file__).parents[1]
NAMES = count()
HUDIS, OLD = "20250101000000000", "20250101000000001"


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def url() -> str:
    return f"s3://lake/commands-{next(NAMES)}"


@pytest.fixture
def store(server: Emulator, url: str) -> Store:
    return new_table(url, endpoint=server.s3)


@pytest.fixture
def dead(store: Store) -> Prepared:
    """What a writer left whose heartbeat is over."""
    left = prepare_inserts(store, rows([90]))
    with Heartbeat(left.instant, store, clock=CLOCK):
        return left


def timeline(store: Store) -> Timeline:
    return run(load_timeline(V6), store, CLOCK)


def updated(store: Store, times: int) -> None:
    add(store, 0)
    for amount in range(1, times):
        publish(store, prepare_upserts(store, rows([0], amount=amount)))


def data_files(store: Store) -> int:
    return sum(each.key.endswith(".parquet") for each in store.list(""))


def table(server: Emulator, verb: str, url: str, *more: str) -> int:
    return main(["table", verb, url, "--endpoint", server.s3, *more])


# --- show ----------------------------------------------------------------------------------------


def test_show_lists_pending_instants_and_exits_1_for_a_dead_writers_leftovers(
    server: Emulator, url: str, store: Store, dead: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = prepare_inserts(store, rows([1]))
    done = add(store, 0)
    with Heartbeat(lives.instant, store, clock=CLOCK):
        assert table(server, "show", url) == 1
        shown = capsys.readouterr().out
        assert table(server, "show", url, "--json") == 1
    assert "fenced, version 6" in shown and f"{done} was committed last, epoch 1" in shown
    left, held = [each for each in shown.splitlines() if dead.instant in each]
    assert held.startswith("incremental readers are held back since 20")
    assert f"by instant {dead.instant} (writer dead: no heartbeat since 20" in held
    again = f"lockkit table rollback {url} --endpoint {server.s3} "
    assert again in held and f" --instant {dead.instant}" in held
    assert "gave up, or was ended" in left
    (busy,) = [each for each in shown.splitlines() if lives.instant in each]
    assert f"lives ({process_name()}), last beat" in busy
    printed = json.loads(capsys.readouterr().out)
    assert {each["instant"]: each["lives"] for each in printed["pending"]} == {
        dead.instant: False, lives.instant: True,
    }  # fmt: skip
    assert printed["newest"] == [{"instant": done, "action": "commit", "completion": None}]
    held_back = printed["held_back"]
    assert (held_back["instant"], held_back["alive"]) == (dead.instant, False)
    assert held_back["waiting"] == 1 and held_back["last_beat"] is not None
    assert held_back["text"] in held


def test_a_delayed_stream_warns_once_for_each_state_of_the_pending_writer(
    server: Emulator, url: str, store: Store
) -> None:
    """By a warning, which Python prints: Spark's process for streams shows no log records."""
    pytest.importorskip("pyspark.sql.datasource")
    from lockkit.spark.place import TableAddress
    from lockkit.spark.source import StreamReader

    stream = StreamReader(TableAddress(url, server.s3, "", {}), {}, None)
    first = add(store, 0)
    slow = prepare_inserts(store, rows([1]))
    with pytest.warns(ReaderHeldBack) as printed:
        with Heartbeat(slow.instant, store, clock=CLOCK):
            later = add(store, 2)
            for _ in range(3):
                assert stream.latestOffset({"at": ""}, None) == {"at": first}
        for _ in range(3):
            assert stream.latestOffset({"at": first}, None) == {"at": first}
        publish(store, slow)
        assert stream.latestOffset({"at": first}, None) == {"at": later}
    alive, dead, free = (str(each.message) for each in printed)
    assert f"the stream of {url} is held back since 20" in alive and "writer alive" in alive
    assert f"by instant {slow.instant}" in alive and "writer dead: no heartbeat since" in dead
    assert f"lockkit table rollback {url} --instant {slow.instant}" in dead
    assert free == f"the stream of {url} is no longer held back"


def test_a_clustering_planned_by_hudi_is_executed_only_by_hudi(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, 0)
    (of,) = run(load_snapshot(), store, CLOCK).slices
    group = ClusteringGroup((ClusteringInput(of.partition, of.file_id, of.path),))
    for instant, params in ((HUDIS, {}), (OLD, {OURS: "cluster"})):
        body = format_cluster_plan(ReplacePlan((group,), params))
        store.put(V6.requested(instant, "replacecommit"), body, IfAbsent())
    with Heartbeat(OLD, store, clock=CLOCK):
        pass  # it is over, as if it had expired
    assert table(server, "rollback", url, "--instant", HUDIS) == 75
    assert table(server, "rollback", url) == 0
    assert set(timeline(store).pending) == {HUDIS}
    capsys.readouterr()
    assert table(server, "show", url) == 0
    assert "the process that planned it carries it out" in capsys.readouterr().out


def test_show_exits_0_without_leftovers_and_3_without_a_table(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(server, "show", url) == 0
    assert "no instants yet" in capsys.readouterr().out
    assert table(server, "show", url + "-other") == 3
    assert "hoodie.properties" in capsys.readouterr().err
    add(store, 0)
    assert table(server, "show", url, "--newest", "0") == 0
    assert "no instants yet" not in capsys.readouterr().out


# --- clean and cluster ----------------------------------------------------------------------------


def test_a_dry_clean_lists_what_the_clean_then_deletes(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    updated(store, 6)
    assert table(server, "clean", url, "--commits", "2", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)["would_be_deleted"]
    assert len(planned) == 3 and data_files(store) == 6
    assert table(server, "clean", url, "--commits", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == planned
    assert data_files(store) == 3
    assert table(server, "clean", url, "--commits", "0") == 64
    assert "hoodie.clean.commits.retained" in capsys.readouterr().err


def test_cluster_joins_small_files_and_reports_it(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in range(4):
        add(store, each)
    assert table(server, "cluster", url, "--dry-run") == 0
    assert "4 files would be rewritten" in capsys.readouterr().out
    assert len(timeline(store).commits) == 4
    assert table(server, "cluster", url) == 0
    assert "4 file groups became 1" in capsys.readouterr().out
    assert read_table(store).num_rows == 4
    assert table(server, "cluster", url) == 0
    assert "nothing to do: no partition" in capsys.readouterr().out


# --- rollback ------------------------------------------------------------------------------------


def test_rollback_removes_dead_writers_instants_and_no_living_ones(
    server: Emulator, url: str, store: Store, dead: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = prepare_inserts(store, rows([1]))
    with Heartbeat(lives.instant, store, clock=CLOCK):
        assert table(server, "rollback", url, "--instant", lives.instant) == 75
        refused = capsys.readouterr().err
        assert f"its writer lives ({process_name()}), last beat" in refused
        assert table(server, "rollback", url, "--dry-run") == 0
        assert dead.instant in (said := capsys.readouterr().out) and lives.instant not in said
        assert set(timeline(store).pending) == {dead.instant, lives.instant}
        assert table(server, "rollback", url) == 0
        assert f"{dead.instant} is rolled back: 1 files deleted" in capsys.readouterr().out
        assert set(timeline(store).pending) == {lives.instant}
        publish(store, lives)
    for instant, why in ((lives.instant, "completed commit"), ("20250101000000000", "not on the")):
        assert table(server, "rollback", url, "--instant", instant) == 3
        assert why in capsys.readouterr().err
    assert table(server, "rollback", url, "--instant", "\x1b[2J") == 3
    assert "\x1b" not in capsys.readouterr().err


def test_a_busy_lock_is_reported_with_its_own_exit_code(
    server: Emulator, url: str, store: Store, dead: Prepared,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from lockkit.cli import upkeep
    from lockkit.lock.handle import Lock

    monkeypatch.setattr(upkeep, "LOCK_TIMEOUT_S", 0.5)
    with Lock(url, endpoint=server.s3, ttl_s=60, client="nightly-job"):
        assert table(server, "rollback", url, "--instant", dead.instant) == 75
    assert "nightly-job" in capsys.readouterr().err
    assert dead.instant in timeline(store).pending


# --- Ctrl-C --------------------------------------------------------------------------------------


def interrupted(*arguments: str, ready: str) -> str:
    """Everything that the command said; it got Ctrl-C once it said `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lockkit", "table", *arguments], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ),
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if ready in line:
            process.send_signal(signal.SIGINT)
            ready = "\0"
    assert process.wait(60) == 130, said
    assert "Traceback" not in said
    return said


def lock_is_free(store: Store) -> bool:
    match store.get(LOCK_KEY):
        case Found(body, _):
            record = decode(body)
            return isinstance(record, Record) and record.expired
        case _:
            return True


def test_ctrl_c_of_a_clean_leaves_a_plan_that_the_next_clean_finishes(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    updated(store, 6)
    with Proxy(server.s3) as proxy:
        each = {"when": "before", "operation": "delete", "key": "*.parquet", "next": "every"}
        proxy.inject(Fault("hang", **each))
        how = ("--endpoint", proxy.url, "--timeout-s", "1", "--commits", "1")
        said = interrupted("clean", url, *how, ready="deleting 4 files")
    assert "the next clean deletes the files" in said
    assert data_files(store) == 6 and "clean" in timeline(store).pending.values()
    assert table(server, "clean", url, "--commits", "1") == 0
    assert "4 files deleted" in capsys.readouterr().out
    assert data_files(store) == 2 and not timeline(store).pending
    assert lock_is_free(store)


def test_ctrl_c_rolls_back_a_clustering(server: Emulator, url: str, store: Store) -> None:
    for each in range(4):
        add(store, each)
    with Proxy(server.s3) as proxy:
        proxy.inject(Fault("hang", when="before", operation="get", key="*.parquet"))
        how = ("--endpoint", proxy.url, "--timeout-s", "1")
        said = interrupted("cluster", url, *how, ready="rewriting 4 file groups")
    assert "taking the clustering back" in said
    assert not timeline(store).pending and data_files(store) == 4
    assert not store.list(".hoodie/.heartbeat/") and lock_is_free(store)


def test_services_of_another_process_serve_until_ctrl_c(
    server: Emulator, url: str, store: Store, dead: Prepared
) -> None:
    for each in range(5):
        add(store, each)
    options = ("--set", "hoodie.clustering.inline=true", "--every-s", "600")
    said = interrupted("services", url, "--endpoint", server.s3, *options, ready="served:")
    assert "1 writers rolled back" in said and "5 groups joined" in said
    assert not timeline(store).pending and lock_is_free(store)
    assert len(run(load_snapshot(), store, CLOCK).slices) == 1
    assert read_table(open_store(url, endpoint=server.s3)).num_rows == 5
    taken = [each for each in server.requests() if each["key"].endswith(f"{url[10:]}/{LOCK_KEY}")]
    assert any("lockkit-table" in str(each["client"]) for each in taken)


def test_text_from_a_bucket_cannot_control_the_terminal(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ".hoodie/hoodie.properties"
    found = store.get(key)
    assert isinstance(found, Found)
    store.delete(key)
    store.put(key, found.body.replace(b"=orders", b"=or\x1b[2Jders"), IfAbsent())
    assert table(server, "show", url) == 3
    assert "\x1b" not in capsys.readouterr().err


# --- the fence ----------------------------------------------------------------------------------


def test_a_service_commits_after_the_lock_object_was_deleted(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in range(4):
        run(commit(prepare_inserts(store, rows([each])), Holder(20 + each)), store, CLOCK)
    store.delete(LOCK_KEY)
    assert table(server, "cluster", url) == 0
    assert "4 file groups became 1" in capsys.readouterr().out


def test_a_broken_fence_is_shown_first_and_repaired_by_yes(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, 0)
    late = run(decide(prepare_inserts(store, rows([1])), Holder(2)), store, CLOCK)
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    store.put(FENCE_KEY, found.body[:-1], IfVersion(found.version))
    assert table(server, "repair-fence", url) == 0
    said = capsys.readouterr().out
    assert f"would make   {late.prepared.instant} visible" in said
    assert "add --yes" in said
    there = store.get(FENCE_KEY)
    assert isinstance(there, Found) and there.body == found.body[:-1]
    assert table(server, "repair-fence", url, "--yes") == 0
    assert f"repaired; {late.prepared.instant} is visible now" in capsys.readouterr().out
    assert sorted(read_table(store).column("id").to_pylist()) == ["k0", "k1"]
    assert table(server, "repair-fence", url, "--yes") == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_a_mode_is_switched_by_yes(
    server: Emulator, url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, 0)
    assert table(server, "mode", url, "hudi") == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert run(load_config(), store, CLOCK)[0].mode == "fenced"
    assert table(server, "mode", url, "hudi", "--yes") == 0
    assert run(load_config(), store, CLOCK)[0].mode == "hudi"
    run(commit(prepare_inserts(store, rows([1])), Holder(8)), store, CLOCK)
    assert table(server, "mode", url, "fenced", "--yes") == 0
    table(server, "show", url)
    assert "opened or repaired, and nothing was decided since" in capsys.readouterr().out
    run(commit(prepare_inserts(store, rows([2])), Holder(9)), store, CLOCK)
    assert sorted(read_table(store).column("id").to_pylist()) == ["k0", "k1", "k2"]


@pytest.mark.parametrize(("kind", "twice"), [
    ({"mode": "fenced"}, set()), ({"mode": "hudi"}, set()), ({"mode": "hudi", "version": 6}, set()),
    # It shows what is decided, and then waits until that is published.
    ({}, {"get .hoodie/.locks/fence.json", "list .hoodie/timeline/2"}),
    ({"table_type": "MERGE_ON_READ", "mode": "fenced"}, set()),
    # A clean between two listings would make that of the folders too old.
    ({"table_type": "MERGE_ON_READ", "mode": "hudi", "index": "BUCKET", "version": 6},
     {"list .hoodie/2"}),
], ids=["fenced", "version 9", "version 6", "group", "merged", "merged, version 6"])  # fmt: skip
def test_what_is_shown_and_a_second_read_ask_for_each_object_once(
    server: Emulator, url: str, kind: dict[str, Any], twice: set[str]
) -> None:
    url = f"{url}-once"
    folder = url.removeprefix("s3://").partition("/")[2] + "/"

    def repeated(since: int) -> set[str]:
        sent = [f"{each['method']} {each['key'].removeprefix(folder)}"
                for each in server.requests(since)]  # fmt: skip
        return {each for each in sent if sent.count(each) > 1}

    with Table.create(url, record_key="id", buckets=1, endpoint=server.s3, **kind) as made:
        for v in range(3):
            made.upsert(pa.table({"id": ["a"], "v": [v]}))
    since = len(server.requests())
    assert table(server, "show", url) == 0
    assert repeated(since) == twice
    with Table(url, endpoint=server.s3) as reader:
        reader.read()
        since = len(server.requests())
        assert reader.read()["v"].to_pylist() == [2]
        assert repeated(since) == (twice if kind.get("version") == 6 else set())
