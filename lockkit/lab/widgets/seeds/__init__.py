"""Simulated runs that the reader controls: a moment of a seed, other continuations, the sweep."""
