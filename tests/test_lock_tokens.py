"""The lock keeps its times while a token does not come: acquire, danger, loss, release, show."""

from __future__ import annotations

import datetime
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import trickle as slow
from faults_world import behind_tls, certificate
from lock_world import until
from test_deadlines import PATIENCE_S, no_keys
from test_lock_deadlines import BUSY_S, LATE_S, TTL_S
from test_tokens import Token
from trickle import Trickle, ends_within, trickle

from lockkit import Lock
from lockkit.cli import acquire as acquire_command
from lockkit.cli.main import main
from lockkit.errors import LockLost, NoAnswer
from lockkit.lock.handle import UnprovenRelease
from lockkit.stores import open_store, tokens
from lockkit.stores.within import within

__all__ = ["no_keys"]


@pytest.fixture(params=[slow.silence, slow.body], ids=["silent", "trickles"])
def token_server(request: pytest.FixtureRequest) -> Iterator[Trickle]:
    with trickle(request.param) as server:
        yield server


def google(url: str, server: Servers, *, token: str | None) -> dict[str, Any]:
    """Options of `Lock`: a token that google-auth renews now, 3 min 45 s before its end."""
    from google.oauth2.credentials import Credentials

    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    credentials = Credentials(
        token=token, expiry=now + datetime.timedelta(seconds=120) if token else None,
        refresh_token="r", token_uri=url, client_id="c", client_secret="s",
    )  # fmt: skip
    return {
        "url": "gs://{}/t", "endpoint": server.gcs, "project": "p", "credentials": credentials,
        "use_auth_w_custom_endpoint": True,
    }  # fmt: skip


class Identity:
    """azure-identity's managed identity. The token that it starts with is renewed now: azure-core
    does so in its last five minutes.
    """

    def __init__(self, token: str | None) -> None:
        from azure.identity import ManagedIdentityCredential

        self._real = ManagedIdentityCredential()
        self._first = [Token(token, int(time.time() + 200))] if token else []

    def get_token(self, *scopes: str, **options: Any) -> Any:
        return self._first.pop() if self._first else self._real.get_token(*scopes, **options)


def azure(_: str, server: Servers, *, token: str | None) -> dict[str, Any]:
    """The same for Azure; the environment names its token server."""
    return {
        "url": "az://{}/t", "account_url": server.azure_over_tls, "connection_verify": False,
        "credential": Identity(token),
    }  # fmt: skip


class Servers(NamedTuple):
    """Azure's SDK sends tokens over TLS only."""

    gcs: str
    azure_over_tls: str


@pytest.fixture
def servers(shared_emulator: Any, tmp_path: Path) -> Iterator[Servers]:
    path = urlsplit(shared_emulator.azure).path
    with behind_tls(shared_emulator.azure, certificate(tmp_path)) as url:
        yield Servers(shared_emulator.gcs, url + path)


@pytest.fixture(params=[google, azure])
def cloud(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, token_server: Trickle
) -> Any:
    monkeypatch.setenv("IDENTITY_ENDPOINT", token_server.url)
    monkeypatch.setenv("IDENTITY_HEADER", "x")
    return request.param


def opened(options: dict[str, Any], bucket: str, **more: Any) -> Lock:
    url = options.pop("url").format(bucket)
    return Lock(url, ttl_s=TTL_S, **options, **more)


def test_acquire_returns_in_time_though_its_first_token_does_not_come(
    cloud: Any, token_server: Trickle, bucket: str, servers: Servers
) -> None:
    lock = opened(cloud(token_server.url, servers, token=None), bucket)
    assert not ends_within(0.5 + LATE_S + BUSY_S, lambda: lock.acquire(timeout=0.5))
    assert "no complete answer" in lock.busy_reason() or "no answer" in lock.busy_reason()


def test_a_renewal_whose_token_does_not_come_delays_no_report_of_danger_and_loss(
    cloud: Any, token_server: Trickle, bucket: str, servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    at: dict[str, float] = {}
    lock = opened(
        cloud(token_server.url, servers, token="old"), bucket,
        on_danger=lambda _: at.setdefault("danger", time.monotonic()),
        on_lost=lambda *_: at.setdefault("lost", time.monotonic()),
    )  # fmt: skip
    assert lock.acquire(timeout=10)
    monkeypatch.setattr(tokens, "VALID_MS_MIN", 10**9)  # no token that it has is good any more
    began = time.monotonic()
    until(lambda: "lost" in at, TTL_S + BUSY_S)
    assert at["danger"] < at["lost"] <= began + TTL_S + BUSY_S
    with pytest.raises(LockLost), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnprovenRelease)
        ends_within(LATE_S + BUSY_S, lock.release)


# --- opening: the search for credentials ----------------------------------------------------------


@pytest.fixture(params=["gs", "s3"])
def no_credentials(
    request: pytest.FixtureRequest, no_keys: Path, token_server: Trickle,
    monkeypatch: pytest.MonkeyPatch,
) -> str:  # fmt: skip
    """Only a machine's metadata server would have some; answers a URL."""
    # The first store of a process imports an SDK, which takes seconds of a busy machine.
    import_module({"gs": "lockkit.stores.gcs", "s3": "lockkit.stores.s3"}[request.param])
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(no_keys))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(no_keys))
    monkeypatch.setenv("GCE_METADATA_IP", token_server.url.removeprefix("http://"))
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", token_server.url)
    return f"{request.param}://b/t"


def test_opening_takes_no_longer_than_its_caller_allows(no_credentials: str) -> None:
    def call() -> object:
        with within(0.5):
            return open_store(no_credentials)

    with pytest.raises(NoAnswer, match="find its credentials"):
        ends_within(PATIENCE_S, call)


@pytest.mark.parametrize("command", ["show", "acquire"])
def test_a_command_finds_no_credentials_in_the_time_that_it_was_given(
    command: str, no_credentials: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(acquire_command, "OPENING_S_MIN", 0.3)
    words = ["show", no_credentials, "--timeout-s", "0.1"]
    if command == "acquire":
        words = ["acquire", no_credentials, "--timeout", "0.3", "--", "true"]

    def call() -> int:
        return main(["lock", *words])

    assert ends_within(PATIENCE_S, call) == 3
    assert "find its credentials" in capsys.readouterr().err
