"""From Terraform's DynamoDB table to the lock file: both held during the move, one counts after."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from lockkit import runtime
from lockkit.cli.main import main
from lockkit.lab.server import Emulator
from lockkit.protocol.outcome import Applied, IfAbsent, IfVersion, PreconditionFailed, Unknown
from lockkit.recipes.errors import StateLocked
from lockkit.recipes.terraform import statelock
from lockkit.recipes.terraform.lockinfo import LockInfo
from lockkit.recipes.terraform.move import MOVED, DynamoItems, StateMove, mark
from lockkit.recipes.terraform.statelock import StateLock
from lockkit.stores import StoreOptions, aws

pytestmark = pytest.mark.xdist_group("dynamodb")
TABLE = "terraform-locks"
_NAMES = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture
def sdk(dynamodb: Any) -> Any:
    """With a table as Terraform's documentation asks for it."""
    client = aws.client("dynamodb", StoreOptions(endpoint=dynamodb.endpoint), dynamodb.endpoint)
    if TABLE not in client.list_tables()["TableNames"]:
        client.create_table(
            TableName=TABLE, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "LockID", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "LockID", "AttributeType": "S"}],
        )  # fmt: skip
    return client


@pytest.fixture
def path() -> str:
    return f"states/move-{next(_NAMES)}/terraform.tfstate"


@pytest.fixture
def state(server: Emulator, path: str) -> Iterator[StateLock]:
    with closing(StateLock(f"s3://{path}", endpoint=server.s3)) as found:
        yield found


@pytest.fixture
def table(dynamodb: Any) -> str:
    return f"dynamodb://us-east-1/{TABLE}?endpoint={dynamodb.endpoint}"


@pytest.fixture
def items(sdk: Any, table: str) -> Iterator[DynamoItems]:
    with closing(DynamoItems(table)) as found:
        yield found


def terraform(sdk: Any, path: str, id: str = "run-1") -> bool:
    """Terraform's own request for the lock in the table; whether it got it."""
    info = {"LockID": {"S": path}, "Info": {"S": json.dumps({"ID": id, "Who": "ci@runner"})}}
    try:
        sdk.put_item(TableName=TABLE, Item=info, ConditionExpression="attribute_not_exists(LockID)")
    except sdk.exceptions.ConditionalCheckFailedException:
        return False
    return True


def marker(sdk: Any, path: str) -> dict[str, Any]:
    item = sdk.get_item(TableName=TABLE, Key={"LockID": {"S": path}}).get("Item")
    return json.loads(item["Info"]["S"]) if item else {}


def test_after_a_move_a_run_that_uses_the_table_is_refused_with_the_setting_to_change(
    server: Emulator, sdk: Any, state: StateLock, path: str, table: str
) -> None:
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    assert main(line) == 0
    found = marker(sdk, path)
    assert found["Operation"] == MOVED and "use_lockfile = true" in found["Info"]
    assert found["Path"] == path and not terraform(sdk, path)
    assert state.show().info is None, "runs that use the lock file go on"
    assert main(line) == 0, "a repeated move finds the marker"
    assert marker(sdk, path)["Operation"] == MOVED and not terraform(sdk, path)
    digest = {"LockID": {"S": f"{path}-md5"}, "Digest": {"S": "of the state before the move"}}
    sdk.put_item(TableName=TABLE, Item=digest)
    assert main([*line, "--undo"]) == 0
    assert terraform(sdk, path) and state.show().info is None
    assert marker(sdk, f"{path}-md5") == {}, "it would refuse every run of the table"
    assert main([*line, "--undo"]) == 0
    assert marker(sdk, path)["ID"] == "run-1", "a run's own lock is no marker"


def test_both_are_held_during_the_move_and_a_failure_leaves_the_table_in_force(
    sdk: Any, state: StateLock, path: str, items: DynamoItems
) -> None:
    with pytest.raises(ZeroDivisionError), StateMove(state, items):
        assert state.show().info is not None and not terraform(sdk, path)
        raise ZeroDivisionError
    assert state.show().info is None and marker(sdk, path) == {}


def test_a_run_that_holds_the_table_or_the_file_prevents_the_move_and_nothing_is_changed(
    server: Emulator, sdk: Any, state: StateLock, path: str, items: DynamoItems
) -> None:
    other = StateLock(f"s3://{path}", endpoint=server.s3)
    with closing(other):
        other.lock()
        with pytest.raises(StateLocked), StateMove(state, items):
            pass
        assert marker(sdk, path) == {}, "the marker was taken back"
        other.unlock()
    assert terraform(sdk, path)
    with pytest.raises(StateLocked, match="run-1"), StateMove(state, items):
        pass
    assert state.show().info is None and marker(sdk, path)["ID"] == "run-1"


def test_a_marker_that_is_force_unlocked_during_the_move_is_written_again(
    sdk: Any, state: StateLock, path: str, items: DynamoItems
) -> None:
    with StateMove(state, items) as move:
        removed = marker(sdk, path)["ID"]
        sdk.delete_item(TableName=TABLE, Key={"LockID": {"S": path}})  # terraform force-unlock
    found = marker(sdk, path)
    assert found["Operation"] == MOVED and found["ID"] != removed and move.rewritten
    assert not terraform(sdk, path) and state.show().info is None


def test_a_run_that_took_the_table_after_a_force_unlock_is_not_joined_by_one_that_uses_the_file(
    server: Emulator, sdk: Any, state: StateLock, path: str, items: DynamoItems, table: str
) -> None:
    with pytest.raises(StateLocked, match="run-1"), StateMove(state, items):
        sdk.delete_item(TableName=TABLE, Key={"LockID": {"S": path}})
        assert terraform(sdk, path)
        other = StateLock(f"s3://{path}", endpoint=server.s3)
        with closing(other), pytest.raises(StateLocked):
            other.lock()
    assert marker(sdk, path)["ID"] == "run-1", "the table counts, as before the move"
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    assert main(line) == 75
    sdk.delete_item(TableName=TABLE, Key={"LockID": {"S": path}})
    assert main(line) == 0 and marker(sdk, path)["Operation"] == MOVED


@pytest.mark.parametrize("code", [0, 7])
def test_the_command_runs_under_both_and_its_failure_undoes_the_move(
    server: Emulator, sdk: Any, path: str, table: str, code: int
) -> None:
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    assert main([*line, "--", sys.executable, "-c", f"raise SystemExit({code})"]) == code
    assert bool(marker(sdk, path)) is (code == 0)


def test_a_signal_ends_the_command_of_a_move_and_then_the_move_is_undone(
    server: Emulator, sdk: Any, state: StateLock, path: str, table: str
) -> None:
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    command = ["sh", "-c", f"kill -TERM {os.getpid()}; sleep 300"]
    # Where the move does not handle it, this test fails, and its process goes on.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        assert main([*line, "--", *command]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert marker(sdk, path) == {} and state.show().info is None


def test_of_two_moves_the_one_that_fails_leaves_the_marker_of_the_one_that_ended(
    server: Emulator, sdk: Any, state: StateLock, path: str, items: DynamoItems, table: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    lock, ended = StateLock.lock, list[int]()

    def late(self: StateLock, **how: Any) -> Any:
        """The other moves between this one's marker and its lock file."""
        monkeypatch.setattr(StateLock, "lock", lock)
        ended.append(main(line))
        return lock(self, **how)

    monkeypatch.setattr(StateLock, "lock", late)
    assert main([*line, "--", "sh", "-c", "exit 5"]) == 5 and ended == [0]
    assert "only the lock file counts" in capsys.readouterr().err
    assert marker(sdk, path)["Operation"] == MOVED and not terraform(sdk, path)
    assert state.show().info is None


def test_a_move_that_succeeds_outlives_the_failure_of_one_that_began_before(
    server: Emulator, sdk: Any, state: StateLock, path: str, items: DynamoItems
) -> None:
    with closing(StateLock(f"s3://{path}", endpoint=server.s3)) as other:
        begun = StateMove(other, items)
        take = other.lock

        def overtaken(**options: Any) -> Any:
            with StateMove(state, items):
                with pytest.raises(StateLocked):
                    take(**options)
                begun.take_back()
                assert not terraform(sdk, path), "a run of the table would run beside the command"
            raise StateLocked("the lock file", "is held", "wait")

        other.lock = overtaken  # type: ignore[method-assign]
        with pytest.raises(StateLocked), begun:
            pass
    assert marker(sdk, path)["Operation"] == MOVED and not terraform(sdk, path)


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("signals", [1, 2])
def test_signals_after_any_request_of_a_move_or_its_undo_leave_no_lock_file(
    server: Emulator, sdk: Any, path: str, table: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], undo: bool, signals: int,
) -> None:  # fmt: skip
    """The second signal comes after the next request: that of the take-back, if there is one."""
    perform, codes = runtime.perform, []

    def signalled(step: int) -> tuple[int, bool]:
        """The exit code of a move, and whether it sent so many requests."""
        sent, state = itertools.count(), f"s3://{path}-{step}"
        line = ["tflock", "move", state, "--table", table, "--endpoint", server.s3]
        if undo:
            assert main(line) == 0
            line.append("--undo")

        def once(*request: Any) -> Any:
            answer = perform(*request)
            if step <= next(sent) < step + signals:
                signal.raise_signal(signal.SIGTERM)
            return answer

        monkeypatch.setattr(runtime, "perform", once)
        try:
            code = main(line)
        except SystemExit as ended:
            code = int(ended.code or 0)
        monkeypatch.setattr(runtime, "perform", perform)
        return code, next(sent) > step

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for step in itertools.count():
            code, reached = signalled(step)
            with closing(StateLock(f"s3://{path}-{step}", endpoint=server.s3)) as state:
                assert state.show().info is None, step
            counts = not marker(sdk, f"{path}-{step}")
            if undo:
                assert counts or code != 0, step
                said = capfd.readouterr().err
                assert not counts or code == 0 or "the lock table stays in force" in said, step
            else:
                assert counts is (code != 0), step
            codes.append(code)
            if not reached:
                break
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes.count(143) >= 4 and set(codes) == {0, 143}


def test_a_signal_while_a_refused_move_takes_back_leaves_no_marker(
    server: Emulator, sdk: Any, path: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run holds the lock file, so the move fails by itself; then comes its first signal."""
    perform, codes = runtime.perform, []
    for step in itertools.count():
        sent = itertools.count()

        def once(*request: Any, sent: Any = sent, step: int = step) -> Any:
            if next(sent) == step:
                signal.raise_signal(signal.SIGINT)
            return perform(*request)

        url = f"s3://{path}-{step}"
        with closing(StateLock(url, endpoint=server.s3)) as run:
            held = run.lock()
            monkeypatch.setattr(runtime, "perform", once)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # `main` ends ignoring it
            line = ["tflock", "move", url, "--table", table, "--endpoint", server.s3]
            codes.append(main(line))
            monkeypatch.setattr(runtime, "perform", perform)
            assert marker(sdk, f"{path}-{step}") == {}, step
            assert run.show().info == held
        if next(sent) <= step:
            break
    assert codes[-1] == 75 and codes.count(130) >= 5


def test_two_signals_after_any_request_of_a_lock_leave_none(
    server: Emulator, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform, codes = runtime.perform, []
    for step in itertools.count():
        sent = itertools.count()

        def twice(*request: Any, sent: Any = sent, step: int = step) -> Any:
            answer = perform(*request)
            if step <= next(sent) < step + 2:
                signal.raise_signal(signal.SIGINT)
            return answer

        monkeypatch.setattr(runtime, "perform", twice)
        url = f"s3://{path}-{step}"
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `main` ends ignoring it
        for name in ("proven", "_proven"):
            monkeypatch.setattr(statelock, name, set())
        codes.append(main(["tflock", "lock", url, "--endpoint", server.s3]))
        monkeypatch.setattr(runtime, "perform", perform)
        with closing(StateLock(url, endpoint=server.s3)) as state:
            assert (state.show().info is None) is (codes[-1] == 130), step
        if next(sent) <= step:
            break
    assert codes.count(130) >= 3 and codes[-1] == 0


def test_a_lock_whose_take_back_has_no_answer_names_the_id_to_unlock(
    server: Emulator, path: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    perform, sent = runtime.perform, itertools.count()

    def silent_then(request: Any, *rest: Any) -> Any:
        answer = perform(request, *rest)
        if next(sent) == 0:
            signal.raise_signal(signal.SIGINT)
        elif not isinstance(request, runtime.Sleep):
            return Unknown("the store did not answer")
        return answer

    monkeypatch.setattr(runtime, "perform", silent_then)
    url = f"s3://{path}"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert main(["tflock", "lock", url, "--endpoint", server.s3]) == 130
    monkeypatch.setattr(runtime, "perform", perform)
    with closing(StateLock(url, endpoint=server.s3)) as state:
        standing = state.show().info
    assert isinstance(standing, LockInfo) and standing.id in capsys.readouterr().err


def test_a_move_that_fails_takes_away_the_marker_of_one_that_was_killed_or_failed_as_well(
    server: Emulator, sdk: Any, state: StateLock, path: str, items: DynamoItems, table: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    killed = StateMove(state, items)
    assert killed._run(mark(path, killed.marker, timeout_s=0.0))
    assert "wait" in marker(sdk, path)["Info"] and not terraform(sdk, path)
    line = ["tflock", "move", f"s3://{path}", "--table", table, "--endpoint", server.s3]
    assert main([*line, "--", "sh", "-c", "exit 5"]) == 5
    assert "the lock table stays in force" in capsys.readouterr().err
    assert terraform(sdk, path) and state.show().info is None


def test_a_url_without_a_table_and_an_invalid_url_are_refused(
    server: Emulator, path: str, dynamodb: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tflock", "move", f"s3://{path}", "--endpoint", server.s3, "--table"]
    assert main([*line, "s3://lake/x"]) == 64
    assert main([*line, f"dynamodb://us-east-1/absent?endpoint={dynamodb.endpoint}"]) == 3
    assert "dynamodb_table" in capsys.readouterr().err


def test_an_item_is_replaced_and_deleted_only_by_the_version_that_was_read(
    items: DynamoItems, path: str
) -> None:
    first = items.put(path, b"one", IfAbsent())
    assert isinstance(first, Applied)
    assert isinstance(items.put(path, b"two", IfAbsent()), PreconditionFailed)
    assert isinstance(items.put(path, b"two", IfVersion(first.version)), Applied)
    assert isinstance(items.put(path, b"three", IfVersion(first.version)), PreconditionFailed)
    assert isinstance(items.delete(path, IfVersion(first.version)), PreconditionFailed)
