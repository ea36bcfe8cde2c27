"""A lock for each stripe of keys on object storage."""

from lockkit.errors import StripesDiffer
from lockkit.recipes.striped.handle import Keys, StripedLock, StripedRules

__all__ = ["Keys", "StripedLock", "StripedRules", "StripesDiffer"]
