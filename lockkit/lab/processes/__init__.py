"""Everything that owns child processes: fleets of writers, their supervisor, lock services.

`process` ends them with their parent.
"""
