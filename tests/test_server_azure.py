"""Azure as azure-storage-blob and object_store use it beside plain blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import obstore
import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient, BlobServiceClient
from obstore.store import AzureStore

IfNotModified = MatchConditions.IfNotModified
ACCOUNT = "account"
KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


@pytest.fixture(scope="module")
def azure(shared_emulator: Any) -> Iterator[Any]:
    service = BlobServiceClient(
        f"{shared_emulator.azure}/{ACCOUNT}",
        credential={"account_name": ACCOUNT, "account_key": KEY}, retry_total=0,
    )  # fmt: skip
    yield service
    service.close()


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[int, str]:
    """(status, error code) of a call that must fail."""
    with pytest.raises(HttpResponseError) as caught:
        call(*arguments, **named)
    assert caught.value.response is not None
    code = caught.value.response.headers.get("x-ms-error-code", "")
    return int(caught.value.status_code or 0), code


def test_a_listing_starts_at_the_given_key(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    for name in ("a", "b/1", "b/2", "c", "d"):
        place.upload_blob(name, b"")
    assert [each.name for each in place.list_blobs(start_from="b/2")] == ["b/2", "c", "d"]
    pages = place.list_blobs(start_from="b/2", results_per_page=1).by_page()
    assert [each.name for page in pages for each in page] == ["b/2", "c", "d"]
    versions = place.list_blobs(start_from="c", include=["versions"])
    assert [each.name for each in versions] == ["c", "d"]
    rolled = place.walk_blobs(start_from="b/2", delimiter="/")
    assert [each.name for each in rolled] == ["b/", "c", "d"]


def test_object_store_lists_behind_an_offset(azure: Any, bucket: str, shared_emulator: Any) -> None:
    store = AzureStore(
        bucket, account_name=ACCOUNT, account_key=KEY,
        endpoint=f"{shared_emulator.azure}/{ACCOUNT}", client_options={"allow_http": True},
    )  # fmt: skip
    for name in ("a", "b", "c"):
        obstore.put(store, name, b"")
    (page,) = obstore.list(store, offset="a")
    assert [each["path"] for each in page] == ["b", "c"]


def test_a_request_of_azure_that_this_server_does_not_have_is_a_501_that_names_it(
    azure: Any, bucket: str
) -> None:
    place = azure.get_container_client(bucket)
    place.upload_blob("k", b"1")
    asked = (
        lambda: list(place.list_blobs(include=["uncommittedblobs"])),
        lambda: place.get_blob_client("k").download_blob(if_tags_match_condition="a = 'b'"),
    )
    for call, named in zip(asked, ("include=uncommittedblobs", "x-ms-if-tags"), strict=True):
        assert refused(call) == (501, "NotImplemented")
        with pytest.raises(HttpResponseError, match=named):
            call()
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{place.url}/k?perhaps=1")
    assert caught.value.code == 501 and b"?perhaps" in caught.value.read()


def test_a_signed_link_says_which_headers_its_answer_has(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    place.upload_blob("k", b"1")
    link = f"{place.url}/k?sv=2023-11-03&sr=b&sp=r&sig=any&rsct=text/csv&rscd=inline"
    got = BlobClient.from_blob_url(link).download_blob().properties.content_settings
    assert (got.content_type, got.content_disposition) == ("text/csv", "inline")


def test_tags_are_kept_beside_a_blob_whose_etag_stays(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    blob, copy = place.get_blob_client("tagged"), place.get_blob_client("copy")
    made = blob.upload_blob(b"1", tags={"team": "lake 1", "empty": ""})
    assert blob.get_blob_tags() == {"team": "lake 1", "empty": ""}
    assert blob.get_blob_properties().tag_count == 2
    blob.set_blob_tags({"a/b": "c=d"})
    blob.set_blob_metadata({"who": "me"}, etag=made["etag"], match_condition=IfNotModified)
    assert blob.get_blob_tags() == {"a/b": "c=d"}
    (listed,) = place.list_blobs(include=["tags"])
    assert listed.tags == {"a/b": "c=d"}
    copy.start_copy_from_url(blob.url)
    assert copy.get_blob_tags() == {}
    blob.upload_blob(b"2", overwrite=True)
    assert blob.get_blob_tags() == {} and blob.get_blob_properties().tag_count is None
    lease = blob.acquire_lease()
    assert refused(blob.set_blob_tags, {"x": "y"}) == (412, "LeaseIdMissing")
    blob.set_blob_tags({"x": "y"}, lease=lease)
    assert refused(place.get_blob_client("none").get_blob_tags) == (404, "BlobNotFound")


def test_a_copy_obeys_the_conditions_on_its_source(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    source, copy = place.get_blob_client("source"), place.get_blob_client("copy")
    tag = source.upload_blob(b"1")["etag"]
    stale = {"source_etag": '"0x8"', "source_match_condition": IfNotModified}
    assert refused(copy.start_copy_from_url, source.url, **stale) == (412, "SourceConditionNotMet")
    copy.start_copy_from_url(source.url, source_etag=tag, source_match_condition=IfNotModified)
    assert copy.download_blob().readall() == b"1"


def test_a_snapshot_stays_as_it_is_and_is_listed_before_its_blob(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    blob = place.get_blob_client("a")
    made = blob.upload_blob(b"1" * (2 << 20), metadata={"n": "1"})
    first = blob.create_snapshot()["snapshot"]
    blob.upload_blob(b"2", overwrite=True)
    second = blob.create_snapshot(metadata={"own": "yes"})["snapshot"]
    place.upload_blob("b", b"3")
    old = place.get_blob_client("a", snapshot=first)
    assert old.download_blob().readall() == b"1" * (2 << 20)
    properties = old.get_blob_properties()
    assert properties.etag == made["etag"] and properties.metadata == {"n": "1"}
    assert properties.last_modified == made["last_modified"]
    assert place.get_blob_client("a", snapshot=second).get_blob_properties().metadata == {
        "own": "yes"
    }
    listed = [(each.name, each.snapshot) for each in place.list_blobs(include=["snapshots"])]
    assert listed == [("a", first), ("a", second), ("a", None), ("b", None)]
    pages = place.list_blobs(include=["snapshots"], results_per_page=1).by_page()
    assert [[(each.name, each.snapshot) for each in page] for page in pages] == [
        [each] for each in listed
    ]
    assert [each.name for each in place.list_blobs()] == ["a", "b"]
    assert [each.name for each in azure.list_containers(bucket)] == [bucket]
    copy = place.get_blob_client("copy")
    copy.start_copy_from_url(f"{blob.url}?snapshot={first}")
    assert copy.download_blob().readall() == b"1" * (2 << 20)


def test_a_blob_is_not_deleted_without_its_snapshots(azure: Any, bucket: str) -> None:
    place = azure.get_container_client(bucket)
    blob, other = place.get_blob_client("a"), place.get_blob_client("a/b")
    for each in (blob, other):
        made = each.upload_blob(b"1")
        each.create_snapshot()
    first = blob.create_snapshot()["snapshot"]
    assert refused(blob.delete_blob) == (409, "SnapshotsPresent")
    stale = {"etag": made["etag"], "match_condition": IfNotModified}
    assert refused(blob.delete_blob, delete_snapshots="include", **stale)[0] == 412
    place.get_blob_client("a", snapshot=first).delete_blob()
    assert refused(place.get_blob_client("a", snapshot=first).download_blob)[0] == 404

    def left() -> list[tuple[str, bool]]:
        listed = place.list_blobs(include=["snapshots"])
        return [(each.name, each.snapshot is not None) for each in listed]

    untouched = [("a/b", True), ("a/b", False)]
    assert left() == [("a", True), ("a", False), *untouched]
    blob.delete_blob(delete_snapshots="only")
    assert left() == [("a", False), *untouched]
    blob.create_snapshot()
    blob.delete_blob(delete_snapshots="include")
    assert left() == untouched
    place.delete_container()
    assert left() == []
