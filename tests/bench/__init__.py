"""Benchmarks: ratios within one run, peers beside them, never a gate (`make bench`)."""
