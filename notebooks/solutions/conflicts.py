"""Notebook 08: a write conflicts with every later commit that rewrote one of its file groups."""


def conflicts(mine, later):
    return any(mine & each for each in later)
