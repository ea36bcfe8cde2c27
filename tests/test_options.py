"""No option is ignored: what nothing takes is refused, or warned of, by its name."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from lockkit import Lock, StoreError, open_store
from lockkit.providers import open_lock

URLS = ("memory://options", "file:///tmp/options", "s3://bucket/t", "gs://bucket/t", "az://bucket/t")
SERVICES = (
    "zookeeper://host:2181/base/key",
    "dynamodb://us-east-1/locks/key",
    "hive://host:9083/database/table",
    "filesystem:///tmp/options",
    "process://options",
    "azure-lease://container/blob?account_url=https://account.blob.core.windows.net",
)


@pytest.mark.parametrize("url", URLS)
def test_a_lock_refuses_a_misspelt_keyword_and_names_the_valid_ones(url: str) -> None:
    with pytest.raises(TypeError, match=r"no keyword 'ttl' \(did you mean 'ttl_s'\?\).*owner"):
        Lock(url, ttl=30)


@pytest.mark.parametrize("url", URLS)
def test_a_store_refuses_an_option_that_its_client_does_not_take(url: str) -> None:
    with pytest.raises(TypeError, match=r"no keyword 'regoin_name'.*endpoint, .*faults"):
        open_store(url, regoin_name="eu-west-1")


def test_a_keyword_of_another_provider_is_refused() -> None:
    with pytest.raises(TypeError, match=r"for s3:// has no keyword 'account_url'.*region_name"):
        open_store("s3://bucket/t", account_url="https://account.blob.core.windows.net")
    with pytest.raises(StoreError, match="memory:// sends no HTTP requests"):
        open_store("memory://options", endpoint="http://127.0.0.1:1")


def test_options_of_the_sdk_are_passed_on() -> None:
    with closing(open_store("s3://bucket/t", region_name="eu-north-1", use_ssl=False)) as store:
        client: Any = store
        assert client._client.meta.region_name == "eu-north-1"


def test_an_open_store_takes_no_options() -> None:
    with closing(open_store("memory://options")) as store:
        with pytest.raises(TypeError, match="store= is open already, and takes no endpoint="):
            Lock("memory://options", store=store, endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("url", [*URLS[:2], *SERVICES])
def test_every_lock_takes_the_same_keywords(url: str) -> None:
    with closing(
        open_lock(url, ttl_s=20, owner="me", client="W1", acquire_timeout=1.5)
    ) as lock:
        assert (lock.owner, lock.lane, lock.timeout) == ("me", "W1", 1.5)
        if not isinstance(lock, Lock) and type(lock).lease_keyword is not None:
            assert lock.ttl_s == 20


@pytest.mark.parametrize("url", SERVICES)
def test_every_lock_service_refuses_a_misspelt_keyword(url: str) -> None:
    with pytest.raises(TypeError, match=r"no keyword 'ttl' \(did you mean 'ttl_s'\?\).*owner"):
        open_lock(url, ttl=30)


def test_the_wait_has_one_name_and_an_older_one() -> None:
    with closing(Lock("memory://options", timeout=None)) as lock:
        assert lock.timeout is None
    with closing(Lock("memory://options", acquire_timeout=None)) as lock:
        assert lock.timeout is None
    with pytest.raises(TypeError, match="timeout is the older name of acquire_timeout"):
        Lock("memory://options", timeout=1, acquire_timeout=2)


def test_a_request_about_a_lease_takes_no_longer_than_asked_for_nor_than_a_fifth_of_it() -> None:
    for asked_s, most_s in ((2.0, 2.0), (60.0, 10.0), (None, 10.0)):
        with closing(Lock("memory://options", timeout_s=asked_s)) as lock:
            assert lock.store.options.timeout_s == most_s
