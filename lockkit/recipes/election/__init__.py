"""Leader election by epochs (Morling): one object per epoch, and the epoch is the fencing token."""

from lockkit.recipes.election.handle import Election
from lockkit.recipes.errors import ElectionError, NotLeader

__all__ = ["Election", "ElectionError", "NotLeader"]
