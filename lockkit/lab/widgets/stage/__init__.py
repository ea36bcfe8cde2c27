"""Procedures on a stage: each actor stops at its next request, and the reader decides."""
