"""A lost answer: how each SDK reports it by default, and how a lock handles it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from html import escape
from typing import Any

from lockkit.errors import masked
from lockkit.events import Event
from lockkit.lab.course.grid import grid
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.lab.course.ticking import ticks
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.widgets.ui import FAST
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Found
from lockkit.stores import open_store

WON, LOST, NOTHING = "that it won", "that another client won", "nothing: the connection broke"
GUESSES = (WON, LOST, NOTHING)
"""What an SDK may report when the object was written and the answer was lost."""
TRUSTING, CAREFUL = "412 is another client", "read it back"
MINE = "W1/1"
KEY = f"orders/{LOCK_KEY}"
TTL_S = 10.0
TRY_S = 0.4
SAID_CHARS_MAX = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkReport:
    """What an SDK reported to its caller, beside what the store had done."""

    sdk: str
    said: str
    status: int
    sent: tuple[Event, ...]
    """The writes that reached the store; the first one's answer was lost."""
    stored: str
    """The attempt that the object holds."""

    @property
    def mine(self) -> bool:
        return self.stored == MINE

    def __str__(self) -> str:
        return WON if self.status in (200, 201) else LOST if self.status in (409, 412) else NOTHING

    def __repr__(self) -> str:
        sent = ", ".join(f"{each['status']}" for each in self.sent)
        return (
            f"{self.sdk} reports {self.said}. The store had answered {sent}; the object holds "
            f"attempt {self.stored}{', the very one that was sent' if self.mine else ''}."
        )

    def _answer_to(self, number: int) -> str:
        if number == 1:
            return "✗ lost"
        last = number == len(self.sent)
        return "reported to the caller" if last else "not reported: the SDK retries"

    def _repr_html_(self) -> str:
        rows = []
        for number, each in enumerate(self.sent, 1):
            what = f"create if absent, attempt {each['attempt']}"
            done = "written" if each["applied"] else "not written"
            rows.append((str(number), what, f"{each['status']}, {done}", self._answer_to(number)))
        sent = grid("lost", ("try", "what was sent", "the store", "its answer"), rows)
        return (
            f"{sent}<div style='overflow-wrap:anywhere'><b>{escape(self.sdk)}</b> says: "
            f"<code>{escape(self.said)}</code></div>"
            f"<div>The object holds attempt <b>{escape(self.stored)}</b>"
            f"{', the very one that was sent.' if self.mine else '.'}</div>"
        )


@ticks
def lose_answer(provider: str) -> SdkReport:
    """Create the lock object with the provider's SDK and its defaults; lose the first answer.

    Azure's takes 15 s, the pause of its default policy. LOCKKIT_FAST skips only this pause.
    """
    sdk, create = SDKS[provider]
    with LockTestbed(provider) as testbed:
        testbed.lose()
        body = json.dumps({"owner": "W1", "attempt": MINE}).encode()
        status, said = create(testbed.proxy.url, body)
        sent = tuple(each for each in testbed.requests if each["method"] == "put")
        with closing(open_store(testbed.url, endpoint=testbed.proxy.url)) as store:
            found = store.get(LOCK_KEY)
    assert isinstance(found, Found), "the first request was written"
    stored = json.loads(found.body)["attempt"]
    return SdkReport(sdk=sdk, said=said, status=status, sent=sent, stored=stored)


@contextmanager
def plain_s3(*, lose: bool = False) -> Iterator[Any]:
    """A boto3 client without retries, and a bucket `lake`.

    With `lose`, the answer to the first write of the lock object is lost.
    """
    import boto3
    from botocore.config import Config

    with LockTestbed("s3") as testbed:
        if lose:
            testbed.lose()
        once = Config(retries={"total_max_attempts": 1})
        client = boto3.client("s3", endpoint_url=testbed.proxy.url, region_name="us-east-1",
                              aws_access_key_id="any", aws_secret_access_key="any",
                              config=once)  # fmt: skip
        with closing(client):
            yield client


# --- the SDKs, with only the server's address set ------------------------------------------------


def _boto3(url: str, body: bytes) -> tuple[int, str]:
    import boto3
    from botocore.exceptions import ClientError

    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1",
                          aws_access_key_id="any", aws_secret_access_key="any")  # fmt: skip
    with closing(client):
        try:
            client.put_object(Bucket="lake", Key=KEY, Body=body, IfNoneMatch="*")
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], _said(error)
    return 200, "nothing amiss"


def _google(url: str, body: bytes) -> tuple[int, str]:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="any", credentials=AnonymousCredentials(),
                            client_options={"api_endpoint": url})  # fmt: skip
    with closing(client):
        try:
            client.bucket("lake").blob(KEY).upload_from_string(body, if_generation_match=0)
        except GoogleAPICallError as error:
            return int(error.code or 0), _said(error)
    return 200, "nothing amiss"


def _azure(url: str, body: bytes) -> tuple[int, str]:
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob import ContainerClient, ExponentialRetry

    from lockkit.stores.azure import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

    settings: dict[str, Any] = {}
    if os.environ.get(FAST):
        settings["retry_policy"] = ExponentialRetry(
            initial_backoff=0, increment_base=1, random_jitter_range=0
        )
    credential = {"account_name": DEVELOPMENT_ACCOUNT, "account_key": DEVELOPMENT_KEY}
    place = f"{url}/{DEVELOPMENT_ACCOUNT}"
    with ContainerClient(place, "lake", credential=credential, **settings) as client:
        try:
            client.upload_blob(KEY, body)
        except HttpResponseError as error:
            return int(error.status_code or 0), _said(error)
    return 201, "nothing amiss"


def _said(error: Exception) -> str:
    line = masked(str(error)).splitlines()[0]
    return f"{type(error).__name__}: {line[:SAID_CHARS_MAX]}{'…' * (len(line) > SAID_CHARS_MAX)}"


Create = Callable[[str, bytes], tuple[int, str]]
SDKS: dict[str, tuple[str, Create]] = {
    "s3": ("boto3", _boto3),
    "gcs": ("google-cloud-storage", _google),
    "azure": ("azure-storage-blob", _azure),
}


# --- a lock with the same fault -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireTrial:
    """One acquire in which the answer to the first claim was lost."""

    holds: bool
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        return "it holds the lock" if self.holds else "it waits for itself"


def acquire(provider: str, belief: str = CAREFUL) -> AcquireTrial:
    """Acquire a lock, and lose the answer. `TRUSTING`: the SDK retries, and its 412 is trusted."""
    careful = belief == CAREFUL
    mistake = nullcontext() if careful else LEASE_MUTANTS["claim_412 lost"].planted()
    with LockTestbed(provider) as testbed, mistake:
        lock = testbed.lock("W1", ttl_s=TTL_S, attempts=1 if careful else 3)
        testbed.lose()
        holds = lock.acquire(timeout=None if careful else TRY_S)
        if holds:
            lock.release()
        events = testbed.events
        return AcquireTrial(holds=holds, events=tuple(events), verdict=testbed.verdict)
