"""Other people's clients on the embedded server: Rust's object_store, fsspec's, polars, the CLI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import object_store
import pytest
from environment import ROOT, Unavailable, run

from lockkit.lab.server import Credentials, Emulator

pytestmark = [pytest.mark.interop, pytest.mark.timeout(0)]
HERE = Path(__file__).parent
HOME = ROOT / ".cache" / "clients"
AWSCLI = "awscli==1.46.3"
"""Apart from the others: it wants another botocore than s3fs."""


@pytest.fixture(scope="module")
def strict() -> Iterator[Emulator]:
    with Emulator(strict_buckets=True) as server:
        yield server


def made(server: Emulator, bucket: str) -> None:
    urlopen(f"{server.gcs}/storage/v1/b", data=json.dumps({"name": bucket}).encode())


def installed(name: str, *wanted: str) -> Path:
    """The folder of an environment's programs, made once."""
    folder, ready = HOME / name, HOME / f".{name}"
    if not ready.is_file() or ready.read_text() != "\n".join(wanted):
        shutil.rmtree(folder, ignore_errors=True)
        variables = dict(os.environ)
        try:
            run(name, [sys.executable, "-m", "venv", str(folder)], variables)
            pip = [str(folder / "bin/python"), "-m", "pip", "--no-input", "-q", "install"]
            run(name, [*pip, *wanted], variables)
        except Unavailable as reason:
            pytest.skip(str(reason))
        ready.write_text("\n".join(wanted))
    return folder / "bin"


@pytest.mark.parametrize("client", ["s3fs", "gcsfs", "adlfs", "polars", "duckdb", "obstore"])
def test_a_client_works_as_with_the_real_service(client: str, strict: Emulator) -> None:
    python = installed("python", *(HERE / "clients.txt").read_text().split()) / "python"
    done = subprocess.run(
        [str(python), "-W", "ignore", str(HERE / "clients.py"), client,
         strict.s3, strict.gcs, strict.azure],
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_aws_command_copies_syncs_signs_and_removes(tmp_path: Path) -> None:
    program = installed("aws", AWSCLI) / "aws"
    (tmp_path / "large").write_bytes(os.urandom(20_000_000))
    with Emulator(strict_buckets=True, credentials=Credentials("id", "secret")) as server:
        variables = os.environ | {
            "AWS_ENDPOINT_URL": server.s3, "AWS_ACCESS_KEY_ID": "id", "HOME": str(tmp_path),
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip

        def aws(line: str) -> str:
            done = subprocess.run(
                # By its own Python: its first line names the folder where it was installed.
                [str(program.with_name("python")), str(program), "s3", *line.split()],
                env=variables, cwd=tmp_path,
                text=True, capture_output=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, (line, done.stderr)
            return done.stdout

        for line in (
            "mb s3://one", "mb s3://two", "cp large s3://one/large", "sync s3://one s3://two/x",
            "mv s3://two/x/large s3://two/y", "cp s3://two/y back",
        ):  # fmt: skip
            aws(line)
        assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
        assert "two/y?" in aws("presign s3://two/y")
        assert aws("ls s3://two --recursive").split()[-1] == "y"
        aws("rb s3://one --force")
        aws("rb s3://two --force")
        assert aws("ls") == ""


@pytest.mark.parametrize(
    ("kind", "signed"), [("s3", True), ("s3", False), ("gcs", False), ("azure", False)]
)
def test_object_stores_own_suite_passes(kind: str, signed: bool, tmp_path: Path) -> None:
    """Signatures of Google and Azure are never verified."""
    try:
        program = object_store.suite()
    except Unavailable as reason:
        pytest.skip(str(reason))
    keys = Credentials("id", "secret") if signed else None
    with Emulator(strict_buckets=True, credentials=keys) as server:
        for bucket in object_store.BUCKETS:
            made(server, bucket)
        variables = object_store.settings(kind, getattr(server, kind), tmp_path, signed=signed)
        passed, failed, said = object_store.run(program, kind, variables)
    assert passed and not failed, said
