"""Leader election by epochs (Morling): one object per epoch, and the epoch is the fencing token."""

from lockkit.patterns.election.handle import Election, ElectionError, ElectionRules, NotLeader

__all__ = ["Election", "ElectionError", "ElectionRules", "NotLeader"]
