"""One family of errors: their fields, their texts, and their way between processes."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lockkit
from lockkit import errors, events
from lockkit.errors import LockBusy, LockkitError, LossReason
from lockkit.lab.faults import plan, proxy
from lockkit.lab.incident import dropped
from lockkit.lab.processes import fleet
from lockkit.lab.processes.services import service
from lockkit.lab.soak import run as soak_run
from lockkit.lab.widgets import predict
from lockkit.recipes import errors as recipe_errors
from lockkit.recipes.queue.operations import Claim
from lockkit.spark import connect, fresh, java
from lockkit.stores import StoreOptions
from lockkit.stores.endpoint import Endpoint, ErrorResponse
from lockkit.table import errors as table_errors
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.services import repair

HOMES = (
    connect, dropped, errors, events, fleet, fresh, java, plan, predict, proxy, recipe_errors,
    repair, service, soak_run, table_errors,
)  # fmt: skip
KINDS = [
    kind for home in HOMES
    for _, kind in inspect.getmembers(home, inspect.isclass)
    if issubclass(kind, LockkitError) and kind.__module__ == home.__name__
]  # fmt: skip
INTERNAL = {
    # caught before they reach a caller, or ends of a simulated process
    "Cancelled", "CommandError", "DatabaseBusy", "DeadlinePassed", "DialectError",
    "DiskFull", "EntryGone", "ForeignAnswer", "GrantOver", "Interrupted", "LaterFormat",
    "Malformed", "NoAnswerYet", "Outrun", "_CommandFailed",
    "ProtocolDeparture", "SiblingInterrupted", "StopSignal", "TableMoved", "Unreachable",
    "Unreadable", "Stopped", "UnknownScenario", "Violated", "WireError", "WriterDeposed",
}  # fmt: skip
FACTS: dict[str, Any] = {
    "operation": Claim("j-1", "w-1", 1000), "read": ("a", "b"), "doubt": True, "decided": True,
    "epoch": 41, "by_epoch": 42, "slot": 7, "commits": 3,
    "until_ms": 1_767_693_751_000, "reason": LossReason.TAKEN,
}  # fmt: skip


def made(kind: type[LockkitError]) -> LockkitError:
    """An error of this kind whose fields all differ from their defaults."""
    if not inspect.isfunction(kind.__init__):
        return kind("what happened; what to do")
    parameters = list(inspect.signature(kind).parameters.values())
    values = {each.name: FACTS.get(each.name, f"the {each.name}") for each in parameters}
    given = [values[each.name] for each in parameters if each.kind is not each.KEYWORD_ONLY]
    named = {e.name: values[e.name] for e in parameters if e.kind is e.KEYWORD_ONLY}
    return kind(*given, **named)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[LockkitError]) -> None:
    error = made(kind)
    error.add_note("seen by W1")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) != ""
    assert vars(again) == vars(error)
    assert again.__notes__ == ["seen by W1"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_text_of_an_error_says_its_facts(kind: type[LockkitError]) -> None:
    error = made(kind)
    facts = [fact for fact in vars(error).values() if isinstance(fact, str)]
    assert all(fact in str(error) for fact in facts)


def test_a_busy_lock_names_its_holder_and_the_end_of_the_lease() -> None:
    busy = LockBusy(
        "the lock of s3://b/t", owner="7f3c", holder="orders on host-4", epoch=41,
        until_ms=1_767_693_751_000, cure="wait",
    )  # fmt: skip
    assert str(busy) == (
        "the lock of s3://b/t is held by '7f3c' ('orders on host-4', epoch 41) until "
        "2026-01-06T10:02:31Z by its own clock; wait"
    )
    assert busy.until == datetime(2026, 1, 6, 10, 2, 31, tzinfo=UTC)
    assert str(busy.within("stripe 2 was not free")) == f"stripe 2 was not free: {busy}"
    assert LockBusy("l", owner="o", until_ms=10**18, cure="wait").until is None


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.Name`; "" for anything else. (`ast.unparse` takes seconds for all.)"""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def nodes_where(text: str) -> Iterator[tuple[str, ast.AST]]:
    """The nodes of the files in which this pattern occurs. (To parse all takes seconds.)"""
    for path in sorted(Path(lockkit.__file__).parent.rglob("*.py")):
        if re.search(text, source := path.read_text(encoding="utf-8")):
            yield from ((path.name, node) for node in ast.walk(ast.parse(source)))


def test_no_error_that_takes_what_why_and_cure_gets_one_text_for_all() -> None:
    built = (errors.StatedError.__init__, errors.Unanswered.__init__)
    kinds = {kind.__name__ for kind in KINDS if kind.__init__ in built}
    calls = [
        (f"{file}:{call.lineno}", len(call.args))
        for file, call in nodes_where(rf"\b({'|'.join(kinds)})\s*\(")
        if isinstance(call, ast.Call) and name_of(call.func) in kinds
    ]
    free = [where for where, count in calls if count == 1]
    assert len(calls) > len(kinds)
    assert not free, f"give what, why and cure instead of one text, or another class: {free}"


def test_the_errors_of_a_table_name_the_remedy() -> None:
    refused = table_errors.RefusedOption("retries", "must be less", "choose 9", value="10")
    assert (refused.option, refused.value, refused.why, refused.cure) == (
        "retries", "10", "must be less", "choose 9",
    )  # fmt: skip
    assert str(refused) == "retries=10 must be less; choose 9"
    assert str(table_errors.RefusedRows("id", "is null")) == "column 'id' is null"
    assert str(table_errors.RefusedRows("", "are none")) == "the rows are none"


def test_a_pickled_commit_unknown_leaves_out_its_prepared_transaction() -> None:
    error = CommitUnknown("T", "no answer", ("fence",))
    error.prepared = object()
    assert pickle.loads(pickle.dumps(error)).prepared is None
    assert error.prepared is not None


def test_every_error_of_the_package_belongs_to_the_family() -> None:
    family, strangers = {"LockkitError"}, set()
    classes = [
        (each.name, {name_of(base) for base in each.bases})
        for _, each in nodes_where(r"\bclass\s+\w+\s*\(")
        if isinstance(each, ast.ClassDef)
    ]
    for _ in range(4):  # a base may be defined after its heir
        family |= {name for name, bases in classes if family & bases}
    for name, bases in classes:
        if any(base.endswith(("Error", "Exception")) for base in bases):
            if name not in family:
                strangers.add(name)
    assert strangers == INTERNAL


def test_a_store_that_refuses_says_what_it_answered() -> None:
    at, rights = StoreOptions(endpoint="http://127.0.0.1:9"), {"write": "more", "": "the right"}
    endpoint = Endpoint("s3://b/t", at, cures={}, rights=rights)
    error = endpoint.fault(ErrorResponse(status=403, code="AccessDenied"), "read k")
    assert (error.where, error.status, error.code) == (
        "s3://b/t at 127.0.0.1:9",
        403,
        "AccessDenied",
    )
    assert str(error) == (
        "s3://b/t at 127.0.0.1:9: cannot read k, it answered 403 AccessDenied; "
        "access is denied: these credentials need the right"
    )


def test_a_conflict_with_a_commit_that_is_not_known_names_no_instant() -> None:
    late = CommitConflict("T1", instant="", cause="was committed first", cure="begin again")
    assert str(late).startswith("another commit was committed first; T1 was not committed")
    assert late.instant == ""
