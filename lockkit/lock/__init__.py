"""The lock on an object store. `handle.py` has `Lock`; `storage.py` runs the protocol."""
