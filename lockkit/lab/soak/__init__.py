"""The soak: real processes over one table for minutes or hours, in all the trouble a plan asks for.

What is left of it is one history, truth and belief, which the checker judges.
"""
