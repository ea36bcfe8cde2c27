"""Terraform's lock file, as Terraform and OpenTofu write and read it."""

from lockkit.recipes.errors import LockUnknown, NotLocked, StateLocked
from lockkit.recipes.terraform.statelock import StateLock

__all__ = ["LockUnknown", "NotLocked", "StateLock", "StateLocked"]
