"""No secret in a trace, error or export: planted wherever an SDK takes one, looked for everywhere.

The stores here refuse everything and repeat the request in their refusal, as S3 does with a wrong
signature; that they were sent the secrets is asserted too, or there would be nothing to leak.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from lock_world import SCHEMES, Tale
from table_world import CLOCK, new_table, prepare_inserts, rows

from lockkit.cli.main import main
from lockkit.cli.terminal import say_json
from lockkit.errors import LockBusy, StoreError
from lockkit.events import event, narrate
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.probe import probe
from lockkit.lab.processes.fleet import Fleet
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.export import page_of
from lockkit.lock.handle import Lock
from lockkit.runtime import Get, Procedure, run
from lockkit.stores import open_store
from lockkit.table import commit

ROOT = Path(__file__).parents[1]
KEY = base64.b64encode(b"planted-azure-account-key").decode()
SAS = "sv=2023-11-03&sig=planted-azure-sas"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDACCESSKEY",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret-access-key",
    "AWS_SESSION_TOKEN": "planted-aws-session-token",
    "AZURE_STORAGE_KEY": KEY,
    "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    "AZURE_STORAGE_SAS_TOKEN": SAS,
    "AZURE_STORAGE_CONNECTION_STRING": (
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};EndpointSuffix=invalid"
    ),
    "AZURE_CLIENT_SECRET": "planted-azure-client-secret",
    "AZURE_PASSWORD": "planted-azure-password",
    "CLOUDSDK_AUTH_ACCESS_TOKEN": "planted-google-access-token",
}
TOKEN = "planted-google-bearer-token"
PASSWORD = "planted-endpoint-password"
LEAK = re.compile(rf"planted|PLANTED|{re.escape(KEY[:12])}", re.ASCII)

EXPLICIT: dict[str, list[dict[str, Any]]] = {
    "s3": [
        {},
        {
            "aws_access_key_id": PLANTED["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": PLANTED["AWS_SECRET_ACCESS_KEY"],
            "aws_session_token": PLANTED["AWS_SESSION_TOKEN"],
        },
    ],
    "gcs": [
        {},
        {"credentials": Credentials(TOKEN), "use_auth_w_custom_endpoint": True, "project": "p"},
    ],
    "azure": [{}, {"credential": SAS}, {"credential": KEY}],
}
"""How a caller may hand credentials over; {}: the SDK finds them in the environment."""


def assert_clean(**produced: object) -> None:
    for what, text in produced.items():
        found = LEAK.search(str(text))
        assert found is None, f"a secret in {what}: ...{str(text)[max(0, found.start() - 200) :]}"


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    account = tmp_path / "service-account.json"
    account.write_text(json.dumps({"type": "service_account", "private_key": "planted-private"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@contextmanager
def parrot() -> Iterator[tuple[str, list[str]]]:
    """A server that refuses everything and repeats all it was sent; its URL and what that was."""
    heard: list[str] = []

    class Parrot(BaseHTTPRequestHandler):
        def answer(self) -> None:
            said = f"{self.command} {self.path}\n{self.headers}"
            heard.append(said)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            plain = re.sub(r"[<&>]", " ", said)
            body = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{plain}</Message></Error>"
            if "/storage/v1/" in self.path:
                body = json.dumps(
                    {"error": {"code": 403, "message": said, "errors": [{"reason": "forbidden"}]}}
                )
            self.send_response(403, plain.splitlines()[0][:60])
            self.send_header("x-ms-error-code", "AuthenticationFailed")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Parrot) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()


def trace_of(call: Callable[[], Any]) -> str:
    """What a program that catches nothing would print of it."""
    try:
        return repr(call())
    except Exception:  # noqa: BLE001 - its whole trace is looked through
        return traceback.format_exc()


def asking() -> Procedure[object]:
    return (yield Get("k"))


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_a_store_that_repeats_what_it_was_sent_finds_no_echo(
    kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lockkit")
    url = f"{SCHEMES[kind]}://bucket/table"
    with parrot() as (endpoint, heard):
        # Not the development account, whose key is public: the planted key signs.
        place = f"{endpoint}/account" if kind == "azure" else endpoint
        for given in EXPLICIT[kind]:
            tale = Tale()
            lock = Lock(url, endpoint=place, ttl_s=2, emit=tale, client="reader", **given)
            store = open_store(url, endpoint=place, **given)
            for call in (
                lambda lock=lock: lock.acquire(timeout=0), lock.locked, lambda lock=lock: lock,
                lambda s=store: run(asking(), s, CLOCK),
                lambda s=store: (s.options, s), lambda s=store: s.list(""),
                lambda s=store: s.versions("k"), lambda s=store: s.delete("k"),
                lambda s=store: probe(s, rounds=1, racers=2).to_json(), lock.busy_reason,
            ):  # fmt: skip
                assert_clean(trace=trace_of(call))
            lines = [each.to_json() for each in tale.events]
            assert any("refused" in each for each in lines), lines
            assert_clean(events=lines, story=narrate(tale.events))
    used = {"s3": "AKIAPLANTED", "gcs": TOKEN, "azure": "planted-azure-sas"}[kind]
    assert any(used in each for each in heard), "it was never sent, so nothing was shown"
    said = capsys.readouterr()
    assert "refused before its claim" in caplog.text, "nothing was logged, so nothing was shown"
    assert_clean(stdout=said.out, stderr=said.err, log=caplog.text)


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_lock_table_faults_record_and_page_hold_no_secret(
    kind: str, shared_emulator: Any, bucket: str
) -> None:
    """The life of a lock that goes well, and less well: all that is kept of it."""
    url = f"{SCHEMES[kind]}://{bucket}/table"
    direct = getattr(shared_emulator, kind)
    seen = len(shared_emulator.requests())
    tale, faults = Tale(), []
    explicit = EXPLICIT[kind][1] if kind == "s3" else {}
    with Proxy(direct) as proxy, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        proxy.on_fault = faults.append
        store = new_table(url, endpoint=proxy.url, **explicit)
        lock = Lock(url, endpoint=proxy.url, ttl_s=10, emit=tale, **explicit)
        rival = Lock(url, endpoint=proxy.url, ttl_s=10, acquire_timeout=0.1, emit=tale, **explicit)
        prepared = prepare_inserts(store, rows([1]), emit=tale)
        assert lock.acquire(timeout=0)
        with pytest.raises(LockBusy) as busy, rival:
            pass
        proxy.inject(Fault("drop", operation="put", key="table_lock.json"))
        lock.renew()
        run(commit(prepared, lock.fence, believe=lock.assert_held), store, CLOCK, tale)
        lock.mark_committed()
        proxy.inject(Fault("status", code=403, operation="put", key="table_lock.json"))
        with pytest.raises(StoreError) as refused:
            lock.release()
    assert faults, "the faults struck"
    history = sorted(
        [*tale.events, *faults, *shared_emulator.requests(seen)], key=lambda each: each.at_ms
    )
    verdict = check(history)
    assert_clean(
        history=[each.to_json() for each in history],
        story=narrate(history),
        verdict=verdict.to_json(),
        page=page_of(history, verdict, title="what happened"),
        errors=[busy.value, refused.value],
        warnings=[each.message for each in warned],
    )


def test_a_fleets_folder_contains_no_credentials(tmp_path: Path) -> None:
    """Histories, logs, the server's own file; also of writers that were refused, and said so."""
    fleet = Fleet(run_dir=tmp_path / "well", writers=2, rounds=1, pause_s=0.1)
    with fleet:
        assert fleet.wait(lambda each: each.kind == "published", 30), fleet.error
    with parrot() as (endpoint, heard):
        refused = Fleet(
            run_dir=tmp_path / "refused", writers=1, url="s3://bucket/t", endpoint=endpoint
        )
        with refused:
            assert refused.wait(lambda each: each.kind == "exited", 30), refused.error
        assert any("AKIAPLANTED" in each for each in heard), "a named store gets the user's own"
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert {"history.jsonl", "store.sqlite", "W1.log"} <= {each.name for each in files}
    for each in files:
        if each.name != "service-account.json":
            assert_clean(**{each.name: each.read_bytes().decode("latin-1")})
    for each in (fleet, refused):
        assert_clean(events=[one.to_json() for one in each.events()], error=each.error)


def cli(*line: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lockkit", *line], cwd=ROOT, env=os.environ | env,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0, "this store refuses everything"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_the_command_line_shows_no_credentials(kind: str) -> None:
    url = f"{SCHEMES[kind]}://bucket/table"
    with parrot() as (endpoint, heard):
        place = f"{endpoint}/account" if kind == "azure" else endpoint
        there = ("--endpoint", place)
        guarded = ("--endpoint", place.replace("//", f"//user:{PASSWORD}@"))
        for command in (
            ("lock", "show", url, *there), ("lock", "show", url, *guarded),
            ("lock", "acquire", url, *there, "--timeout", "0", "--", "true"),
            ("history", url, *there), ("probe", url, *guarded, "--rounds", "1"),
        ):  # fmt: skip
            assert_clean(output=cli(*command))
    assert heard


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_an_unsafe_store_is_named_without_the_password_of_its_url(emulator: Any) -> None:
    lock = Lock("gs://b/t", endpoint=emulator.gcs.replace("//", f"//u:{PASSWORD}@"), ttl_s=10)
    trace = trace_of(lambda: lock.acquire(timeout=5))
    assert "ignored a write condition" in trace
    assert_clean(trace=trace)


def test_a_line_of_json_masks_each_text_by_itself_and_stays_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = "https://a.blob/x?sv=1&sig=geheim"
    say_json({"owner": owner, "AccountKey=geheim": [owner, {"at": Path("x?sig=geheim")}], "n": 3})
    said = capsys.readouterr().out
    assert "geheim" not in said
    found = json.loads(said)
    assert found["n"] == 3 and found["owner"].startswith("https://a.blob/x?sv=1&sig=")
    history = tmp_path / "history.jsonl"
    history.write_text(event(1, "W1", "note", text="x?sig=geheim").to_json())
    assert main(["history", str(history), "--json"]) == 0
    said = capsys.readouterr().out
    assert "geheim" not in said and json.loads(said)["kind"] == "note"
