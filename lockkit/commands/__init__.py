"""The commands of the command line, one file each: `add` describes it, `run` does it.

A command calls a room and prints what the room found; whatever it decides is the room's decision.
Rooms are imported inside `run`, so that `lockkit --help` needs none of them.
"""

from __future__ import annotations
