"""Notebook 17: compare each offer with what its writer has not seen, in its batch, too."""


def decide(first, window, offers):
    decided, window = {}, list(window)
    for instant, base, groups in offers:
        if base + 1 >= first:
            later = window[base + 1 - first :]
            decided[instant] = not any(groups & each for each in later)
            window.append(groups if decided[instant] else set())
    return decided
