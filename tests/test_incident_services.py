"""`lockkit incident` and the console at the lock of a service: who has it, and does it live."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from lock_world import until
from process_world import ended_process, named_process

from lockkit import open_lock
from lockkit.cli.main import main
from lockkit.cli.service_lock import holder_fields, holder_lines
from lockkit.clock import Clock, process_name, utc
from lockkit.lab.incident.patterns import CARDS, Pattern
from lockkit.lab.incident.service import _is_unchanged, judge
from lockkit.lab.server import Emulator
from lockkit.providers.filesystem import NAME, FilesystemLock
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.process_state import ProcessState
from lockkit.recipes.terraform.lease import StateLease
from lockkit.recipes.terraform.lockinfo import time_ms

WALL_MS = 1_767_225_600_000.0
ELSEWHERE = "another-host/41@2026-01-01T00:00:00Z"
HELD = ServiceHolder("etl", "v1", "60 s after its last renewal", lease_s=60.0, overdue_s=40.0)


@pytest.fixture
def ended() -> str:
    return ended_process()


def test_terraforms_times_have_up_to_nine_digits() -> None:
    assert time_ms("2026-01-01T00:00:00.123456789Z") == pytest.approx(WALL_MS + 123.456789)
    assert time_ms("2026-01-01T01:00:00+01:00") == WALL_MS
    assert time_ms("yesterday") is None and time_ms("2026-13-01T00:00:00Z") is None


@pytest.mark.parametrize(
    ("change", "watched_s", "pattern", "renews"),
    [
        ({}, 0, Pattern.UNKNOWN, None),
        ({}, 39, Pattern.UNKNOWN, None),
        ({}, 41, Pattern.HOLDER_SILENT, False),
        ({}, 61, Pattern.HOLDER_DIED, False),
        ({"version": "v2"}, 1, Pattern.HEALTHY, True),
        ({"renewed_ms": WALL_MS - 39_000}, 1, Pattern.UNKNOWN, None),
        ({"renewed_ms": WALL_MS - 41_000}, 1, Pattern.HOLDER_SILENT, False),
        ({"renewed_ms": WALL_MS - 61_000}, 1, Pattern.HOLDER_SILENT, False),  # by our clock only
        ({"renewed_ms": 0.0, "now_ms": 61_000.0}, 1, Pattern.HOLDER_DIED, False),
        ({"renewed_ms": WALL_MS - 61_000, "now_ms": WALL_MS - 60_000}, 1, Pattern.UNKNOWN, None),
        ({"lease_s": None, "overdue_s": None}, 1e6, Pattern.UNKNOWN, None),
        ({"kept_alive": "its session lives"}, 59, Pattern.UNKNOWN, None),
        ({"kept_alive": "its session lives"}, 61, Pattern.HEALTHY, True),
        ({"kept_alive": "its session lives", "process": process_name()}, 1, Pattern.HEALTHY, None),
        ({"process": ELSEWHERE}, 41, Pattern.HOLDER_SILENT, False),
        ({"process": process_name()}, 1, Pattern.HEALTHY, None),
        ({"process": process_name()}, 41, Pattern.HOLDER_SILENT, False),
        ({"process": process_name()}, 61, Pattern.HOLDER_SILENT, False),
    ],
)
def test_two_looks_distinguish_a_silent_holder_from_a_healthy_one(
    change: dict[str, object], watched_s: float, pattern: Pattern, renews: bool | None
) -> None:
    first = HELD if change.get("version") else replace(HELD, **change)
    last = replace(HELD, **change)
    found = judge(first, last, watched_ms=watched_s * 1000, wall_ms=WALL_MS)
    assert (found[0], found[1].pattern) == (renews, pattern)


def test_an_ended_process_is_a_dead_holder_whatever_the_service_reports(ended: str) -> None:
    held = replace(HELD, process=ended, kept_alive="its session lives")
    renews, found = judge(held, held, watched_ms=0, wall_ms=WALL_MS)
    assert (renews, found.pattern) == (False, Pattern.HOLDER_DIED)
    assert judge(held, None, watched_ms=0, wall_ms=WALL_MS)[1].because == "the lock is free"


def test_a_stopped_process_is_named_stopped_and_not_healthy_and_is_not_broken() -> None:
    with named_process() as (child, name):
        child.send_signal(signal.SIGSTOP)
        held = replace(HELD, process=name)
        until(lambda: held.process_state is ProcessState.STOPPED, 10)
        for each in (held, replace(held, kept_alive="its session lives")):
            renews, found = judge(each, each, watched_ms=1_000, wall_ms=WALL_MS)
            assert (renews, found.pattern) == (False, Pattern.HOLDER_SILENT)
            assert "it is stopped on this host" in found.because
            assert each.breakable[0] is False and "end it first" in each.breakable[1]


def test_a_container_that_has_this_hosts_name_is_not_called_ended(ended: str) -> None:
    """Its processes are not those of this machine's table."""
    table = ended.partition("~")[2][:8]
    held = replace(HELD, process=ended.replace(table, f"{int(table, 16) ^ 1:08x}"))
    renews, found = judge(held, held, watched_ms=0, wall_ms=WALL_MS)
    assert (renews, found.pattern, held.breakable[0]) == (None, Pattern.UNKNOWN, None)


def test_clients_that_queue_up_do_not_end_a_watch_and_renewals_do() -> None:
    assert _is_unchanged(HELD, replace(HELD, waiting=("other",)))
    assert not _is_unchanged(HELD, replace(HELD, version="v2"))
    assert not _is_unchanged(replace(HELD, renewed_ms=1.0), replace(HELD, renewed_ms=2.0))
    assert not _is_unchanged(HELD, None)


def test_json_of_a_holder_is_bounded_as_its_text_is() -> None:
    said = holder_fields(replace(HELD, owner="o" * 400_000, waiting=("w",) * 3_000))
    assert len(str(said)) < 3_000 and said["waiting_count"] == 3_000


@pytest.mark.parametrize("pattern", [Pattern.HOLDER_DIED, Pattern.HOLDER_SILENT, Pattern.HEALTHY])
def test_a_card_of_a_service_names_no_lock_file(pattern: Pattern) -> None:
    assert "lock file" not in repr(CARDS[pattern])


# --- from end to end, with a lock file and a Terraform state --------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def orphaned(folder: Path, ended: str) -> None:
    """A lock file of a process that has ended."""
    lock = FilesystemLock(folder)
    assert lock.acquire(timeout=0)
    file = folder / NAME
    fields = json.loads(file.read_bytes())
    fields |= {"process": ended, "pid": int(ended.partition("/")[2].partition("@")[0])}
    file.chmod(0o644)
    file.write_text(json.dumps(fields))
    lock.close()


def test_the_command_names_a_dead_holder_and_its_command_breaks_the_lock(
    folder: Path, ended: str, capsys: pytest.CaptureFixture[str]
) -> None:
    orphaned(folder, ended)
    url = f"filesystem://{folder}"
    assert main(["incident", url, "--watch-s", "0"]) == 1
    said = capsys.readouterr().out
    assert "holder died" in said and ended in said and "it ran on this host and has ended" in said
    line = next(each for each in said.splitlines() if each.startswith("run "))
    for _ in range(2):  # the first shows the version, the second breaks it
        assert main(shlex.split(line.partition("lockkit ")[2])) == 0
        line = capsys.readouterr().out.splitlines()[-1]
    assert "broken" in line
    assert main(["incident", url, "--watch-s", "0"]) == 0
    assert "the lock is free" in capsys.readouterr().out


def test_a_holder_that_missed_its_renewals_is_said_to_be_silent_and_by_which_clock() -> None:
    """The exit code alone said so, and a wrong clock of this machine could not be suspected."""
    now_ms = Clock().wall_ms()
    silent = replace(HELD, renewed_ms=now_ms - 50_000)
    assert silent.missed(now_ms) and not replace(silent, renewed_ms=now_ms - 30_000).missed(now_ms)
    (said,) = [line for line in holder_lines(silent) if line.startswith("renews ")]
    assert "no: not renewed for 5" in said and "by this machine's clock, if that is right" in said
    (said,) = [line for line in holder_lines(replace(silent, now_ms=now_ms)) if "renews " in line]
    assert "by the service's clock" in said
    assert "renews  " not in "".join(holder_lines(replace(silent, renewed_ms=now_ms)))
    assert "renews  " not in "".join(holder_lines(replace(silent, kept_alive="its session lives")))


@pytest.mark.parametrize("holder", ["ended", "living"])
def test_an_expired_lock_file_shows_its_holder_and_is_not_free(
    folder: Path, ended: str, holder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine's clock may be ahead, and the holder alive."""
    url = f"filesystem://{folder}?expire_minutes=5"
    with ExitStack() as held:
        if holder == "ended":
            orphaned(folder, ended)
        else:
            held.enter_context(open_lock(url, acquire_timeout=0))
        seen_s = time.time() - 600
        os.utime(folder / NAME, (seen_s, seen_s))
        assert main(["lock", "show", url]) == 1
        said = capsys.readouterr().out
        assert f"overdue since {utc((seen_s + 300) * 1000)[:19]}" in said
        assert "by the file system's clock" in said and "held:" in said
        assert main(["incident", url, "--watch-s", "0"]) == 1
        said = capsys.readouterr().out
        pattern = {"ended": Pattern.HOLDER_DIED, "living": Pattern.HOLDER_SILENT}[holder]
        assert pattern.value in said and "the lock is free" not in said


@pytest.mark.parametrize("query", ["", "?expire_minutes=5"])
def test_a_living_holder_of_a_lock_file_is_judged_by_its_own_lease(
    folder: Path, query: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews every 6 minutes. A person on call types the URL from memory."""
    url = f"filesystem://{folder}"
    with open_lock(f"{url}?expire_minutes=60", acquire_timeout=0):
        seen_s = time.time() - 400
        os.utime(folder / NAME, (seen_s, seen_s))
        monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
        assert main(["lock", "show", url + query]) == 2
        assert "3600 s after its last renewal" in capsys.readouterr().out
        assert main(["incident", url + query, "--watch-s", "0"]) == 2
        with closing(open_lock(url + query)) as other:
            assert not other.acquire(timeout=0)
        seen_s = time.time() - 4_000
        os.utime(folder / NAME, (seen_s, seen_s))
        assert main(["lock", "show", url + query]) == 1


def test_a_clock_that_is_ahead_makes_no_living_holder_of_a_lock_file_a_dead_one(
    folder: Path
) -> None:
    url, ahead = f"filesystem://{folder}?expire_minutes=5", Clock(offset_ms=7_200_000)
    with open_lock(url, acquire_timeout=0), closing(open_lock(url, clock=ahead)) as other:
        assert other.locked()
        found = other.holder()
        assert found is not None and "overdue" not in found.ends
        assert found.silent_ms(ahead.wall_ms()) < 60_000 < other.ttl_s * 1000
        assert [each.name for each in folder.iterdir()] == [NAME]


def test_a_clock_that_is_behind_hides_no_dead_holder_of_a_lock_file(
    folder: Path, ended: str
) -> None:
    url, behind = f"filesystem://{folder}?expire_minutes=1", Clock(offset_ms=-7_200_000)
    orphaned(folder, ended.replace("/", "-of-another-host/", 1))
    seen_s = time.time() - 300
    os.utime(folder / NAME, (seen_s, seen_s))
    with closing(open_lock(url, clock=behind)) as other:
        found = other.holder()
        assert found is not None and "overdue since" in found.ends and found.breakable[0]
        assert not other.locked() and other.acquire(timeout=5)


def test_a_living_holder_is_healthy_and_the_same_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"filesystem://{folder}"
    with open_lock(url, acquire_timeout=0):
        assert main(["incident", url, "--watch-s", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["process"] == process_name() and found["process_lives"] is True
    assert found["diagnosis"]["pattern"] == "healthy" and found["command"].endswith(url)


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


def test_the_lock_of_a_terraform_state_is_shown_judged_and_broken(
    server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    url, at = "s3://states/ops/terraform.tfstate", ["--endpoint", server.s3]
    lease = StateLease(url, ttl_s=60, store_options={"endpoint": server.s3})
    assert lease.acquire(timeout=5)
    assert main(["lock", "show", url, *at]) == 0
    said = capsys.readouterr().out
    assert process_name() in said and "60 s after its last renewal" in said and "since" in said
    assert main(["incident", url, *at, "--watch-s", "0"]) == 0
    assert f"--endpoint {server.s3}" in capsys.readouterr().out
    found = lease.holder()
    assert found is not None
    assert main(["lock", "break", url, *at, "--version", "stale"]) == 75
    capsys.readouterr()
    assert main(["lock", "break", url, *at, "--version", found.version]) == 75
    said = capsys.readouterr().err
    assert "its process" in said and "--force" in said
    assert lease.holder() == found
    assert main(["lock", "break", url, *at, "--force"]) == 64
    assert main(["lock", "break", url, *at, "--version", found.version, "--force"]) == 0
    assert lease.holder() is None
    lease.close()


@pytest.mark.parametrize("words", ["lock show", "lock break", "incident --watch-s 0"])
def test_a_lock_file_that_is_not_terraforms_is_described_in_words(
    tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.tfstate.tflock").write_text("<html>")
    main([*words.split(), f"file://{tmp_path}/x.tfstate"])
    said = capsys.readouterr().out
    assert "a file that is not Terraform's (it is not JSON" in said and "ForeignLock" not in said


def test_files_beside_a_service_and_its_endpoint_as_a_flag_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"filesystem://{folder}"
    assert main(["incident", url, "x.log"]) == 64
    assert main(["incident", url, "--endpoint", "http://127.0.0.1:1"]) == 64
    assert main(["incident", "process://here"]) == 64
    assert "one interpreter" in capsys.readouterr().err


# --- the console ---------------------------------------------------------------------------------


def test_the_console_inspects_a_services_lock_and_breaks_exactly_the_shown_grant(
    folder: Path, ended: str
) -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.errors import BreakRefused
    from lockkit.lab.widgets import Console

    orphaned(folder, ended)
    console = Console(f"filesystem://{folder}", watch_s=0.0)
    console.look()
    panel = console.panel
    assert "its holder has died" in panel.lock.value and "holder died" in panel.card.value
    assert repr(console).startswith("Console(held; holder died")
    console.dry_run()
    plan = panel.plan.value
    assert "would end the grant" in plan and "cannot end a later grant" in plan
    assert panel.epoch.description == "Confirm" and "tombstone" not in panel.break_it.tooltip
    os.utime(folder / NAME, ns=(1, 1))
    with pytest.raises(BreakRefused):
        console.break_lock()
    console.dry_run()
    assert console.break_lock() is None
    assert not (folder / NAME).exists() and "data-state='absent'" in panel.lock.value


def test_the_console_ends_the_grant_of_a_living_holder_only_if_it_is_confirmed(
    folder: Path,
) -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.errors import BreakRefused
    from lockkit.lab.widgets import Console

    lock = FilesystemLock(folder)
    assert lock.acquire(timeout=0)
    console = Console(f"filesystem://{folder}", watch_s=0.0)
    console.look()
    console.dry_run()
    assert "Must not be broken now" in console.panel.plan.value
    with pytest.raises(BreakRefused, match="--force"):
        console.break_lock()
    assert (folder / NAME).exists()
    console.dry_run()
    console.panel.epoch.value = "force"
    console._break()
    assert not (folder / NAME).exists()
    lock.close()


def test_a_dry_run_of_one_services_lock_allows_no_break_of_the_next_one(
    folder: Path, tmp_path: Path, ended: str
) -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.errors import BreakRefused
    from lockkit.lab.widgets import Console

    second = tmp_path / "second"
    for each in (folder, second):
        orphaned(each, ended)
    console = Console(f"filesystem://{folder}", watch_s=0.0)
    console.look()
    assert console.dry_run() is not None
    console.look(f"filesystem://{second}")
    with pytest.raises(BreakRefused, match="dry run first"):
        console.break_lock()
    assert (folder / NAME).exists() and (second / NAME).exists()


def test_the_dry_run_warns_if_a_break_could_end_a_later_grant() -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.lab.widgets.console.html import grant_html

    exact, vague = (
        grant_html(replace(HELD, certain=each), "az://lake/lock") for each in (True, False)
    )
    assert "cannot end a later grant" in exact and "another program" not in exact
    assert "another program" in vague and "o later" not in vague
