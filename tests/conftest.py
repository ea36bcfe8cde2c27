"""What several rooms' tests stand on: the embedded object server, and its addresses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = itertools.count()


@pytest.fixture
def emulator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An object server of this test's own, in memory; its options are the parameter:
    `parametrize("emulator", [{"profile": "gcs"}], indirect=True)`.
    """
    module = pytest.importorskip(
        "lockkit.emulator", reason="the embedded server needs aiohttp: pip install lockkit[server]"
    )
    with module.Emulator(**getattr(request, "param", {})) as server:
        yield server


@pytest.fixture(scope="session")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One object server for all tests that bring a bucket of their own (see `bucket`)."""
    module = pytest.importorskip(
        "lockkit.emulator", reason="the embedded server needs aiohttp: pip install lockkit[server]"
    )
    path: Path = tmp_path_factory.mktemp("emulator") / "objects.sqlite"
    with module.Emulator(db=str(path)) as server:
        yield server


@pytest.fixture
def bucket() -> str:
    """A bucket's name that no other test uses."""
    return f"bucket-{next(_NAMES)}"
