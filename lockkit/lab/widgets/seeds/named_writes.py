"""What a write means in its scenario, and what the object says after it, in a few words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lockkit.lab.widgets.scene import tail, text
from lockkit.protocol.outcome import IfVersion
from lockkit.runtime import Delete, Get, List, Put, Request

Fields = dict[str, Any]
ZEROS = re.compile(r"0{4,}(?=\d)")
ID_CHARS, SHORT_ID_CHARS = 4, 6


def name_of(key: str) -> str:
    """The end of a key, without the zeros before its number; of a number, also its folder."""
    name = text(ZEROS.sub("", tail(key)).removesuffix(".json"))
    return f"{tail(key.rpartition('/')[0])}/{name}" if name.isdigit() else name


def words_of(scenario: str, request: Request, bodies: Mapping[tuple[str, str], bytes]) -> str:
    """The meaning of a request; `bodies` has the content of each version of an object."""
    if isinstance(request, Get | List):
        several = scenario in ("wal", "election", "striped")
        key = request.key if isinstance(request, Get) else f"{request.prefix}*"
        return text(f"read {name_of(key)}" if several else "read")
    assert isinstance(request, Put | Delete)
    condition = request.condition
    seen = condition.version if isinstance(condition, IfVersion) else ""
    return text(named(scenario, request.key, bodies.get((request.key, seen)), body_of(request)))


def body_of(request: Put | Delete) -> bytes:
    """What the object is after it; empty if it is gone."""
    return request.body if isinstance(request, Put) else b""


def named(scenario: str, key: str, seen: bytes | None, body: bytes) -> str:
    """The meaning of a write over what its client had seen; an empty `body` is a deletion."""
    was, now = _fields(seen), _fields(body)
    match scenario:
        case "statelock":
            return "lock" if body else "unlock"
        case "wal":
            return _log(key, now)
        case "queue":
            return _jobs(was, now)
        case "shared":
            return _entries(was, now)
        case _:
            return _lease(scenario, key, was, now)


def state_of(scenario: str, key: str, body: bytes) -> str:
    """What the object says after a write."""
    now = _fields(body)
    if "jobs" in now:
        count = len(now["jobs"])
        return f"{count} job{'s' * (count != 1)}"
    if "entries" in now:
        return ", ".join(f"{_node(each['holder'])} {each['mode']}s" for each in now["entries"]
                         ) or "free"  # fmt: skip
    if "slot" in now:
        return f"slot {now['slot']} e{now['epoch']}"
    if "writer_epoch" in now:
        return f"epoch {now['writer_epoch']}"
    if "head" in now:
        return f"head {now['head']}"
    if scenario == "statelock":
        return str(now.get("ID", "free"))
    if not body:
        return f"{name_of(key)} gone"
    if "expired" in now:
        where = f"{_stripe(key)}: " if _stripe(key) else ""
        free = "free" if now["expired"] else _node(str(now["holder"]))
        return f"{where}{free} e{now['epoch']}"
    return f"epoch {now['epoch']}" if "epoch" in now else name_of(key)


def _fields(body: bytes | None) -> Fields:
    found = json.loads(body) if body else {}
    return found if isinstance(found, dict) else {}


def _log(key: str, now: Fields) -> str:
    if "writer_epoch" in now:
        return f"claim epoch {now['writer_epoch']}"
    if "slot" in now:
        return f"{'append' if now['records'] else 'fence'} {now['slot']}"
    return f"move head to {now['head']}" if "head" in now else f"write {name_of(key)}"


def _jobs(was: Fields, now: Fields) -> str:
    before = {each["id"]: each for each in was.get("jobs", ())}
    after = {each["id"]: each for each in now.get("jobs", ())}
    said = [f"push {_id(each)}" for each in after if each not in before]
    said += [f"complete {_id(each)}" for each in before if each not in after]
    for id, job in after.items():
        old = before.get(id, {"attempts": 0, "heartbeat": 0})
        if job["attempts"] < old["attempts"]:
            said.append(f"push {_id(id)} again")
        elif job["attempts"] != old["attempts"]:
            said.append(f"claim {_id(id)}")
        elif job["heartbeat"] != old["heartbeat"]:
            said.append(f"beat {_id(id)}")
    more = f" +{len(said) - 1}" if len(said) > 1 else ""
    change = "broker" if now.get("broker") != was.get("broker") else "no change"
    return f"{said[0]}{more}" if said else change


def _id(whole: str) -> str:
    return whole if len(whole) <= SHORT_ID_CHARS else whole[:ID_CHARS]


def _entries(was: Fields, now: Fields) -> str:
    before = {each["id"]: each for each in was.get("entries", ())}
    after = {each["id"]: each for each in now.get("entries", ())}
    if new := [each for id, each in after.items() if id not in before]:
        return f"queue to {new[-1]['mode']}"
    gone = [_node(each["holder"]) for id, each in before.items() if id not in after]
    return f"{gone[0]} leaves" if gone else "renew"


def _lease(scenario: str, key: str, was: Fields, now: Fields) -> str:
    """A write of an epoch of the election, of a stripe, or of what they protect."""
    stripe = _stripe(key)
    if scenario == "striped" and not stripe:
        return "number of stripes"
    number = stripe or now.get("epoch", name_of(key).removeprefix("lock_").lstrip("0"))
    if not now:
        return f"collect {number}"
    if "expired" not in now:
        return f"write, epoch {number}"
    if now["expired"]:
        return f"{'release' if stripe else 'resign'} {number}"
    taken = not was or was["epoch"] != now["epoch"] or was["expired"]
    return f"{'renew' if not taken else 'acquire' if stripe else 'campaign'} {number}"


def _stripe(key: str) -> str:
    parts = key.split("/")
    return f"stripe {parts[1]}" if parts[0] == "stripes" else ""


def _node(holder: str) -> str:
    return holder.partition(".")[0]
