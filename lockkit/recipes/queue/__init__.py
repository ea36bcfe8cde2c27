"""The one-file queue (turbopuffer): alone, by group commit, or through a stateless broker."""

from lockkit.recipes.errors import JobLost, QueueBusy, QueueError, QueueUnknown
from lockkit.recipes.queue.file import Job
from lockkit.recipes.queue.group import GroupQueue
from lockkit.recipes.queue.handle import Queue
from lockkit.recipes.queue.jobs import QueuePolicy

# Not BrokerQueue: `python -m lockkit.recipes.queue.broker` would be loaded twice.
__all__ = [
    "GroupQueue", "Job", "JobLost", "Queue", "QueueBusy", "QueueError", "QueuePolicy",
    "QueueUnknown",
]  # fmt: skip
