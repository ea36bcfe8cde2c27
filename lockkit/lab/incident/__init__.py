"""Diagnosis of a table: its state, its history, the known pattern, and what to do."""
