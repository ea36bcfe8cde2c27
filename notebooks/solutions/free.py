"""Notebook 05: whose clock? Only one's own, and only for how long, not for what time it is."""


def free(record, wall_ms, watched_ms):
    return watched_ms >= record["ttl_ms"]
