"""Each public name's docstring has a table of its parameters (`:param name: meaning`)."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
from importlib import import_module
from typing import Any

import pytest

PACKAGES = (
    "lockkit", "lockkit.table", "lockkit.spark",
    "lockkit.recipes.election", "lockkit.recipes.granular", "lockkit.recipes.queue",
    "lockkit.recipes.striped", "lockkit.recipes.terraform", "lockkit.recipes.wal",
    "lockkit.lab.faults", "lockkit.lab.probe", "lockkit.lab.server", "lockkit.lab.widgets",
)  # fmt: skip
LOCKS = (
    "azure_lease.AzureBlobLease", "both.DoubleLock", "dynamodb.DynamoDBLock",
    "filesystem.FilesystemLock", "hive.HiveMetastoreLock", "leased.LeasedLock",
    "process.ProcessLock", "zookeeper.ZookeeperLock",
)  # fmt: skip


def documented(what: Any) -> set[str]:
    """The parameters in the table, and the fields of a dataclass with a docstring of their own."""
    text = f"{what.__doc__}\n{what.__init__.__doc__ if isinstance(what, type) else ''}"
    listed = re.findall(r"^\s*:param ([\w, ]+):", text, re.MULTILINE)
    names = {name.strip() for each in listed for name in each.split(",")}
    if dataclasses.is_dataclass(what):
        body = ast.parse(textwrap.dedent(inspect.getsource(what))).body[0].body  # type: ignore[attr-defined]
        names |= {
            field.target.id for field, doc in itertools.pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(doc, ast.Expr)
        }  # fmt: skip
    return names


def missing(what: Any) -> set[str]:
    """Parameters that no table names, of a class or function that a program calls."""
    if not callable(what) or getattr(what, "_is_protocol", False):
        return set()
    if isinstance(what, type) and issubclass(what, (BaseException, enum.Enum)):
        return set()
    try:
        parameters = {each for each in inspect.signature(what).parameters if each[0] != "_"}
    except (TypeError, ValueError):  # a type alias has no signature
        return set()
    return parameters - documented(what)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_parameter_of_a_public_name_is_in_its_table(package: str) -> None:
    module = import_module(package)
    assert module.__all__
    found = {name: missing(getattr(module, name)) for name in module.__all__}
    assert not {name: lacks for name, lacks in found.items() if lacks}


@pytest.mark.parametrize("lock", LOCKS)
def test_each_parameter_of_another_services_lock_is_in_its_table(lock: str) -> None:
    module, _, name = lock.partition(".")
    assert not missing(getattr(import_module(f"lockkit.providers.{module}"), name))


def test_a_parameter_without_a_row_is_reported() -> None:
    def call(one: int, two: int) -> None:
        """Do it.

        :param one: the first.
        """

    assert missing(call) == {"two"}
