"""The lease protocol without I/O or clocks: `lease.step` is the whole of it."""
