"""No option is ignored: what nothing takes is refused, or warned of, by its name."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from table_world import CONFIG, new_table, rows

from lockkit import Lock, StoreError, open_store
from lockkit.cli.main import main
from lockkit.errors import TableError
from lockkit.lock import hudi_keys
from lockkit.providers import open_lock
from lockkit.table import Table, read_table
from lockkit.table.format.gate import (
    _KEYGEN,
    TABLE,
    OptionRule,
    UnknownOption,
    _in_families,
    check_options,
    described,
    entry_of,
    options_page,
    refuse_other,
)
from lockkit.table.format.property_keys import COMPLEX, KEY_CLASSES

ROOT = Path(__file__).parents[1]
WRITE = "hoodie.datasource.write."

URLS = (
    "memory://options",
    "file:///tmp/options",
    "s3://bucket/t",
    "gs://bucket/t",
    "az://bucket/t",
)
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


BLOB = "https://aaa.blob.core.windows.net"
ABFSS = "abfss://c@aaa.dfs.core.windows.net/t"


def test_two_addresses_of_one_store_are_refused() -> None:
    with pytest.raises(StoreError, match="endpoint= and account_url= both"):
        open_store("az://c/t", endpoint="http://127.0.0.1:1", account_url=BLOB, credential="a2V5")
    with pytest.raises(StoreError, match="both endpoint= and client_options="):
        open_store("gs://b/t", endpoint="http://127.0.0.1:1", client_options={"api_key": "k"})


@pytest.mark.parametrize(
    "address",
    [{"account_url": "https://bbb.blob.core.windows.net"},
     {"endpoint": "https://bbb.blob.core.windows.net"},
     {"endpoint": "http://127.0.0.1:1/devstoreaccount1"}],
)  # fmt: skip
def test_an_account_in_the_url_that_is_not_the_addressed_one_is_refused(address: Any) -> None:
    with pytest.raises(StoreError, match="the URL names the account 'aaa', but"):
        open_store(ABFSS, credential="a2V5", **address)


@pytest.mark.parametrize(
    ("address", "server"),
    [({"account_url": BLOB}, BLOB), ({"account_url": BLOB.replace("aaa", "aaa-secondary")}, ""),
     ({"account_url": "https://data.example.com"}, "https://data.example.com"),
     ({"endpoint": "http://127.0.0.1:1"}, "http://127.0.0.1:1"),
     ({"endpoint": "http://127.0.0.1:1/gateway/aaa"}, "http://127.0.0.1:1")],
)  # fmt: skip
def test_an_account_in_the_url_that_is_the_addressed_one_is_used(address: Any, server: str) -> None:
    key = {"account_name": "aaa", "account_key": "a2V5"}
    with closing(open_store(ABFSS, credential=key, **address)) as store:
        client: Any = store
        assert "devstoreaccount1" not in client._client.url
        assert store.server.startswith(server)


def test_options_of_the_sdk_are_passed_on() -> None:
    with closing(open_store("s3://bucket/t", region_name="eu-north-1", use_ssl=False)) as store:
        client: Any = store
        assert client._client.meta.region_name == "eu-north-1"


def test_a_command_names_an_option_that_its_store_does_not_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lock", "show", "memory://options", "--region", "eu-west-1"]) == 64
    assert "takes no --region: leave it out" in capsys.readouterr().err


def test_an_open_store_takes_no_options() -> None:
    with closing(open_store("memory://options")) as store:
        with pytest.raises(TypeError, match="store= is open already, and takes no endpoint="):
            Lock("memory://options", store=store, endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("url", [*URLS[:2], *SERVICES])
def test_every_lock_takes_the_same_keywords(url: str) -> None:
    with closing(open_lock(url, ttl_s=20, owner="me", client="W1", acquire_timeout=1.5)) as lock:
        assert (lock.owner, lock.lane, lock.acquire_timeout) == ("me", "W1", 1.5)
        if not isinstance(lock, Lock) and type(lock).lease_keyword is not None:
            assert lock.ttl_s == 20


@pytest.mark.parametrize("url", SERVICES)
def test_every_lock_service_refuses_a_misspelt_keyword(url: str) -> None:
    with pytest.raises(TypeError, match=r"no keyword 'ttl' \(did you mean 'ttl_s'\?\).*owner"):
        open_lock(url, ttl=30)


def test_a_lock_names_its_wait_acquire_timeout_and_refuses_timeout() -> None:
    with closing(Lock("memory://options", acquire_timeout=None)) as lock:
        assert lock.acquire_timeout is None
    with pytest.raises(TypeError, match="no keyword 'timeout'"):
        Lock("memory://options", timeout=2)


def test_a_request_of_a_lock_is_limited_by_its_option_and_by_ten_seconds() -> None:
    for requested_s, most_s in ((2.0, 2.0), (60.0, 10.0), (None, 10.0)):
        with closing(Lock("memory://options", timeout_s=requested_s)) as lock:
            assert lock.store.options.timeout_s == most_s


# --- the gate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.index.type", "GLOBAL_RECORD_LEVEL_INDEX"),
        ("hoodie.index.type", "RECORD_INDEX"),
        (WRITE + "keygenerator.class", "org.apache.hudi.keygen.GlobalDeleteKeyGenerator"),
        (WRITE + "payload.class", "org.apache.hudi.common.model.PartialUpdateAvroPayload"),
        ("hoodie.record.merge.mode", "CUSTOM"),
        ("hoodie.table.cdc.enabled", "true"),
        ("hoodie.metadata.enable", "true"),
        ("hoodie.compact.schedule.inline", "true"),
        ("hoodie.combine.before.upsert", "false"),
        (WRITE + "table.type", "BOTH"),
        (WRITE + "operation", "compact"),
        ("hoodie.write.concurrency.mode", "lock_free"),
        ("hoodie.write.lock.client.num_retries", "abc"),
        ("hoodie.clean.commits.retained", "many"),
        ("hoodie.datasource.hive_sync.enable", "true"),
        ("hoodie.write.schema", "{}"),
        ("lockkit.commit.mode", "hdui"),
    ],
)
def test_an_option_that_is_not_obeyed_is_refused_by_its_name(key: str, value: str) -> None:
    with pytest.raises(TableError, match=re.escape(f"{key}={value}")):
        check_options({key.upper(): value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.index.type", "bloom"),
        (WRITE + "payload.class", "org.apache.hudi.common.model.DefaultHoodieRecordPayload"),
        ("hoodie.metadata.enable", "false"),
        ("hoodie.datasource.write.table.type", "COPY_ON_WRITE"),
        ("hoodie.insert.shuffle.parallelism", "4"),
        ("hoodie.metadata.enable", ""),
    ],
)
def test_an_option_equal_to_the_default_behaviour_is_accepted(key: str, value: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_options({key: value}) == {key: value}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (WRITE + "operation", "upsert"),
        (WRITE + "operation", "delete"),
        (WRITE + "operation", "insert_overwrite_table"),
        (WRITE + "insert.drop.duplicates", "true"),
        ("hoodie.combine.before.insert", "true"),
        ("hoodie.parquet.max.file.size", "1"),
        ("hoodie.write.num.retries.on.conflict.failures", "7"),
        ("hoodie.write.concurrency.early.conflict.detection.enable", "true"),
        ("hoodie.allow.empty.commit", "true"),
    ],
)
def test_an_append_refuses_what_only_a_spark_write_obeys(key: str, value: str) -> None:
    check_options({key: value})
    with pytest.raises(TableError, match=re.escape(key)) as refused:
        Table("memory://options-append/t", options={key: value})
    assert ("pass retries= to each call" in str(refused.value)) == ("retries" in key)


def named(rule: OptionRule) -> list[str]:
    """The rule's keys; three of Hudi's own for each family."""
    families = _in_families()
    return [
        each for key in rule.keys for each in (
            [name for name in families if name.startswith(key[:-1].lower())][:3]
            if key.endswith("*") else [key.lower()]
        )
    ]  # fmt: skip


def test_a_table_and_a_save_judge_every_option_as_the_page_says() -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="make test installs pyspark")
    from spark_world import saver

    url = "memory://options-each/t"
    ways = (lambda said: Table(url, options=said).close(), lambda said: saver({"url": url}, **said))
    rules = [each for each in TABLE if not each.reader]
    harmless = {key: "3" for each in rules if each.fate == "harmless" for key in named(each)}
    judged = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnknownOption)
        for way in ways:
            way(harmless)
        for rule in rules:
            if rule.fate == "harmless" or rule.values == "text":
                continue
            opposite = {"true": "false", "false": "true"}.get(rule.values, "no such value")
            for way, key in product(ways, named(rule)):
                with pytest.raises(TableError, match=re.escape(key)):
                    way({key: opposite})
                judged += 1
    assert len(harmless) > 200 and judged > 400


def test_an_append_takes_the_options_that_say_what_it_does() -> None:
    url = "memory://options-append-plain/t"
    with closing(new_table(url)) as store:
        same = {WRITE + "operation": "INSERT", WRITE + "insert.drop.duplicates": "false"}
        with Table(url, options=same) as table:
            table.append(rows([1, 1]))
        assert read_table(store)["id"].to_pylist() == ["k1", "k1"]


def test_a_lock_that_no_commit_would_take_is_refused() -> None:
    url = "memory://options-unused-lock/t"
    alone = {"hoodie.write.concurrency.mode": "single_writer"}
    with closing(new_table(url)), closing(Lock(url)) as lock:
        with pytest.raises(TableError, match="leave one of them out"):
            Table(url, lock=lock, options=alone)
        Table(url, lock=lock).close()
        Table(url, options=alone).close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.populate.meta.fields", "false"),
        ("hoodie.partition.metafile.use.base.format", "true"),
        ("hoodie.table.multiple.base.file.formats.enable", "true"),
        ("hoodie.table.base.file.format", "ORC"),
        ("hoodie.table.version", "true"),
        ("hoodie.table.timeline.timezone", "LOCAL"),
        ("hoodie.archivelog.folder", "false"),
    ],
)
def test_a_property_that_a_table_keeps_for_itself_is_refused(key: str, value: str) -> None:
    with pytest.raises(TableError, match=re.escape(key)):
        check_options({key: value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hoodie.write.lok.provider", "hoodie.write.lock.provider"),
        ("hoodie.metadata.enabel", "hoodie.metadata.enable"),
        ("hoodie.datasource.write.recordkey.fields", "hoodie.datasource.write.recordkey.field"),
        ("hoodie.memory.merge.fractoin", "hoodie.memory.merge.fraction"),
        ("hoodie.metrics.pushgateway.prot", "hoodie.metrics.pushgateway.port"),
        ("hoodie.streamer.source.kafka.topci", "hoodie.streamer.source.kafka.topic"),
        ("hoodie.deltastreamer.source.dfs.rooot", "hoodie.deltastreamer.source.dfs.root"),
        ("hoodie.streamer.kafka.topic.name", "hoodie.streamer.source.kafka.topic"),
        ("hoodie.deltastreamer.source.root", "hoodie.deltastreamer.source.dfs.root"),
        ("hoodie.streamer.source.kinesis.stream", "hoodie.streamer.source.kinesis.stream.name"),
        ("hoodie.deltastreamer.schemaprovider.class", "hoodie.streamer.schemaprovider.class"),
        ("hoodie.aws.glue.regoin", "hoodie.aws.glue.region"),
    ],
)
def test_a_misspelt_option_gives_a_warning_that_names_the_nearest(key: str, meant: str) -> None:
    with pytest.warns(UnknownOption, match=f"did you mean {re.escape(meant)}"):
        check_options({key: "true"})


def test_every_key_of_a_family_is_known() -> None:
    keys = _in_families()
    assert len(keys) > 200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(entry_of(key) is not None for key in keys)
        check_options({"hoodie.streamer.source.dfs.root": "x", "hoodie.Memory.Merge.Fraction": "1"})


@pytest.mark.parametrize(
    "key",
    [
        "hoodie.streamer.csv.header",
        "hoodie.deltastreamer.csv.inferSchema",
        "hoodie.deltastreamer.source.parquet.dfs.merge_schema.enable",
        "hoodie.streamer.source.hoodieincr.data.datasource.options",
        "hoodie.streamer.source.kafka.retry.max_count",
        "hoodie.streamer.source.cloud.data.select.relative.path.regex",
        "hoodie.streamer.source.kinesis.stream.name",
        "hoodie.streamer.schemaprovider.class",
        "hoodie.streamer.jdbc.extra.options.fetchsize",
        "hoodie.deltastreamer.ingestion.shop.orders.configFile",
        "hoodie.aws.sts.region",
        "hoodie.datasource.meta.sync.glue.catalogId",
    ],
)
def test_a_key_of_hudis_streamer_or_of_its_aws_module_gives_no_warning(key: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_options({key: "x"})


@pytest.mark.parametrize(
    "key",
    [
        "hoodie.streamer.source.of.a.later.hudi",
        "hoodie.deltastreamer.source.kinesis.stream.name",
        "hoodie.streamer.jdbc.options.fetchsize",
        "hoodie.streamer.ingestion.shop.orders.config",
    ],
)
def test_a_key_that_the_streamer_does_not_have_gives_a_warning(key: str) -> None:
    with pytest.warns(UnknownOption, match="did you mean hoodie"):
        check_options({key: "x"})


def test_a_custom_mergers_property_is_refused_whatever_its_name() -> None:
    with pytest.raises(TableError, match="properties of a custom merger"):
        check_options({"hoodie.record.merge.property.anything": "x"})


def test_an_option_that_no_component_takes_is_refused() -> None:
    with pytest.raises(TableError, match=r"mode is not an option of Hudi"):
        check_options({"mode": "fenced"})
    with pytest.raises(TableError, match=r"did you mean lockkit\.commit\.mode"):
        check_options({"lockkit.comit.mode": "fenced"})


def test_read_options_have_no_effect_in_a_write_and_vice_versa() -> None:
    changes = {"hoodie.datasource.query.incremental.format": "cdc"}
    check_options(changes)
    with pytest.raises(TableError, match="does not read change logs"):
        check_options(changes, reading=True)
    check_options({"hoodie.index.type": "RECORD_INDEX"}, reading=True)


@pytest.mark.parametrize(("key", "value", "same"), [
    ("hoodie.datasource.merge.type", "skip_merge", "payload_combine"),
    ("hoodie.query.as.ro.table", "true", "false"),
    ("hoodie.datasource.read.extract.partition.values.from.path", "true", "false"),
])  # fmt: skip
def test_a_read_option_with_which_hudi_returns_other_rows_is_refused(
    key: str, value: str, same: str
) -> None:
    check_options({key: same}, reading=True)
    with pytest.raises(TableError, match=key):
        check_options({key: value}, reading=True)


def test_a_credential_is_never_shown() -> None:
    for key in ("client.secret", "connection.string"):
        with pytest.raises(TableError, match="set the Azure SDK's own") as error:
            check_options({f"hoodie.write.lock.azure.{key}": "hush"})
        assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({WRITE + "hive_style_partitioning": "false"}, "the table has 'True'"),
        ({WRITE + "recordkey.field": "order"}, "the table has 'id'"),
        ({"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}, "precombine field 'at'"),
        ({WRITE + "keygenerator.type": "NON_PARTITION"}, "partitions by 'region'"),
        ({WRITE + "keygenerator.class": KEY_CLASSES[COMPLEX]}, "leave it out, or write SIMPLE"),
        ({"hoodie.table.name": "others"}, "the table has 'orders'"),
    ],
)
def test_an_option_that_contradicts_the_table_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(TableError, match=re.escape(why)):
        refuse_other(described(options), CONFIG)
    with closing(new_table(f"memory://options-{abs(hash(why))}")) as store:
        with Table(store.url, options=options) as table:
            with pytest.raises(TableError, match=re.escape(why)):
                table.append(rows([1]))


@pytest.mark.parametrize(
    ("said", "options", "why"),
    [
        ("id,line", {"recordkey.field": "id , line", "keygenerator.type": "COMPLEX"}, ""),
        ("id,line", {"keygenerator.type": "SIMPLE"}, "write COMPLEX"),
        ("id", {"recordkey.field": "line,id"}, "the table has 'id'"),
        ("id", {}, ""),
    ],
)
def test_a_key_generator_that_makes_other_keys_is_refused(
    said: str, options: dict[str, str], why: str
) -> None:
    config = replace(CONFIG, record_key=said, partition_by="region,day", version=8)
    given = described({WRITE + key: value for key, value in options.items()})
    encoded = {"hoodie.write.complex.keygen.new.encoding": "true"}
    with pytest.raises(TableError, match=why) if why else nullcontext():
        refuse_other(given, config)
    refuse_other(described(encoded), replace(config, version=9))
    with nullcontext() if "," in said else pytest.raises(TableError, match="are spelt id:VALUE"):
        refuse_other(described(encoded), config)


def test_an_option_that_agrees_with_the_table_is_accepted() -> None:
    refuse_other(
        {WRITE + "hive_style_partitioning": "TRUE", WRITE + "precombine.field": "at",
         "hoodie.record.merge.mode": "event_time_ordering"}, CONFIG,
    )  # fmt: skip
    refuse_other({"hoodie.record.merge.mode": "commit_time_ordering"},
                 replace(CONFIG, precombine=None))  # fmt: skip


def test_the_table_of_options_has_each_of_them_once() -> None:
    keys = [key.lower() for each in TABLE for key in each.keys]
    assert len(keys) == len(set(keys))
    for key in keys:
        assert entry_of(key) is not None or any(
            each.startswith(key[:-1]) for each in _in_families() if key.endswith("*")
        )
    assert len(keys) > 400


def test_the_table_names_each_key_of_a_lock_and_each_key_generator() -> None:
    fates = {key: each.fate for each in TABLE for key in each.keys}
    assert {fates[key] for key in (*hudi_keys.LEASE, *hudi_keys.PLACES)} == {"obeyed"}
    assert {fates[key] for key in (*hudi_keys.AZURE_LOGINS, *hudi_keys.AWS_ROLE)} == {"refused"}
    assert set(hudi_keys.READ) <= set(fates)
    values = {entry.values for key in _KEYGEN if (entry := entry_of(key))}
    assert values == {"|".join(KEY_CLASSES), "|".join(KEY_CLASSES.values())}


def test_every_option_that_the_code_names_is_in_the_table() -> None:
    named = {
        key for path in (ROOT / "lockkit").rglob("*.py") if path.parts[-2] != "java"
        for key in re.findall(r'"(hoodie(?:\.[A-Za-z_]+)+)"', path.read_text(encoding="utf-8"))
    }  # fmt: skip
    named.remove("hoodie.properties")  # a file
    assert "hoodie.table.name" in named
    assert [key for key in sorted(named) if entry_of(key.lower()) is None] == []


def test_the_documented_options_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    if os.environ.get("LOCKKIT_REWRITE"):
        (ROOT / "docs" / "options.md").write_text(options_page(), encoding="utf-8")
        return
    assert page == options_page(), "LOCKKIT_REWRITE=1 makes it again"


@pytest.mark.parametrize("url", ["s3://bucket/t", "file:///tmp/options"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", 3), ("endpoint", "a-host:9000"), ("client", 3), ("attempts", "x"),
        ("attempts", 0), ("timeout_s", "x"), ("timeout_s", 0), ("timeout_s", 1e300),
        ("timeout_s", float("nan")), ("timeout_s", None),
    ],
)  # fmt: skip
def test_a_value_that_no_store_can_use_is_refused_with_its_name(
    url: str, name: str, value: Any
) -> None:
    with pytest.raises(StoreError, match=name) as refused:
        open_store(url, **{name: value})
    assert refused.value.cure
