"""Notebook 16: the newest committed base file, and what was committed after that began."""


def file_slice(bases, logs):
    base = max((instant for instant, done in bases if done is not None), default=None)
    since = 0 if base is None else base
    return base, sorted(instant for instant, done in logs if done is not None and done > since)
