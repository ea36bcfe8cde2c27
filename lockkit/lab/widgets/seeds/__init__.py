"""Simulated runs that the reader controls: a moment of a seed, and other continuations."""
