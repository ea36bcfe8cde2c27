"""The offer whose name says all that its decider, and who publishes it, need."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from test_group_table import HOW, contending, judged, published, rows, spy

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.runtime import Procedure, run
from lockkit.stores import Store, open_store
from lockkit.table import Table
from lockkit.table.format.timeline import V9
from lockkit.table.occ.fence import FENCE_KEY, NO_INSTANT, digest
from lockkit.table.occ.group.client import GroupClient, GroupWrite, timeline_key
from lockkit.table.occ.group.combine import combine
from lockkit.table.occ.group.decision import GroupFence, Offer, decide
from lockkit.table.occ.group.fence import (
    NAME_MAX,
    _shared,
    format_group_fence,
    format_offer,
    full_name,
    full_offer,
    packed,
    parse_offer,
    tombstone,
    unpacked,
)
from lockkit.table.occ.group.offer import offer, offered_as
from lockkit.table.occ.group.view import look, offered, open_offers

T1, T2, T3 = "20260101000000000", "20260101000000008", "20260101000000016"
GROUP = frozenset({("EU", "00000001-0123456789abcdef0123-0")})
OLD, BODY = b"a commit that says much of its files", b"a commit that says more of its files"


def offer_of(instant: str, body: bytes, base: int = 0) -> Offer:
    return Offer(instant, base, GROUP, digest(body), "c" * 16, reserved=True, table="t",
                 body=packed(body))  # fmt: skip


FENCE = decide(GroupFence("a", "t", completion=NO_INSTANT), [offer_of(T1, OLD)], attempt="b")
MINE = offer_of(T2, BODY, 1)
NAME = full_name(MINE, BODY, FENCE)


def test_a_name_says_the_whole_offer_with_what_the_commit_will_say() -> None:
    assert NAME.startswith(f"{T2}.1.") and len(NAME) <= NAME_MAX
    assert full_offer(NAME, FENCE) == MINE
    later = decide(FENCE, [offer_of(T3, b"another")], attempt="c")
    assert full_offer(NAME, later) == MINE, "the next fence has that decision, too"
    after = decide(later, [full_offer(NAME, later) or MINE], attempt="d")
    assert unpacked(after.window[-1]) == BODY, "so the next upserts read no file"


def test_an_offer_that_fits_no_name_is_one_that_must_be_read() -> None:
    """What the commit says is too much, or the fence has no decision that says alike."""
    much = b"".join(sha256(bytes([n])).digest() for n in range(9))
    large, empty = offer_of(T2, much, 1), GroupFence("a", "t")
    assert packed(much)
    for mine, body, fence in ((large, much, FENCE), (MINE, BODY, empty),
                              (replace(MINE, body=""), BODY, FENCE)):  # fmt: skip
        assert full_name(mine, body, fence) == ""
        assert offered_as(V9, mine, body, fence) == (timeline_key(V9, T2, "offer"),
                                                     format_offer(mine))  # fmt: skip


def renamed(said: bytes, shared: bytes, wbits: int = 15) -> str:
    packing = zlib.compressobj(9, wbits=wbits, zdict=shared)
    text = base64.urlsafe_b64encode(packing.compress(said) + packing.flush()).decode()
    return f"{T2}.1.{text.rstrip('=')}.rewrite"


def test_a_name_that_is_damaged_or_belongs_elsewhere_is_no_offer() -> None:
    end = len(".rewrite")
    cut = [NAME[: -end - n] + NAME[-end:] for n in range(1, 40)] + [NAME[:-1], NAME[1:]]
    other = [NAME[:at] + ("A" if NAME[at] != "A" else "B") + NAME[at + 1 :]
             for at in range(len(T2) + 3, len(NAME) - end - 1)]  # fmt: skip
    assert [full_offer(each, FENCE) for each in cut + other] == [None] * len(cut + other)
    elsewhere = [replace(FENCE, table="u"), replace(FENCE, schema="d" * 16),
                 replace(FENCE, window=(replace(FENCE.window[0], body=""),)),
                 replace(FENCE, first=2, window=()),
                 decide(GroupFence("a", "t"), [offer_of(T1, BODY)], attempt="b")]  # fmt: skip
    assert [full_offer(NAME, each) for each in elsewhere] == [None] * 5
    at = [NAME.replace(".1.", each) for each in (".2.", ".1.1.", f".{'9' * 20}.", ".\u0661.", "..")]
    odd = [*at, "", ".rewrite", NAME.replace(T2, T3), NAME.replace(T2, "9" * 17), NAME + "\n",
           f"{T2}.1.{'-' * 240}.rewrite", NAME.replace(".rewrite", ".append")]  # fmt: skip
    assert [full_offer(each, FENCE) for each in odd] == [None] * len(odd)


def test_a_hostile_name_expands_to_no_more_than_a_commit_may_say() -> None:
    shared = _shared(T2, [1], FENCE)
    head = format_offer(replace(MINE, sha256="", body=""))
    assert full_offer(renamed(head + b"\n" + BODY, shared), FENCE) == MINE
    bomb = renamed(head + b"\n" + b"x" * 100_000, shared)
    for each in (bomb, renamed(head, shared), renamed(tombstone(T2) + b"\n" + BODY, shared),
                 renamed(b"[]\n" + BODY, shared), renamed(head + b"\n", shared),
                 renamed(head + b"\n" + BODY, b"other" + shared)):  # fmt: skip
        assert len(each) < 500 and full_offer(each, FENCE) is None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A table's store: the fence, and an instant that is reserved and offered by its name."""
    made = open_store(f"file://{tmp_path}/orders")
    for key, body in {FENCE_KEY: format_group_fence(FENCE), V9.folder + NAME: format_offer(MINE),
                      timeline_key(V9, T2, "requested"): b"mine"}.items():  # fmt: skip
        made.put(key, body, IfAbsent())
    return made


def asked_of(store: Store, way: Procedure[Any]) -> tuple[Any, list[str]]:
    """Its result, and the keys that it read."""
    asked, get = list[str](), store.get

    def spied(key: str, **how: Any) -> Any:
        asked.append(key)
        return get(key, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get", spied)
        return run(way, store, Clock()), asked


def test_no_client_reads_an_offer_whose_name_says_all(store: Store) -> None:
    done, asked = asked_of(store, combine(client := GroupClient(names=V9)))
    assert done and asked == [FENCE_KEY] and client.known
    assert client.known.window[-1].instant == T2 and unpacked(client.known.window[-1]) == BODY


def test_an_offer_is_read_if_the_fence_repeats_no_more_what_its_name_refers_to(
    store: Store,
) -> None:
    first = replace(FENCE, window=(replace(FENCE.window[0], body=""),), published=1)
    there = store.get(FENCE_KEY)
    assert isinstance(there, Found)
    store.put(FENCE_KEY, format_group_fence(first), IfVersion(there.version))
    done, asked = asked_of(store, combine(client := GroupClient(names=V9)))
    assert done and asked == [FENCE_KEY, V9.folder + NAME] and client.known
    assert unpacked(client.known.window[-1]) == BODY


def test_a_tombstone_ends_it_and_a_later_word_of_its_owner_counts(store: Store) -> None:
    later, client = replace(MINE, base=7), GroupClient(names=V9)
    key = timeline_key(V9, T2, "offer")
    store.put(key, format_offer(later), IfAbsent())
    assert run(open_offers(run(look(client), store, Clock())), store, Clock()) == [later]
    there = store.get(key)
    assert isinstance(there, Found)
    store.put(key, tombstone(T2), IfVersion(there.version))
    view = run(look(client), store, Clock())
    assert run(open_offers(view), store, Clock()) == [] and offered(view) == ([], [])


def test_an_owner_raises_the_base_of_a_named_offer_by_an_object_of_its_own(store: Store) -> None:
    """Since it knew the fence, more was decided than the window still names."""
    client = GroupClient(names=V9, known=FENCE, groups_of=lambda _: frozenset())
    ended = replace(FENCE, first=7, window=(), published=6, round=9, attempt="c")
    there = store.get(FENCE_KEY)
    assert isinstance(there, Found)
    store.put(FENCE_KEY, format_group_fence(ended), IfVersion(there.version))
    write = GroupWrite(T2, "mine", 1, frozenset(), "", GROUP, "c" * 16, body=BODY, table="t",
                       surveyed=True)  # fmt: skip
    assert run(offer(client, write), store, Clock()) == "commit"
    assert write.offered == V9.folder + NAME and client.known and client.known.window[-1].seq == 7
    said = store.get(timeline_key(V9, T2, "offer"))
    assert isinstance(said, Found) and parse_offer(said.body) == replace(MINE, base=6)


def test_handles_that_decide_for_each_other_read_no_offer(tmp_path: Path) -> None:
    url, asked, met = f"file://{tmp_path}/orders", list[str](), list[object]()
    Table.create(url, **HOW).close()
    with Table(url) as one, Table(url) as other:
        contending(one, other)

        def meanwhile(request: str) -> None:
            asked.append(request)
            offers = list(tmp_path.rglob("*.rewrite"))
            if (request == f"put {FENCE_KEY}" and not met) or (offers and len(met) == 1):
                met.append(None)
                other.upsert(rows("b", v=2 + len(met)))

        spy(one, meanwhile)
        spy(other, asked.append)
        one.upsert(rows("a", v=5))
        published(one)
        published(other)
    assert len(met) == 2, "the other one met an offer"
    assert {each.partition(" ")[0] for each in asked if each.endswith(".rewrite")} == {"put"}
    assert judged(url) == {"a": 5, "b": 4}


def test_who_sees_all_earlier_ones_decided_replaces_the_fence_that_showed_it(store: Store) -> None:
    """It is the first of the next round: it lists then, and does not read the fence again."""
    client, asked = GroupClient(names=V9, known=FENCE), list[str]()
    write = GroupWrite(T3, "mine", 1, frozenset({T1}), "", frozenset({("EU", "another")}),
                       "c" * 16, body=BODY, table="t", surveyed=True, follows=True,
                       earlier=frozenset({T2}))  # fmt: skip
    first = GroupClient(names=V9)

    def spied(prefix: str, **how: Any) -> Any:
        asked.append(prefix)
        return listed(prefix, **how)

    def looked(key: str, **how: Any) -> Any:
        asked.append(key)
        return got(key, **how)

    assert run(combine(first), store, Clock())
    got, listed = store.get, store.list
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get", looked)
        patch.setattr(store, "list", spied)
        assert run(offer(client, write), store, Clock()) == "commit"
    assert asked == [FENCE_KEY, V9.prefix]


def test_a_store_that_takes_no_key_of_that_length_has_the_offer_under_a_short_one(
    store: Store,
) -> None:
    """A key has at most 1,024 bytes on S3; some file systems take 143 of a name."""
    put, asked = store.put, list[str]()

    def refused(key: str, *args: Any, **how: Any) -> Any:
        asked.append(key)
        if key.endswith(".rewrite"):
            raise StoreError("KeyTooLongError")
        return put(key, *args, **how)

    write = GroupWrite(T2, "mine", 1, frozenset(), "", GROUP, "c" * 16, body=BODY, table="t",
                       surveyed=True, follows=True)  # fmt: skip
    store.delete(V9.folder + NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", refused)
        way = offer(GroupClient(names=V9, known=FENCE), write)
        assert run(way, store, Clock()) == "commit"
    assert asked[:2] == [V9.folder + NAME, write.offered]
    assert write.offered == timeline_key(V9, T2, "offer"), "so errors name the right object"


@pytest.mark.parametrize("ends", [(".rewrite",), (".rewrite", ".append")])
def test_an_append_has_a_shorter_name_if_the_store_refuses_that_one(
    store: Store, ends: tuple[str, ...]
) -> None:
    """It says all that a decider needs. An append is never offered as `T.offer`."""
    put, asked = store.put, list[str]()

    def refused(key: str, *args: Any, **how: Any) -> Any:
        asked.append(key)
        if key.endswith(ends):
            raise StoreError("AccessDenied")
        return put(key, *args, **how)

    write = GroupWrite(T2, "mine", 1, frozenset(), schema="c" * 16, body=BODY, table="t",
                       blind=True, follows=True)  # fmt: skip
    store.delete(V9.folder + NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", refused)
        way = offer(GroupClient(names=V9, known=FENCE), write)
        if len(ends) > 1:
            with pytest.raises(StoreError, match="AccessDenied"):
                run(way, store, Clock())
        else:
            assert run(way, store, Clock()) == "commit"
    assert [each.rpartition(".")[2] for each in asked[:2]] == ["rewrite", "append"]
    assert not [each for each in asked if each.endswith(".offer")]


def test_nobody_reads_the_offer_of_an_append_neither_to_decide_nor_to_publish(
    tmp_path: Path,
) -> None:
    url, asked, met = f"file://{tmp_path}/orders", list[str](), list[object]()
    Table.create(url, **HOW, version=6).close()
    with Table(url) as one, Table(url) as other:
        contending(one, other)
        before = {*tmp_path.rglob("*.rewrite")}

        def meanwhile(request: str) -> None:
            asked.append(request)
            offers = {*tmp_path.rglob("*.rewrite"), *tmp_path.rglob("*.append")} - before
            if (request == f"put {FENCE_KEY}" and not met) or (offers and len(met) == 1):
                met.append(None)
                other.append(rows(f"b{len(met)}"))

        spy(one, meanwhile)
        spy(other, asked.append)
        one.append(rows("c"))
        published(one)
        published(other)
    assert len(met) == 2, "the other one met an offer"
    offers = [each for each in asked if each.endswith((".rewrite", ".append"))]
    assert {each.partition(" ")[0] for each in offers} == {"put"}
    assert {"a", "b1", "b2", "c"} <= judged(url).keys()
