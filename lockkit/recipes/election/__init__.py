"""Leader election by epochs (Morling): one object per epoch, and the epoch is the fencing token."""

from lockkit.errors import ElectionError, NotLeader
from lockkit.recipes.election.handle import Election

__all__ = ["Election", "ElectionError", "NotLeader"]
