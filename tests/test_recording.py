"""`with lockkit.record(...)`: whatever happens in the block, the file tells it, whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockkit
from lockkit.events import STORE, read
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lab.widgets import recording
from lockkit.lock.handle import Lock

SECRET = "a-secret-that-nobody-may-read"
URL = "s3://lake/orders"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Emulator() as emulator:
        yield emulator.s3


def a_turn(server: str, client: str = "W1", url: str = URL) -> None:
    with Lock(url, endpoint=server, client=client, ttl_s=10) as lock:
        lock.assert_held()
    lock.close()


def kept(path: Path) -> list[lockkit.Event]:
    with path.open() as lines:
        return list(read(lines))


def test_a_page_has_truth_beliefs_and_the_verdict(server: str, tmp_path: Path) -> None:
    with lockkit.record(tmp_path / "run.html", title="One turn") as recorded:
        a_turn(server)
    page = (tmp_path / "run.html").read_text()
    kinds = [(each.who, each.kind) for each in recorded.events(URL)]
    assert {("W1", "held"), ("W1", "released"), (STORE, "request")} <= set(kinds)
    assert "One turn" in page and '"verdict":"VALID"' in page and f"Recorded: {URL}." in page
    assert '"kind":"generation"' in page, "the lock object's generations are drawn"


def test_the_file_is_written_even_when_the_block_raises(server: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lockkit.record(tmp_path / "run.html"):
        a_turn(server)
        raise ZeroDivisionError(SECRET)
    page = (tmp_path / "run.html").read_text()
    assert "The block ended with ZeroDivisionError." in page and SECRET not in page
    assert [each.name for each in tmp_path.iterdir()] == ["run.html"]


def test_json_lines_are_a_history_that_the_checker_reads(server: str, tmp_path: Path) -> None:
    with lockkit.record(tmp_path / "run.jsonl"):
        a_turn(server)
    events = kept(tmp_path / "run.jsonl")
    assert check(events).kind == "VALID"
    assert {each.get("lock") for each in events if each.who != STORE} == {URL}


def test_the_recording_has_events_of_handles_opened_before_it_and_none_after_it(
    server: str, tmp_path: Path
) -> None:
    lock = Lock(URL, endpoint=server, owner="old", ttl_s=10)
    begun, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        begun.wait(60)
        a_turn(server, "threaded")
        over.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with lockkit.record(tmp_path / "run.jsonl"):
        with lock:
            lock.renew()
        begun.set()
        assert over.wait(60)
    thread.join()
    with lock:
        pass
    lock.close()
    recorded_events = [(each.who, each.kind) for each in kept(tmp_path / "run.jsonl")]
    assert (
        recorded_events.count(("old", "held")) == recorded_events.count(("threaded", "held")) == 1
    )
    assert ("old", "renewed") in recorded_events


def test_a_handle_with_its_own_observer_keeps_it(server: str, tmp_path: Path) -> None:
    heard: list[str] = []
    with (
        lockkit.record(tmp_path / "run.jsonl"),
        Lock(URL, endpoint=server, client="W2", ttl_s=10,
             emit=lambda kind, **_: heard.append(kind)) as lock,
    ):  # fmt: skip
        pass
    lock.close()
    mine = [each.kind for each in kept(tmp_path / "run.jsonl") if each.who == "W2"]
    assert mine == heard and "held" in mine


def test_a_lost_answer_is_in_the_picture_of_a_run_behind_a_proxy(
    server: str, tmp_path: Path
) -> None:
    with Proxy(server) as proxy, lockkit.record(tmp_path / "run.html") as recorded:
        proxy.inject(Fault("drop", operation="put", key="table_lock.json"))
        a_turn(proxy.url, "W3")
    assert [each["fault"] for each in recorded.events(URL) if each.kind == "fault"] == ["drop"]
    assert "answer lost" in (tmp_path / "run.html").read_text()


def test_each_lock_is_judged_by_itself(server: str, tmp_path: Path) -> None:
    other = "s3://lake/returns"
    with lockkit.record(tmp_path / "run.html") as recorded:
        a_turn(server, "W1")
        a_turn(server, "W1", other)
    verdicts = {url: str(verdict.kind) for url, verdict in recorded.verdicts().items()}
    # A lock that another test lost may still renew in this process.
    ours = {url: kind for url, kind in verdicts.items() if url.startswith("s3://lake/")}
    assert ours == {URL: "VALID", other: "VALID"}
    page = (tmp_path / "run.html").read_text()
    assert f"{other} has a verdict, too: VALID." in page
    own = [each for each in recorded.events(other) if each.who == STORE]
    assert own and all(each["key"].startswith("returns/") for each in own)


def test_credentials_are_in_no_recording(server: str, tmp_path: Path) -> None:
    for name in ("run.html", "run.jsonl"):
        with lockkit.record(tmp_path / name):
            with Lock(URL, endpoint=server, client="W1", ttl_s=10,
                      aws_access_key_id="AKIAEXAMPLE",
                      aws_secret_access_key=SECRET) as lock:  # fmt: skip
                pass
            lock.close()
        assert SECRET not in (tmp_path / name).read_text()


def test_an_invalid_recording_is_refused_before_the_block(tmp_path: Path) -> None:
    for path, error, why in (
        (tmp_path / "run.txt", ValueError, r"\.html.*\.jsonl"),
        (tmp_path / "nowhere" / "run.html", FileNotFoundError, "make it first"),
    ):
        with pytest.raises(error, match=why), lockkit.record(path):
            pytest.fail("the block must not begin")


def test_the_old_version_stays_until_the_new_one_is_complete(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("the run before\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording.os, "fsync", full)
    with pytest.raises(OSError, match="No space"), lockkit.record(path):
        a_turn(server)
    assert path.read_text() == "the run before\n"
    with (
        pytest.warns(RuntimeWarning, match="was not written: .*No space"),
        pytest.raises(ZeroDivisionError),
        lockkit.record(path),
    ):
        a_turn(server)
        raise ZeroDivisionError
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]


def test_the_name_is_the_recorder_whatever_was_imported_before() -> None:
    from lockkit.protocol.record import Record

    assert callable(lockkit.record) and Record is not None
