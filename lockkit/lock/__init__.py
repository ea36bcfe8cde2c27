"""The lock on an object store: the handle, its renewal, its polling, and who holds it.

Start with `handle.py` (`Lock`); `storage.py` runs the protocol against a store.
"""
