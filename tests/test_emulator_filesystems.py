"""The file systems of others on the object server: pyarrow, object_store, Delta Lake.

The server is a process of its own: pyarrow holds Python's lock while it waits for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

ACCOUNT = "devstoreaccount1"
# Public: Microsoft's documentation names it for local servers.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BIG = bytes(range(256)) * 60_000  # 15 MB
PROVIDERS = ["s3", "gcs", "azure"]
NO_RETRY = {"max_retries": 0}


def arrow_filesystem(provider: str, server: Any) -> Any:
    fs = pytest.importorskip("pyarrow.fs")
    host = getattr(server, provider).removeprefix("http://")
    if provider == "s3":
        return fs.S3FileSystem(
            endpoint_override=host, scheme="http", access_key="any", secret_key="thing",
            region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip
    if provider == "gcs":
        return fs.GcsFileSystem(
            anonymous=True, endpoint_override=host, scheme="http", project_id="p",
            retry_time_limit=timedelta(seconds=5),
        )  # fmt: skip
    return fs.AzureFileSystem(
        ACCOUNT, account_key=KEY, blob_storage_authority=host, blob_storage_scheme="http",
        dfs_storage_authority=host, dfs_storage_scheme="http",
    )  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_pyarrow_reads_back_lists_copies_and_deletes_what_it_wrote(
    provider: str, serve: Callable[..., Any]
) -> None:
    filesystem = arrow_filesystem(provider, serve())
    import pyarrow
    import pyarrow.fs
    import pyarrow.parquet

    filesystem.create_dir("lake/dir/sub")
    table = pyarrow.table({"n": list(range(50_000))})
    path = "lake/dir/sub/part=1/t.parquet"
    pyarrow.parquet.write_table(table, path, filesystem=filesystem)
    assert pyarrow.parquet.read_table(path, filesystem=filesystem).equals(table)
    with filesystem.open_output_stream("lake/big") as stream:
        stream.write(BIG)
    with filesystem.open_input_file("lake/big") as file:
        file.seek(1000)
        assert file.read(10) == BIG[1000:1010] and file.size() == len(BIG)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector("lake", recursive=True))
    assert {path, "lake/big"} <= {each.path for each in found if each.is_file}
    filesystem.copy_file("lake/big", "lake/copy")
    with filesystem.open_input_stream("lake/copy") as stream:
        assert stream.read() == BIG
    filesystem.delete_file("lake/copy")
    filesystem.delete_dir("lake/dir")
    gone = filesystem.get_file_info(["lake/copy", path])
    assert [each.type for each in gone] == [pyarrow.fs.FileType.NotFound] * 2


def object_store(provider: str, server: Any) -> Any:
    stores = pytest.importorskip("obstore.store")
    options = {"client_options": {"allow_http": True}, "retry_config": NO_RETRY}
    if provider == "s3":
        return stores.S3Store(
            "bucket", endpoint=server.s3, access_key_id="any", secret_access_key="thing",
            region="us-east-1", **options,
        )  # fmt: skip
    if provider == "gcs":
        account = (
            f'{{"gcs_base_url": "{server.gcs}", "disable_oauth": true, "client_email": "", '
            '"private_key": "", "private_key_id": ""}'
        )
        return stores.GCSStore("bucket", config={"service_account_key": account}, **options)
    return stores.AzureStore(
        "bucket", account_name=ACCOUNT, account_key=KEY, endpoint=f"{server.azure}/{ACCOUNT}",
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_object_store_finds_its_conditions_multipart_and_listings(
    provider: str, serve: Callable[..., Any]
) -> None:
    obstore = pytest.importorskip("obstore")
    store = object_store(provider, serve())
    first = obstore.put(store, "a/b c", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "a/b c", b"2", mode="create")
    seen = {"e_tag": first["e_tag"], "version": first["version"]}
    obstore.put(store, "a/b c", b"2", mode=seen)
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "a/b c", b"3", mode=seen)
    assert bytes(obstore.get(store, "a/b c").bytes()) == b"2"
    obstore.put(store, "big", BIG, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "big").bytes()) == BIG
    assert bytes(obstore.get_range(store, "big", start=5, end=9)) == BIG[5:9]
    for number in range(5):
        obstore.put(store, f"l/{number}", b"x")
    listed = [each["path"] for chunk in obstore.list(store, "l", chunk_size=2) for each in chunk]
    assert listed == [f"l/{number}" for number in range(5)]
    rolled = obstore.list_with_delimiter(store)
    assert list(rolled["common_prefixes"]) == ["a", "l"]
    obstore.rename(store, "big", "moved")
    assert obstore.head(store, "moved")["size"] == len(BIG)
    obstore.delete(store, listed)
    assert not [each for chunk in obstore.list(store, "l") for each in chunk]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "big")


def test_delta_lake_commits_by_conditional_put(serve: Callable[..., Any]) -> None:
    deltalake = pytest.importorskip("deltalake")
    import pyarrow

    server = serve()
    options = {
        "s3": {
            "AWS_ENDPOINT_URL": server.s3, "AWS_ACCESS_KEY_ID": "any", "AWS_REGION": "us-east-1",
            "AWS_SECRET_ACCESS_KEY": "thing", "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        },
        "az": {
            "azure_storage_account_name": ACCOUNT, "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"{server.azure}/{ACCOUNT}", "allow_http": "true",
        },
    }  # fmt: skip
    for scheme, storage_options in options.items():
        url = f"{scheme}://delta/{scheme}"
        for number in range(2):
            rows = pyarrow.table({"n": [number]})
            deltalake.write_deltalake(url, rows, mode="append", storage_options=storage_options)
        table = deltalake.DeltaTable(url, storage_options=storage_options)
        assert table.version() == 1
        assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [0, 1]
