"""The services themselves: on loopback only, gone with their parent, clear about what lacks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.spark


@pytest.mark.xdist_group("zookeeper")
def test_zookeeper_answers_and_keeps_its_port_over_a_restart(zookeeper: Any) -> None:
    before = zookeeper.address
    zookeeper.kill()
    assert not zookeeper.answers()
    zookeeper.start()
    assert zookeeper.answers() and zookeeper.address == before


@pytest.mark.xdist_group("hive")
def test_the_metastore_listens_on_loopback_only(metastore: Any) -> None:
    import psutil

    found = {each.laddr.ip for each in psutil.Process(metastore.pid).net_connections("tcp")
             if each.status == psutil.CONN_LISTEN}  # fmt: skip
    assert {ip.removeprefix("::ffff:") for ip in found} == {"127.0.0.1"}
