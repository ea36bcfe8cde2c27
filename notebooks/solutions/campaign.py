"""Notebook 12: create the next epoch, and know it by this very attempt."""

from lockkit.lab.course.exercises import Applied, Found, IfAbsent, Put, Sleep, Throttled
from lockkit.lab.course.exercises import listing, read


def campaign(folder, owner, attempt):
    epochs = [int(each.key[-6:]) for each in (yield from listing(folder))]
    number = max(epochs, default=0) + 1
    key, body = f"{folder}{number:06}", f"{owner} {attempt}".encode()
    while True:
        answer = yield Put(key, body, IfAbsent())
        if isinstance(answer, Applied):
            return number
        if isinstance(answer, Throttled):
            yield Sleep(1)
        seen = yield from read(key)
        if isinstance(seen, Found):
            return number if seen.body == body else None
