"""Real lock services on this machine, for tests and experiments: one file each.

ZooKeeper and the Hive Metastore run from the jars inside pip's pyspark. Each is one child process
that ends with its parent, listens on a port that was free, and keeps its data in a folder.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockkit.lab.processes.services.service import Service

KINDS = {
    "storage": "objects.ObjectServer",
    "zookeeper": "zookeeper.ZooKeeper",
    "dynamodb": "dynamodb.DynamoDB",
    "hive": "hive.HiveMetastore",
    "azurite": "azurite.Azurite",
}


def open_service(name: str, folder: Path) -> Service:
    """One of `KINDS`, not started yet."""
    module, _, kind = KINDS[name].partition(".")
    made: Service = getattr(import_module(f"lockkit.lab.processes.services.{module}"), kind)(folder)
    return made
