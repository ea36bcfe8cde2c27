"""A lock for each stripe of keys on object storage."""

from lockkit.recipes.errors import StripesDiffer
from lockkit.recipes.striped.handle import StripedKeys, StripedLock

__all__ = ["StripedKeys", "StripedLock", "StripesDiffer"]
