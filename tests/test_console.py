"""The incident console without a browser: looking reads, breaking is guarded, text stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lock_world import stands

from lockkit import Lock, LockLost
from lockkit.errors import BreakRefused
from lockkit.events import Event
from lockkit.lab.course.table_trouble import URL, TroubledTable
from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.dropped import NotUnderstood
from lockkit.lab.incident.patterns import NOT_SIMULATED, PRESENT, SIMULATED, Pattern
from lockkit.lab.incident.present import with_present
from lockkit.lab.server import Emulator
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, over
from lockkit.protocol.record import Record, encode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table.inspect.standing import stand, watch
from lockkit.table.inspect.takeover import BREAKS

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from table_world import CLOCK

from lockkit.lab.widgets import Console
from lockkit.lab.widgets.console.html import card_html
from lockkit.lab.widgets.console.picture import labels, picture
from lockkit.lab.widgets.seeds.moments import SeedMoment, play

ROOT = Path(__file__).parents[1]
INCIDENTS = ROOT / "datasets" / "incidents"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
NOW = datetime(2025, 1, 1, tzinfo=UTC)
READS = {"get", "list", "head"}


@pytest.fixture(scope="module")
def shared_trouble() -> Iterator[TroubledTable]:
    """For those who only read."""
    with closing(TroubledTable()) as place:
        yield place


@pytest.fixture
def trouble() -> Iterator[TroubledTable]:
    with closing(TroubledTable()) as place:
        yield place


@pytest.fixture
def reader(shared_trouble: TroubledTable) -> Console:
    return Console(shared_trouble.url, endpoint=shared_trouble.endpoint, watch_s=0.0)


@pytest.fixture
def console(trouble: TroubledTable) -> Console:
    return Console(trouble.url, endpoint=trouble.endpoint, watch_s=0.0)


@pytest.fixture
def store(trouble: TroubledTable) -> Iterator[Store]:
    with closing(open_store(URL, endpoint=trouble.endpoint)) as store:
        yield store


def said(console: Console) -> str:
    """Everything that the page shows."""
    panel = console.panel
    shown = (panel.status, panel.error, panel.lock, panel.card, panel.plan, panel.generations,
             panel.table, panel.audit, panel.files)  # fmt: skip
    return "".join(each.value for each in shown)


def click(console: Console, button: Any) -> str:
    button.click()
    return done(console)


def done(console: Console) -> str:
    assert console.wait(60)
    return said(console)


def test_inspect_only_reads_and_reports_holder_times_clock_and_next_step(
    reader: Console, shared_trouble: TroubledTable
) -> None:
    console, asked = reader, len(shared_trouble.requests())
    shown = click(console, console.panel.look)
    assert {each["method"] for each in shared_trouble.requests(asked)} <= READS
    for text in ("data-state='held'", "c2a9e4d0-host-9", "epoch 42", "by the store&#x27;s clock",
                 "by this machine&#x27;s clock", "Set the clocks (NTP)", "1 pending",
                 "leftover markers", "WARNING, 1 file,", "has no END"):  # fmt: skip
        assert text in shown, text
    assert "clock skew" in repr(console) and not console.panel.look.disabled
    assert console.panel.error.value == ""


def test_a_click_on_a_line_of_the_evidence_selects_it_in_the_diagram(reader: Console) -> None:
    (console := reader).look()
    first, second = console.panel.evidence.children
    drawn = {each["id"]: each for each in console.panel.lanes.scene["arrows"]}
    second.click()
    assert drawn[console.panel.lanes.selected]["lane"] == "backfill"
    first.click()
    assert drawn[console.panel.lanes.selected]["lane"] == "spark-orders"
    rows = console.panel.lanes.scene["rows"]
    assert [(each["epoch"], each["op"]) for each in rows] == [
        (41, "acquire"), (42, "acquire"), (42, "renew"),
    ]  # fmt: skip


def test_a_break_is_shown_first_needs_the_epoch_while_the_lease_lasts_and_deletes_nothing(
    console: Console, store: Store
) -> None:
    panel = console.panel
    console.look()
    with pytest.raises(BreakRefused, match="dry run first"):
        console.break_lock(42)
    shown = click(console, panel.dry)
    assert "nothing was changed" in shown and "A break is refused now" in shown
    assert panel.break_it.disabled and stands(store).epoch == 42 and not stands(store).expired
    panel.epoch.value = "41"
    assert "it is epoch 42, and not 41" in click(console, panel.break_it)
    assert not stands(store).expired and not store.list(BREAKS)
    click(console, panel.dry)
    panel.epoch.value = "42"
    assert "data-state='released'" in click(console, panel.break_it)
    tombstone = stands(store)
    assert (tombstone.expired, tombstone.epoch) == (True, 43)
    (log,) = store.list(BREAKS)
    found = store.get(log.key)
    assert isinstance(found, Found) and json.loads(found.body)["epoch"] == 42
    assert panel.break_it.disabled


def test_a_lock_written_since_the_dry_run_is_not_broken(console: Console, store: Store) -> None:
    console.look()
    shown = console.dry_run()
    assert shown.version == run(watch(0), store, CLOCK).observation.version
    other = replace(stands(store), owner="another", epoch=43)
    assert isinstance(store.put(LOCK_KEY, encode(other), over(shown.version)), Applied)
    console.panel.epoch.value = "42"
    assert "it is epoch 43, and not 42" in click(console, console.panel.break_it)
    assert stands(store).owner == "another"


def test_a_living_holder_is_seen_to_renew_and_its_lock_is_not_broken(emulator: Emulator) -> None:
    where = {"endpoint": emulator.s3}
    with closing(Lock("s3://lake/live", ttl_s=600, renew_interval_s=60, **where)) as lock:
        lock.acquire(timeout=10)
        console = Console("s3://lake/live", watch_s=30.0, **where)
        messages: list[str] = []

        def renew_while_watched(change: Any) -> None:
            """One renewal in each watch, and none between a watch and the break that follows."""
            messages.append(change["new"])
            if "watching whether" in change["new"] and lock.owned():
                lock.renew()

        console.panel.status.observe(renew_while_watched, "value")
        console.look()  # for as long as it takes to see a renewal
        assert any("watching whether it is renewed: 0 of 30 s" in each for each in messages)
        assert "held, and renewed" in console.panel.lock.value
        assert "its holder renews it" in console.dry_run().refused
        assert console.panel.break_it.disabled and lock.owned()
        console.break_lock(lock.fence.epoch)
        with pytest.raises(LockLost):
            lock.renew()


def test_a_look_without_a_url_uses_one_demonstration_table_throughout() -> None:
    console = Console(demo=TroubledTable, watch_s=0.0)
    first = console.look()
    assert first.diagnosis.pattern is Pattern.CLOCK_SKEW
    console.dry_run()
    console.break_lock(42)
    assert console.look().standing.holder.state == "released"
    empty = Console()
    assert "no table is named" in click(empty, empty.panel.look)


def test_files_are_read_without_the_demos_table_and_beside_ones_own(
    reader: Console, tmp_path: Path
) -> None:
    """A refused file takes what the files before it showed off the card."""
    recorded = INCIDENTS / "hudi-14373-renewal-retried.jsonl"
    (wrong := tmp_path / "holiday.txt").write_text("no history")
    also, skew = Pattern.FALSE_412.value, Pattern.CLOCK_SKEW.value
    demo = Console(demo=TroubledTable, watch_s=0.0)
    demo.look()
    assert demo.read(recorded).pattern == also and demo.found is None
    assert also in said(demo) and skew not in said(demo)
    assert "No table was inspected" in said(demo)
    with pytest.raises(ValueError, match="press Look first"):
        demo.dry_run()
    assert demo.look().diagnosis.pattern == skew
    assert also not in said(demo), "no file belongs to the demo's table"
    reader.look()
    reader.read(recorded)
    assert f"{reader._at[0]}, with {recorded.name}: " in said(reader)
    assert also in said(reader) and skew in said(reader)
    with pytest.raises(NotUnderstood):
        reader.read(wrong)
    assert skew in said(reader) and also not in said(reader)


def test_a_path_with_spaces_is_read_alone_and_in_quotes_beside_others(
    reader: Console, tmp_path: Path
) -> None:
    log = (INCIDENTS / "logs" / "azure-renewal-retried.log").read_bytes()
    (folder := tmp_path / "my logs").mkdir()
    for name in ("W1.log", "W2.log"):
        (folder / name).write_bytes(log)
    for typed in (f"{folder}/W1.log", f"'{folder}/W1.log' '{folder}/W2.log'", f"{folder}/W*.log"):
        reader.panel.paths.value = typed
        click(reader, reader.panel.read)
        assert not reader.panel.error.value, typed


def test_files_that_are_dropped_in_are_drawn_and_named_alone_and_beside_a_table(
    reader: Console,
) -> None:
    console = reader
    log = (INCIDENTS / "logs" / "azure-renewal-retried.log").read_bytes()
    alone = Console()
    alone.panel.upload.value = ({"name": "W1.log", "type": "", "size": len(log),
                                 "last_modified": NOW, "content": memoryview(log)},)  # fmt: skip
    assert Pattern.FALSE_412 in done(alone)
    assert alone.panel.breaking.layout.display == "none"
    assert alone.panel.asking.layout.display == "none" and alone.panel.folds.titles == ("Files",)
    alone.panel.again.click()
    assert alone.panel.asking.layout.display != "none", "other files are one click away"
    name = INCIDENTS / "hudi-20027-*.jsonl"
    alone.panel.paths.value = str(name)
    assert Pattern.DANGLING in click(alone, alone.panel.read)
    assert alone.panel.lanes.scene["arrows"]
    assert alone.panel.lock.layout.display == "none", "the card has its place"
    assert alone.panel.card.layout.display != "none"
    console.look()
    assert console.panel.lock.layout.display != "none" and len(console.panel.folds.titles) == 4
    console.read(str(name))
    assert console.found is not None and console.found.evidence.taken
    assert "a recorded history" in console.panel.files.value


def test_a_folder_among_dropped_files_is_an_error_each_time_and_clears_the_card() -> None:
    console = Console()
    console.read(str(INCIDENTS / "logs" / "azure-renewal-retried.log"))
    log = {"name": "W1.log", "content": memoryview(b"{}")}
    for number in range(2):
        folder = {"name": "logs", "content": None, "number": number}
        console.panel.upload.value = [log, folder]
        assert console.wait(20)
        assert "logs could not be read; drop in files, not folders" in console.panel.error.value
        assert console.panel.card.value == "" and console.diagnosis is None
        console.panel.error.value = ""


@pytest.mark.parametrize(
    ("url", "error"),
    [("ftp://x/y", "no store has the scheme"), ("s3://", "it names no bucket"),
     ("az://c/t?sig=pLaNtEd", "carries a password or a signature"), ("file:///nowhere/at/all", "")],
)  # fmt: skip
def test_an_error_is_a_red_bar_with_the_cause_and_the_next_step(url: str, error: str) -> None:
    console = Console(url, watch_s=0.0)
    shown = click(console, console.panel.look)
    assert error in shown and "pLaNtEd" not in shown and "traceback" not in shown
    assert bool(console.panel.error.value) is bool(error)
    assert not console.panel.look.disabled


def test_a_file_that_is_not_evidence_is_refused_and_the_picture_stays(
    reader: Console, tmp_path: Path
) -> None:
    (console := reader).look()
    (wrong := tmp_path / "holiday.txt").write_text(HOSTILE)
    console.panel.paths.value = str(wrong)
    shown = click(console, console.panel.read)
    assert "holiday.txt is none of these" in shown and "clock skew" in shown
    console.panel.paths.value = str(tmp_path / "none.jsonl")
    assert "No such file" in click(console, console.panel.read)
    odd = Event(1.0, "W1", "held", {"epoch": [], "until_ms": [], "version": 4})
    assert console.diagnosis is not None, "the table was looked at, and still is as it was"
    alone = Console()
    for name, why in (("", "no file is named"), (str(tmp_path / "none.jsonl"), "No such file")):
        with pytest.raises(NotUnderstood, match=why):
            alone.read(name)
    alone.read(str(INCIDENTS / "hudi-20027-*.jsonl"))
    for path in (wrong, tmp_path / "none.jsonl"):
        alone.panel.paths.value = str(path)
        shown = click(alone, alone.panel.read)
        assert path.name in shown and Pattern.DANGLING not in shown
        assert alone.diagnosis is None and alone.panel.body.layout.display == "none"
    (damaged := tmp_path / "damaged.jsonl").write_text(odd.to_json() + "\n")
    console.panel.paths.value = str(damaged)
    assert "the history is damaged" in click(console, console.panel.read)


def test_a_hostile_lock_file_log_or_history_is_text_in_the_page(
    console: Console, store: Store, tmp_path: Path
) -> None:
    before = store.get(LOCK_KEY)
    assert isinstance(before, Found)
    evil = replace(stands(store), owner=HOSTILE, holder=f"{HOSTILE}\x1b[31m", attempt=HOSTILE)
    version = store.put(LOCK_KEY, encode(evil), over(before.version))
    assert isinstance(version, Applied)
    store.delete(LOCK_KEY)
    store.put(LOCK_KEY, encode(evil), over(None))
    line = {"ownerId": HOSTILE, "state": "START", "timestamp": 1, "lockExpiration": 2}
    store.put(f".hoodie/.locks/audit/1_{HOSTILE[:8]}.jsonl", json.dumps(line).encode(), over(None))
    log = (INCIDENTS / "logs" / "botocore-claim-retried.log").read_text()
    (file := tmp_path / f"{HOSTILE[:4]}.log").write_text(log.replace("/lake/orders", f"/{HOSTILE}"))
    console.look()
    console.read(str(file))
    console.dry_run()
    shown = said(console)
    assert "&lt;img" in shown and "<img" not in shown and "\x1b" not in shown
    assert all(each.description.isprintable() for each in console.panel.evidence.children)


def test_lanes_are_named_by_what_distinguishes_them() -> None:
    uuids = ["7f3c0b1e-0000-4000-8000-000000000000", "c2a9e4d0-0000-4000-8000-000000000000"]
    assert labels(uuids) == {uuids[0]: "7f3c0b1e-000…", uuids[1]: "c2a9e4d0-000…"}
    assert labels(["host-4/1/writer", "host-5/1/writer", "W1"]) == {}
    assert labels(["host-4/1/writer"]) == {"host-4/1/writer": "writer"}


def test_a_client_that_only_the_bucket_shows_holds_the_lock_in_its_lane_as_in_the_verdict() -> None:
    console = Console(demo=TroubledTable, watch_s=0.0)
    assert console.look().standing.holder.observation.record.holder.endswith("/backfill")
    lanes = {each["id"]: each["state"] for each in console.panel.lanes.scene["lanes"]}
    assert [who for who, state in lanes.items() if state == "holds"] == ["backfill"]


def test_a_client_that_waits_for_the_lock_that_it_owns_waits_for_itself() -> None:
    console = Console()
    console.read(str(INCIDENTS / "opentofu-4405-lock-against-itself.jsonl"))
    lanes = {each["id"]: each["state"] for each in console.panel.lanes.scene["lanes"]}
    assert lanes["W1"] == "waits for itself"


def test_every_recorded_incident_is_drawn_with_its_evidence() -> None:
    for path in [*INCIDENTS.glob("*.jsonl"), *(INCIDENTS / "logs").glob("*.log")]:
        console = Console()
        found = console.read(str(path))
        spots = picture(console.events, found.evidence).spots
        assert not found.evidence or any(spots), path
        assert set(filter(None, spots)) <= {
            each["id"] for part in ("arrows", "bars", "marks")
            for each in console.panel.lanes.scene[part]
        }  # fmt: skip


@pytest.mark.parametrize("pattern", SIMULATED)
def test_a_simulated_run_that_is_named_for_a_pattern_shows_that_pattern(pattern: Pattern) -> None:
    world = play(SeedMoment.of(SIMULATED[pattern])).run.world
    events, world.until = world.history(), None
    found = diagnose(events)
    if pattern in PRESENT:
        found = with_present(found, world.run(stand(watch_s=0.0)), events)
    also = [each.pattern for each in found.also] if pattern is Pattern.HELD_BACK else []
    assert pattern in (found.pattern, *also)


@pytest.mark.parametrize(("pattern", "last"), [
    (Pattern.HOLDER_DIED, "killed"), (Pattern.HOLDER_SILENT, "stalled"),
])  # fmt: skip
def test_the_holder_in_a_simulated_run_is_dead_or_stalled_as_its_pattern_says(
    pattern: Pattern, last: str
) -> None:
    world = play(SeedMoment.of(SIMULATED[pattern])).run.world
    events, world.until = world.history(), None
    record = world.run(stand(watch_s=0.0)).holder.observation.record
    assert isinstance(record, Record)
    own = [each.kind for each in events if each.who == record.holder]
    assert [each for each in own if each in ("stalled", "resumed", "killed", "started")][-1] == last


def test_each_pattern_has_a_simulated_run_or_the_reason_why_it_has_none() -> None:
    assert SIMULATED.keys() | NOT_SIMULATED.keys() == set(Pattern)
    assert not SIMULATED.keys() & NOT_SIMULATED.keys()


def test_a_diagnosis_has_a_link_to_a_simulated_run_of_its_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKKIT_PLAYGROUND", "https://example.org/page.html")
    console = Console()
    console.read(str(INCIDENTS / "hudi-14286-claim-unanswered.jsonl"))
    href = "href='https://example.org/page.html#scenario=lease&amp;seed=5&amp;rule=claim_unknown%20"
    assert href in console.panel.card.value


@pytest.mark.parametrize("pattern", Pattern)
def test_a_card_has_a_simulated_run_or_says_why_there_is_none(
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKKIT_PLAYGROUND", "https://example.org/page.html")
    card = card_html(Diagnosis(pattern, "because"), "s3://lake/orders")
    assert ("href" in card) == (pattern in SIMULATED)
    assert "simulated run" in card


def test_a_cards_sentence_is_as_short_as_the_picture_and_has_all_digits_on_pointing() -> None:
    instant = "20260101000000001"
    card = card_html(Diagnosis(Pattern.UNKNOWN, f"W1 published {instant}"), "s3://lake/orders")
    assert "<p title='W1 published 20260101000000001'>W1 published ..000001</p>" in card
