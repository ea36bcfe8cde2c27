"""Terraform or OpenTofu at work on a state in a bucket of the embedded server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# `terraform_data` and `local-exec` are built in: nothing is downloaded.
MAIN = """
terraform {
  backend "s3" {
    bucket = "%s"
    key = "prod/terraform.tfstate"
    region = "us-east-1"
    use_lockfile = true
    access_key = "id"
    secret_key = "secret"
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

    def __init__(self, folder: Path, endpoint: str, bucket: str, *, program: str) -> None:
        self.folder, self._program = folder, program
        (folder / "main.tf").write_text(MAIN % bucket)
        self._env = os.environ | {"AWS_ENDPOINT_URL_S3": endpoint, "CHECKPOINT_DISABLE": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._program, *arguments, "-no-color"], cwd=self.folder, env=self._env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            said, _ = process.communicate(timeout=100)
            return process.returncode, said
