"""Notebook 13: everybody takes the locks in one order, and each lock once."""


def order(keys):
    return sorted(set(keys))
