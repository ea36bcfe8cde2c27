"""OpenTofu on the embedded server: its state, its lock file, and our lock of the same state."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import opentofu
import pytest
from environment import Unavailable
from lock_world import until
from terraform_world import Terraform

from lockkit.lab.server import Credentials, Emulator
from lockkit.recipes.errors import StateLocked
from lockkit.recipes.terraform import StateLock

pytestmark = [pytest.mark.interop, pytest.mark.timeout(0)]
STATE = "prod/terraform.tfstate"


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return opentofu.program()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with Emulator(strict_buckets=True, credentials=Credentials("id", "secret")) as running:
        urlopen(f"{running.gcs}/storage/v1/b", data=b'{"name": "tofu"}')
        yield running


@pytest.fixture
def tofu(program: str, server: Emulator, tmp_path: Path) -> Terraform:
    (tmp_path / "one").mkdir()
    return began(tmp_path / "one", server, program)


def began(folder: Path, server: Emulator, program: str) -> Terraform:
    made = Terraform(folder, server.s3, "tofu", program=program)
    code, said = made.run("init")
    assert code == 0, said
    return made


def stored(server: Emulator, key: str) -> Any:
    """An object, by Google's API, which wants no signature."""
    try:
        with urlopen(f"{server.gcs}/tofu/{key}") as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


def test_opentofu_locks_applies_and_unlocks(tofu: Terraform, server: Emulator) -> None:
    with tofu.start("apply", "-auto-approve") as applying:
        until((tofu.folder / "begun").exists)
        assert stored(server, f"{STATE}.tflock")["Operation"] == "OperationTypeApply"
        (tofu.folder / "may_end").touch()
        said, _ = applying.communicate(timeout=100)
    assert applying.returncode == 0, said
    assert stored(server, f"{STATE}.tflock") is None
    assert [each["type"] for each in stored(server, STATE)["resources"]] == ["terraform_data"]


def test_of_two_at_once_one_waits_and_finds_the_others_state(
    tofu: Terraform, server: Emulator, program: str, tmp_path: Path
) -> None:
    (tmp_path / "two").mkdir()
    other = began(tmp_path / "two", server, program)
    for each in (tofu, other):
        (each.folder / "may_end").touch()
    line = ("apply", "-auto-approve", "-lock-timeout=60s")
    with tofu.start(*line) as one, other.start(*line) as two:
        told = [each.communicate(timeout=200)[0] for each in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), told
    assert sum("1 added" in each for each in told) == 1
    assert len(stored(server, STATE)["resources"]) == 1


def test_each_refuses_the_others_lock(tofu: Terraform, server: Emulator) -> None:
    with closing(StateLock(f"s3://tofu/{STATE}", endpoint=server.s3)) as state:
        mine = state.lock(operation="by lockkit")
        code, said = tofu.run("plan", "-lock-timeout=0s")
        assert code == 1
        assert "Error acquiring the state lock" in said
        assert mine.id in said
        assert "by lockkit" in said
        code, said = tofu.run("force-unlock", "-force", mine.id)
        assert code == 0, said
    with (
        closing(StateLock(f"s3://tofu/{STATE}", endpoint=server.s3)) as state,
        tofu.start("apply", "-auto-approve") as applying,
    ):
        try:
            until((tofu.folder / "begun").exists)
            with pytest.raises(StateLocked, match="OperationTypeApply"):
                state.lock()
        finally:
            (tofu.folder / "may_end").touch()
        said, _ = applying.communicate(timeout=100)
        assert applying.returncode == 0, said
