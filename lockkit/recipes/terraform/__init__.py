"""Terraform's lock file, as Terraform and OpenTofu write and read it; also with a lease."""

from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
from lockkit.recipes.terraform.lease import StateLease
from lockkit.recipes.terraform.statelock import StateLock

__all__ = ["LockUnknown", "NotLocked", "StateLease", "StateLock", "StateLocked"]
