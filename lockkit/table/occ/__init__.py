"""Optimistic concurrency control: instants, the fence, conflicts, commit, publish and rollback.

Start with `transaction.py`, then `commit.py`. Procedures only; nothing here opens a client.
"""
