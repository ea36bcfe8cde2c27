"""Table services: clean, cluster, roll back failed writers, repair the fence."""
