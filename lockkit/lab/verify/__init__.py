"""Proofs by search and by chance: checker, explorer, simulator, planted mistakes, soak."""
