"""What the tests of faults share: unmodified SDKs, aimed faults, a TLS front of a server."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockkit.lab.faults import Fault

SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
ACCOUNT = "devstoreaccount1"
# The key that every Azure emulator has, as its documentation prints it.
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

DEFEAT = {
    "s3": (412, "ClientError"),
    "gcs": (412, "PreconditionFailed"),
    "azure": (409, "ResourceExistsError"),
}
"""What an SDK with its usual retries tells the winner whose first answer was lost."""

Install = Callable[[Any], None]
LOST: list[dict[str, Any]] = [
    {"what": "drop"},
    {"what": "reset"},
    {"what": "status", "code": 503, "when": "after"},
    {"what": "status", "code": 500, "when": "before"},
    {"what": "status", "code": 429},
]
STRUCK = [*(("s3", each) for each in LOST), ("gcs", LOST[0]), ("azure", LOST[0])]
"""Ways in which a write's answer does not arrive, by the dialect in which each is tried."""


def record(attempt: str) -> bytes:
    return json.dumps({"owner": "W1", "attempt": attempt}).encode()


def aimed(fault: Fault) -> Fault:
    """The same fault at the next write of the lock object, of any client."""
    return Fault.from_fields({**fault.to_fields(), "operation": "put", "key": "table_lock.json"})


# --- the SDKs as they come; `install` may put something below their retries ----------------------


def nothing(_client: Any) -> None:
    pass


def create_with_boto3(
    url: str, key: str, body: bytes, install: Install = nothing
) -> tuple[int, str]:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(s3={"addressing_style": "path"}, read_timeout=0.5),
    )  # fmt: skip
    install(client)
    with closing(client):
        try:
            answer = client.put_object(Bucket="lake", Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], type(error).__name__
    return answer["ResponseMetadata"]["HTTPStatusCode"], ""


def create_with_google(
    url: str, key: str, body: bytes, install: Install = nothing
) -> tuple[int, str]:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    install(client)
    with closing(client):
        blob = client.bucket("lake").blob(key)
        try:
            blob.upload_from_string(body, if_generation_match=0, timeout=0.5)
        except GoogleAPICallError as error:
            return int(error.code or 0), type(error).__name__
    return 200, ""


def create_with_azure(
    url: str, key: str, body: bytes, install: Install = nothing, **settings: Any
) -> tuple[int, str]:
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob import ContainerClient

    credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    settings = {"read_timeout": 0.5, **settings}
    with ContainerClient(f"{url}/{ACCOUNT}", "lake", credential=credential, **settings) as client:
        install(client)
        try:
            client.upload_blob(key, body)
        except HttpResponseError as error:
            return int(error.status_code or 0), type(error).__name__
    return 201, ""


def create_as_it_comes(
    provider: str, url: str, key: str, body: bytes, install: Install = nothing
) -> tuple[int, str]:
    """Status and error of a create-if-absent in the bucket `lake`; 2xx and "" if it succeeded."""
    match provider:
        case "s3":
            return create_with_boto3(url, key, body, install)
        case "gcs":
            return create_with_google(url, key, body, install)
    from azure.storage.blob import ExponentialRetry

    # The usual policy, only with its first pause of 15 s taken out.
    quick = ExponentialRetry(initial_backoff=0, increment_base=1, random_jitter_range=0)
    return create_with_azure(url, key, body, install, retry_policy=quick)


# --- TLS in front of a server ------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that 127.0.0.1 signed for itself, for a day, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lockkit test")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(host, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    public, private = folder / "server.pem", folder / "server.key"
    public.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )  # fmt: skip
    return public, private


@contextmanager
def behind_tls(url: str, signed: tuple[Path, Path]) -> Iterator[str]:
    """An https:// address whose bytes go to the http:// one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed)
    loop, upstream = asyncio.new_event_loop(), urlsplit(url)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection(upstream.hostname, upstream.port)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    server = loop.run_until_complete(asyncio.start_server(accepted, "127.0.0.1", ssl=context))
    thread = threading.Thread(target=loop.run_forever, name="tls", daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:

        async def stop() -> None:
            server.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
