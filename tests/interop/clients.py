"""Other people's clients at work on the embedded server: `python clients.py NAME S3 GCS AZURE`.

Run by test_clients.py, in an environment of its own in which they are installed. Each does what
its users do, and fails where an answer is not what the real service gives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from urllib.request import Request, urlopen

LARGE = os.urandom(12_000_000)
ACCOUNT, KEY = "account", "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
AWS = {
    "aws_access_key_id": "any", "aws_secret_access_key": "thing", "aws_region": "us-east-1",
    "aws_allow_http": "true",
}  # fmt: skip


def filesystem(fs, place: str, part_bytes: int) -> None:
    """What every fsspec file system can do, in a bucket that it makes and removes."""
    fs.mkdir(place)
    fs.pipe(f"{place}/x/1.txt", b"hello")
    fs.pipe(f"{place}/x/large", LARGE)
    assert fs.cat(f"{place}/x/1.txt") == b"hello" and fs.cat(f"{place}/x/large") == LARGE
    assert fs.cat_file(f"{place}/x/large", start=5, end=10) == LARGE[5:10]
    with fs.open(f"{place}/x/parts", "wb", block_size=part_bytes) as file:
        file.write(LARGE)
    assert fs.info(f"{place}/x/parts")["size"] == len(LARGE)
    fs.copy(f"{place}/x/1.txt", f"{place}/x/2.txt")
    fs.mv(f"{place}/x/2.txt", f"{place}/x/3 ü.txt")
    names = ["1.txt", "3 ü.txt", "large", "parts"]
    assert sorted(fs.ls(f"{place}/x")) == [f"{place}/x/{name}" for name in names]
    assert len(fs.glob(f"{place}/x/*.txt")) == 2 and len(fs.find(place)) == len(names)
    fs.touch(f"{place}/x/empty")
    fs.rm(f"{place}/x", recursive=True)
    fs.rmdir(place)
    fs.invalidate_cache()
    assert not fs.exists(place)
    try:
        fs.ls(f"{place}-that-nobody-made")
    except FileNotFoundError:
        return
    raise AssertionError("a bucket that nobody made was listed")


def s3fs(s3: str, gcs: str, azure: str) -> None:
    import s3fs

    fs = s3fs.S3FileSystem(key="any", secret="thing", endpoint_url=s3)
    filesystem(fs, "s3fs", 5 << 20)
    fs.mkdir("s3fs-tags")
    fs.pipe("s3fs-tags/k", b"1")
    fs.put_tags("s3fs-tags/k", {"a": "b"})
    assert fs.get_tags("s3fs-tags/k") == {"a": "b"}
    fs.setxattr("s3fs-tags/k", who="me")
    assert fs.getxattr("s3fs-tags/k", "who") == "me"
    assert urlopen(fs.url("s3fs-tags/k")).read() == b"1"


def gcsfs(s3: str, gcs: str, azure: str) -> None:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks by gRPC, for a minute
    import gcsfs

    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=gcs, project="p")
    filesystem(fs, "gcsfs", 1 << 20)
    fs.mkdir("gcsfs-merged")
    for name in ("1", "2"):
        fs.pipe(f"gcsfs-merged/{name}", name.encode())
    fs.merge("gcsfs-merged/both", ["gcsfs-merged/1", "gcsfs-merged/2"])
    assert fs.cat("gcsfs-merged/both") == b"12"


def adlfs(s3: str, gcs: str, azure: str) -> None:
    import adlfs

    said = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={azure}/{ACCOUNT};"
    )
    filesystem(adlfs.AzureBlobFileSystem(connection_string=said), "adlfs", 1 << 20)


def polars(s3: str, gcs: str, azure: str) -> None:
    import polars

    urlopen(Request(f"{s3}/polars", method="PUT"))
    urlopen(Request(f"{azure}/{ACCOUNT}/polars-az?restype=container", method="PUT"))
    places = {
        "s3://polars": {**AWS, "aws_endpoint_url": s3},
        "az://polars-az": {
            "azure_storage_account_name": ACCOUNT, "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"{azure}/{ACCOUNT}", "azure_allow_http": "true",
        },
    }  # fmt: skip
    rows = polars.DataFrame({"n": range(1000)})
    for place, options in places.items():
        rows.write_parquet(f"{place}/x/1.parquet", storage_options=options)
        rows.lazy().sink_parquet(f"{place}/x/2.parquet", storage_options=options)
        read = polars.scan_parquet(f"{place}/x/*.parquet", storage_options=options)
        assert read.select(polars.len()).collect().item() == 2000


def duckdb(s3: str, gcs: str, azure: str) -> None:
    import duckdb
    import duckdb_extensions

    urlopen(Request(f"{s3}/duckdb", method="PUT"))
    duckdb_extensions.import_extension("httpfs")
    base = duckdb.connect()
    base.execute("LOAD httpfs")
    base.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID 'any', SECRET 'thing', ENDPOINT '{s3[7:]}', "
        "USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')"
    )
    base.execute("COPY (SELECT range n FROM range(1000)) TO 's3://duckdb/x/1.parquet'")
    assert base.execute("SELECT count(*) FROM 's3://duckdb/x/*.parquet'").fetchone() == (1000,)


def obstore(s3: str, gcs: str, azure: str) -> None:
    import obstore
    from obstore.store import S3Store

    urlopen(Request(f"{s3}/obstore", method="PUT"))
    store = S3Store(
        "obstore", endpoint=s3, access_key_id="any", secret_access_key="thing",
        region="us-east-1", client_options={"allow_http": True},
    )  # fmt: skip
    obstore.put(store, "large", LARGE, chunk_size=5 << 20, tags={"a": "b"})
    assert obstore.get(store, "large").bytes() == LARGE
    obstore.put(store, "once", b"1", mode="create")
    try:
        obstore.put(store, "once", b"2", mode="create")
    except obstore.exceptions.AlreadyExistsError:
        return
    raise AssertionError("a second creation was not refused")


CLIENTS: dict[str, Callable[[str, str, str], None]] = {
    each.__name__: each for each in (s3fs, gcsfs, adlfs, polars, duckdb, obstore)
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])
