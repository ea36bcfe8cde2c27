"""A client of the Hive Metastore, by the definitions that pyiceberg ships: no code of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hive_metastore.ThriftHiveMetastore import Client
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Calls to the metastore at `host:port`; each is a method of Hive's thrift service."""
    host, _, port = address.rpartition(":")
    transport = TBufferedTransport(TSocket(host, int(port)))
    transport.open()
    try:
        yield Client(TBinaryProtocol(transport))
    finally:
        transport.close()
