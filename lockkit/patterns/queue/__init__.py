"""The one-file queue (turbopuffer): alone, by group commit, or through a stateless broker."""

from lockkit.patterns.queue.file import Job, QueueError
from lockkit.patterns.queue.group import GroupQueue
from lockkit.patterns.queue.handle import JobLost, Queue, QueueBusy, QueueUnknown
from lockkit.patterns.queue.jobs import QueueRules

# Not BrokerQueue: `python -m lockkit.patterns.queue.broker` would be loaded twice.
__all__ = [
    "GroupQueue", "Job", "JobLost", "Queue", "QueueBusy", "QueueError", "QueueRules",
    "QueueUnknown",
]  # fmt: skip
