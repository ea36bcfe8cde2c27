"""Hadoop's s3a client on the embedded server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import s3a
from environment import Unavailable

from lockkit.lab.server import Credentials, Emulator

pytestmark = [pytest.mark.interop, pytest.mark.timeout(0)]
THE_CLIENTS = {
    "BulkDelete.testBulkDeleteParentDirectoryWithDirectories": "it deletes no folder in bulk",
    "BulkDelete.testBulkDeleteParentDirectoryWithFiles": "it deletes no folder in bulk",
    "BulkDelete.validatePageSize": "it deletes 250 objects in one request",
    "Multipart.testDirectoryInTheWay": "a key may be a folder and an object",
    "Open.testFsIsEncrypted": "it calls every object encrypted",
    "Rename.testRenameDirIntoExistingDir": "it renames into no folder with files",
    "Rename.testRenameFileUnderFileSubdir": "it renames to a place under a file",
    "RootDirectory.testRmNonEmptyRootDirNonRecursive": "it answers false instead of an error",
    "VectoredRead.testNegativeOffsetRange": "it refuses the range by another error",
}
"""Tests that s3a fails by its own doing, whatever the store: no answer is wrong, or none was asked
for. Its own subclasses of these tests expect the same, or leave them out; for the tests of
`RootDirectory` and of the negative offset that is our judgement, not read there."""


@pytest.fixture(scope="module")
def hadoop() -> s3a.S3a:
    try:
        return s3a.prepare()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    with Emulator(strict_buckets=True, credentials=Credentials("id", "secret")) as server:
        urlopen(f"{server.gcs}/storage/v1/b", data=json.dumps({"name": "lake"}).encode())
        yield s3a.configure(tmp_path, server.s3, "lake")


def test_hadoops_contract_of_a_file_system_holds(hadoop: s3a.S3a, conf: Path) -> None:
    said = hadoop.run("Contract", conf)
    found = s3a.results(said)
    assert set(found["FAILED"]) == THE_CLIENTS.keys(), said[-5000:]
    assert found["PASSED"]


def test_s3a_creates_under_conditions_renames_and_commits_jobs_on_our_server(
    hadoop: s3a.S3a, conf: Path
) -> None:
    assert "ALL STEPS" in hadoop.run("Steps", conf, "s3a://lake/steps")
