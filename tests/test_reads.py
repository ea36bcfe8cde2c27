"""`lockkit bench conditional-get`: what a 304 saves, by any store, and nothing left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockkit.cli.main import main
from lockkit.errors import NoAnswer
from lockkit.lab.probe.reads import Reads, compare_reads, percentile, saved
from lockkit.protocol.outcome import ReadAnswer, Unknown, Version
from lockkit.stores import StoreOptions, open_store
from lockkit.stores.memory import MemoryStore

SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


@pytest.mark.parametrize("dialect", SCHEMES)
def test_every_conditional_read_of_an_unchanged_object_is_answered_304_without_its_bytes(
    emulator: Any, dialect: str
) -> None:
    store = open_store(f"{SCHEMES[dialect]}://bucket/x", endpoint=getattr(emulator, dialect))
    whole, asked = compare_reads(store, requests=5, sizes=[100_000])
    assert (whole.kind, whole.unchanged, whole.bytes_each) == ("whole", 0, 100_000)
    assert (asked.kind, asked.unchanged, asked.bytes_each) == ("conditional", 5, 0)
    assert all(0 < each.p50_ms <= each.p99_ms and each.per_s > 0 for each in (whole, asked))
    gets = [each["answer"] for each in emulator.requests() if each["method"] == "get"]
    assert gets[:4] == ["not_modified", "found", "found", "not_modified"], "in turns"
    assert store.list("") == []


def test_a_store_that_ignores_the_requested_range_is_recognised() -> None:
    class Forgetful(MemoryStore):
        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            return super().get(key, limit=limit)

    store = Forgetful("memory://forgetful", StoreOptions())
    assert saved(compare_reads(store, requests=2)).startswith("The store does not answer 304")


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(each) for each in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50, 99)
    assert percentile([7.0], 0.99) == 7
    assert Reads(size=1, kind="whole", took_ms=(2, 2), unchanged=0, bytes_each=1).per_s == 500


def test_the_command_needs_no_store_to_show_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "conditional-get", "--requests", "3", "--sizes", "10,2000"]) == 0
    said = capsys.readouterr()
    assert "answered 304" in said.out and "requests/s" in said.out
    assert "demonstration" in said.err


def test_a_program_reads_the_measurements_as_one_object(
    emulator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["s3://bucket/x", "--endpoint", emulator.s3, "--requests", "2", "--json"]
    assert main(["bench", "conditional-get", *there]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in said["reads"]] == ["whole", "conditional"] * 2
    assert all(len(each["took_ms"]) == 2 and each["p99_ms"] for each in said["reads"])
    assert said["conclusion"].endswith("(p50).")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "0"], "--sizes"),
        (["--sizes", "1e3"], "--sizes"),
        (["--sizes", "99999999999999"], "--sizes"),
        (["--requests", "0"], "--requests"),
    ],
)
def test_an_impossible_measurement_raises_value_error(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "conditional-get", *arguments]) == 64
    assert says in capsys.readouterr().err


def test_a_store_that_does_not_answer_is_an_error_and_not_a_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = ["s3://bucket/x", "--endpoint", "http://127.0.0.1:9", "--timeout-s", "1"]
    assert main(["bench", "conditional-get", *there]) == 3
    assert "could not be written" in capsys.readouterr().err


def test_a_read_without_an_answer_ends_the_comparison_and_its_object_is_deleted() -> None:
    class Fails(MemoryStore):
        reads = 0

        def get(
            self, key: str, *, unless: Version | None = None, limit: int | None = None
        ) -> ReadAnswer:
            self.reads += 1
            if self.reads > 3:
                return Unknown("no answer")
            return super().get(key, unless=unless, limit=limit)

    store = Fails("memory://fails", StoreOptions())
    with pytest.raises(NoAnswer, match=r"a read was not answered: [a-z]"):
        compare_reads(store, requests=9)
    assert store.list("") == []
