"""Notebook 14: a grant ends by its release or at its own end, whichever comes first."""


def two_holders(history):
    until = {}
    for at_ms, who, kind, until_ms in history:
        until[who] = until_ms
        others = [each for name, each in until.items() if name != who]
        if kind == "held" and any(each > at_ms for each in others):
            return True
    return False
