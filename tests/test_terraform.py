"""Terraform itself and our lock of its state: each meets the other's, where it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lock_world import until
from terraform_world import Terraform

from lockkit.recipes.errors import StateLocked
from lockkit.recipes.terraform import StateLock
from lockkit.recipes.terraform.lockinfo import LockInfo

TERRAFORM = shutil.which("terraform")
pytestmark = pytest.mark.skipif(
    TERRAFORM is None, reason="terraform (1.10 or later) is not on PATH: developer.hashicorp.com"
)


@pytest.fixture
def terraform(tmp_path: Path, shared_emulator: Any, bucket: str) -> Terraform:
    found = Terraform(tmp_path, shared_emulator.s3, bucket, program=TERRAFORM or "")
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
