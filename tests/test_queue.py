"""The one-file queue: its file, its transitions, its simulated worlds, and real brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
import pytest
from lock_world import until
from schedules import Lane, Shelf, stand
from table_world import Hasty

from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.scenarios.queue import MUTANTS
from lockkit.protocol.outcome import (
    IfAbsent,
    NotOurs,
    Ours,
    PreconditionFailed,
    StillOut,
    Unknown,
)
from lockkit.recipes.errors import ForeignBroker, JobLost, QueueError, QueueUnknown
from lockkit.recipes.queue import Queue
from lockkit.recipes.queue import jobs as transitions
from lockkit.recipes.queue.broker import BrokerServer
from lockkit.recipes.queue.brokered import BrokerQueue, NotTheBroker
from lockkit.recipes.queue.file import Broker, QueueFile, decode, encode
from lockkit.recipes.queue.group import GroupQueue, WriterDeposed
from lockkit.recipes.queue.jobs import HistoryTooOld, QueueDraft, QueuePolicy, drafted, settle
from lockkit.recipes.queue.operations import (
    PAYLOAD_CHARS_MAX,
    Beat,
    Claim,
    Claimed,
    Complete,
    Done,
    Empty,
    Forgotten,
    Push,
    Refused,
)
from lockkit.recipes.queue.wire import connect
from lockkit.recipes.queue.write import KEY, NotDone, commit
from lockkit.runtime import Procedure, Put, perform
from lockkit.sinks import silent
from lockkit.stores import Store, open_store

ROOT = Path(__file__).parents[1]
RULES = QueuePolicy()


# --- the file -------------------------------------------------------------------------------------


def written(
    *batches: tuple[Any, ...], start: QueueFile = QueueFile(), rules: QueuePolicy = RULES
) -> QueueDraft:
    """Makes one write after another; returns the last one's draft."""
    new = QueueDraft(start, (), False)
    for number, operations in enumerate(batches, start.number):
        new = drafted(new.file, operations, attempt=f"write-{number}", now_ms=1000, policy=rules)
    return new


def test_a_queues_file_is_read_as_it_was_written() -> None:
    file = written(
        (Push("a", 'tea "\\ \ud83d\ude00 \ud800'), Push("b", "")), (Claim("c", "me"),)
    ).file
    file = replace(file, broker=Broker("127.0.0.1:1", "id"))
    assert decode(encode(file)) == file
    fields = json.loads(encode(file))
    assert fields["attempt"] == "write-1"
    assert fields["jobs"][0] | {"payload": ""} == {
        "id": "a", "state": "claimed", "worker": "me", "claim": "c", "heartbeat": 1000,
        "attempts": 1, "payload": "",
    }  # fmt: skip


GOOD = json.loads(encode(written((Push("a", "tea"),)).file))
HOSTILE = {
    "truncated": (encode(written((Push("a", "tea"),)).file)[:-20], "truncated"),
    "empty": (b"", "truncated"),
    "deep": (b"[" * 200_000, "not JSON"),
    "foreign": (b'{"jobs":[]}', "was not written by lockkit's queue"),
    "a list": (b"[]", "was not written by lockkit's queue"),
    "10 MB": (b" " * 10_000_001, "longer than 10000000 bytes"),
    "of the future": (json.dumps(GOOD | {"version": 2}).encode(), "format version 2, this lockkit"),
    "no version": (json.dumps(GOOD | {"version": None}).encode(), "contradict each other"),
    "no memory": (json.dumps(GOOD | {"recent": []}).encode(), "contradict each other"),
    "doubled": (json.dumps(GOOD | {"jobs": GOOD["jobs"] * 2}).encode(), "two jobs have one id"),
    "half a job": (json.dumps(GOOD | {"jobs": [{"id": "a"}]}).encode(), "damaged"),
    "odd counts": (json.dumps(GOOD | {"number": True}).encode(), "is not a count"),
    "odd broker": (json.dumps(GOOD | {"broker": ["me"]}).encode(), "damaged"),
    "odd state": (
        json.dumps(GOOD | {"jobs": [GOOD["jobs"][0] | {"state": "x" * 9999}]}).encode(), "damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_an_object_that_is_not_a_queue_is_reported_and_never_overwritten(
    name: str, shared_emulator: Any, bucket: str
) -> None:
    body, says = HOSTILE[name]
    with Queue(f"s3://{bucket}/q", endpoint=shared_emulator.s3) as queue:
        queue.store.put(KEY, body, IfAbsent())
        for use in (queue.jobs, lambda: queue.push("tea"), lambda: queue.claim("me")):
            with pytest.raises(QueueError, match=says) as recorded:
                use()
            assert len(str(recorded.value)) < 300
        assert queue.store.get(KEY).body == body  # type: ignore[union-attr]


def test_a_full_queue_refuses_pushes_and_still_completes_jobs() -> None:
    payload = "x" * 100_000
    full = written(tuple(Push(f"job-{n}", payload) for n in range(79)), (Claim("c", "me"),)).file
    new = written((Push("more", payload), Complete("d", "job-0", 1)), start=full)
    assert [type(each) for each in new.answers] == [Done, Done]
    new = written((Push("more", payload), Claim("e", "me")), start=full)
    assert new.answers[0] == Refused(transitions.FULL)
    assert isinstance(new.answers[1], Claimed)
    assert len(new.body) < transitions.PUSH_BYTES_MAX + 1000


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 101, 'a"', "a\n"])
def test_a_name_that_could_harm_the_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a job or worker"):
        Claim("id", name)
    with pytest.raises(ValueError, match="is no name of a job or worker"):
        Push(name, "tea")


def test_the_error_for_a_too_long_payload_says_where_to_store_it() -> None:
    with pytest.raises(ValueError, match="store longer data as a separate object"):
        Push("a", "x" * 100_001)


# --- transitions ----------------------------------------------------------------------------------


def test_jobs_are_claimed_in_the_order_of_their_pushes() -> None:
    new = written(
        (Push("a", ""), Push("b", "")), (Push("c", ""), *(Claim(f"c{n}", "me") for n in range(4)))
    )
    assert [each.job.id for each in new.answers if isinstance(each, Claimed)] == ["a", "b", "c"]
    assert new.answers[-1] == Empty()


def test_a_job_is_reassigned_once_its_worker_was_silent_for_too_long() -> None:
    held = written((Push("a", ""), Claim("c", "one"))).file
    late = RULES.timeout_ms + 1001

    def claim_at(now_ms: int) -> Any:
        return drafted(held, [Claim("d", "two")], attempt="w", now_ms=now_ms, policy=RULES).answers

    assert claim_at(late - 1) == (Empty(),)
    assert claim_at(late)[0].job.attempts == 2
    assert claim_at(-late)[0].job.attempts == 2  # a heartbeat from the far future is none
    with MUTANTS["never handed on"].planted():
        assert claim_at(late) == (Empty(),)


def test_a_beat_within_the_same_write_keeps_the_job() -> None:
    held = written((Push("a", ""), Claim("c", "one"))).file
    new = drafted(
        held, [Beat("b", "a", 1), Claim("d", "two")], attempt="w", now_ms=99_999, policy=RULES
    )
    assert new.answers == (Done(), Empty())


def test_an_old_attempt_neither_completes_nor_beats() -> None:
    held = written((Push("a", ""), Claim("c", "one"))).file
    held = drafted(held, [Claim("d", "two")], attempt="w", now_ms=99_999, policy=RULES).file
    for asked in (Complete("x", "a", 1), Beat("x", "a", 1)):
        (answer,) = written((asked,), start=held).answers
        assert isinstance(answer, Refused)
        assert "'two' has attempt 2" in answer.why
    assert written((Complete("x", "a", 2),), start=held).file.jobs == {}


def test_a_request_that_is_sent_again_is_not_done_again() -> None:
    file = written((Push("a", ""),), (Claim("c", "me"),), (Complete("d", "a", 1),)).file
    new = written((Push("a", "", since=0), Complete("d", "a", 1, since=2)), start=file)
    assert (new.answers, new.changed) == ((Done(), Done()), False)
    held = written((Push("a", ""), Push("b", "")), (Claim("c", "me"),)).file
    (answer,) = written((Claim("c", "me", since=1),), start=held).answers
    assert isinstance(answer, Claimed) and answer.job.id == "a"


def test_an_outcome_that_left_the_window_stays_unknown() -> None:
    rules = replace(RULES, recent_max=2)
    beats = tuple((Claim(f"c{n}", "me"),) for n in range(3))
    pushes = tuple(Push(f"j{n}", "") for n in range(9))
    file = written(pushes, *beats, rules=rules).file
    assert (file.number, len(file.recent)) == (4, 2)

    def again(since: int, rules: QueuePolicy = rules) -> Any:
        return written((Push("k", "", since=since),), start=file, rules=rules).answers[0]

    assert [again(since) for since in range(6)] == [
        Forgotten(), Forgotten(), Done(), Done(), Done(), Forgotten()
    ]  # fmt: skip
    with MUTANTS["beyond"].planted():
        assert again(0) == Done()


def test_an_overwritten_write_is_found_among_the_files_recent_writes() -> None:
    mine = written((Push("a", ""),)).file
    later = written((Push("b", ""),), (Push("c", ""),), start=mine).file
    other = written((Push("b", ""),), (Push("c", ""),)).file
    assert settle(mine, None, QueueFile(), None) == StillOut()
    assert settle(mine, None, mine, "v1") == Ours("v1")
    assert settle(mine, None, later, "v3") == Ours("v3")
    assert settle(replace(mine, recent=(other.recent[0],)), None, other, "v2") == Ours("v2")
    elsewhere = drafted(QueueFile(), [Push("a", "")], attempt="elsewhere", now_ms=0).file
    assert settle(elsewhere, None, other, "v2") == NotOurs()
    forgetful = replace(other, recent=other.recent[1:])
    assert settle(elsewhere, None, forgetful, "v2") == HistoryTooOld()
    assert (
        settle(elsewhere, "v0", QueueFile(), None) == HistoryTooOld()
    )  # somebody deleted the file
    with MUTANTS["no recent ids"].planted():
        assert settle(mine, None, later, "v3") == NotOurs()


# --- every order of a few requests ----------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """The answers to each lane, the file, a late write, and all jobs that ever were in the file."""

    recorded: tuple[tuple[Any, ...], ...]
    body: bytes = b""
    late: Put | None = None
    faults: int = 1
    entered: frozenset[str] = frozenset()
    wrong: str = ""

    def hear(self, lane: int, answer: Any) -> Moment:
        recorded = (
            *self.recorded[:lane],
            (*self.recorded[lane], answer),
            *self.recorded[lane + 1 :],
        )
        return replace(self, recorded=recorded)

    def perform(self, request: Any) -> tuple[Any, Moment]:
        answer, body = performed(self.body, request)
        if body == self.body:
            return answer, self
        new = jobs_in(body) - jobs_in(self.body)
        wrong = "doubled" if new & self.entered else self.wrong
        return answer, replace(self, body=body, entered=self.entered | new, wrong=wrong)


@cache
def performed(body: bytes, request: Any) -> tuple[Any, bytes]:
    memory_store = Shelf({KEY: body} if body else {})
    answer = perform(request, memory_store, Clock(), silent)  # type: ignore[arg-type]
    return answer, memory_store.get(KEY).body if memory_store else b""  # type: ignore[union-attr]


@cache
def jobs_in(body: bytes) -> frozenset[str]:
    return frozenset(decode(body).jobs if body else ())


def in_turn(*operations: Any, rules: QueuePolicy, who: str) -> Procedure[list[str]]:
    """Run each with its own read and write; return those that were acknowledged."""
    done: list[str] = []
    for each in operations:
        match (yield from commit([each], rules, who=who)):
            case (_, (Done() | Claimed(),)):
                done.append(each.id)
    return done


def every_order(rules: QueuePolicy) -> tuple[int, str]:
    """One client pushes two jobs, another claims the first and completes it, in every order of
    their requests, with one of their writes late, lost or sent twice. The states, and the first
    mistake.
    """
    pushes, takes = (Push("a", ""), Push("b", "")), (Claim("c", "C"), Complete("d", "a", 1))
    lanes = (
        Lane("A", lambda: in_turn(*pushes, rules=rules, who="A")),
        Lane("C", lambda: in_turn(*takes, rules=rules, who="C")),
    )
    stands: dict[Any, Any] = {}
    first = Moment(((), ()))
    todo, seen = deque([first]), {first}
    while todo:
        now = todo.popleft()
        after = [] if now.late is None else [replace(now.perform(now.late)[1], late=None)]
        for number, lane in enumerate(lanes):
            if (number, now.recorded[number]) not in stands:
                stands[number, now.recorded[number]] = stand(
                    lane.make(), now.recorded[number], lane
                )
            at = stands[number, now.recorded[number]]
            if not at.waits and number == 0 and not now.entered.issuperset(at.ended):
                return len(seen), "lost"
            for _, request in at.waits:
                answer, done = now.perform(request)
                after.append(done.hear(number, answer))
                if isinstance(request, Put) and now.faults:
                    late = replace(now, late=request, faults=0)
                    after.append(late.hear(number, Unknown("no answer")))
                    after.append(replace(done, faults=0).hear(number, PreconditionFailed()))
        for each in after:
            if each.wrong:
                return len(seen), each.wrong
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return len(seen), ""


def test_every_order_of_two_clients_with_one_lost_write_is_right() -> None:
    states, wrong = every_order(RULES)
    assert not wrong
    assert states > 1_000


@pytest.mark.parametrize(
    ("mistake", "meets"), [("no recent ids", "doubled"), ("id per client", "lost")]
)
def test_the_search_of_every_order_finds_a_planted_mistake(mistake: str, meets: str) -> None:
    with MUTANTS[mistake].planted():
        assert every_order(RULES)[1] == meets


# --- real stores ----------------------------------------------------------------------------------

SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
WAYS: dict[str, Callable[..., Queue]] = {
    "alone": Queue, "group": GroupQueue, "broker": lambda *a, **o: BrokerQueue(*a, idle_s=1, **o)
}  # fmt: skip
THREADS, EACH = 3, 3


def use(queue: Queue, number: int) -> list[str]:
    """Push some jobs, claim and complete as many; return what was completed."""
    done = []
    for each in range(EACH):
        queue.push("tea", id=f"job-{number}-{each}")
        job = queue.claim(f"worker-{number}")
        assert job is not None
        queue.heartbeat(job)
        queue.complete(job)
        done.append(job.id)
    return done


def together(queue: Queue) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [each for done in pool.map(lambda n: use(queue, n), range(THREADS)) for each in done]


EVERY_JOB = sorted(f"job-{n}-{each}" for n in range(THREADS) for each in range(EACH))


@pytest.mark.parametrize(
    ("way", "kind"),
    [("alone", "azure"), ("group", "s3"), ("broker", "azure")],
)
def test_each_job_is_done_once_with_every_provider_and_transport(
    way: str, kind: str, shared_emulator: Any, bucket: str
) -> None:
    endpoint = getattr(shared_emulator, kind)
    with WAYS[way](f"{SCHEMES[kind]}://{bucket}/q", endpoint=endpoint) as queue:
        assert sorted(together(queue)) == EVERY_JOB
        assert queue.jobs() == []


@pytest.mark.parametrize("way", WAYS)
def test_lost_responses_neither_lose_a_job_nor_double_it(
    way: str, shared_emulator: Any, bucket: str
) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        with WAYS[way](f"s3://{bucket}/q", endpoint=proxy.url) as queue:
            for when in ("before", "after"):
                fault = Fault("drop", when=when, operation="put", key=KEY, chance=0.15)
                proxy.inject(fault)
            assert sorted(together(queue)) == EVERY_JOB
            assert proxy.faults
            assert queue.jobs() == []


def test_an_unknown_request_is_reported_and_can_be_repeated(
    shared_emulator: Any, bucket: str
) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        with Queue(f"s3://{bucket}/q", endpoint=proxy.url, clock=Hasty()) as queue:
            queue.push("first")
            proxy.inject(Fault("drop", operation="put", key=KEY))
            proxy.inject(Fault("status", code=503, operation="get", key=KEY, nth=2, next=7))
            with pytest.raises(QueueUnknown, match="may be done, now or later") as recorded:
                queue.push("second", id="second")
            assert recorded.value.operation == Push("second", "second", since=1)
            assert queue.submit(recorded.value.operation) == Done()
            assert [each.payload for each in queue.jobs()] == ["first", "second"]


def test_a_worker_that_lost_its_job_gets_the_name_of_the_new_worker(
    shared_emulator: Any, bucket: str
) -> None:
    rules = QueuePolicy(timeout_ms=-1)
    with Queue(f"s3://{bucket}/q", policy=rules, endpoint=shared_emulator.s3) as queue:
        queue.push("tea")
        slow, fast = queue.claim("slow"), queue.claim("fast")
        assert slow is not None and fast is not None
        for use_it in (queue.heartbeat, queue.complete):
            with pytest.raises(JobLost, match="'fast' has attempt 2"):
                use_it(slow)
        queue.complete(fast)
        with pytest.raises(JobLost, match="it is completed"):
            queue.complete(slow)


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_gets_an_error_that_says_to_open_the_queue_again(
    way: str, tmp_path: Path
) -> None:
    with WAYS[way](f"file://{tmp_path}/q") as queue:
        pid = os.fork()
        if not pid:
            try:
                queue.push("tea")
            except QueueError as error:
                os._exit(0 if "after a fork; open it again" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("emulator", [{"profile": "gcs"}], indirect=True)
def test_one_broker_writes_a_hot_object_no_more_often_than_the_store_accepts(
    emulator: Emulator,
) -> None:
    with BrokerQueue("gs://b/q", endpoint=emulator.gcs, idle_s=1) as queue:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(queue.push, map(str, range(40))))
    puts = [
        each for each in emulator.requests()
        if each["method"] in ("put", "post") and each["key"] == "q/queue.json"
    ]  # fmt: skip
    assert [each["status"] for each in puts if each["status"] != 200] == []
    assert len(puts) < 20


# --- brokers --------------------------------------------------------------------------------------


def brokers_of(url: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter(["cmdline"]):
        command = each.info["cmdline"] or []
        if "lockkit.recipes.queue.broker" in command and url in command:
            found.append(each)
    return found


def test_a_broker_that_dies_while_it_starts_costs_another_start_and_no_request(
    shared_emulator: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "died once"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nmkdir "{once}" 2>/dev/null && kill -9 $$\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with BrokerQueue(f"s3://{bucket}/q", endpoint=shared_emulator.s3, idle_s=0.2) as queue:
        queue.push("tea")
        assert [each.payload for each in queue.jobs()] == ["tea"]
    assert once.exists()


@contextmanager
def serving(store: Store, url: str, **options: Any) -> Iterator[tuple[BrokerServer, Any]]:
    """A broker in a thread of this process, with a future that says why it ended."""
    server = BrokerServer(url, endpoint=store.options.endpoint, **options)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(server.serve)
        try:
            yield server, ending
        finally:
            server.stop("the test is over")


@pytest.fixture
def place(shared_emulator: Any, bucket: str) -> Iterator[tuple[str, Store]]:
    url = f"s3://{bucket}/q"
    store = open_store(url, endpoint=shared_emulator.s3)
    yield url, store
    store.close()


CLIENT = """
import sys
from lockkit.recipes.queue.brokered import BrokerQueue
from lockkit.recipes.queue.jobs import (QueuePolicy)
url, endpoint, me = sys.argv[1:]
with BrokerQueue(url, endpoint=endpoint, idle_s=1, policy=QueuePolicy(recent_max=1000)) as queue:
    for number in range(12):
        queue.push("tea", id=f"{me}-{number}")
        job = queue.claim(me)
        if job is not None:
            queue.complete(job)
            print(job.id, flush=True)
    print("done", flush=True)
    sys.stdin.read()
"""


def client(url: str, endpoint: str, me: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", CLIENT, url, endpoint, me], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def test_a_broker_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(
    place: tuple[str, Store],
) -> None:
    url, store = place
    endpoint = store.options.endpoint or ""
    clients = [client(url, endpoint, me) for me in ("one", "two")]
    assert clients[0].stdout is not None
    first = clients[0].stdout.readline().strip()
    for each in brokers_of(url):
        each.kill()
    recorded = [line for each in clients for line in takewhile("done\n".__ne__, each.stdout or ())]
    completed = [first, *map(str.strip, recorded)]
    until(lambda: len(brokers_of(url)) == 1)  # another may be ending still
    running = brokers_of(url)
    for each in clients:
        each.kill()  # SIGKILL: nobody says goodbye to the broker, which ends all the same
        each.communicate()
    assert psutil.wait_procs(running, 30)[1] == []
    with Queue(url, endpoint=endpoint) as queue:
        left = [each.id for each in queue.jobs()]
    assert sorted(completed + left) == sorted(
        f"{me}-{number}" for me in ("one", "two") for number in range(12)
    )


def test_a_broker_that_loses_a_write_reports_it_to_its_clients_and_ends(
    place: tuple[str, Store],
) -> None:
    url, store = place
    with serving(store, url) as (server, ending), Queue(url, endpoint=store.options.endpoint) as q:
        link = connect(Broker(server.address, server.id))
        assert link.ask(Push("a", "tea")) == Done()
        q.push("past the broker", id="b")
        assert link.ask(Push("c", "tea")) == NotDone("its broker lost a write, and ends")
        assert ending.result(30) == "another broker wrote the file first"
        link.close()
        assert [each.id for each in q.jobs()] == ["a", "b"]


def test_of_two_brokers_the_one_named_in_the_file_continues(place: tuple[str, Store]) -> None:
    url, store = place
    with serving(store, url) as (one, ending), serving(store, url) as (two, _):
        links = [connect(Broker(each.address, each.id)) for each in (one, two)]
        assert [type(link.ask(Push(f"{n}", ""))).__name__ for n, link in enumerate(links)] == [
            "NotDone", "Done"
        ]  # fmt: skip
        assert ending.result(30) == "another broker wrote the file first"
        with pytest.raises(WriterDeposed, match="took over already"):
            BrokerServer(url, endpoint=store.options.endpoint, instead_of=one.id)
        for link in links:
            link.close()


def test_a_foreign_server_at_the_brokers_address_receives_no_secret(
    place: tuple[str, Store],
) -> None:
    url, store = place
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            made, _ = stranger.accept()
            with made:
                made.sendall(b'{"proof":"of another queue","number":7}\n')
                heard.append(made.recv(1000))

        thread = threading.Thread(target=answer)
        thread.start()
        address = "{}:{}".format(*stranger.getsockname())
        file = drafted(
            QueueFile(), [], attempt="w", now_ms=0, broker=Broker(address, "the one that died")
        )
        store.put(KEY, file.body, IfAbsent())
        with WAYS["broker"](url, endpoint=store.options.endpoint) as queue:
            with pytest.warns(NotTheBroker, match="is not the broker that queue.json names"):
                queue.push("a secret")
            assert len(queue.jobs()) == 1
        thread.join()
    assert heard == [b""]


def test_a_client_that_cannot_read_the_file_cannot_use_its_broker(place: tuple[str, Store]) -> None:
    url, store = place
    with serving(store, url) as (server, _):
        with pytest.raises(ForeignBroker):
            connect(Broker(server.address, "a guess"))
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as made, made.makefile("rb") as file:
            assert server.id.encode() not in file.readline()
            made.sendall(b'{"proof":"a guess"}\n{"do":"Push","id":"a","payload":""}\n')
            assert file.readline() == b""


def test_a_broker_started_by_a_client_receives_its_secrets_outside_its_command_line(
    place: tuple[str, Store],
) -> None:
    url, store = place
    secret = {"aws_access_key_id": "me", "aws_secret_access_key": "wJalrXUtnFEMI"}
    with WAYS["broker"](url, endpoint=store.options.endpoint, **secret) as queue:
        queue.push("tea")
        brokers = brokers_of(url)  # a slow first one is given a second, which then ends
        assert brokers
        for broker in brokers:
            assert "wJalr" not in " ".join(broker.cmdline())
            assert os.getsid(broker.pid) == broker.pid  # Ctrl-C at the client's terminal is not its


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_foreground_broker_ends_on_request(
    place: tuple[str, Store], number: int, code: int
) -> None:
    url, store = place
    command = [sys.executable, "-m", "lockkit.recipes.queue.broker", url]
    with subprocess.Popen(
        [*command, "--endpoint", store.options.endpoint or ""], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as broker:  # fmt: skip
        assert broker.stdout is not None
        assert "address" in broker.stdout.readline()
        broker.send_signal(number)
        _, recorded = broker.communicate(timeout=30)
    assert (broker.returncode, "ended: " in recorded) == (code, True)


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_a_broker_in_the_foreground_ends_with_its_parent(place: tuple[str, Store]) -> None:
    url, store = place
    endpoint = store.options.endpoint or ""
    command = ["-m", "lockkit.recipes.queue.broker", url, "--endpoint", endpoint]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], cwd=ROOT, text=True, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        broker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert psutil.wait_procs([broker], 30)[1] == []


def test_a_broker_that_cannot_start_names_the_command_that_starts_one(
    place: tuple[str, Store],
) -> None:
    url, store = place
    with BrokerQueue(url, endpoint=store.options.endpoint) as queue:
        queue.store.options.extra["credential"] = object()
        with pytest.raises(QueueError, match="python -m lockkit"):
            queue.push("tea")


def test_the_longest_payload_goes_through_a_broker(tmp_path: Path) -> None:
    """Escaped as ASCII its line would be longer than a broker reads."""
    url, payload = f"file://{tmp_path}/q", "\U0001f600" * PAYLOAD_CHARS_MAX
    with BrokerQueue(url, idle_s=1) as queue:
        queue.push(payload, id="long")
        job = queue.claim("worker")
        assert job is not None and job.payload == payload
        queue.push("\ud800\0" * (PAYLOAD_CHARS_MAX // 2), id="odd")
        job = queue.claim("worker")
        assert job is not None and job.id == "odd"
