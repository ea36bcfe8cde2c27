"""Ozone's granular locks, within one process: volume, bucket and key."""

from lockkit.patterns.granular.batch import run_batch
from lockkit.patterns.granular.locks import GranularLocks
from lockkit.patterns.granular.operations import (
    BUCKET_OPERATIONS,
    KEY_OPERATIONS,
    VOLUME_OPERATIONS,
    GranularRules,
    OutOfOrder,
)

__all__ = [
    "BUCKET_OPERATIONS", "GranularLocks", "GranularRules", "KEY_OPERATIONS", "OutOfOrder",
    "VOLUME_OPERATIONS", "run_batch",
]  # fmt: skip
