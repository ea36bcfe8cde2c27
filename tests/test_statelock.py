"""Terraform's lock file: right in simulated worlds, wrong once a rule is off, and real."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults_world import STRUCK
from lock_world import SCHEMES, memory
from schedules import Lane, Stand, stand
from schedules import Shelf as Unconditional
from test_cli import assert_says, run

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError, Unanswered, UnsafeStore
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.scenarios.statelock import KEY, MUTANTS
from lockkit.lock.conformance import place_of
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Unknown,
    WriteAnswer,
)
from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
from lockkit.recipes.terraform import statelock
from lockkit.recipes.terraform.lockinfo import ForeignLock, LockInfo, decode, encode
from lockkit.recipes.terraform.proof import prove_by_lock
from lockkit.recipes.terraform.statelock import (
    StateLock,
    lock,
    lock_key,
    read_state,
    state_place,
    unlock,
)
from lockkit.runtime import Delete, Get, Note, Procedure, Put, perform
from lockkit.runtime import run as carry_out
from lockkit.runtime.proven import TRIES_MAX
from lockkit.sinks import silent
from lockkit.stores import open_store

SEEDS = 400

# What Terraform 1.13 leaves: Go's field order, compact, nanoseconds, HTML escaped.
TERRAFORM = (
    rb'{"ID":"7c1fd1c6-6c3f-2a3d-8a52-0f6a2b0c7f11","Operation":"OperationTypeApply","Info":"",'
    rb'"Who":"ci \u003cops@example.com\u003e@runner-7","Version":"1.13.3",'
    rb'"Created":"2026-11-21T22:49:53.123456789Z","Path":"lake/prod/terraform.tfstate"}'
)


class Patient(Clock):
    """Real, but that a wait is only noted."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


# --- every order ----------------------------------------------------------------------------------


class Shelf(Unconditional):
    """Which also judges a delete."""

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        seen = self.get(key)
        if condition and isinstance(seen, Found) and seen.version != condition.version:
            return PreconditionFailed()
        return super().delete(key)


class Moment(NamedTuple):
    """How far each run is, by what it was told; the store; what is still on its way there."""

    answers: tuple[tuple[Any, ...], ...]
    objects: frozenset[tuple[str, bytes]]
    late: tuple[Any, ...] = ()
    faults: int = 1


def life(id: str) -> Procedure[None]:
    yield from lock(KEY, LockInfo(id=id, who="ci@runner"))
    yield Note("holds")
    yield Get("work")
    yield Note("lets go")
    yield from unlock(KEY, id)


def after(now: Moment, request: Any) -> tuple[frozenset[tuple[str, bytes]], Any]:
    """The store once it has decided a request, and its answer."""
    memory_store = Shelf(now.objects)
    answer = perform(request, memory_store, Clock(), silent)  # type: ignore[arg-type]
    return frozenset(memory_store.items()), answer


def moves(now: Moment, stands: Sequence[Stand]) -> Iterator[Moment]:
    """A run hears of its request; or it does not, and it lands later; or a second copy was sent."""
    for lane, each in enumerate(stands):
        for _, request in each.waits:

            def heard(answer: Any, lane: int = lane) -> tuple[tuple[Any, ...], ...]:
                return (*now.answers[:lane], (*now.answers[lane], answer), *now.answers[lane + 1 :])

            objects, answer = after(now, request)
            yield now._replace(answers=heard(answer), objects=objects)
            if now.faults and isinstance(request, Put | Delete):
                late = (*now.late, request)
                lost = now._replace(answers=heard(Unknown("lost")), faults=now.faults - 1)
                yield lost._replace(late=late)
                again, refused = after(now._replace(objects=objects), request)
                yield lost._replace(answers=heard(refused), objects=again)
    for place, request in enumerate(now.late):
        rest = now.late[:place] + now.late[place + 1 :]
        yield now._replace(objects=after(now, request)[0], late=rest)


def holds(each: Stand) -> bool:
    return [note.kind for note in each.notes][-1:] == ["holds"]


def search(runs: int, faults: int) -> tuple[int, str]:
    """Every order of so many runs' requests with so many faults: states, and what is wrong."""
    lanes = [Lane(f"T{n}", partial(life, f"T{n}")) for n in range(runs)]
    first = Moment(((),) * runs, frozenset(), faults=faults)
    came, todo = {first}, [first]
    while todo:
        now = todo.pop()
        pairs = zip(lanes, now.answers, strict=True)
        stands = [stand(lane.make(), answers, lane) for lane, answers in pairs]
        believe = [n for n, each in enumerate(stands) if holds(each)]
        if len(believe) > 1:
            return len(came), "two hold it"
        info = decode(dict(now.objects).get(KEY, b""))
        standing = info.id if isinstance(info, LockInfo) else ""
        for n, each in enumerate(stands):
            if holds(each) and standing != f"T{n}":
                return len(came), "a lock is removed that its holder holds"
            if not isinstance(each.ended, NotLocked) and f"runner, ID T{n}," in str(each.ended):
                return len(came), "it waits for itself"
        for then in moves(now, stands):
            if then not in came:
                came.add(then)
                todo.append(then)
    return len(came), ""


@pytest.mark.parametrize(
    ("runs", "faults", "states"),
    [(2, 1, 743), (2, 2, 6_698), pytest.param(3, 1, 16_821, marks=pytest.mark.soak)],
)
def test_no_order_of_requests_goes_wrong(runs: int, faults: int, states: int) -> None:
    assert search(runs, faults) == (states, "")


@pytest.mark.parametrize("name", [each for each in MUTANTS if MUTANTS[each].plants])
def test_some_order_shows_each_mistake(name: str) -> None:
    with MUTANTS[name].planted():
        assert search(2, 2)[1] != ""


# --- the body, as Terraform has it ----------------------------------------------------------------


def test_terraforms_own_lock_is_read_and_written_byte_for_byte() -> None:
    info = decode(TERRAFORM)
    assert isinstance(info, LockInfo)
    assert info.who == "ci <ops@example.com>@runner-7"
    assert encode(info) == TERRAFORM


def test_what_we_write_is_what_go_reads_into_lock_info(tmp_path: Path) -> None:
    with closing(StateLock(f"file://{tmp_path}/prod.tfstate")) as state:
        state.lock(operation="plan", info="by hand")
        found = json.loads((tmp_path / "prod.tfstate.tflock").read_bytes())
    assert list(found) == ["ID", "Operation", "Info", "Who", "Version", "Created", "Path"]
    assert {type(each) for each in found.values()} == {str}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", found["Created"])
    assert re.fullmatch(r"[^@]*@.+", found["Who"])
    assert found["Path"] == f"{tmp_path}/prod.tfstate"


def test_fields_that_we_do_not_know_are_passed_over_and_absent_ones_are_empty() -> None:
    assert decode(b'{"id":"a","New":{"x":[1]},"Who":null}') == LockInfo(id="a")


@pytest.mark.parametrize(
    "body",
    [b"", TERRAFORM[:40], b"[]", b'{"ID":""}', b'{"ID":7}', b"\xff\xfe", b"[" * 60_000,
     b"x" * 10_000_000],
    ids=["empty", "torn", "an array", "no ID", "a number", "not text", "deep", "10 MB"],
)  # fmt: skip
def test_a_file_that_is_not_a_lock_file_counts_as_a_lock_and_is_never_removed(body: bytes) -> None:
    assert isinstance(decode(body), ForeignLock)
    with closing(StateLock(memory() + "/s")) as state:
        assert isinstance(state.store.put(state.key, body, IfAbsent()), Applied)
        with pytest.raises(StateLocked, match="not a lock file") as answers:
            state.lock(acquire_timeout=3600)
        assert len(str(answers.value)) < 500
        with pytest.raises(NotLocked, match="not a lock file"):
            state.force_unlock("")
        found = state.store.get(state.key)
        assert isinstance(found, Found)
        assert found.body == body


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://lake/prod/terraform.tfstate", ("s3://lake", "lake", "prod/terraform.tfstate")),
        ("az://box/terraform.tfstate", ("az://box", "box", "terraform.tfstate")),
        ("file:///srv/tf/prod.tfstate", ("file:///srv/tf", "/srv/tf", "prod.tfstate")),
    ],
)
def test_a_state_is_found_where_its_url_says(url: str, place: tuple[str, str, str]) -> None:
    assert state_place(url) == place


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(StoreError, match="carries a password") as answers:
        state_place("s3://AKIA:ab/s3cret@bucket/a.tfstate")
    assert "s3cret" not in str(answers.value)


@pytest.mark.parametrize("seconds", [-1, float("nan"), None])
def test_an_invalid_wait_is_refused(seconds: Any) -> None:
    url = f"{memory()}/terraform.tfstate"
    with pytest.raises(ValueError, match="0: try once"):
        StateLock(url, acquire_timeout=seconds)
    state = StateLock(url)
    with pytest.raises(ValueError, match="0: try once"):
        state.lock(acquire_timeout=seconds)


def test_a_url_without_a_state_is_reported() -> None:
    with pytest.raises(StoreError, match="names no state"):
        state_place("s3://lake")


def test_a_workspace_has_the_key_that_terraform_gives_it() -> None:
    assert lock_key("p/t.tfstate") == "p/t.tfstate.tflock"
    assert lock_key("p/t.tfstate", "blue") == "env:/blue/p/t.tfstate.tflock"
    assert lock_key("t.tfstate", "blue", "teams") == "teams/blue/t.tfstate.tflock"


# --- for real -------------------------------------------------------------------------------------

Make = Callable[..., StateLock]


@pytest.fixture(params=["memory", *SCHEMES])
def make(request: pytest.FixtureRequest, bucket: str, shared_emulator: Any) -> Iterator[Make]:
    """Runs of one state, in memory and behind each of the three real SDKs."""
    url, options = f"{memory()}/terraform.tfstate", {}
    if request.param != "memory":
        url = f"{SCHEMES[request.param]}://{bucket}/prod/terraform.tfstate"
        options = {"endpoint": getattr(shared_emulator, request.param)}
    made: list[StateLock] = []

    def open_one(**more: Any) -> StateLock:
        made.append(StateLock(url, **{"clock": Patient(), **options, **more}))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def test_one_client_holds_the_lock_and_the_others_get_its_name(make: Make) -> None:
    one, other = make(), make()
    mine = one.lock(operation="apply")
    with pytest.raises(StateLocked, match=rf"{mine.id}, apply.*never expires"):
        other.lock()
    with pytest.raises(NotLocked, match="not held by this handle"):
        other.unlock()
    with pytest.raises(NotLocked, match="another ID"):
        other.force_unlock("somebody-elses")
    one.unlock()
    with other as its:
        assert other.show().info == its
    assert isinstance(other.store.get(other.key), Missing)


def test_a_force_unlocked_holder_gets_an_error_and_does_not_delete_the_next_lock(
    make: Make,
) -> None:
    one, operator, other = make(), make(), make()
    dead = one.lock()
    operator.force_unlock(dead.id)
    its = other.lock()
    with pytest.raises(NotLocked, match=its.id):
        one.unlock()
    assert other.show().info == its


def test_of_four_runs_that_race_one_locks_the_state(make: Make) -> None:
    states, won = [make() for _ in range(4)], []
    gate = threading.Barrier(len(states))

    def race(state: StateLock) -> None:
        gate.wait()
        try:
            won.append(state.lock().id)
        except StateLocked:
            pass

    threads = [threading.Thread(target=race, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = states[0].show().info
    assert isinstance(found, LockInfo)
    assert won == [found.id]


def test_a_state_lock_waits_as_terraform_does_a_second_doubling_to_sixteen() -> None:
    url, clock = f"{memory()}/s", Patient()
    with closing(StateLock(url)) as one, closing(StateLock(url, clock=clock)) as other:
        one.lock()
        with pytest.raises(StateLocked):
            other.lock(acquire_timeout=50)
        assert clock.waits == [1, 2, 4, 8, 16, 16, 3]


@pytest.mark.parametrize(("kind", "fault"), STRUCK, ids=str)
def test_a_state_lock_recognises_its_own_file_and_its_removal_after_a_lost_answer(
    kind: str, fault: dict[str, Any], bucket: str, shared_emulator: Any
) -> None:
    with Proxy(getattr(shared_emulator, kind)) as proxy:
        url = f"{SCHEMES[kind]}://{bucket}/t.tfstate"
        with closing(StateLock(url, endpoint=proxy.url)) as state:
            for operation in ("put", "delete"):
                proxy.inject(Fault(**{**fault, "operation": operation, "key": "*.tflock"}))
            mine = state.lock()
            assert state.show().info == mine
            state.unlock()
            assert state.show().info is None
            assert len(proxy.faults) == 2


def test_without_settling_a_lost_answer_terraforms_lock_collides_with_itself(
    bucket: str, shared_emulator: Any
) -> None:
    """OpenTofu #4405: what `settle` is for."""
    with Proxy(shared_emulator.s3) as proxy:
        url, mistake = f"s3://{bucket}/t.tfstate", MUTANTS["settle"].planted()
        with closing(StateLock(url, endpoint=proxy.url)) as state, mistake:
            proxy.inject(Fault("drop", operation="put", key="*.tflock"))
            with pytest.raises(LockUnknown, match="is held by"):
                state.lock()


def test_a_create_of_unknown_outcome_raises_an_error_with_its_id(
    bucket: str, shared_emulator: Any
) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        url = f"s3://{bucket}/t.tfstate"
        with closing(StateLock(url, endpoint=proxy.url, clock=Patient())) as state:
            proxy.inject(Fault("drop", when="before", operation="put", key="*.tflock", next=50))
            with pytest.raises(LockUnknown, match=r"still be applied, under the ID [0-9a-f-]{36}"):
                state.lock()


def test_a_store_without_conditional_delete_is_noted() -> None:
    answers: list[str] = []
    state = StateLock(f"{memory()}/s", emit=lambda kind, **data: answers.append(data["text"]))
    with closing(state):
        offers = replace(state.store.capabilities, conditional_delete=False)
        state.store.capabilities = offers
        with state:
            pass
    assert len(answers) == 1
    assert "no conditional delete" in answers[0]


def test_a_store_that_ignores_conditions_is_refused(bucket: str) -> None:
    with Emulator(profile="spaces") as server:
        state = StateLock(f"s3://{bucket}/s", endpoint=server.s3)
        with closing(state), pytest.raises(UnsafeStore, match="ignored a write condition"):
            state.lock()


class Overwriting:
    """Creates only what is absent, and overwrites whatever is there."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, body: bytes, condition: Any) -> WriteAnswer:
        there = self._store.get(key)
        if isinstance(condition, IfVersion) and isinstance(there, Found):
            condition = IfVersion(there.version)
        answer: WriteAnswer = self._store.put(key, body, condition)
        return answer


def test_a_store_that_ignores_if_match_alone_is_refused() -> None:
    store = open_store(memory())
    body = encode(mine := LockInfo(id="7", who="me"))
    for honest in (True, False):
        assert isinstance(store.put(KEY, body, IfAbsent()), Applied)
        way = prove_by_lock(KEY, body, "here", swaps=True)
        if honest:
            assert carry_out(way, store, Clock())
        else:
            with pytest.raises(UnsafeStore, match="only if it still has the version"):
                carry_out(way, Overwriting(store), Clock())
        found = carry_out(read_state(KEY), store, Clock())
        assert found.info == mine, "it is the same lock to whoever reads it"
        carry_out(unlock(KEY, "7"), store, Clock())


@pytest.mark.parametrize("fault", ["throttle", "status"])
def test_a_test_of_the_store_that_got_no_answer_is_made_again(
    bucket: str, shared_emulator: Any, fault: str
) -> None:
    """A throttled or unanswered test counted as passed, so a bad store was never refused."""
    with Proxy(shared_emulator.s3) as proxy:
        url = f"s3://{bucket}/again-{fault}.tfstate"
        with closing(StateLock(url, endpoint=proxy.url, clock=Patient())) as state:
            code = 429 if fault == "throttle" else 503
            proxy.inject(Fault("status", code=code, operation="put", key="*.tflock", nth=2, next=1))
            with state:
                assert place_of(state.store) in statelock._proven
            proxy.inject(Fault("status", code=503, operation="put", key="*.tflock", nth=2, next=99))
            statelock._proven.clear()
            with pytest.raises(NoAnswer, match="could not be tested"), state:
                pass
            proxy.clear()
            assert state.show().info is None, "nothing stays locked"


def test_a_lock_that_could_not_be_proven_does_not_stay(bucket: str, shared_emulator: Any) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        url = f"s3://{bucket}/t.tfstate"
        with closing(StateLock(url, endpoint=proxy.url, clock=Patient())) as state:
            unheard: dict[str, Any] = {"operation": "get", "key": "*.tflock", "next": TRIES_MAX}
            proxy.inject(Fault("status", code=503, **unheard))
            with pytest.raises(Unanswered), state:
                pass
            assert state.show().info is None
            with state:
                pass


def test_two_runs_of_one_user_exclude_each_other() -> None:
    url = f"{memory()}/s"
    with closing(StateLock(url)) as one, closing(StateLock(url)) as other:
        one.lock()
        with pytest.raises(StateLocked):
            other.lock()
    with closing(StateLock(url)) as wrong, MUTANTS["recognise"].planted():
        assert wrong.lock()


# --- the command ----------------------------------------------------------------------------------


def test_the_command_locks_shows_and_unlocks(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t.tfstate"
    id = run("tflock", "lock", url).stdout.strip()
    shown = run("tflock", "show", url, "--json")
    assert (shown.returncode, json.loads(shown.stdout)["ID"]) == (75, id)
    assert_says(run("tflock", "lock", url), id, "never expires", code=75)
    assert_says(run("tflock", "unlock", url, "another"), "another ID", code=1)
    assert run("tflock", "unlock", url, id).returncode == 0
    assert run("tflock", "show", url).returncode == 0


def test_the_command_removes_another_users_lock_only_by_force_and_escapes_its_holder(
    tmp_path: Path,
) -> None:
    hostile = TERRAFORM.replace(b"runner-7", rb"\u001b[2Jrunner\u202e\nline 2")
    file = tmp_path / "t.tfstate.tflock"
    file.write_bytes(hostile)
    url, id = f"file://{tmp_path}/t.tfstate", "7c1fd1c6-6c3f-2a3d-8a52-0f6a2b0c7f11"
    shown = run("tflock", "show", url)
    assert shown.returncode == 75
    assert not {"\x1b", "\u202e"} & set(shown.stdout)
    assert "\\x1b[2J" in shown.stdout
    assert len(shown.stdout.splitlines()) == 1
    assert_says(run("tflock", "unlock", url, id), "force-unlock", code=1)
    assert file.read_bytes() == hostile
    assert run("tflock", "force-unlock", url, id).returncode == 0
    assert not file.exists()


def test_the_command_identifies_a_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "t.tfstate.tflock").write_bytes(b"\x00" * 1_000)
    shown: subprocess.CompletedProcess[str] = run("tflock", "show", f"file://{tmp_path}/t.tfstate")
    assert shown.returncode == 1
    assert "not a lock file" in shown.stdout


@pytest.mark.parametrize("landed", [False, True])
def test_an_interrupted_lock_leaves_no_lock_file(landed: bool) -> None:
    """It would never expire, and nobody would know its ID."""
    url = f"{memory()}/s"
    with closing(StateLock(url)) as state, closing(StateLock(url)) as other:
        put = state.store.put

        def interrupted(*args: Any) -> Any:
            if landed:
                put(*args)
            raise KeyboardInterrupt

        state.store.put = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt) as caught:
            state.lock()
        assert state.held is None
        assert bool(getattr(caught.value, "__notes__", [])) == (not landed), "it names the ID"
        other.lock()
        other.unlock()


@pytest.mark.parametrize("reached", ["not sent", "sent", "refused"])
def test_an_interrupted_lock_names_its_id_only_if_its_create_may_still_be_applied(
    bucket: str, shared_emulator: Any, reached: str
) -> None:
    url, at = f"s3://{bucket}/s", {"endpoint": shared_emulator.s3}
    with closing(StateLock(url, **at)) as state, closing(StateLock(url, **at)) as other:
        put = state.store.put

        def interrupted(*rest: Any) -> Any:
            if reached == "sent":
                put("elsewhere", *rest[1:])
            raise KeyboardInterrupt

        def unread(*args: Any, **how: Any) -> Any:
            state.store.get = get  # type: ignore[method-assign]
            raise KeyboardInterrupt

        get = state.store.get
        if reached == "refused":
            other.lock()
            state.store.get = unread  # type: ignore[method-assign]
        else:
            state.store.put = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt) as caught:
            state.lock()
        assert bool(getattr(caught.value, "__notes__", [])) == (reached == "sent")
