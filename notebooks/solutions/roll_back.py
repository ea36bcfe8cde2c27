"""Notebook 09: first decide in the fence, then delete."""

import json

from lockkit.lab.course.exercises import Applied, Delete, IfVersion, Put, Sleep, Throttled, read


def roll_back(fence, instant, files):
    while True:
        seen = yield from read(fence)
        decided = json.loads(seen.body)
        if instant in decided["committed"]:
            return False
        if instant in decided["rolled back"]:
            break
        decided["rolled back"].append(instant)
        answer = yield Put(fence, json.dumps(decided).encode(), IfVersion(seen.version))
        if isinstance(answer, Throttled):
            yield Sleep(1)
    for file in files:  # nobody can commit them any more
        while not isinstance((yield Delete(file)), Applied):
            yield Sleep(1)
    return True
