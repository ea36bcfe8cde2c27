"""Procedures on a stage: each actor stopped at its next request, and a reader who decides."""
