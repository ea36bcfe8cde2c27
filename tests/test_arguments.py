"""Wrong arguments of locks and stores: each error names the option and what it takes.

`tests/test_table_arguments.py` has those of `Table`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockkit import AsyncLock, Lock, LockkitError, StoreError, open_lock, open_store
from lockkit.cli.main import main
from lockkit.config import seconds
from lockkit.lock.handle import LOCK_KEY
from lockkit.providers.azure_lease import AzureBlobLease
from lockkit.providers.both import DoubleLock
from lockkit.providers.dynamodb import DynamoDBLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.providers.hive import HiveMetastoreLock
from lockkit.providers.process import ProcessLock
from lockkit.providers.zookeeper import ZookeeperLock
from lockkit.stores.arguments import RefusedArgument
from lockkit.table import Table

NUMBERED = count()
NAN, INF = float("nan"), float("inf")
NO_NUMBERS: tuple[Any, ...] = (
    True, False, np.True_, NAN, np.float64("nan"), -1, -0.5, "5", b"5", [], {}, object(), 3 + 0j,
)  # fmt: skip
NO_TEXTS: tuple[Any, ...] = (3, 1.5, True, b"x", [], object(), "\ud800")
AZURE = "az://c/b"
CREDENTIALS: dict[str, Any] = {"account_url": "https://a.blob.core.windows.net", "credential": "k"}


def url() -> str:
    return f"memory://arguments{next(NUMBERED)}/t"


def lock(**options: Any) -> Lock:
    return Lock(**({"url": url()} | options))


def azure(**options: Any) -> AzureBlobLease:
    return AzureBlobLease(**({"url": AZURE} | CREDENTIALS | options))


def dynamodb(**options: Any) -> DynamoDBLock:
    at = {"table": "locks", "partition_key": "k", "region": "us-east-1"}
    return DynamoDBLock(**(at | options))


def filesystem(**options: Any) -> FilesystemLock:
    return FilesystemLock(**({"folder": "/tmp/arguments"} | options))


def hive(**options: Any) -> HiveMetastoreLock:
    at: Any = {"uris": "thrift://h:1", "database": "d", "table": "t"}
    return HiveMetastoreLock(**(at | options))


def process(**options: Any) -> ProcessLock:
    return ProcessLock(**({"name": url()} | options))


def zookeeper(**options: Any) -> ZookeeperLock:
    return ZookeeperLock(**({"hosts": "h:2181", "base_path": "/b", "lock_key": "k"} | options))


LOCKS: tuple[Callable[..., Any], ...] = (
    lock, azure, dynamodb, filesystem, hive, process, zookeeper,
)  # fmt: skip
TIMES: list[tuple[Callable[..., Any], str]] = [
    *((each, "acquire_timeout") for each in LOCKS),
    (lock, "ttl_s"), (lock, "renew_interval_s"), (lock, "timeout_s"),
    (azure, "beat_s"), (azure, "look_s"), (dynamodb, "lease_s"), (dynamodb, "beat_s"),
    (dynamodb, "look_s"), (dynamodb, "creation_timeout_s"), (filesystem, "expire_minutes"),
    (hive, "heartbeat_interval_s"), (hive, "answer_s"), (hive, "lease_s"),
    (zookeeper, "session_timeout_s"), (zookeeper, "connection_timeout_s"),
]  # fmt: skip
TEXTS: list[tuple[Callable[..., Any], str]] = [
    *((each, name) for each in LOCKS for name in ("owner", "client")),
    (lock, "url"), (azure, "url"), (dynamodb, "table"), (dynamodb, "partition_key"),
    (filesystem, "folder"), (hive, "uris"), (hive, "database"), (hive, "table"),
    (process, "name"), (zookeeper, "hosts"), (zookeeper, "base_path"), (zookeeper, "lock_key"),
]  # fmt: skip


def refused(
    call: Callable[[], object], option: str, kind: type[Exception] = RefusedArgument
) -> str:
    with pytest.raises(kind, match=option) as error:
        call()
    assert isinstance(error.value, LockkitError)
    assert len(str(error.value)) < 400
    str(error.value).encode()
    return str(error.value)


@pytest.mark.parametrize(("make", "option"), TIMES)
def test_a_time_is_a_number_in_its_range_also_one_of_numpy(
    make: Callable[..., Any], option: str
) -> None:
    for value in NO_NUMBERS:
        said = refused(lambda value=value: make(**{option: value}), option)  # type: ignore[misc]
        assert said.startswith(f"{option}=") and "must be a number of" in said
    for value in (np.int64(20), np.float64(20.0), np.float32(20), Fraction(20)):
        make(**{option: value}).close()


@pytest.mark.parametrize("value", [0, INF, 10**400, Fraction(10**400)])
def test_a_lease_is_longer_than_0_and_ends(value: Any) -> None:
    refused(lambda: lock(ttl_s=value), "ttl_s")
    refused(lambda: dynamodb(lease_s=value), "lease_s")


def test_a_wait_beyond_every_float_is_one_for_ever() -> None:
    assert seconds("timeout", Fraction(10**400)) == seconds("timeout", 10**400) == INF


@pytest.mark.parametrize(("make", "option"), TEXTS)
def test_a_name_is_a_text(make: Callable[..., Any], option: str) -> None:
    empty = () if option in ("client", "url") else ("",)
    for value in (*NO_TEXTS, *empty):
        refused(lambda value=value: make(**{option: value}), option)  # type: ignore[misc]


@pytest.mark.parametrize("make", LOCKS)
@pytest.mark.parametrize("option", ["owner", "client"])
def test_a_name_has_at_most_1000_characters(make: Callable[..., Any], option: str) -> None:
    refused(lambda: make(**{option: "a" * 1001}), option)
    make(**{option: "a" * 1000}).close()


@pytest.mark.parametrize("make", LOCKS)
@pytest.mark.parametrize("option", ["on_danger", "on_lost", "emit", "clock"])
def test_a_callback_is_a_function_and_a_clock_is_a_clock(
    make: Callable[..., Any], option: str
) -> None:
    value: Any
    for value in (3, "x", [], True):
        refused(lambda value=value: make(**{option: value}), option)  # type: ignore[misc]


def test_a_policy_or_store_of_another_type_is_refused_by_its_name() -> None:
    value: Any
    for value in (3, "x", [], True):
        refused(lambda value=value: lock(policy=value), "policy")  # type: ignore[misc]
        refused(lambda value=value: lock(store=value), "store")  # type: ignore[misc]


def test_the_first_argument_of_acquire_is_no_timeout() -> None:
    """`acquire(5)` waited for ever."""
    wrong: Any
    for wrong in (5, 1.5, "x", None, -1, 1, 0):
        refused(lambda wrong=wrong: lock().acquire(wrong), "blocking")  # type: ignore[misc]
    assert lock().acquire(True) and lock().acquire(False)
    for wrong in NO_NUMBERS:
        refused(lambda wrong=wrong: lock().acquire(timeout=wrong), "timeout")  # type: ignore[misc]


def test_an_epoch_may_be_a_number_of_numpys() -> None:
    lock().observe_epoch(np.int64(5))  # type: ignore[arg-type]
    wrong: Any
    for wrong in (True, -1, 1.5, "x", None, NAN):
        refused(lambda wrong=wrong: lock().observe_epoch(wrong), "epoch")  # type: ignore[misc]


def test_a_lock_for_asyncio_needs_a_url_or_a_handle() -> None:
    wrong: Any
    for wrong in (3, None, b"x", object()):
        refused(lambda wrong=wrong: AsyncLock(wrong), "lock")  # type: ignore[misc]
        refused(lambda wrong=wrong: open_lock(wrong), "config_or_url")  # type: ignore[misc]
        refused(lambda wrong=wrong: DoubleLock(wrong, lock()), "old")  # type: ignore[misc]
        refused(lambda wrong=wrong: DoubleLock(lock(), wrong), "new")  # type: ignore[misc]


@pytest.mark.parametrize("option", ["timeout_s", "attempts", "client", "faults"])
def test_a_store_refuses_an_option_of_the_wrong_kind(option: str) -> None:
    wrong = {"client": NO_TEXTS[:-1], "faults": (3, "x", [])}.get(option, (*NO_NUMBERS, 0, INF))
    for value in wrong:
        refused(
            lambda value=value: open_store("s3://b/t", **{option: value}),  # type: ignore[misc]
            option, StoreError,
        )  # fmt: skip
    if option in ("timeout_s", "attempts"):
        store = open_store("s3://b/t", region_name="us-east-1", **{option: np.int64(7)})  # type: ignore[arg-type]
        assert type(getattr(store.options, option)) is {"attempts": int}.get(option, float)


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://h:65536", "has no port from 1 to 65535"),
        ("http://h:0", "has no port from 1 to 65535"),
        ("http://h:x", "has no port from 1 to 65535"),
        ("http://h :9000", "contains a blank"),
        (" http://h", "contains a blank"),
        ("http://h/\n", "contains a blank"),
        ("http://h/?a=b", "after [?] or #"),
        ("http://h/#a", "after [?] or #"),
        ("http://h?", "after [?] or #"),
        ("h:9000", "is not a URL"),
        ("", "is not a URL"),
        ("ftp://h", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://user:secret@h:0", "has no port from 1 to 65535"),
        ("http://user:secret", "has no port from 1 to 65535"),
        (3, "is a int, no URL"),
        (b"http://h", "is a bytes, no URL"),
    ],
)
def test_an_endpoint_is_an_address_that_requests_can_be_sent_to(endpoint: Any, why: str) -> None:
    why = f"endpoint.* {why}"
    said = refused(lambda: open_store("s3://b/t", endpoint=endpoint), why, StoreError)
    assert "secret" not in said and "a=b" not in said and "write http://host:port" in said
    refused(lambda: azure(endpoint=endpoint), why, StoreError)
    refused(lambda: dynamodb(endpoint_url=endpoint), why, StoreError)


@pytest.mark.parametrize(
    "given", [3, None, b"s3://b/t", Path("/\udcff"), "", "x", "s3://", "file:"]
)
def test_a_store_needs_a_url(given: Any) -> None:
    refused(lambda: open_store(given), "cannot open", StoreError)
    with pytest.raises(LockkitError):
        Lock(given)


def test_a_path_is_the_folder_of_a_lock_a_store_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a b%20#"
    for each in (folder, Path("a b%20#")):
        held = Lock(each, ttl_s=5)
        assert open_store(each).url == held.url == folder.as_uri()
        assert held.acquire(timeout=0) and (folder / LOCK_KEY).exists()
        held.release()
    with Table.create(folder, record_key="id") as table:
        assert Table(folder).url == table.url == folder.as_uri()

    async def by_a_task() -> bool:
        async with AsyncLock(folder, ttl_s=5) as task:
            return task.owned() and held.locked()

    assert asyncio.run(by_a_task())


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    for name, why in (("a\0b", "absolute path"), ("a%00b", "absolute path"), ("é" * 200, "255")):
        with pytest.raises(StoreError, match=why), Lock(f"file://{tmp_path}/{name}", ttl_s=5):
            pass


@pytest.mark.parametrize("name", ["ü/日本", "a b", "x" * 200, "'; --", "a\nb", "%2F", "?#"])
def test_an_unusual_name_is_locked_like_any_other(tmp_path: Path, name: str) -> None:
    for at in (f"memory://arguments/{name}", f"file://{tmp_path}/{name}"):
        with Lock(at, ttl_s=5) as held:
            assert held.owned() and Lock(at).locked()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ttl-s", "nan"], ["--ttl-s", "inf"], ["--ttl-s", "-1"], ["--ttl-s", "0"],
        ["--ttl-s", "x"], ["--renew-interval-s", "nan"], ["--endpoint", "http://h:70000"],
        ["--timeout", "nan"], ["--timeout", "-1"],
    ],
)  # fmt: skip
def test_the_command_refuses_a_number_by_the_options_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    try:
        code = main(["lock", "acquire", f"file://{tmp_path}/t", *arguments, "--", "true"])
    except SystemExit as error:
        code = int(str(error.code))
    said = capsys.readouterr().err
    assert code not in (0, 1) and arguments[0][2:] in said.replace("_", "-")
    assert "Traceback" not in said


class Passing:
    """A wrapper that passes every call on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_wrapper_of_a_store_is_a_store() -> None:
    at = url()
    with Lock(at, store=Passing(open_store(at))) as held:  # type: ignore[arg-type]
        assert held.owned()


@pytest.mark.parametrize(
    "given", [b"s3://k:hidden@b/t", "s3://k:hidden@b/\ud800", ["a?sig=hidden"]]
)
def test_an_error_about_an_argument_repeats_no_secret(given: Any) -> None:
    for call in (lambda: Lock(given), lambda: open_store(given), lambda: hive(uris=given)):
        with pytest.raises(Exception) as error:
            call()
        assert "hidden" not in str(error.value)
