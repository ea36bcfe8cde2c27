"""Optimistic concurrency control: instants, the fence, conflicts, commit, publish and rollback.

Start with `transaction.py`, `prepared.py`, then `commit.py`. They are procedures; `publish` and
`concurrency` run them under a lock.
"""
