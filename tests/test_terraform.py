"""Terraform itself and our lock of its state: each meets the other's, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lock_world import until

from lockkit.recipes.errors import StateLocked
from lockkit.recipes.terraform import StateLock
from lockkit.recipes.terraform.lockinfo import LockInfo

TERRAFORM = shutil.which("terraform")
pytestmark = pytest.mark.skipif(
    TERRAFORM is None, reason="terraform (1.10 or later) is not on PATH: developer.hashicorp.com"
)
# `terraform_data` and `local-exec` are built in: nothing is downloaded.
MAIN = """
terraform {
  backend "s3" {
    bucket = "%s"
    key = "prod/terraform.tfstate"
    region = "us-east-1"
    use_lockfile = true
    access_key = "x"
    secret_key = "x"
    skip_credentials_validation = true
    skip_metadata_api_check = true
    skip_requesting_account_id = true
    use_path_style = true
  }
}
resource "terraform_data" "work" {
  provisioner "local-exec" {
    command = "touch begun; for n in $(seq 2400); do [ -e may_end ] && exit; sleep 0.05; done"
  }
}
"""


class Terraform:
    """A configuration in a folder, whose state is in a bucket of the embedded server."""

    def __init__(self, folder: Path, endpoint: str, bucket: str) -> None:
        self.folder = folder
        (folder / "main.tf").write_text(MAIN % bucket)
        self._env = os.environ | {"AWS_ENDPOINT_URL_S3": endpoint, "CHECKPOINT_DISABLE": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [TERRAFORM or "", *arguments, "-no-color"], cwd=self.folder, env=self._env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            said, _ = process.communicate(timeout=100)
            return process.returncode, said


@pytest.fixture
def terraform(tmp_path: Path, shared_emulator: Any, bucket: str) -> Terraform:
    found = Terraform(tmp_path, shared_emulator.s3, bucket)
    code, said = found.run("init")
    if "use_lockfile" in said:
        pytest.skip("this terraform has no lock file: 1.10 or later has")
    assert code == 0, said
    return found


@pytest.fixture
def state(shared_emulator: Any, bucket: str) -> Iterator[StateLock]:
    url = f"s3://{bucket}/prod/terraform.tfstate"
    with closing(StateLock(url, endpoint=shared_emulator.s3)) as found:
        yield found


def test_terraform_is_refused_by_our_lock_names_it_and_can_force_it(
    terraform: Terraform, state: StateLock
) -> None:
    mine = state.lock(operation="by lockkit")
    code, said = terraform.run("plan", "-lock-timeout=0s")
    assert code == 1
    assert "Error acquiring the state lock" in said
    assert all(
        expected_part in said for expected_part in (mine.id, mine.who, "by lockkit", mine.path)
    )
    code, said = terraform.run("force-unlock", "-force", mine.id)
    assert code == 0, said
    assert state.show().info is None


def test_while_terraform_applies_we_are_refused_and_name_it(
    terraform: Terraform, state: StateLock
) -> None:
    with terraform.start("apply", "-auto-approve") as applying:
        try:
            until((terraform.folder / "begun").exists)
            with pytest.raises(StateLocked, match="OperationTypeApply"):
                state.lock()
            theirs = state.show().info
            assert isinstance(theirs, LockInfo)
            assert theirs.path == state.path
        finally:
            (terraform.folder / "may_end").touch()
        said, _ = applying.communicate(timeout=100)
    assert applying.returncode == 0, said
    assert state.show().info is None
    with state:
        pass
