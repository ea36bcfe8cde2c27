"""Google Cloud Storage as google-cloud-storage uses it: compositions, and uploads in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

PART_BYTES = 5 << 20


@pytest.fixture(scope="module")
def gcs(shared_emulator: Any) -> Iterator[Any]:
    client = storage.Client(
        project="p", credentials=AnonymousCredentials(),
        client_options={"api_endpoint": shared_emulator.gcs},
    )  # fmt: skip
    yield client
    client.close()


def test_a_composition_names_the_generations_that_it_is_made_of(gcs: Any, bucket: str) -> None:
    place = gcs.bucket(bucket)
    one, two, whole = (place.blob(name) for name in ("one", "two", "whole"))
    for blob in (one, two):
        blob.upload_from_string(f"{blob.name},")
    first = one.generation
    place.blob("one").upload_from_string("newer,")
    old = place.blob("one", generation=first)
    whole.compose([old, two], if_generation_match=0)
    assert whole.download_as_bytes() == b"one,two,"
    assert whole.md5_hash is None and whole.component_count == 2 and whole.crc32c
    whole.compose([place.blob("one"), two], if_source_generation_match=[None, two.generation])
    assert whole.download_as_bytes() == b"newer,two,"
    stale = {"if_source_generation_match": [first, None], "retry": None}
    with pytest.raises(PreconditionFailed):
        whole.compose([place.blob("one"), two], **stale)
    with pytest.raises(NotFound):
        whole.compose([place.blob("one", generation=1), two], retry=None)
    assert whole.download_as_bytes() == b"newer,two,"


def test_parts_sent_at_once_are_verified_by_their_crc32c(
    gcs: Any, bucket: str, tmp_path: Path
) -> None:
    body = bytes(range(256)) * (PART_BYTES // 256) + b"end"
    file = tmp_path / "large"
    file.write_bytes(body)
    blob = gcs.bucket(bucket).blob("large")
    transfer_manager.upload_chunks_concurrently(
        str(file), blob, chunk_size=PART_BYTES, max_workers=2,
        worker_type=transfer_manager.THREAD, checksum="crc32c",
    )  # fmt: skip
    blob.reload()
    assert blob.download_as_bytes(checksum="crc32c") == body
    assert blob.crc32c and blob.component_count == 2


def test_an_xml_upload_with_another_checksum_than_its_bytes_is_refused(
    gcs: Any, bucket: str
) -> None:
    url = f"{gcs.get_bucket(bucket).client._connection.API_BASE_URL}/{bucket}/k"
    refused = gcs._http.put(url, data=b"1", headers={"x-goog-hash": "crc32c=AAAAAA=="})
    assert refused.status_code == 400 and "<Details>" in refused.text
    stored = gcs._http.put(url, data=b"1", headers={"x-goog-hash": "crc32c=kPWZ4w=="})
    assert stored.status_code == 200 and "crc32c=kPWZ4w==" in stored.headers["x-goog-hash"]
    assert gcs.bucket(bucket).get_blob("k").crc32c == "kPWZ4w=="


def test_an_object_is_moved_in_one_step_under_conditions_on_both_ends(
    gcs: Any, bucket: str, shared_emulator: Any
) -> None:
    place = gcs.bucket(bucket)
    source = place.blob("from/1")
    source.upload_from_string(b"1", content_type="text/csv")
    stale = {"if_source_generation_match": 1, "retry": None}
    with pytest.raises(PreconditionFailed):
        place.move_blob(source, "to", **stale)
    with pytest.raises(PreconditionFailed):
        place.copy_blob(source, place, "to", **stale)
    place.blob("taken").upload_from_string(b"2")
    with pytest.raises(PreconditionFailed):
        place.move_blob(source, "taken", if_generation_match=0, retry=None)
    now = {"if_source_generation_match": source.generation}
    moved = place.move_blob(source, "to", if_generation_match=0, **now)
    assert moved.download_as_bytes() == b"1" and moved.content_type == "text/csv"
    assert {each.name for each in place.list_blobs()} == {"to", "taken"}
    done = [each for each in shared_emulator.requests() if each["bucket"] == bucket]
    assert [(each["method"], each["key"]) for each in done if each["applied"]][-2:] == [
        ("copy", "to"), ("delete", "from/1"),
    ]  # fmt: skip
