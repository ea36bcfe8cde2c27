"""Writes the debug logs beside it: the real SDKs, as they come, against the embedded server.

Each program locks as a small script does (RFC-91's lock file, guarded writes), and meets the fault
of its name. What is left out: lines of other loggers, and every value that is or hides a secret.
    python datasets/incidents/logs/generate.py [NAME ...]
"""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator

HERE = Path(__file__).parent
CLOCK = Clock()
BUCKET, KEY = "lake", "orders/.hoodie/.locks/table_lock.json"
LEASE_MS = 30_000
LOST = Fault("drop", operation="put", key="table_lock.json")
SECRET = re.compile(
    r"((?:Authorization|X-Amz-Security-Token|Signature|Credential)'?[:=] ?b?'?)[^'\n]+", re.I
)
KEPT = re.compile(r"botocore\.(endpoint|parsers|retries)|urllib3|azure\.|lock-script|google\.api")


def body(*, expired: bool = False) -> bytes:
    until_ms = CLOCK.wall_ms() + LEASE_MS
    fields = {"expired": expired, "validUntil": until_ms, "owner": "7f3c0b1e-host-4"}
    return json.dumps(fields).encode()


def refused(act: Callable[[], Any]) -> None:
    """What the script does about an error: it says so, and goes on without the lock."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whichever class the SDK has for it
        logging.getLogger("lock-script").warning("no: %s", type(error).__name__)


def botocore_claim_retried(proxy: Proxy) -> None:
    import boto3

    # As boto3.set_stream_logger('') has them.
    s3 = boto3.client("s3", endpoint_url=proxy.url, region_name="us-east-1")
    where = {"Bucket": BUCKET, "Key": KEY}
    proxy.inject(LOST)
    refused(lambda: s3.put_object(**where, Body=body(), IfNoneMatch="*"))
    for _ in range(2):
        CLOCK.sleep(0.3)
        s3.get_object(**where)["Body"].read()


def google_release_throttled(proxy: Proxy) -> None:
    http.client.HTTPConnection.debuglevel = 1
    blob = google_blob(proxy)
    blob.upload_from_string(body(), if_generation_match=0)
    CLOCK.sleep(1.1)
    blob.upload_from_string(body(), if_generation_match=blob.generation)
    refused(lambda: blob.upload_from_string(
        body(expired=True), if_generation_match=blob.generation, retry=None))  # fmt: skip
    http.client.HTTPConnection.debuglevel = 0


def urllib3_renewal_throttled(proxy: Proxy) -> None:
    blob = google_blob(proxy)
    blob.upload_from_string(body(), if_generation_match=0)
    blob.reload()
    blob.upload_from_string(body(), if_generation_match=blob.generation)


def google_blob(proxy: Proxy) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="p", credentials=AnonymousCredentials(),
        client_options={"api_endpoint": proxy.url},
    )  # fmt: skip
    return client.bucket(BUCKET).blob(KEY)


def azure_renewal_retried(proxy: Proxy) -> None:
    azure(proxy, logging_enable=True, logging_body=True)


def azure_policy_renewal_retried(proxy: Proxy) -> None:
    azure(proxy)


def azure(proxy: Proxy, **options: Any) -> None:
    from azure.core import MatchConditions
    from azure.storage.blob import BlobClient, ExponentialRetry

    patience = ExponentialRetry(initial_backoff=1, increment_base=1)
    blob = BlobClient(f"{proxy.url}/account", BUCKET, KEY, retry_policy=patience, **options)
    etag = blob.upload_blob(body())["etag"]
    proxy.inject(LOST)
    guard: dict[str, Any] = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
    refused(lambda: blob.upload_blob(body(), overwrite=True, **guard))
    blob.download_blob().readall()


LOGS: dict[str, tuple[str, str, Callable[[Proxy], None]]] = {
    "botocore-claim-retried": ("aws", "s3", botocore_claim_retried),
    "google-release-throttled": ("gcs", "gcs", google_release_throttled),
    "urllib3-renewal-throttled": ("gcs", "gcs", urllib3_renewal_throttled),
    "azure-renewal-retried": ("azure", "azure", azure_renewal_retried),
    "azure-policy-renewal-retried": ("azure", "azure", azure_policy_renewal_retried),
}


def record(name: str) -> None:
    profile, dialect, play = LOGS[name]
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s [%(levelname)s] %(message)s"))
    root = logging.getLogger()
    with Emulator(profile=profile) as server, Proxy(getattr(server, dialect)) as proxy:
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        with redirect_stdout(out):
            play(proxy)
        root.removeHandler(handler)
        server_of = proxy.url.removeprefix("http://")
    (HERE / f"{name}.log").write_text(scrubbed(out.getvalue(), server_of), encoding="utf-8")


def scrubbed(text: str, server: str) -> str:
    """Without other loggers' lines, secrets, and what is this machine's own."""
    kept, keeps = [], False
    for line in text.splitlines():
        if re.match(r"\d{4}-\d\d-\d\d ", line):
            keeps = bool(KEPT.search(line))
        if keeps or line.startswith(("send:", "reply:", "header:")):
            kept.append(line)
    out = SECRET.sub(r"\1SCRUBBED", "\n".join(kept) + "\n").replace(server, "store.example:9000")
    out = re.sub(r"os/linux#\S+|Linux-[\w.-]+", "Linux", out)
    return re.sub(r"0x[0-9a-f]{12}", "0x0", out)


if __name__ == "__main__":
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything",
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
    }  # fmt: skip
    for each in sys.argv[1:] or LOGS:
        record(each)
