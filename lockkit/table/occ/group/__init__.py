"""Group commit: writers offer their commits, and one replacement of the fence decides for all.

Start with `decision` (pure) and `commit` (its procedures); `publish` runs them for a table.
"""
