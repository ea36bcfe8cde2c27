"""Simulated runs under the reader's hand: a moment of a seed, other ways on from it, the sweep."""
