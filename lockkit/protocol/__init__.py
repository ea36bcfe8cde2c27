"""The lease protocol without I/O: answers, the lock file, states, transitions and policy.

Start with `lease.py`; its `step` is the whole protocol. Nothing here reads a clock or a socket.
"""
