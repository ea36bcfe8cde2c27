"""Ozone's granular locks, within one process: volume, bucket and key."""

from lockkit.recipes.errors import OutOfOrder
from lockkit.recipes.granular.batch import run_batch
from lockkit.recipes.granular.locks import GranularLocks
from lockkit.recipes.granular.operations import BUCKET_OPERATIONS, KEY_OPERATIONS, VOLUME_OPERATIONS

__all__ = [
    "BUCKET_OPERATIONS", "GranularLocks", "KEY_OPERATIONS", "OutOfOrder",
    "VOLUME_OPERATIONS", "run_batch",
]  # fmt: skip
