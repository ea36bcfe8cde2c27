"""Everything that owns child processes: fleets of writers, their supervisor, lock services."""
