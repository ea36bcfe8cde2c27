"""A token server that is slow, silent or endless holds no call: with the real SDKs."""

from __future__ import annotations

import datetime
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trickle as slow
from test_deadlines import PATIENCE_S, TIMEOUT_S, no_keys, ok
from trickle import ends_within, trickle

from lockkit.errors import NoAnswer, StoreError
from lockkit.protocol.outcome import Found, IfAbsent, Unknown
from lockkit.stores import Store, open_store, tokens
from lockkit.stores.deadline import DeadlinePassed, deadline

__all__ = ["no_keys"]

WAYS = [slow.silence, slow.headers, slow.body]


def put(store: Store) -> object:
    return ends_within(PATIENCE_S, lambda: store.put("k", b"{}", IfAbsent()))


def google(endpoint: str, token_uri: str, expires_in_s: float | None) -> Store:
    from google.oauth2.credentials import Credentials

    expiry = None
    if expires_in_s is not None:
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        expiry = now + datetime.timedelta(seconds=expires_in_s)
    credentials = Credentials(
        token=None if expiry is None else "old", expiry=expiry, refresh_token="r",
        token_uri=token_uri, client_id="c", client_secret="s",
    )  # fmt: skip
    return open_store(
        "gs://b/t", endpoint=endpoint, timeout_s=TIMEOUT_S, project="p", credentials=credentials,
        use_auth_w_custom_endpoint=True,
    )  # fmt: skip


@pytest.mark.parametrize("how", WAYS)
def test_a_google_token_server_that_trickles_holds_no_write(how: Any) -> None:
    with trickle(how) as token_server, trickle(ok) as server:
        said = put(google(server.url, token_server.url, expires_in_s=None))
    assert isinstance(said, Unknown), said


def test_a_google_token_that_is_still_good_is_used_while_its_renewal_hangs() -> None:
    """google-auth renews it 3 min 45 s before its end, and by itself every call would wait."""
    with trickle(slow.silence) as token_server, trickle(ok) as server:
        store = google(server.url, token_server.url, expires_in_s=120)
        for _ in range(2):
            assert isinstance(ends_within(PATIENCE_S, lambda: store.get("k")), Found)


def test_a_metadata_server_that_trickles_holds_no_opening_at_google(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tokens, "OPENING_S_MIN", 1.0)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with trickle(slow.headers) as metadata:
        monkeypatch.setenv("GCE_METADATA_IP", metadata.url.removeprefix("http://"))
        # On a busy machine Google's own three attempts may be over before the deadline is.
        with pytest.raises(StoreError, match=r"in the time that it may take|no Google credentials"):
            ends_within(PATIENCE_S, lambda: open_store("gs://b/t", timeout_s=TIMEOUT_S))


@pytest.mark.parametrize("how", WAYS)
def test_a_metadata_server_that_trickles_holds_no_call_at_amazon(
    how: Any, no_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "OPENING_S_MIN", 1.0)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with trickle(how) as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        with pytest.raises(NoAnswer, match="in the time that it may take"):
            ends_within(
                PATIENCE_S,
                lambda: open_store("s3://b/t", endpoint="http://store.invalid", timeout_s=1),
            )


def test_aws_keys_that_are_still_good_are_used_while_their_renewal_hangs(no_keys: Path) -> None:
    """botocore begins 15 minutes before their end, and needs new ones 10 minutes before it."""
    script, runs = no_keys / "credentials.sh", no_keys / "runs"
    script.write_text(
        f"""#!/bin/sh
echo run >> {runs}
[ $(wc -l < {runs}) -lt 3 ] || exec sleep 8
echo '{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c",
  "Expiration": "'$(date -u -d '+720 seconds' +%Y-%m-%dT%H:%M:%SZ)'"}}'
"""
    )
    script.chmod(0o755)
    (no_keys / "config").write_text(f"[default]\ncredential_process = {script}\n")
    with trickle(ok) as server:
        store = open_store("s3://b/t", endpoint=server.url, timeout_s=2)
        ends = time.monotonic() + PATIENCE_S
        said = [ends_within(PATIENCE_S, lambda: store.get("k"))]
        while runs.read_text().count("run") < 3 and time.monotonic() < ends:
            said.append(ends_within(PATIENCE_S, lambda: store.get("k")))
        said += [ends_within(PATIENCE_S, lambda: store.get("k")) for _ in range(4)]
    assert all(isinstance(each, Found) for each in said), said
    assert runs.read_text().count("run") == 3, "one renewal is under way at a time"


@pytest.mark.parametrize("how", WAYS)
def test_an_azure_identity_endpoint_that_trickles_holds_no_write(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Azure's App Service; tokens go over TLS only, so no answer of a store is needed."""
    from azure.identity import ManagedIdentityCredential

    with trickle(how) as identity:
        monkeypatch.setenv("IDENTITY_ENDPOINT", identity.url)
        monkeypatch.setenv("IDENTITY_HEADER", "x")
        store = open_store(
            "az://b/t", account_url="https://127.0.0.1:9/any", timeout_s=TIMEOUT_S,
            credential=ManagedIdentityCredential(),
        )  # fmt: skip
        said = put(store)
    assert isinstance(said, Unknown), said
    assert "in the time that it may take" in said.why


class Token(NamedTuple):
    token: str
    expires_on: int


class SlowIdentity:
    """Answers its first request, with a token of so many seconds; the others hang."""

    def __init__(self, valid_s: float) -> None:
        self.asked, self.closed = 0, threading.Event()
        self._first = Token("first", int(time.time() + valid_s))

    def get_token(self, *_scopes: str, **_options: Any) -> Token:
        self.asked += 1
        if self.asked > 1:
            self.closed.wait(60)
        return self._first


def test_an_azure_token_that_is_still_good_is_used_while_its_renewal_hangs() -> None:
    from lockkit.stores.azure import TimedCredential

    identity = SlowIdentity(valid_s=200)
    credential = TimedCredential(identity)
    for _ in range(3):  # azure-core asks again and again in a token's last five minutes
        with deadline(TIMEOUT_S):
            assert ends_within(PATIENCE_S, lambda: in_a_call(credential)).token == "first"
    assert identity.asked == 2, "one renewal is under way at a time"
    identity.closed.set()


def test_an_azure_token_that_has_ended_is_not_sent() -> None:
    from lockkit.stores.azure import TimedCredential

    identity = SlowIdentity(valid_s=5)
    credential = TimedCredential(identity)
    assert in_a_call(credential).token == "first"
    with pytest.raises(DeadlinePassed):
        ends_within(PATIENCE_S, lambda: in_a_call(credential))
    identity.closed.set()


def test_a_claims_challenge_is_answered_by_a_new_token_only() -> None:
    from lockkit.stores.azure import TimedCredential

    identity = SlowIdentity(valid_s=200)
    credential = TimedCredential(identity)
    assert in_a_call(credential).token == "first"
    with pytest.raises(DeadlinePassed):
        ends_within(PATIENCE_S, lambda: in_a_call(credential, claims="{}"))
    identity.closed.set()


def in_a_call(credential: Any, **options: Any) -> Token:
    with deadline(TIMEOUT_S):
        token: Token = credential.get_token("https://storage.azure.com/.default", **options)
        return token
