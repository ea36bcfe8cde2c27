"""Notebook 15: test both conditions, and count only an answer that says what the store did."""

from lockkit.lab.course.exercises import Applied, Found, IfAbsent, IfVersion, PreconditionFailed
from lockkit.lab.course.exercises import Put, Sleep, read


def honours(key):
    while not isinstance((yield from read(key)), Found):
        yield Put(key, b"first", IfAbsent())
        yield Sleep(1)
    # There is an object now, and "0" is not its version: both writes must be refused.
    for condition in (IfAbsent(), IfVersion("0")):
        answer = None
        while not isinstance(answer, PreconditionFailed):
            answer = yield Put(key, b"second", condition)
            if isinstance(answer, Applied):
                return False
            yield Sleep(1)
    return True
