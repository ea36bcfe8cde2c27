"""lockkit's side of a table that several write without conflicts.

As a program, one writer of several, until its stdin ends:
`python overlapping.py '{"url": ..., "endpoint": ..., "client": ..., "place": 2}'`.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from ours import PAUSE_S, ROUNDS_MAX, arrow, order

from lockkit.table import Table

NBCC = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
LOCK = {"ttl_s": 15.0, "renew_interval_s": 1.0, "acquire_timeout": 120.0}
QUIET = {"hoodie.clean.automatic": "false"}


def open_table(url: str, endpoint: str, **how: Any) -> Table:
    return Table(url, endpoint=endpoint, options=NBCC | QUIET, lock=LOCK, **how)


def write_by_turns(
    url: str, endpoint: str, client: str, place: int, over: threading.Event
) -> list[list[dict[str, Any]]]:
    """Upsert one own row and one shared row by turns until `over`; the rows of each round."""
    done = []
    with open_table(url, endpoint, client=client) as table:
        for number in range(ROUNDS_MAX):
            amount = 1_000 * place + number
            rows = [order(f"{client}-{number}", amount=number, at=number),
                    order("shared", amount=amount, at=10 * number + place)]  # fmt: skip
            table.upsert(arrow(rows))
            done.append(rows)
            if over.wait(PAUSE_S):
                break
    return done


if __name__ == "__main__":
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print(json.dumps(write_by_turns(**json.loads(sys.argv[1]), over=over)))
