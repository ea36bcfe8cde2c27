"""A write-ahead log (turbopuffer; SlateDB's RFC-0001): each slot is claimed by creating it."""

from lockkit.patterns.wal.handle import (
    AppendUnknown,
    Cursor,
    Damaged,
    Entry,
    Fenced,
    Position,
    Reader,
    SameEpoch,
    Tail,
    Wal,
    WalError,
    WalRules,
)

__all__ = [
    "AppendUnknown", "Cursor", "Damaged", "Entry", "Fenced", "Position", "Reader", "SameEpoch",
    "Tail", "Wal", "WalError", "WalRules",
]  # fmt: skip
