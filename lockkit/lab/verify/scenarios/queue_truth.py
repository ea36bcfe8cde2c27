"""What must hold of a queue at every write that its store applies, and at every answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.recipes.queue.file import Job, QueueFile, decode
from lockkit.recipes.queue.operations import Answer, Claimed, Complete, Done, Operation, Push
from lockkit.recipes.queue.write import KEY

DOUBLED = "nothing that was pushed is in the queue a second time"
VANISHED = "a job leaves only by its holder's completion"
BACK = "no attempt of a job is taken back"
SPARED = "a job is not taken from a worker that was heard"
FIFO = "first claims come in the order of the pushes"
PUSHED = "an acknowledged push is in the queue"
HELD = "an acknowledged claim is in the queue, and no other client's"
ONCE = "one worker completes a job, and it is gone then"


ID_CHARS = 4
"""Of a job's id, in a picture."""


def acknowledged(operation: Operation, answer: Answer) -> str:
    """What a client is told is done, for the picture; "" for a heartbeat and for a refusal."""
    match operation, answer:
        case Push(id), Done():
            return f"push {id[:ID_CHARS]}"
        case _, Claimed(job):
            return f"claim {job.id[:ID_CHARS]}"
        case Complete(job=job), Done():
            return f"complete {job[:ID_CHARS]}"
    return ""


@dataclass(slots=True)
class QueueTruth:
    """The current file, and everything that happened in it."""

    world: SimWorld
    timeout_ms: int
    file: QueueFile = field(default_factory=QueueFile)
    entered: dict[str, None] = field(default_factory=dict)
    claims: dict[tuple[str, int], Job] = field(default_factory=dict)
    holders: dict[tuple[str, int], str] = field(default_factory=dict)
    completing: set[tuple[str, int]] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied."""
        if getattr(write.request, "key", "") != KEY:
            return
        assert after is not None
        was, self.file = self.file, decode(after.body)
        for job in was.jobs.values():
            if job.id not in self.file.jobs and (job.id, job.attempts) not in self.completing:
                raise Violated(VANISHED, f"job {job.id} has left the queue, and attempt "
                                         f"{job.attempts} was not completed")  # fmt: skip
        for job in self.file.jobs.values():
            before = was.jobs.get(job.id)
            if before is None:
                if job.id in self.entered:
                    raise Violated(DOUBLED, f"job {job.id} has come into the queue again")
                self.entered[job.id] = None
                before = Job(job.id, job.payload)
            if job.attempts != before.attempts:
                self._claim(before, job)

    def _claim(self, was: Job, now: Job) -> None:
        if now.attempts != was.attempts + 1:
            went = f"went from attempt {was.attempts} to {now.attempts}"
            raise Violated(BACK, f"job {now.id} {went}")
        self.claims[now.id, now.attempts] = now
        if was.attempts:
            self.world.reached.add("handed on")
            if abs(now.heartbeat_ms - was.heartbeat_ms) <= self.timeout_ms:
                because = f"job {now.id} was taken from {was.worker}, whose heartbeat was fresh"
                raise Violated(SPARED, because)
            return
        for job in self.file.jobs.values():
            if job.id == now.id:
                break
            if not job.attempts:
                raise Violated(FIFO, f"job {now.id} was claimed before the older job {job.id}")

    # --- what clients receive ------------------------------------------------------------------

    def on_operation(self, operation: Operation) -> None:
        if isinstance(operation, Complete):
            self.completing.add((operation.job, operation.attempts))

    def answered(self, operation: Operation, answer: Answer) -> None:
        match operation, answer:
            case Push(), Done() if operation.id not in self.entered:
                raise Violated(PUSHED, f"the push of job {operation.id} is acknowledged, but the "
                                       "queue does not have it")  # fmt: skip
            case Complete(), Done():
                if operation.job in self.completed or operation.job in self.file.jobs:
                    twice = operation.job in self.completed
                    what = "was completed twice" if twice else "is completed, but in the queue"
                    raise Violated(ONCE, f"job {operation.job} {what}")
                self.completed.add(operation.job)
            case _, Claimed(job):
                key = job.id, job.attempts
                if self.claims.get(key, job).claim != job.claim or key not in self.claims:
                    raise Violated(HELD, f"the claim of job {job.id}, attempt {job.attempts}, is "
                                         "acknowledged, but the queue has another")  # fmt: skip
                if self.holders.setdefault(key, operation.id) != operation.id:
                    raise Violated(HELD, f"two claims of job {job.id}, attempt {job.attempts}, are "
                                         "acknowledged")  # fmt: skip
            case _, Done() if operation.since is not None:
                pass
        if operation.since is not None:
            self.world.reached.add("asked again")
