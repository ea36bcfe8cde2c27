"""The whole walk of a person on call, at each provider: who holds it, since when, may I break it.

Each command that is printed is split as a shell would, and run as it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_world import ended_process

from lockkit import Lock, open_lock
from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.lab.server.policy import read_policy

POLICIES = Path(__file__).parents[1] / "datasets" / "policies"
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
DIED_S = 400
HOLD = """
import sys
from lockkit import open_lock
lock = open_lock(sys.argv[1])
assert lock.acquire(timeout=20)
print("held", flush=True)
sys.stdin.read()
"""


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str]:
    """A command line as it was printed; its exit code and what it prints."""
    words = shlex.split(line)
    assert words[0] == "lockkit"
    capsys.readouterr()
    code = main(words[1:])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def printed_command(said: str, before: str) -> str:
    found = re.search(rf"^.*{re.escape(before)}(lockkit .+)$", said, re.MULTILINE)
    assert found is not None, said
    return found[1]


def policy(*names: str) -> Any:
    return read_policy((POLICIES / f"{each}.json").read_text("utf-8") for each in names)


@pytest.fixture(params=["s3", "gcs", "azure", "file"])
def walk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A table whose writer died, and its address under the documents of a role."""
    name, clock = request.param, Clock(offset_ms=-DIED_S * 1000)
    if name == "file":
        url = f"file://{tmp_path}/it's orders"
        lock = Lock(url, ttl_s=60, clock=clock, client="etl")
        assert lock.acquire(timeout=5)
        lock.close()
        held = next(Path(tmp_path).rglob("table_lock.json"))
        fields = json.loads(held.read_bytes()) | {"holder": f"{ended_process()}/etl"}
        held.write_text(json.dumps(fields, separators=(",", ":")))
        then = Clock().wall_ms() / 1000 - DIED_S
        os.utime(held, (then, then))
        yield url, lambda _role: None
        return
    url, db = f"{SCHEMES[name]}://lake/orders", str(tmp_path / "objects.sqlite")
    with Emulator(db=db, clock=clock) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("socket.gethostname", lambda: "etl-3")
            lock = Lock(url, ttl_s=60, clock=clock, client="etl", endpoint=getattr(server, name))
        assert lock.acquire(timeout=5)
        lock.close()
    servers: list[Emulator] = []

    def under(role: str) -> str:
        server = Emulator(db=db, policy=policy(name + role))
        servers.append(server)
        server.__enter__()
        return str(getattr(server, name))

    yield url, under
    for each in servers:
        each.__exit__(None, None, None)


def test_each_printed_command_leads_to_the_next_one_until_the_lock_is_free(
    walk: tuple[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.cli.breaking.WATCH_S", 0.1)  # its holder is dead anyway
    url, under = walk
    look = ""
    for role in ("_on_call", ""):  # the first may only read
        endpoint = under(role)
        at = shlex.quote(url) + (f" --endpoint {endpoint}" if endpoint else "")
        look = look or at
        code, said = run(capsys, f"lockkit lock show {at}")
        assert code == 1 and "overdue: " in said and "/etl)" in said
        assert "its grant, or its last renewal" in said, "no earlier version shows which"
        code, said = run(capsys, f"lockkit incident {at} --watch-s 0")
        assert code == 1 and "holder died" in said
        code, said = run(capsys, printed_command(said, "run      "))
        assert code == 0 and "break    yes" in said and "nothing was changed" in said
        code, said = run(capsys, printed_command(said, "to break it: "))
        if role and endpoint:
            assert code == 3 and "access is denied" in said
        else:
            assert code == 0 and "broken: the lock is free now" in said
            break
    code, said = run(capsys, f"lockkit lock show {look}")
    assert code == 0 and "released: " in said
    code, said = run(capsys, f"lockkit incident {look} --watch-s 0")
    assert code == 0 and "healthy" in said


@pytest.mark.parametrize("service", [
    "filesystem", "azure-lease",
    pytest.param("dynamodb", marks=pytest.mark.xdist_group("dynamodb")),
])  # fmt: skip
def test_the_same_walk_ends_the_grant_of_a_killed_holder_of_a_service(
    service: str, request: pytest.FixtureRequest, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # Azure's lease needs a writer's rights even to be broken; `show` and `incident` only read.
    with Emulator(db=str(tmp_path / "db"), policy=policy("azure")) as writers, \
         Emulator(db=str(tmp_path / "db"), policy=policy("azure_on_call")) as readers:  # fmt: skip
        lease = "azure-lease://lake/orders?endpoint="
        match service:
            case "filesystem":
                url = look = f"filesystem://{tmp_path}/it's locks?expire_minutes=60"
            case "azure-lease":
                url, look = f"{lease}{writers.azure}", f"{lease}{readers.azure}"
            case _:
                api = request.getfixturevalue("dynamodb")
                at = f"endpoint={api.endpoint}&lease_s=3600"
                url = look = f"dynamodb://us-east-1/locks/{tmp_path.name}?{at}"
        line = [sys.executable, "-c", HOLD, url]
        with subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            code, said = run(capsys, f"lockkit lock show {shlex.quote(look)}")
            assert code == 0 and f"/{holder.pid}@" in said and "it runs on this host" in said
            assert run(capsys, f"lockkit lock break {shlex.quote(look)}")[0] == 75
            holder.send_signal(signal.SIGKILL)
            holder.wait(10)
        code, said = run(capsys, f"lockkit lock show {shlex.quote(look)}")
        assert code == 1 and "it ran on this host and has ended" in said
        code, said = run(capsys, f"lockkit incident {shlex.quote(look)} --watch-s 0")
        assert code == 1 and "holder died" in said
        code, said = run(capsys, printed_command(said, "run      "))
        assert code == 0 and "break    yes" in said
        breaks = printed_command(said, "to break it: ")
        if look != url:
            code, said = run(capsys, breaks)
            assert code == 3 and "access is denied" in said, "on-call staff may only look"
            code, said = run(capsys, f"lockkit lock break {shlex.quote(url)}")
            breaks = printed_command(said, "to break it: ")
        code, said = run(capsys, breaks)
        assert code == 0 and "broken: the lock is free now" in said
        assert run(capsys, f"lockkit lock show {shlex.quote(look)}") == (0, f"{look}\n  free\n")
        with open_lock(url, acquire_timeout=10):
            pass


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_watch_goes_on_after_503s_of_a_server(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"faults": [{"what": "status", "code": 503, "when": "before", "nth": 2, "next": 2}]}
    faults = tmp_path / "plan.json"
    faults.write_text(json.dumps(plan))
    url = f"{SCHEMES[kind]}://lake/orders"
    with Emulator() as server:
        lock = Lock(url, endpoint=getattr(server, kind), ttl_s=60)
        assert lock.acquire(timeout=5)
        looks: list[float] = []

        def pause(_clock: Clock, seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 4:
                lock.release()
            if len(looks) == 6:
                raise KeyboardInterrupt

        monkeypatch.setattr("lockkit.clock.Clock.sleep", pause)
        line = ["lock", "watch", url, "--endpoint", getattr(server, kind), "--faults", str(faults)]
        main(line)
        monkeypatch.undo()
        lock.close()
    said = capsys.readouterr()
    assert [each.split()[2] for each in said.out.splitlines()] == ["held:", "released:"]
    assert said.err.count("try again in a moment") == 1, "said once, and not for each look"
