"""A lock for each stripe of keys on object storage."""

from lockkit.patterns.striped.handle import Keys, StripedLock, StripedRules
from lockkit.patterns.striped.layout import StripesDiffer

__all__ = ["Keys", "StripedLock", "StripedRules", "StripesDiffer"]
