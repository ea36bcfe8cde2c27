"""The soak: real processes write to one table for minutes or hours, under a plan's faults.

Its result is one history of truth and belief, which the checker judges.
"""
