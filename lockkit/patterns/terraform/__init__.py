"""Terraform's lock file, as Terraform and OpenTofu write and read it."""

from lockkit.patterns.terraform.statelock import (
    LockUnknown,
    NotLocked,
    StateLock,
    StateLocked,
    StateLockRules,
)

__all__ = ["LockUnknown", "NotLocked", "StateLock", "StateLockRules", "StateLocked"]
