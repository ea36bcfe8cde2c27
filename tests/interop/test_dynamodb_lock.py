"""AWS's own lock client for Java, as Hudi uses it, and ours on one item of one DynamoDB table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environment import Unavailable
from jvm import WITH_ALL, Party, fetched

from lockkit.lab.processes.services.dynamodb import DynamoDB
from lockkit.providers.dynamodb import DynamoDBLock

pytestmark = pytest.mark.interop
CLIENT = ("com.amazonaws", "dynamodb-lock-client", "1.4.0")
LEASE_MS = 6_000


@pytest.fixture(scope="module")
def classpath() -> str:
    """40 jars, 11 MB of Maven Central."""
    try:
        return fetched("dynamodb-lock-client-1.4.0", {CLIENT: WITH_ALL})
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDB]:
    with DynamoDB(tmp_path_factory.mktemp("dynamodb")) as running:
        yield running


@pytest.mark.timeout(600)
def test_the_java_client_and_ours_exclude_and_succeed_each_other(
    classpath: str, service: DynamoDB, tmp_path: Path
) -> None:
    def ours(lease_s: float = LEASE_MS / 1000, **options: Any) -> DynamoDBLock:
        return DynamoDBLock(
            "locks", "orders", endpoint_url=service.endpoint, lease_s=lease_s, **options
        )

    mine = ours()
    with mine:  # the table is made
        assert mine.fence and mine.fence.epoch == 1
    arguments = [service.endpoint, "locks", "orders", str(LEASE_MS)]
    theirs = Party("LockClient.java", classpath, arguments, tmp_path / "log")
    try:
        assert theirs("acquire 1000")
        assert not mine.acquire(timeout=1.5 * LEASE_MS / 1000), "it beats, for more than its lease"
        assert theirs("held") and theirs("release")
        assert mine.acquire(timeout=5)
        assert not theirs("acquire 1000"), "it waits for a lease of ours and a second, and we beat"
        assert mine.fence and mine.fence.epoch == 2
        mine.assert_held()
        mine.release()
        assert theirs("acquire 1000")
        theirs.kill()
        assert mine.acquire(timeout=60), "a lease after the crash"
        mine.close()  # ours crashes: it beats no more, and gives nothing back
        theirs = Party("LockClient.java", classpath, arguments, tmp_path / "log")
        assert theirs("acquire 30000")
        assert theirs("release")
    finally:
        theirs.kill()
