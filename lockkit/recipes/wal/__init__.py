"""A write-ahead log (turbopuffer; SlateDB's RFC-0001): each slot is claimed by creating it."""

from lockkit.recipes.errors import AppendUnknown, Damaged, Fenced, SameEpoch, WalError
from lockkit.recipes.wal.handle import Cursor, Entry, LogTail, Position, Reader, Wal

__all__ = [
    "AppendUnknown", "Cursor", "Damaged", "Entry", "Fenced", "Position", "Reader", "SameEpoch",
    "LogTail", "Wal", "WalError",
]  # fmt: skip
