"""The command line: help that helps, exit codes that mean something, no traceback, no leftovers."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from lock_world import until
from trickle import trickle

import lockkit
from lockkit import Clock, Lock, open_store
from lockkit.cli import COMMANDS as LISTED
from lockkit.cli.acquire import holding
from lockkit.cli.main import main
from lockkit.cli.work import ENDING, GUARD, STOP_TIMEOUT_S, WITNESS_S, Work, runs
from lockkit.errors import LockBusy, StoreError
from lockkit.lab.faults import Fault, Proxy
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    Throttled,
    Unknown,
)
from lockkit.protocol.record import Record, decode, encode
from lockkit.stores.proxies import proxy_for

ROOT = Path(__file__).parents[1]
GOOD = ROOT / "datasets" / "histories" / "good" / "stalled_commit_refused.jsonl"
BAD = ROOT / "datasets" / "histories" / "bad" / "stalled_commit_accepted.jsonl"
COMMANDS = [
    ("demo",), ("lab",), ("serve",), ("providers",), ("probe",),
    ("bench",), ("bench", "conditional-get"),
    ("lock",), ("lock", "show"), ("lock", "watch"),
    ("lock", "acquire"), ("lock", "break"),
    ("table",), ("table", "show"), ("table", "clean"), ("table", "cluster"),
    ("table", "rollback"), ("table", "services"), ("tflock",), ("tflock", "show"),
    ("tflock", "lock"), ("tflock", "unlock"), ("tflock", "force-unlock"), ("history",), ("check",),
    ("incident",),
    ("explore",), ("simulate",), ("soak",),
]  # fmt: skip
MARK = "LOCKKIT_TEST_CLI"
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives orphans to another parent"
)
STARTED = re.compile(r"(W\d) started, process (\d+)")
CLOUD = {
    "AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "any-secret-at-all",
    "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip


def line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lockkit", *arguments]


def process(
    *arguments: str, given: str = "", timeout_s: float = 60, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, for those that start others or print to a descriptor."""
    return subprocess.run(
        line(*arguments), input=given, env=os.environ | CLOUD | env, cwd=ROOT,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """The command in this process: the start of another one takes half a second of CPU."""
    streams = (io.BytesIO(given.encode()), io.BytesIO(), io.BytesIO())
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(ROOT)
        for name, value in CLOUD.items():
            patched.setenv(name, value)
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
            patched.setattr(sys, name, text)
        try:
            code: Any = main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
        out, err = (each.getvalue().decode() for each in streams[1:])
    return subprocess.CompletedProcess(arguments, code, out, err)


def assert_says(result: subprocess.CompletedProcess[str], *words: str, code: int = 3) -> None:
    """One or two lines on standard error, with these words; never a traceback, never a secret."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.strip().splitlines()) <= 2, result.stderr
    for word in words:
        assert word in result.stderr
    assert CLOUD["AWS_SECRET_ACCESS_KEY"] not in result.stderr + result.stdout


# --- help and wrong calls ----------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_has_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0
    assert f"example:\n  lockkit {command[0]}" in result.stdout


def test_the_list_of_commands_imports_none_of_them() -> None:
    show = "import sys; from lockkit.cli.main import parser; parser([]).format_help(); "
    show += "print(*[name for name in sys.modules if name.partition('.')[0] == 'lockkit'])"
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"lockkit", "lockkit.cli", "lockkit.cli.main"}
    assert {name for name, *_ in COMMANDS} == set(LISTED)


def test_no_command_and_a_wrong_one_are_usage_errors() -> None:
    assert_says(process(), "COMMAND", "--help", code=64)
    assert_says(run("unlock"), "invalid choice", "--help", code=64)
    assert_says(run("check", "a", "--colour"), "--colour", "--help", code=64)
    assert_says(run("lock", "acquire", "file:///tmp/x"), "name a command", code=64)
    assert_says(run("lock", "acquire", "file:///tmp/x", "true"), "put -- before", code=64)


# --- check and history ---------------------------------------------------------------------------


def test_check_exits_0_for_a_valid_history_and_1_for_an_invalid_one() -> None:
    assert run("check", str(GOOD)).returncode == 0
    invalid = run("check", str(BAD), "--json")
    verdict = json.loads(invalid.stdout)
    assert (invalid.returncode, verdict["verdict"]) == (1, "INVALID")
    assert verdict["evidence"]


def test_check_exits_2_if_the_history_is_insufficient() -> None:
    beliefs = "".join(
        each for each in GOOD.read_text().splitlines(keepends=True) if '"who":"store"' not in each
    )
    assert run("check", "-", given=beliefs).returncode == 2


def test_history_prints_a_narration_and_its_json_is_a_history_again() -> None:
    assert "stalls" in run("history", str(GOOD)).stdout
    again = run("history", str(GOOD), "--json").stdout
    assert run("check", "-", given=again).returncode == 0


@pytest.mark.parametrize("command", ["check", "history"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"at_ms":1,"who":"W1","kind":"note","text":"x"}\n{"at_ms":2,\n{}\n', "line 2"),
        (b'{"at_ms":1,"who":"W1","kind":"held"}\n', "needs epoch"),
        (b'[1,2]\n', "not a JSON object"),
        (b"x" * 10_000_000 + b"\n", "longer than"),
        (b"\xff\xfe\x00\n", "UTF-8"),
        (b'{"at_ms":1,"who":"W1","kind":"\\u001b[2Jheld"}\n', "unknown kind"),
    ],
    ids=["torn", "a field missing", "an array", "10 MB line", "not text", "escape codes"],
)  # fmt: skip
def test_a_corrupt_history_is_named_with_its_line(
    command: str, content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(content)
    result = run(command, str(file))
    assert_says(result, words, "history.jsonl")
    assert "\x1b" not in result.stderr


def test_a_missing_history_is_reported_in_one_sentence() -> None:
    assert_says(run("check", "/no/such/file"), "/no/such/file", "No such file")
    assert_says(run("history", str(ROOT)), "directory")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text('{"at_ms":1,"who":"W1","kind":"note","text":"x"}\n' * 20_000)
    with subprocess.Popen(
        line("history", str(long)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


# --- stores that are not there --------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [("probe",), ("lock", "show"), ("lock", "watch"), ("lock", "acquire"), ("history",)],
    ids=" ".join,
)
def test_the_error_of_an_unknown_scheme_names_the_known_ones(command: tuple[str, ...]) -> None:
    after = ("--", "true") if command[-1] == "acquire" else ()
    assert_says(run(*command, "ftp://host/table", *after), "ftp", "s3://")


def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    there = ("s3://bucket/table", "--endpoint", "http://127.0.0.1:1", "--timeout-s", "20")
    assert_says(run("lock", "show", *there), "table_lock.json")


def test_serve_reports_why_it_cannot_start(tmp_path: Path) -> None:
    assert_says(run("serve", "--db", str(tmp_path / "no" / "such" / "folder.db")), "cannot serve")
    assert_says(run("serve", "--profile", "minio"), "minio", "spaces", code=64)
    assert_says(run("serve", "--host", "0.0.0.0"), "--allow-remote", code=64)
    for port in ("65534", "70000", "-1"):  # three addresses, one behind the other
        assert_says(run("serve", "--port", port), port, "65533", code=64)
    for latency in ("-1", "nan", "inf"):
        assert_says(run("serve", "--latency-ms", latency), latency, "60000", code=64)
    alone = run("serve", "--secret-key", "verysecret")
    assert_says(alone, "--secret-key needs --access-key", code=64)
    assert "verysecret" not in alone.stderr


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_refusing_proxy_is_reported_in_one_sentence(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name, value in CLOUD.items():
        monkeypatch.setenv(name, value)
    there = (f"{scheme}://bucket/table", "--endpoint", "http://store.test:9000")
    result = run("lock", "show", *there, "--timeout-s", "20")
    assert_says(result, "connection refused by the proxy in http_proxy")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("http://anna:secret-word@127.0.0.1:99999", "has no port from 1 to 65535"),
        ("127.0.0.1:port", "has no port from 1 to 65535"),
        ("http://[::1", "is not a URL"),
        ("http://no such host", "contains a blank"),
    ],
)
def test_a_proxy_that_is_no_url_is_reported_by_its_variable(
    scheme: str, proxy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    for name, value in CLOUD.items():
        monkeypatch.setenv(name, value)
    there = (f"{scheme}://bucket/table", "--endpoint", "https://store.test")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://store.test")  # gs: no credentials
    result = run("lock", "show", *there, "--timeout-s", "20")
    assert_says(result, f"the proxy in HTTPS_PROXY {why}", "write http://host:port")
    assert "secret-word" not in result.stderr


@pytest.mark.parametrize(
    ("url", "server", "variable"),
    [
        ("gs://bucket/table", "https://store.test", "HTTPS_PROXY"),
        ("gs://bucket/table", "http://store.test:9000", "ALL_PROXY"),
        ("az://bucket/table", "http://store.test:9000", "ALL_PROXY"),
        ("gs://bucket/table", "https://inside.test", ""),
        ("s3://bucket/table", "https://store.test", "HTTPS_PROXY"),
        ("s3://bucket/table", "http://store.test:9000", ""),  # boto3 does not read ALL_PROXY
        ("dynamodb://eu-west-1/locks/orders", "http://store.test:9000", ""),
    ],
)
def test_the_proxy_of_a_server_is_known_by_its_variable(
    url: str, server: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "inside.test")
    assert proxy_for(url, server) == (variable, "")


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("s3", "boto3 cannot use"),
        ("gs", "needs the package PySocks"),
        ("az", "needs the package PySocks"),
    ],
)
def test_a_socks_proxy_that_the_sdk_cannot_use_is_named(
    scheme: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "socks5://anna:secret-word@127.0.0.1:1")
    for name, value in (CLOUD | {"STORAGE_EMULATOR_HOST": "http://store.test:9000"}).items():
        monkeypatch.setenv(name, value)
    there = (f"{scheme}://bucket/table", "--endpoint", "http://store.test:9000")
    result = run("lock", "show", *there, "--timeout-s", "20")
    assert_says(result, f"the proxy in http_proxy is a SOCKS proxy, which {why}")
    assert "secret-word" not in result.stderr


def test_a_proxy_whose_name_does_not_resolve_is_not_taken_for_the_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (CLOUD | {"http_proxy": "http://no-such-proxy.invalid:3128"}).items():
        monkeypatch.setenv(name, value)
    there = ("s3://bucket/table", "--endpoint", "http://store.test:9000")
    result = run("lock", "show", *there, "--timeout-s", "5")
    assert_says(result, "the name of the proxy in http_proxy does not resolve")


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_proxy_that_opens_no_tunnel_is_named(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbids(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with trickle(forbids) as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        there = (f"{scheme}://bucket/table", "--endpoint", "https://store.test")
        result = run("lock", "show", *there, "--timeout-s", "20")
    assert_says(result, "the proxy refused with 403")


def test_lab_refuses_an_impossible_port_and_a_home_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_says(run("lab", "--port", "70000"), "70000", "65535")
    (tmp_path / "home").write_text("a file, so nothing can be made in it")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JUPYTER_CONFIG_DIR", raising=False)
    assert_says(run("lab"), str(tmp_path / "home"), "set HOME")


def test_the_value_of_an_option_for_jupyterlab_is_not_taken_for_a_notebook() -> None:
    pytest.importorskip("jupyterlab", reason="pip install lockkit[lab], or make lab")
    given = process("lab", "--port", "9871", "--version")
    assert given.returncode == 0, given.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", given.stdout.strip())


def test_lab_with_a_missing_notebook_says_where_the_course_is() -> None:
    assert_says(process("lab", "no-such.ipynb"), "no-such.ipynb", "the course is in")


# --- the lock -------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> str:
    return f"file://{tmp_path}/table"


def stored(url: str, **options: str) -> Record:
    found = open_store(url, **options).get(LOCK_KEY)
    assert isinstance(found, Found)
    record = decode(found.body)
    assert isinstance(record, Record)
    return record


def leave(url: str, body: bytes, **options: str) -> None:
    """Another program writes the lock object, over whatever is there: again after a renewal."""
    store = open_store(url, **options)
    for _ in range(50):
        seen = store.get(LOCK_KEY)
        condition = IfVersion(seen.version) if isinstance(seen, Found) else IfAbsent()
        if isinstance(store.put(LOCK_KEY, body, condition), Applied):
            return
    pytest.fail("each of 50 writes met a renewal")


def test_a_command_runs_under_the_lock_and_its_exit_code_is_ours(table: str) -> None:
    script = f"{shlex.quote(sys.executable)} -m lockkit lock show {table} --json; exit 7"
    result = process("lock", "acquire", table, "--", "sh", "-c", script)
    assert result.returncode == 7, result.stderr
    assert json.loads(result.stdout)["state"] == "held"
    assert stored(table).expired
    again = process("lock", "acquire", table, "--", "sh", "-c", "echo $LOCKKIT_EPOCH; kill -9 $$")
    assert (again.stdout, again.returncode) == ("2\n", 128 + 9)


def test_a_busy_lock_exits_75_and_names_the_holder(table: str) -> None:
    soon = Clock().wall_ms() + 60_000
    leave(table, encode(Record("somebody", soon, epoch=4, attempt="a", ttl_ms=60_000)))
    result = process("lock", "acquire", table, "--timeout", "0", "--", "echo", "never")
    assert_says(result, "somebody", "epoch 4", "lockkit lock show", code=75)
    assert result.stdout == ""


def test_a_wait_names_the_holder_once_and_since_when_it_has_the_lock(
    shared_emulator: Any, bucket: str
) -> None:
    url, there = f"s3://{bucket}/table", ("--endpoint", shared_emulator.s3)
    with Lock(url, endpoint=shared_emulator.s3, owner="job-7") as held:
        held.renew()  # another record of the same holder
        result = run("lock", "acquire", url, *there, "--timeout", "0.5", "--", "true")
        assert_says(result, "job-7", code=75)
        first, _ = result.stderr.splitlines()
        assert "waiting for job-7, epoch 1, which has it since " in first
        assert first.endswith(" or before"), "no older generation shows the grant's beginning"
    with Lock(url, endpoint=shared_emulator.s3, owner="job-8"):
        result = run("lock", "acquire", url, *there, "--timeout", "0.5", "--", "true")
        assert "waiting for job-8, epoch 2, which has it since " in result.stderr
        assert "or before" not in result.stderr


def test_an_unreadable_lock_exits_3_and_not_75(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockkit.stores.local import LocalStore

    monkeypatch.setattr(LocalStore, "get", lambda *_, **__: Unknown("connection refused"))
    result = run("lock", "acquire", table, "--timeout", "0.2", "--", "true")
    assert_says(result, "connection refused", code=3)
    monkeypatch.undo()
    leave(table, b"<html>")
    garbled = run("lock", "acquire", table, "--timeout", "0.2", "--", "true")
    assert garbled.returncode == 75
    assert garbled.stderr.count("it is not JSON") == 1


def test_the_lock_is_released_if_its_command_does_not_exist(table: str) -> None:
    assert_says(process("lock", "acquire", table, "--", "no-such-command"), "PATH", code=127)
    assert stored(table).expired


def test_when_the_lease_is_lost_the_command_is_stopped_and_the_exit_code_is_76(table: str) -> None:
    with started(
        "lock", "acquire", table, "--ttl-s", "5", "--renew-interval-s", "0.2",
        "--", sys.executable, "-c", "print('works', flush=True); import time; time.sleep(300)",
    ) as (process, out):  # fmt: skip
        out.until("works")
        thief = Record("thief", Clock().wall_ms() + 60_000, epoch=9, attempt="t", ttl_ms=60_000)
        leave(table, encode(thief))
        assert process.wait(30) == 76
    assert stored(table) == thief


def test_show_says_since_only_of_a_grant_that_it_can_see(emulator: Any) -> None:
    """Without earlier versions, the last write may be the grant or a renewal."""
    url, there = "s3://versioned/t", ("--endpoint", emulator.s3)
    with Lock(url, endpoint=emulator.s3, owner="job-6"):
        pass
    with Lock(url, endpoint=emulator.s3, owner="job-7") as lock:
        assert "since " in run("lock", "show", url, *there).stdout
        lock.renew()
        seen = run("lock", "show", url, *there).stdout
        assert "since " in seen and "renewed " in seen
        alone = run("lock", "show", url, *there, "--newest", "1").stdout
        assert "its grant, or its last renewal" in alone and "since " not in alone
    with Lock("s3://versioned/alone", endpoint=emulator.s3):
        said = run("incident", "s3://versioned/alone", *there, "--watch-s", "0").stdout
        assert "its grant, or its last renewal" in said and "since " not in said
    released = run("lock", "show", url, *there, "--newest", "1").stdout
    assert "since " in released and "its grant" not in released


def test_a_warning_is_one_line_without_the_code_that_gave_it(table: str) -> None:
    leave(table, b'{"expired":false,"validUntil":9223372036854775807,"owner":"hudi"}')
    result = process("lock", "acquire", table, "--timeout", "0.2", "--", "true")
    assert result.returncode == 75
    assert "No lease lasts that long" in result.stderr
    assert all(each.startswith("lockkit lock acquire: ") for each in result.stderr.splitlines())


@pytest.mark.parametrize(
    "user", ["anna:secret-word", "anna@corp.test:secret-word", f"anna:secret-word{'x' * 200}"],
    ids=["plain", "a user with an @", "long"],
)  # fmt: skip
def test_a_password_in_an_owners_name_is_not_printed(user: str, table: str) -> None:
    owner, holder = f"https://{user}@ci.test/job/7", f"ftp://{user}@host/1"
    until_ms = Clock().wall_ms() + 600_000
    record = Record(owner, until_ms, epoch=1, attempt="a", ttl_ms=600_000, holder=holder)
    leave(table, encode(record))
    said = [
        run("lock", "show", table),
        run("lock", "show", table, "--json"),
        process("lock", "acquire", table, "--timeout", "0.2", "--", "true"),
        run("lock", "break", table, "--watch-s", "0"),
        run("incident", table, "--watch-s", "0"),
        run("incident", table, "--watch-s", "0", "--json"),
        run("history", table, "--json"),
    ]
    for each in said:
        assert "***@ci.test/job/7" in each.stdout + each.stderr, each
        assert "secret-word" not in each.stdout + each.stderr
    with pytest.raises(LockBusy, match=r"://\*\*\*@ci\.test/job/7") as busy:
        with Lock(table, acquire_timeout=0):
            pass
    assert "secret-word" not in str(busy.value)


def test_show_escapes_terminal_control_sequences(table: str) -> None:
    hostile = Record("\x1b[2J\x07<b>owner", 0, epoch=1, attempt="a", holder="\u202eevil\nline 2")
    leave(table, encode(hostile))
    os.utime(Path(table.removeprefix("file://"), LOCK_KEY), (1, 1))
    result = run("lock", "show", table)
    assert result.returncode == 1, "its lease is over"
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stdout)
    assert "\\x1b[2J" in result.stdout
    assert not [each for each in result.stdout.splitlines() if each.startswith("line 2")]
    assert json.loads(run("lock", "show", table, "--json").stdout)["owner"] == hostile.owner


@pytest.mark.parametrize(
    "body",
    [b"", b'{"expired":fal', b"[]", b"\x00" * 10_000_000],
    ids=["empty", "torn", "an array", "10 MB"],
)
def test_a_body_that_is_no_lock_record_is_reported_and_exits_1(table: str, body: bytes) -> None:
    leave(table, body)
    result = run("lock", "show", table)
    assert result.returncode == 1, result.stderr
    assert "not a lock record" in result.stdout


def test_a_lost_answer_during_acquire_is_reported_and_the_lock_is_held(
    shared_emulator: Any, bucket: str
) -> None:
    there = (f"s3://{bucket}/table", "--endpoint", shared_emulator.s3)
    plan = ("--faults", "datasets/faultplans/lost-response-acquire.json")
    result = process("lock", "acquire", *there, *plan, "--", "echo", "held")
    assert (result.returncode, result.stdout) == (0, "held\n")
    [printed] = result.stderr.splitlines()
    assert printed.endswith("fault: drop, after the store applied a put of table_lock.json")


def test_an_impossible_fault_plan_raises_value_error(shared_emulator: Any) -> None:
    there = ("lock", "show", "s3://bucket/table", "--endpoint", shared_emulator.s3)
    assert_says(run(*there, "--faults", "README.md"), "README.md: the text is not JSON", code=64)
    local = ("lock", "show", "file:///nowhere/table")
    plan = "datasets/faultplans/slow-store.json"
    assert_says(run(*local, "--faults", plan), "HTTP requests", code=3)


def test_a_claim_without_an_answer_that_cannot_be_settled_is_named_with_the_command_that_ends_it(
    shared_emulator: Any, bucket: str, tmp_path: Path
) -> None:
    lost = {"what": "drop", "when": "after", "operation": "put", "key": "table_lock.json"}
    unread = {"what": "status", "code": 503, "operation": "get", "key": "table_lock.json"}
    faults = [lost, unread | {"nth": 2, "next": "every"}]
    (plan := tmp_path / "plan.json").write_text(json.dumps({"faults": faults}))
    url, there = f"s3://{bucket}/table", ("--endpoint", shared_emulator.s3)
    given = ("--timeout", "0", "--faults", str(plan), "--", "true")
    result = run("lock", "acquire", url, *there, *given)
    assert result.returncode in (3, 75), result.stderr
    assert "may be a ghost that holds the lock until its lease ends" in result.stderr
    assert "lockkit lock break" in result.stderr
    assert not stored(url, endpoint=shared_emulator.s3).expired


def test_show_and_history_list_the_generations_that_a_bucket_keeps(
    shared_emulator: Any, bucket: str
) -> None:
    there = (f"s3://{bucket}/table", "--endpoint", shared_emulator.s3)
    assert process("lock", "acquire", *there, "--", "true").returncode == 0
    shown = json.loads(run("lock", "show", *there, "--json").stdout)
    assert shown["state"] == "released"
    expired = [each["expired"] for each in shown["generations"]]
    assert expired == [True] + [False] * (len(expired) - 1)  # newest first: the tombstone
    history = [json.loads(each) for each in run("history", *there, "--json").stdout.splitlines()]
    assert len(history) == len(expired) >= 2
    assert [each["before"] for each in history[1:]] == [each["version"] for each in history[:-1]]


def test_a_buckets_versions_become_a_history_with_takeovers_and_foreign_bodies(
    shared_emulator: Any, bucket: str
) -> None:
    url, end = f"s3://{bucket}/table", Clock().wall_ms() + 60_000
    bodies = [
        encode(Record("a\x1b[2J", end, epoch=1, attempt="1", ttl_ms=9)),
        encode(Record("a\x1b[2J", end, epoch=1, attempt="2", ttl_ms=9)),
        encode(Record("b", end, epoch=2, attempt="3", ttl_ms=9)),
        encode(Record("b", end, expired=True, epoch=2, attempt="4", ttl_ms=9)),
        b"no record",
        encode(Record("hudi", end)),
    ]
    for each in bodies:
        leave(url, each, endpoint=shared_emulator.s3)
    lines = run("history", url, "--endpoint", shared_emulator.s3).stdout.splitlines()
    for line, words in zip(
        lines,
        ("took the lock, epoch 1", "renewed it, epoch 1", "took the lock over from a\\x1b[2J",
         "b released the lock, epoch 2", "not a lock record", "hudi took the lock, no epoch"),
        strict=True,
    ):  # fmt: skip
        assert words in line and "\x1b" not in line


def test_show_prints_the_lock_without_the_right_to_list_its_versions(
    shared_emulator: Any, bucket: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from lockkit.stores.s3 import S3Store

    def denied(self: S3Store, key: str) -> Any:
        raise StoreError("access is denied")

    there = (f"s3://{bucket}/table", "--endpoint", shared_emulator.s3)
    assert process("lock", "acquire", *there, "--", "true").returncode == 0
    monkeypatch.setattr(S3Store, "versions", denied)
    assert main(["lock", "show", *there]) == 0
    said = capsys.readouterr().out
    assert "released" in said and "access is denied" in said
    assert main(["lock", "show", *there, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["generations"]) == ("released", [])
    assert "access is denied" in shown["generations_error"]


def test_watch_continues_after_an_unanswered_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lockkit.stores.local import LocalStore

    answers = [Unknown("503"), Throttled(), Missing(), Unknown("503"), Missing()]

    def answer(self: LocalStore, key: str, **_: Any) -> Any:
        if not answers:
            raise StoreError("access is denied")
        return answers.pop(0)

    monkeypatch.setattr(LocalStore, "get", answer)
    assert main(["lock", "watch", f"file://{tmp_path}", "--interval-s", "0.01"]) == 3
    said = capsys.readouterr()
    assert said.out.count("free") == 1
    assert said.err.count("(503); try again") == 2 and "Unknown(" not in said.err


def test_watch_prints_a_line_for_each_change(table: str) -> None:
    with started("lock", "watch", table, "--json") as (_, out):
        assert json.loads(out.until("absent"))["state"] == "absent"
        assert process("lock", "acquire", table, "--", "sleep", "1").returncode == 0
        assert json.loads(out.until('"held"'))["epoch"] == 1
        out.until('"released"')


# --- probe, explore, demo -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["lock acquire", "lock show", "table show", "tflock show", "incident", "history"]
)
def test_an_option_that_a_store_does_not_take_is_a_wrong_call(command: str, table: str) -> None:
    given = (*command.split(), table, "--region", "eu-1")
    result = run(*given, *(("--", "true") if command == "lock acquire" else ()))
    assert_says(result, "takes no --region", code=64)


def test_probe_exits_0_only_for_a_store_that_is_safe(tmp_path: Path) -> None:
    result = run("probe", f"file://{tmp_path}", "--rounds", "3", "--racers", "4", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["safe"] is True


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("lock", "watch", "memory://x", "--interval-s", "inf"), "number of seconds from 0"),
        (("lock", "watch", "memory://x", "--interval-s", "nan"), "number of seconds from 0"),
        (("lock", "show", "memory://x", "--timeout-s", "-1"), "number of seconds from 0"),
        (("lock", "show", "memory://x", "--timeout-s", "0"), "more than 0 seconds"),
        (("lock", "show", "memory://x", "--timeout-s", "soon"), "must be a number, not soon"),
        (("lock", "show", "memory://x", "--newest", "-5"), "whole number from 0"),
        (("history", "memory://x", "--newest", "1.5"), "must be a number, not 1.5"),
        (("lock", "acquire", "memory://x", "--timeout", "nan", "--", "true"), "seconds from 0"),
        (("lock", "acquire", "memory://x", "--timeout", "-1", "--", "true"), "seconds from 0"),
        (("simulate", "--others", "-1", "--moment", "lease:1@3"), "whole number from 0"),
    ],
)
def test_an_invalid_number_is_refused_by_the_name_of_its_option(
    line: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    printed = capsys.readouterr().err
    assert ended.value.code == 64
    assert said in printed and next(each for each in line if each.startswith("--")) in printed


def test_probe_races_over_all_endpoints_of_a_store_and_draws_a_badge(
    emulator: Any, tmp_path: Path
) -> None:
    """Two servers without shared objects stand for nodes that disagree."""
    from lockkit.lab.server import Emulator

    file = tmp_path / "badge.svg"
    few = ("--rounds", "2", "--racers", "4", "--badge", str(file))
    line = ("probe", "s3://bucket/x", "--endpoint", emulator.s3)
    with Emulator() as other:
        result = run(*line, "--also", other.s3, *few)
    assert result.returncode == 1 and "not atomic" in result.stdout
    said = "".join(ElementTree.parse(file).getroot().itertext())
    assert "not atomic, 20" in said
    with Proxy(emulator.s3) as proxy:
        second = proxy.url
        assert run(*line, "--also", second, *few).returncode == 0
    assert "no violation found, 20" in file.read_text()
    file.unlink()
    down = run(*line, "--also", second, "--timeout-s", "0.5", *few)
    assert down.returncode == 3 and "could not be reached" in down.stderr and not file.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--also", "http://h:1"), "give the first as --endpoint"),
        (("--endpoint", "http://h:1", "--also", "http://h:1"), "repeats an endpoint"),
        (
            (
                "--endpoint",
                "http://h:1",
                "--also",
                "http://h:2",
                "--also",
                "http://h:3",
                "--racers",
                "2",
            ),
            "from 3 to 256",
        ),
    ],
)
def test_endpoints_that_cannot_race_are_refused(
    more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("probe", "s3://bucket/x", *more)) == 64
    assert said in capsys.readouterr().err


def test_several_stores_are_compared_in_one_table(
    emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from lockkit.lab.cli import probe as command
    from lockkit.lab.server import Emulator

    monkeypatch.setattr(command, "READS", 2)
    local = f"file://{tmp_path}"
    with Emulator(profile="spaces") as other:
        urls = [f"s3://bucket/x={emulator.s3}", f"s3://bucket/x={other.s3}", local]
        few = ("--rounds", "1", "--racers", "2")
        assert main(("probe", *urls, *few)) == 1, "as for the worst of them"
        lines = capsys.readouterr().out.splitlines()
        assert main(("probe", urls[0], local, *few, "--json")) == 0
    head, *rows = (re.split(r"  +", line.strip()) for line in lines[:4] if "---" not in line)
    assert [row[:2] for row in rows if row[0] in urls] == [
        [urls[0], "full"], [urls[1], "ignores-conditions"], [local, "full"]
    ]  # fmt: skip
    assert {len(row) for row in (head, *rows)} == {11}
    both = json.loads(capsys.readouterr().out)["stores"]
    assert [each["capabilities"]["conditional_read"] for each in both] == ["yes", "yes"]
    assert [each["reads"][1]["unchanged"] for each in both] == [2, 2]
    assert both[0]["reads"][1]["bytes_received"] == 0


@pytest.mark.parametrize("more", [("--also", "http://h:1", "--endpoint", "http://h:2"),
                                  ("--badge", "x.svg")])  # fmt: skip
def test_options_about_one_store_are_refused_for_several(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("probe", "s3://a/x", "s3://b/x", *more)) == 64
    assert "name one URL" in capsys.readouterr().err


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_probe_refuses_a_store_that_ignores_conditions(emulator: Any) -> None:
    result = run("probe", "s3://bucket/x", "--endpoint", emulator.s3, "--rounds", "3", "--json")
    assert result.returncode == 1, result.stderr
    assert json.loads(result.stdout)["verdict"] == "ignores-conditions"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (("--rounds", "0"), "--rounds is the number of races of each kind, from 1 to 100000"),
        (("--racers", "1"), "--racers is the number of writers in each race, from 2 to 256"),
    ],
)
@pytest.mark.parametrize("emulator", [{"profile": "two-steps"}], indirect=True)
def test_probe_calls_no_store_safe_whose_atomicity_it_did_not_test(
    numbers: tuple[str, str], said: str, emulator: Any
) -> None:
    result = run("probe", "s3://bucket/x", "--endpoint", emulator.s3, *numbers)
    assert result.returncode == 64 and said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("code", [403, 501])
@pytest.mark.parametrize(("dialect", "scheme"), [("s3", "s3"), ("gcs", "gs"), ("azure", "az")])
@pytest.mark.parametrize(
    ("operation", "nth"), [("put", 1), ("put", 3), ("list", 1)],
    ids=["create", "compare-and-set", "list"],
)  # fmt: skip
def test_a_store_that_refuses_a_kind_of_request_could_not_be_tested(
    operation: str, nth: int, dialect: str, scheme: str, code: int, bucket: str,
    shared_emulator: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    url = f"{scheme}://{bucket}/x"
    with Proxy(getattr(shared_emulator, dialect)) as proxy:
        proxy.inject(Fault("status", code=code, operation=operation, nth=nth, next="every"))
        found = main(("probe", url, "--endpoint", proxy.url, "--rounds", "1", "--racers", "2"))
    said = capsys.readouterr().out.splitlines()[-1]
    assert found == 3, said
    assert said.startswith(f"{url} could not be tested: ") and str(code) in said


def test_a_probe_that_found_nothing_says_how_much_it_tried(tmp_path: Path) -> None:
    result = run("probe", f"file://{tmp_path}", "--rounds", "3", "--racers", "4")
    assert result.returncode == 0
    assert "no violation in 6 races of 4 writers" in result.stdout
    assert "is safe" not in result.stdout


def test_explore_gives_rule_violation_steps_states_and_seconds_per_row() -> None:
    result = run("explore", "--json", "--row", "commits", "--row", "claim_412 lost")
    assert result.returncode == 0, result.stderr
    on, off = (json.loads(each) for each in result.stdout.splitlines())
    assert {"rule", "violation", "steps", "states", "seconds"} <= set(on)
    assert (on["rule"], on["violation"]) == (None, None)
    assert off["rule"] and off["violation"] and off["steps"] == len(off["story"])


def test_explore_names_its_rows_when_one_is_unknown() -> None:
    assert_says(run("explore", "--row", "gravity off"), "gravity off", "claim_412 lost", code=64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "kind"), [((), 0, "VALID"), (("--no-fence",), 1, "INVALID")],
    ids=["fence on", "fence off"],
)  # fmt: skip
def test_the_demo_stalls_loses_a_response_and_gives_the_verdict(
    options: tuple[str, ...], code: int, kind: str, tmp_path: Path
) -> None:
    verdict, page = tmp_path / "verdict.json", tmp_path / "story.html"
    result = process("demo", "--plain", "--json", str(verdict), "--html", str(page), *options)
    assert result.returncode == code, result.stdout + result.stderr
    said = json.loads(verdict.read_text())
    assert said["verdict"] == kind
    assert {"stall", "takeover", "lost response"} <= set(said["reached"])
    assert "stalls (SIGSTOP)" in result.stdout
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("refused", [
    ("demo", "--plain", "--writers", "99"), ("soak", "--writers", "99"),
    ("soak", "--commit", "group", "--fence", "off"),
], ids=" ".join)  # fmt: skip
def test_a_refused_run_of_writers_leaves_no_folder(
    refused: tuple[str, ...], tmp_path: Path
) -> None:
    env = os.environ | CLOUD | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(line(*refused), cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 64 and not any(tmp_path.iterdir()), done.stderr


def test_a_dead_writer_ends_the_demo_with_its_error_and_its_log(tmp_path: Path) -> None:
    """At once. Otherwise the demo waits three minutes for a step that cannot come."""
    with subprocess.Popen(
        line("demo", "--plain"), cwd=ROOT, text=True,
        env=os.environ | CLOUD | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        started = next(filter(None, (STARTED.search(each) for each in demo.stdout)))
        os.kill(int(started[2]), signal.SIGKILL)
        _, said = demo.communicate(timeout=60)
    assert demo.returncode == 3
    assert f"writer {started[1]} ended with code -9" in said
    (log,) = tmp_path.glob(f"lockkit-fleet-*/{started[1]}.log")
    assert str(log) in said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark processes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "code"),
    [((), 0), pytest.param(("--no-fence",), 1, marks=pytest.mark.soak)],
    ids=["fence on", "fence off"],
)
@pytest.mark.soak
def test_the_demo_runs_from_real_pyspark_processes(options: tuple[str, ...], code: int) -> None:
    pytest.importorskip("pyspark", reason="pip install lockkit[spark], or make lab")
    result = process("demo", *options, timeout_s=280)
    assert result.returncode == code, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("table", "clean", "memory://x", "--commits", "-1"), "must be a whole number from 0"),
        (("table", "cluster", "memory://x", "--target-mb", "0"), "must be a whole number from 1"),
        (("table", "cluster", "memory://x", "--layout", "odd"), "must be free or bucketed"),
        (("table", "archive", "memory://x", "--keep-min", "-1"), "must be a whole number from 1"),
        (("table", "archive", "memory://x", "--keep-min", "30"), "must be greater than"),
        (("demo", "--plain", "--writers", "1"), "--writers 2 or more"),
        (("demo", "--plain", "--writers", "99"), "writers must be from 1 to 8, not 99"),
        (("simulate", "--others", "3"), "--others goes with --moment"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_a_wrong_call(
    line: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 64
    assert said in capsys.readouterr().err


# --- Ctrl-C ---------------------------------------------------------------------------------------


class Output:
    """Standard output and error of a running command, as lines, without waiting for its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._read = 0
        self._drains = [
            threading.Thread(target=self._drain, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for each in self._drains:
            each.start()

    def _drain(self, stream: Any) -> None:
        for each in stream:
            with self._news:
                self._lines.append(each)
                self._news.notify_all()

    def until(self, text: str, timeout_s: float = 60) -> str:
        """The next line with `text` in it."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                while self._read < len(self._lines):
                    self._read += 1
                    if text in self._lines[self._read - 1]:
                        return self._lines[self._read - 1]
                left_s = deadline - time.monotonic()
                over = left_s <= 0 or not any(each.is_alive() for each in self._drains)
                assert not over, f"no line with {text!r} in {self.text}"
                self._news.wait(min(left_s, 0.5))

    @property
    def text(self) -> str:
        return "".join(self._lines)


class started:
    """A running command. What is left of it afterwards is killed."""

    def __init__(self, *arguments: str, mark: str = "") -> None:
        self._line = line(*arguments)
        self._env = os.environ | CLOUD | {MARK: mark, "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> tuple[subprocess.Popen[str], Output]:
        self.process = subprocess.Popen(
            self._line, env=self._env, cwd=ROOT, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return self.process, Output(self.process)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that inherited this mark, in any session."""

    def carries(process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == mark and process.status() != "zombie"
        except psutil.Error:
            return False

    return [each for each in psutil.process_iter() if carries(each)]


@pytest.fixture
def mark() -> Iterator[str]:
    mark = Clock().unique()
    yield mark
    for each in marked(mark):
        each.kill()


def test_ctrl_c_after_a_command_has_ended_changes_neither_its_words_nor_its_exit_code() -> None:
    program = (
        "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "sys.argv = ['lockkit', 'lock', 'show', 'memory://b/t']; "
        "from lockkit.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "free" in done.stdout


def assert_interrupted(
    arguments: tuple[str, ...], ready: str, mark: str, *, by: int = signal.SIGINT, code: int = 130
) -> None:
    with started(*arguments, mark=mark) as (process, out):
        out.until(ready, 90)
        process.send_signal(by)
        assert process.wait(30) == code, out.text
        assert "Traceback" not in out.text
    deadline = time.monotonic() + 15
    while left := marked(mark):
        assert time.monotonic() < deadline, [each.cmdline() for each in left]
        time.sleep(0.1)


def test_ctrl_c_ends_serve(mark: str) -> None:
    assert_interrupted(("serve",), '"azure"', mark)


def test_ctrl_c_ends_explore(mark: str) -> None:
    rows = ("--row", "commits", "--row", "three clients")  # a short one, a long one
    assert_interrupted(("explore", *rows), "no violation", mark)


def test_ctrl_c_ends_watch(table: str, mark: str) -> None:
    assert_interrupted(("lock", "watch", table), "free", mark)


def test_ctrl_c_ends_the_command_under_a_lock_and_gives_the_lock_back(
    table: str, mark: str
) -> None:
    command = ("lock", "acquire", table, "--", "sh", "-c", "echo works; exec sleep 300")
    assert_interrupted(command, "works", mark)
    assert stored(table).expired


@pytest.mark.parametrize("kind", ["lock acquire", "tflock run"])
@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["the process", "its group"])
def test_a_command_does_not_outlive_the_killed_process_that_renews_its_lock(
    kind: str, kill: Callable[[int, int], None], tmp_path: Path, mark: str
) -> None:
    place = tmp_path.as_uri() + ("/prod/terraform.tfstate" if kind == "tflock run" else "/table")
    work = slow_to_end(ended := tmp_path / "ended", "TERM")
    with started(*kind.split(), place, "--", *work, mark=mark) as (process, out):
        out.until("works", 90)
        kill(process.pid, signal.SIGKILL)
        process.wait(30)
        until(lambda: ended.exists() and not marked(mark), 30)


def test_a_command_that_ignores_its_end_does_not_outlive_the_process_that_renews_its_lock(
    table: str, mark: str
) -> None:
    work = ("sh", "-c", "trap '' TERM; echo works; while :; do sleep 0.1; done")
    with started("lock", "acquire", table, "--", *work, mark=mark) as (process, out):
        out.until("works", 90)
        process.kill()
        process.wait(30)
        until(lambda: not marked(mark), 30)


def test_a_command_leaves_what_it_started_in_the_background_and_no_guard(
    table: str, mark: str
) -> None:
    work = ("sh", "-c", "sleep 300 > /dev/null 2>&1 & echo works")
    with started("lock", "acquire", table, "--", *work, mark=mark) as (process, out):
        assert process.wait(90) == 0, out.text
        assert [each.name() for each in marked(mark)] == ["sleep"]
    assert stored(table).expired


@pytest.mark.parametrize("kind", ["lock acquire", "tflock run"])
def test_a_signal_ends_also_a_command_that_is_stopped(
    kind: str, tmp_path: Path, mark: str
) -> None:
    """Ctrl-Z in a terminal, or a debugger: its lock would be renewed for ever."""
    place = tmp_path.as_uri() + ("/prod/terraform.tfstate" if kind == "tflock run" else "/table")
    with started(*kind.split(), place, "--", "sh", "-c", "echo works; exec sleep 300",
                 mark=mark) as (holder, out):  # fmt: skip
        out.until("works", 90)
        (work,) = until(lambda: [each for each in marked(mark) if each.name() == "sleep"])
        work.suspend()
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(30) == 143, out.text


def slow_to_end(ended: Path, signals: str) -> list[str]:
    """A shell that a signal ends at once, with a child that needs a moment to end."""
    trap = f"sleep 0.5; echo ended > {ended}; exit"
    works = f"trap '{trap}' {signals}; echo works; while :; do sleep 0.1; done"
    return ["sh", "-c", f"sh -c {shlex.quote(works)}; true"]


@pytest.mark.parametrize("kind", ["lock acquire", "tflock run"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_what_the_command_started_and_then_the_lock_is_given_back(
    kind: str, number: signal.Signals, tmp_path: Path, mark: str
) -> None:
    place = tmp_path.as_uri() + ("/prod/terraform.tfstate" if kind == "tflock run" else "/table")
    work = slow_to_end(ended := tmp_path / "ended", "TERM HUP QUIT")
    assert_interrupted(
        (*kind.split(), place, "--", *work), "works", mark, by=number, code=128 + number
    )
    assert ended.read_text() == "ended\n"
    if kind == "tflock run":
        assert process("tflock", "show", place).returncode == 0
    else:
        assert stored(place).expired


def test_a_signal_that_arrives_as_the_command_ends_ends_also_what_it_has_started(
    table: str, tmp_path: Path, mark: str
) -> None:
    """A supervisor sends it to every process of a service at once."""
    work = slow_to_end(ended := tmp_path / "ended", "TERM")
    with started("lock", "acquire", table, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        (command,) = [each for each in marked(mark) if each.cmdline()[2:] == work[2:]]
        holder.send_signal(signal.SIGTERM)
        command.kill()
        assert holder.wait(30) > 128, out.text
        assert ended.read_text() == "ended\n"
    assert stored(table).expired


def test_when_the_lease_is_lost_what_the_command_started_is_stopped_too(
    table: str, tmp_path: Path, mark: str
) -> None:
    work = slow_to_end(ended := tmp_path / "ended", "TERM")
    lease = ("--ttl-s", "5", "--renew-interval-s", "0.2")
    with started("lock", "acquire", table, *lease, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        leave(table, encode(Record("other", Clock().wall_ms() + 600_000, epoch=9, attempt="a")))
        assert holder.wait(30) == 76, out.text
    assert ended.read_text() == "ended\n"


STUBBORN = "trap '' HUP INT TERM; while :; do sleep 0.1; done"
APART = {
    "in a session": ["setsid", "--wait", "sh", "-c", f"echo works; {STUBBORN}"],
    "as a job": ["bash", "-c", f"set -m; sh -c {shlex.quote(STUBBORN)} & echo works; wait"],
    "an orphan": ["sh", "-c", f"(setsid sh -c {shlex.quote(STUBBORN)} &); echo works; sleep 300"],
}
"""Commands, and what they start in other process groups, which only SIGKILL ends."""


@linux_only
@pytest.mark.parametrize(("apart", "number"), [
    ("in a session", signal.SIGTERM), ("as a job", signal.SIGINT), ("an orphan", signal.SIGTERM),
])  # fmt: skip
def test_the_lock_is_held_until_what_the_command_started_in_other_groups_has_ended(
    apart: str, number: signal.Signals, table: str, mark: str
) -> None:
    work = APART[apart]
    with started("lock", "acquire", table, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        holder.send_signal(number)
        assert holder.wait(30) == 128 + number, out.text
        assert not marked(mark)
    assert stored(table).expired


@linux_only
def test_the_lock_is_held_until_the_command_of_a_nested_lock_has_ended(
    table: str, tmp_path: Path, mark: str
) -> None:
    nested = line("lock", "acquire", (tmp_path / "nested").as_uri(), "--")
    work = (*nested, *slow_to_end(ended := tmp_path / "ended", "INT"))
    with started("lock", "acquire", table, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        holder.send_signal(signal.SIGINT)
        assert holder.wait(30) == 130, out.text
        assert ended.exists() and not marked(mark)
    assert stored(table).expired


def test_the_command_of_a_nested_lock_gets_a_signal_once(
    table: str, tmp_path: Path, mark: str
) -> None:
    """Terraform stops at once on a second signal."""
    seen = tmp_path / "seen"
    work = f"trap 'echo INT >> {seen}' INT; echo works; while [ ! -s {seen} ]; do sleep 0.1; done"
    nested = line("lock", "acquire", (tmp_path / "nested").as_uri(), "--")
    command = ("lock", "acquire", table, "--", *nested, "sh", "-c", f"{work}; sleep 1")
    assert_interrupted(command, "works", mark)
    assert seen.read_text() == "INT\n"


@linux_only
@pytest.mark.parametrize("work", APART.values(), ids=APART)
def test_what_a_command_started_in_other_groups_does_not_outlive_the_killed_process(
    work: list[str], table: str, mark: str
) -> None:
    with started("lock", "acquire", table, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        holder.kill()
        holder.wait(30)
        until(lambda: not marked(mark), 30)


@pytest.mark.parametrize("closed", ["<&- >&-", ">&- 2>&-", "<&- >&- 2>&-", ">&-", "2>&-"])
def test_a_command_keeps_its_lock_and_its_exit_code_where_standard_streams_are_closed(
    table: str, tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a daemon. Once, the command's output was taken for its exit code."""
    monkeypatch.setenv("PY", sys.executable)
    look = f'"$PY" -m lockkit lock show {table} > {tmp_path}/seen 2>&1'
    line = f"\"$PY\" -m lockkit lock acquire {table} -- sh -c 'echo 0; {look}; exit 7'"
    assert subprocess.run(["sh", "-c", f"{line} {closed}"], check=False).returncode == 7
    assert "held" in (tmp_path / "seen").read_text()


UNSAYABLE = {"a reader that left": "2> >(true)", "opened for reading": "2< /dev/null"}
if sys.platform == "linux":
    UNSAYABLE["a full disk"] = "2> /dev/full"
"""Standard errors that cannot be written; bash opens a script as one that its starter closed."""


@pytest.mark.parametrize("closed", UNSAYABLE.values(), ids=UNSAYABLE)
def test_a_message_that_cannot_be_said_changes_neither_what_is_done_nor_the_exit_code(
    table: str, tmp_path: Path, closed: str
) -> None:
    def code(*command: str) -> int:
        return subprocess.run(
            ["bash", "-c", f'"$@" {closed}', "bash", *line(*command)], cwd=ROOT, check=False,
            timeout=90, env=os.environ | CLOUD,
        ).returncode  # fmt: skip

    assert code("lock", "acquire", table, "--", str(tmp_path / "absent")) == 127
    assert code("lock", "acquire", table) == 64
    assert code("lock", "acquire", table, "--wrong", "--", "true") == 64
    leave(table, encode(Record("other", Clock().wall_ms() + 3_000, epoch=1, attempt="a")))
    assert code("lock", "acquire", table, "--timeout", "60", "--", "sh", "-c", "exit 9") == 9


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_an_answer_that_cannot_be_written_is_one_sentence(table: str) -> None:
    for command in (("lock", "show", table), ("lock", "show", table, "--json")):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                line(*command), cwd=ROOT, check=False, timeout=90, env=os.environ | CLOUD,
                text=True, stdout=full, stderr=subprocess.PIPE,
            )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert done.stderr == (
            "lockkit lock show: standard output cannot be written: No space left on device\n"
        )


def test_a_guard_that_cannot_be_started_is_one_sentence_and_gives_the_lock_back(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("lockkit.cli.work.subprocess.Popen", refuse)
    assert main(["lock", "acquire", table, "--", "true"]) == 3
    assert "the guard of the command cannot be started" in capsys.readouterr().err
    assert stored(table).expired


@linux_only
def test_the_guard_starts_beside_a_backport_of_a_module_of_pythons(
    table: str, tmp_path: Path
) -> None:
    """Installed, lockkit lies in site-packages, which come after Python's own modules."""
    (tmp_path / "enum.py").write_text("raise ImportError('a backport')")
    (tmp_path / "lockkit").symlink_to(Path(lockkit.__file__).parent)
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from lockkit.cli.main import main"
    found = subprocess.run(
        [sys.executable, "-S", "-P", "-c", f"{code}; sys.exit(main())",
         "lock", "acquire", table, "--", "sh", "-c", "exit 7"],
        env={"PATH": os.environ["PATH"]}, check=False,
    )  # fmt: skip
    assert found.returncode == 7


@linux_only
def test_a_command_whose_guard_was_killed_is_stopped(table: str, mark: str) -> None:
    work = ("sh", "-c", f"echo works; {STUBBORN}")
    with started("lock", "acquire", table, "--", *work, mark=mark) as (holder, out):
        out.until("works", 90)
        (guard,) = [each for each in marked(mark) if each.name() == GUARD]
        guard.kill()
        assert holder.wait(30) == 3, out.text
        assert "the guard of the command was killed" in out.text
        assert not marked(mark)
    assert stored(table).expired


def test_a_signal_ends_a_wait_for_a_busy_lock(table: str, mark: str) -> None:
    taken = Record("other", Clock().wall_ms() + 600_000, epoch=1, attempt="a", ttl_ms=600_000)
    leave(table, encode(taken))
    with started("lock", "acquire", table, "--", "true", mark=mark) as (waiter, out):
        out.until("waiting for", 90)
        waiter.send_signal(signal.SIGTERM)
        assert waiter.wait(30) == 143, out.text
    assert stored(table) == taken


@contextmanager
def in_a_terminal(
    *arguments: str, stdin: int | None = None, mark: str = ""
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running command with a terminal of its own, and this terminal's other end."""
    ours, theirs = pty.openpty()

    def takes_it() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    child = subprocess.Popen(
        line(*arguments), env=os.environ | CLOUD | {MARK: mark}, cwd=ROOT, stdin=stdin or theirs,
        stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=takes_it,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield child, ours
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
        os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        some = os.read(terminal, 4096)
        assert some, seen
        seen += some
    return seen


def test_in_a_terminal_a_command_under_the_lock_has_its_input_and_its_ctrl_c(
    table: str, tmp_path: Path
) -> None:
    counts = f"trap 'echo INT >> {tmp_path}/ended; exit 3' INT; read said; echo $said was said"
    work = ("sh", "-c", f"{counts}; while :; do sleep 0.1; done")
    with in_a_terminal("lock", "acquire", table, "--", *work) as (child, terminal):
        os.write(terminal, b"blue\n")
        read_until(terminal, b"blue was said")
        os.write(terminal, b"\x03")
        assert child.wait(30) == 130
    assert (tmp_path / "ended").read_text() == "INT\n"
    assert stored(table).expired


GRACEFUL = """
import signal, sys, time
seen, took_s, until = sys.argv[1], float(sys.argv[2]), float("inf")
def note(number, _):
    global until
    until = time.monotonic() + took_s
    with open(seen, "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(each, note)
print("works", flush=True)
while time.monotonic() < until:
    time.sleep(0.1)
with open(seen, "a") as file:
    file.write("ended by itself")
"""


def graceful(seen: Path, took_s: float) -> list[str]:
    """Like Terraform: it takes its time to end, and stops at once on a second signal."""
    return [sys.executable, "-S", "-c", GRACEFUL, str(seen), str(took_s)]


@pytest.mark.parametrize("kind", ["file", "s3", "gs", "az"])
def test_a_command_gets_the_files_that_its_starter_opened_and_none_of_ours(
    kind: str, table: str, tmp_path: Path, shared_emulator: Any, bucket: str
) -> None:
    """As flock(1) does: for process substitution, or another lock that an open file holds."""
    (tmp_path / "blue").write_text("blue")
    list_them = [sys.executable, "-S", "-c", "import os; print(os.listdir('/dev/fd'))"]
    named = {"s3": "s3", "gs": "gcs", "az": "azure"}.get(kind)
    where = getattr(shared_emulator, named) if named else ""
    there = [f"{kind}://{bucket}/files", "--endpoint", where] if where else [table]
    with open(tmp_path / "blue", encoding="utf-8") as blue:
        under, alone = (
            subprocess.run(
                [*start, "bash", "-c", f'cat <&{blue.fileno()}; "$@"', "bash", *list_them],
                env=os.environ | CLOUD, cwd=ROOT, pass_fds=[blue.fileno()], text=True, check=True,
                capture_output=True, timeout=90,
            ).stdout
            for start in (line("lock", "acquire", *there, "--"), [])
        )  # fmt: skip
    assert under == f"blue{alone}"  # the other one has it already read to its end


def test_a_script_that_names_no_interpreter_is_one_of_sh(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "names-no-interpreter"
    script.write_text('exit "$1"\n')
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in (str(script), script.name):
        assert process("lock", "acquire", table, "--", name, "4").returncode == 4
    assert_says(process("lock", "acquire", table, "--", ""), "no command ''", code=127)


def test_a_guard_that_gets_no_thread_starts_no_command(tmp_path: Path) -> None:
    """Under a limit of processes, which counts threads."""
    code = (
        "import threading\n"
        "from lockkit.cli.work import guard\n"
        "def refuse(_): raise RuntimeError('cannot start new thread')\n"
        "threading.Thread.start = refuse\n"
        "guard()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "1", "0", "", "touch", str(tmp_path / "ran")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-errno.EAGAIN}\n", "")
    assert not (tmp_path / "ran").exists()


@linux_only
def test_a_group_whose_members_have_ended_does_not_run_though_nobody_has_asked_for_them() -> None:
    """As in a container, where the first process may never wait for its children."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as child:
        assert runs(child.pid) and runs(-child.pid)
        child.stdin.close()  # type: ignore[union-attr]
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        os.killpg(child.pid, 0)  # it still is there
        assert not runs(child.pid) and not runs(-child.pid)


def test_a_command_takes_its_time_to_end_after_a_ctrl_c(
    table: str, tmp_path: Path, mark: str
) -> None:
    work = graceful(seen := tmp_path / "seen", STOP_TIMEOUT_S + 1)
    assert_interrupted(("lock", "acquire", table, "--", *work), "works", mark)
    assert seen.read_text() == "SIGINT\nended by itself"
    assert stored(table).expired


@pytest.mark.parametrize("stdin", [None, subprocess.DEVNULL], ids=["its input", "piped input"])
def test_in_a_terminal_a_command_gets_one_ctrl_c_and_takes_its_time_to_end(
    table: str, tmp_path: Path, stdin: int | None
) -> None:
    work = graceful(seen := tmp_path / "seen", STOP_TIMEOUT_S + 1)
    with in_a_terminal("lock", "acquire", table, "--", *work, stdin=stdin) as (child, terminal):
        read_until(terminal, b"works")
        os.write(terminal, b"\x03")
        assert child.wait(30) == 130
    assert seen.read_text() == "SIGINT\nended by itself"
    assert stored(table).expired


@pytest.mark.parametrize("number", ENDING, ids=lambda each: each.name)
def test_in_a_terminal_a_signal_to_the_whole_group_reaches_the_command_once(
    table: str, tmp_path: Path, number: signal.Signals
) -> None:
    """`kill %1` and timeout(1) send theirs to the group, which is the command's too."""
    work = graceful(seen := tmp_path / "seen", WITNESS_S + 0.5)
    with in_a_terminal("lock", "acquire", table, "--", *work) as (child, terminal):
        read_until(terminal, b"works")
        time.sleep(0.5)  # the witness starts after the command
        os.killpg(child.pid, number)
        assert child.wait(30) == 0
    assert seen.read_text() == f"{number.name}\nended by itself"
    assert stored(table).expired


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_release_does_not_keep_the_lock(
    table: str, number: signal.Signals
) -> None:
    class Slow(Lock):
        def release(self) -> None:
            signal.raise_signal(number)
            super().release()

    with closing(Slow(table)) as lock:
        assert holding(lock, 0.0, lambda: 6, "lock acquire") == 6
    assert stored(table).expired


@linux_only
def test_in_a_terminal_the_lock_is_held_until_what_the_command_started_has_ended(
    table: str, tmp_path: Path
) -> None:
    """Ctrl-C reaches all processes at once: when we look, the command has ended, its child not."""
    lock, seen = Path(table.removeprefix("file://")) / LOCK_KEY, tmp_path / "seen"
    works = f"trap 'sleep 2; cp {lock} {seen}; exit' INT; echo works; while :; do sleep 0.1; done"
    dies = "import signal, subprocess; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    work = (sys.executable, "-S", "-c", f"{dies}; subprocess.run(['sh', '-c', {works!r}])")
    with in_a_terminal("lock", "acquire", table, "--", *work) as (child, terminal):
        read_until(terminal, b"works")
        os.write(terminal, b"\x03")
        assert child.wait(30) == 130
    copied = decode(seen.read_bytes())
    assert isinstance(copied, Record) and not copied.expired
    assert stored(table).expired


@pytest.mark.parametrize(
    "name, code", [pytest.param("HUP", 129, marks=linux_only), ("INT", 130)], ids=["HUP", "INT"]
)
def test_in_a_terminal_a_signal_by_another_process_reaches_what_the_command_started(
    table: str, tmp_path: Path, name: str, code: int
) -> None:
    work = slow_to_end(ended := tmp_path / "ended", name)
    with in_a_terminal("lock", "acquire", table, "--", *work) as (child, terminal):
        read_until(terminal, b"works")
        child.send_signal(getattr(signal, f"SIG{name}"))
        assert child.wait(30) == code
    assert ended.read_text() == "ended\n"
    assert stored(table).expired


@pytest.mark.skipif(sys.platform != "linux", reason="a process's children are read from /proc")
def test_in_a_terminal_a_command_does_not_outlive_the_killed_process_that_renews_its_lock(
    table: str, tmp_path: Path
) -> None:
    *shell, work = slow_to_end(ended := tmp_path / "ended", "TERM")
    work = f"trap '' HUP; {work}"  # it comes here, where no shell of a person has the terminal
    with in_a_terminal("lock", "acquire", table, "--", *shell, work) as (child, terminal):
        read_until(terminal, b"works")
        child.kill()
        child.wait(30)
        until(ended.exists, 30)


@linux_only
@pytest.mark.parametrize("work", APART.values(), ids=APART)
def test_in_a_terminal_what_a_command_started_does_not_outlive_the_killed_process(
    work: list[str], table: str, mark: str
) -> None:
    with in_a_terminal("lock", "acquire", table, "--", *work, mark=mark) as (child, terminal):
        read_until(terminal, b"works")
        child.kill()
        child.wait(30)
        until(lambda: not marked(mark), 30)


@linux_only
def test_in_a_terminal_a_command_sees_that_its_daemon_has_ended(table: str, mark: str) -> None:
    """Like a script that stops its own server, and waits until its pid is gone."""
    works = "(sleep 0.5 & echo $!) | { read pid; while kill -0 $pid; do sleep 0.1; done; exit 7; }"
    command = ("lock", "acquire", table, "--", "sh", "-c", f"{works} 2> /dev/null")
    with in_a_terminal(*command, mark=mark) as (child, _):
        assert child.wait(30) == 7


@linux_only
def test_in_a_terminal_without_jobs_a_ctrl_z_stops_nothing(table: str, mark: str) -> None:
    work = ("sh", "-c", "echo works; read said; exit 7")
    with in_a_terminal("lock", "acquire", table, "--", *work, mark=mark) as (child, terminal):
        read_until(terminal, b"works")
        os.write(terminal, b"\x1ablue\n")
        assert child.wait(30) == 7


@linux_only
def test_below_a_shell_with_jobs_the_guard_outlives_the_killed_group_of_lockkit(
    table: str, tmp_path: Path, mark: str
) -> None:
    job = shlex.join(line("lock", "acquire", table, "--", *APART["in a session"]))
    shell = ("bash", "-c", f"set -m; {job} & echo job $! runs; wait")
    command = ("lock", "acquire", (tmp_path / "other").as_uri(), "--", *shell)
    with in_a_terminal(*command, mark=mark) as (child, terminal):
        said = read_until(terminal, b"works")
        (group,) = re.findall(rb"job (\d+) runs", said)
        os.killpg(int(group), signal.SIGKILL)
        child.wait(30)
        until(lambda: not marked(mark), 30)


def test_a_command_keeps_its_exit_code_where_ended_children_are_ignored(table: str) -> None:
    """A parent process can pass this on; then the kernel keeps no exit code."""
    ignores = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    command = line("lock", "acquire", table, "--", "sh", "-c", "exit 7")
    start = [sys.executable, "-c", f"{ignores}; os.execv(sys.argv[1], sys.argv[1:])", *command]
    assert subprocess.run(start, cwd=ROOT, timeout=60, check=False).returncode == 7


def test_without_a_process_table_a_command_in_a_terminal_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a sandbox whose /proc does not list the children of a process."""
    monkeypatch.setattr("lockkit.cli.work.on_terminal", lambda: True)
    monkeypatch.setattr("lockkit.cli.work.glob", lambda _: [])
    with Work(["sleep", "30"], {}) as work:
        work.stop(signal.SIGTERM)
        assert work.poll() == -signal.SIGTERM


def test_a_background_jobs_lock_outlives_a_ctrl_c_on_its_terminal(table: str) -> None:
    """A shell ignores SIGINT for its background jobs, and their children inherit that."""
    command = line("lock", "acquire", table, "--", "sh", "-c", "echo works; sleep 1; exit 7")
    job = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], env=os.environ | CLOUD, cwd=ROOT,
        text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert job.stdout is not None and job.stdout.readline() == "works\n"
    job.send_signal(signal.SIGINT)
    assert job.wait(30) == 7
    assert stored(table).expired


def test_ctrl_c_ends_a_wait_for_a_busy_lock(table: str, mark: str) -> None:
    taken = Record("other", Clock().wall_ms() + 600_000, epoch=1, attempt="a", ttl_ms=600_000)
    leave(table, encode(taken))
    with started("lock", "acquire", table, "--", "true", mark=mark) as (process, out):
        wait_for_python(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, out.text
        assert "Traceback" not in out.text
    assert stored(table) == taken


def wait_for_python(process: subprocess.Popen[str]) -> None:
    """Wait until the command sleeps between two looks: by then its handlers are installed."""
    deadline = time.monotonic() + 30
    watched, before, asleep = psutil.Process(process.pid), 0.0, 0
    while asleep < 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        used = sum(watched.cpu_times()[:2])
        # A look takes almost no time; a start takes longer than this on any machine.
        idle = used - before < 0.05 and used >= 0.02
        asleep = asleep + 1 if idle and watched.status() == psutil.STATUS_SLEEPING else 0
        before = used


@pytest.mark.parametrize("command", ["check", "history"])
def test_ctrl_c_ends_a_read_of_standard_input(command: str, mark: str) -> None:
    with started(command, "-", mark=mark) as (process, out):
        wait_for_python(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, out.text
        assert "Traceback" not in out.text


def test_ctrl_c_ends_a_probe(tmp_path: Path, mark: str) -> None:
    assert_interrupted(("probe", f"file://{tmp_path}", "--rounds", "100000"), "racing", mark)


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_leaves_no_writer(mark: str) -> None:
    assert_interrupted(("demo", "--plain"), "holds the lock", mark)


@pytest.mark.slow
def test_ctrl_c_ends_jupyterlab(mark: str) -> None:
    pytest.importorskip("jupyterlab", reason="pip install lockkit[lab], or make lab")
    command = (
        "lab",
        "README.md",
        "--no-browser",
        "--ServerApp.port=0",
        "--IdentityProvider.token=t",
    )
    assert_interrupted(command, "lab/tree/README.md", mark)


@pytest.mark.slow
def test_a_lab_that_is_terminated_takes_jupyterlab_with_it(mark: str) -> None:
    pytest.importorskip("jupyterlab", reason="pip install lockkit[lab], or make lab")
    command = ("lab", "README.md", "--no-browser", "--ServerApp.port=0")
    assert_interrupted(command, "lab/tree/README.md", mark, by=signal.SIGTERM, code=143)
