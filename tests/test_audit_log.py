"""Hudi's audit log of the storage lock: written where the table asks for it, delaying nothing."""

from __future__ import annotations

import itertools
import json
import warnings
from typing import Any

import pytest

from lockkit import open_lock, open_store
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.incident.audit import parse_audit, validate
from lockkit.lab.server import Emulator
from lockkit.protocol.outcome import Applied, Found, IfAbsent
from lockkit.providers.audit import AUDIT, FIELD, SWITCH, AuditWarning
from lockkit.stores import Store

_NAMES = itertools.count()
HUDI = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"


def config(url: str) -> dict[str, str]:
    return {"hoodie.base.path": url, "hoodie.write.lock.provider": HUDI,
            "hoodie.write.lock.storage.validity.timeout.secs": "30",
            "hoodie.write.lock.storage.renew.interval.secs": "3",
            "hoodie.write.lock.client.num_retries": "0"}  # fmt: skip


def switched(url: str, said: Any = True, **options: Any) -> Store:
    store = open_store(url, **options)
    if said is not None:
        put = store.put(SWITCH, json.dumps({FIELD: said}).encode(), IfAbsent())
        assert isinstance(put, Applied)
    return store


def logs(store: Store) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for each in store.list(AUDIT):
        body = store.get(each.key)
        assert isinstance(body, Found)
        found[each.key.removeprefix(AUDIT)] = [json.loads(x) for x in body.body.splitlines()]
    return found


def test_each_grant_has_a_file_in_the_form_of_hudis() -> None:
    url = f"memory://audit{next(_NAMES)}"
    store = switched(url)
    with open_lock(config(url)) as lock:
        lock.renew()
    with lock:
        pass
    found = logs(store)
    assert sorted(len(each) for each in found.values()) == [2, 3]
    for name, lines in found.items():
        start = lines[0]["timestamp"]
        assert name == f"{start}_{lock.owner}.jsonl"
        assert [each["state"] for each in lines] == ["START", *["RENEW"] * (len(lines) - 2), "END"]
        for each in lines:
            assert set(each) == {"ownerId", "transactionStartTime", "timestamp", "state",
                                 "lockExpiration", "lockHeld"}  # fmt: skip
            assert each["transactionStartTime"] == start
            assert each["lockExpiration"] == each["timestamp"] + 30_000
    audits = [parse_audit("\n".join(map(json.dumps, lines))) for lines in found.values()]
    assert validate(audits).outcome == "PASSED"


@pytest.mark.parametrize("said", [None, False, "true"])
def test_without_the_switch_nothing_is_written(said: Any) -> None:
    url = f"memory://audit{next(_NAMES)}"
    store = switched(url, said)
    with open_lock(config(url)):
        pass
    assert logs(store) == {}


def test_a_lost_answer_costs_no_line_and_a_refused_write_only_a_warning() -> None:
    url = f"s3://audit/t{next(_NAMES)}"
    with Emulator() as server, Proxy(server.s3) as proxy:
        store = switched(url, endpoint=server.s3)
        lock = open_lock(config(url), endpoint=proxy.url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AuditWarning)
            proxy.inject(Fault("drop", when="after", operation="put", key="*.jsonl"))
            with lock:
                lock.renew()
        (lines,) = logs(store).values()
        assert [each["state"] for each in lines] == ["START", "RENEW", "END"]
        proxy.inject(Fault("status", code=403, operation="put", key="*.jsonl"))
        with pytest.warns(AuditWarning, match="no audit log"), lock:
            lock.assert_held()
        lock.close()
        store.close()
