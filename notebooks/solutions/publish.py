"""Notebook 04: publish only over the version that was read, and report no only if it is certain."""

from lockkit.lab.course.exercises import Applied, IfVersion, Put, Sleep, Throttled, read


def publish(key, seen, body, entry):
    while True:
        answer = yield Put(key, body, IfVersion(seen))
        if isinstance(answer, Applied):
            return True
        if isinstance(answer, Throttled):
            yield Sleep(1)
        # 412 or no answer. If the version is still the one that we read, our write may yet land:
        # send it again. If it has changed, ours never will: either it landed before, or not at all.
        now = yield from read(key)
        if now.version != seen:
            return entry in now.body.decode().split()
