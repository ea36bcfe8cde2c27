# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The whole library in a few lines, and what it does not promise
#
# What is the least code that keeps two processes from writing at the same time? And what can that
# code not promise, however carefully you use it?
#
# This takes less than ten seconds on a quiet machine, and up to half a minute on a busy one.

# %% [markdown]
# ## Predict
#
# An account's balance is one small object in a bucket, and it is 0 now. W1 pays in 10 and W2 pays
# in 20: each reads the balance, adds its amount, and writes the whole object. Both read before
# either writes, and there is no lock.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.account import GUESSES, at_once

alone = Predict("What is the final balance?", GUESSES)
alone

# %% [markdown]
# ## Run: without a lock

# %%
alone.run(at_once)

# %% [markdown]
# ## See: the least code

# %% jupyter={"source_hidden": true}
alone.explain("""
Both writers received 200, but only the later write remains. So the writers have to take turns.
""")

# %% [markdown]
# On your own bucket, `with Lock("s3://bucket/table") as lock:` is all you need. Here,
# `bucket.of("W1")` adds the address of the server on this machine, and records W1's events.

# %%
from lockkit import Lock, LockBusy, LockLost
from lockkit.lab.course.lock_testbed import said, stand

bucket = stand("s3")
with Lock(bucket.url, **bucket.of("W1")) as lock:
    print(lock, "is held:", lock.fence)

# %% [markdown]
# `with` waits up to `acquire_timeout` seconds (60 by default). Then it raises `LockBusy` and does
# not run the block. The message names the <abbr title="holder: the client to which the lock was
# granted last">holder</abbr>, the end of its lease, and what to do next.

# %%
one, two = (Lock(bucket.url, acquire_timeout=0, **bucket.of(name)) for name in ("W1", "W2"))
try:
    with one, two:
        print("two holders: never printed")
except LockBusy as busy:
    print(busy)

# %% [markdown]
# The lease is renewed while the block runs. It can still be lost: the process may be paused for
# longer than the lease, or a colleague may break the lock of a process that seems dead, as here.
# Then `with` raises `LockLost` at its end, and you must not rely on what the block did.

# %%
try:
    with one:
        bucket.break_lock()
except LockLost as lost:
    print(lost)

# %% [markdown]
# That is all: `Lock`, `LockBusy`, `LockLost`, and `fence.epoch`. The
# <abbr title="epoch: the number of a grant; each grant has a higher one">epoch</abbr> rises with
# every grant.
#
# ## Predict: what it does not promise
#
# Now both pay under the lock, one after the other. W1 reads 0 and sends its write of 10. The
# request is stuck in the network and no response comes, so W1 gives up and releases the lock. W2
# acquires it, reads 0, and pays in 20. **Then W1's request arrives.**

# %%
from lockkit.lab.course.account import LATE_GUESSES, late

stray = Predict("Both obeyed the lock. What is the final balance?", LATE_GUESSES)
stray

# %%
by_lock_alone = stray.run(late, guarded=False)
by_lock_alone

# %% jupyter={"source_hidden": true}
stray.explain("""
No process was paused and no lease expired. At no time did two clients hold the lock, and the
checker confirms it. The lock keeps *processes* apart. It does not keep their *requests* apart: a
request can still arrive after its client has given up.

The store can keep requests apart. Here is the same late write with a condition, *only if the object
is still as I read it* (`If-Match`):
""")

# %%
guarded = late(guarded=True)
print("the lock, both times:", by_lock_alone.verdict.kind, guarded.verdict.kind)
guarded

# %% [markdown]
# A table's commits do that for you. With `commit="serial"` the lock keeps writers out of each
# other's way, and the *fence*, one conditional write, decides. (By default several writers decide
# together and take no lock: lesson 17.)

# %%
import pyarrow as pa
from lockkit.table import Table
with Table.create(bucket.url, record_key="id", commit="serial", **bucket.of("W1")) as table:
    committed = table.append(pa.table({"id": ["order-1"], "amount": [10]}))
print(f"commit ..{committed.instant[-6:]}, under epoch {committed.epoch} of the lock")

# %% [markdown]
# If Apache Hudi's writers share the table, open the lock with Hudi's own configuration. It is the
# same lock on the same object, so each side excludes the other.

# %%
from lockkit import open_lock

PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
hudi = {"hoodie.write.lock.provider": PROVIDER, "hoodie.base.path": bucket.url}
hudi["hoodie.write.lock.client.num_retries"] = "0"  # Hudi's own default makes it 55 minutes
with one:
    print("granted beside W1:", open_lock(hudi, **bucket.of("W3")).acquire(timeout=0))

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
print(said(bucket.verdict))
assert bucket.verdict.kind == by_lock_alone.verdict.kind == guarded.verdict.kind == "VALID"
assert (by_lock_alone.balance, guarded.balance) == (10, 20)

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
stray.explain("""
A lock promises one thing: at any time at most one client holds it, and every grant has a higher
epoch. It cannot promise that a write that is sent under the lock also arrives while the lock is
held. Networks delay requests, SDKs repeat them, and processes are paused between two lines of code.
Each of these can delay a holder's write until a later client holds the lock. A shorter lease does
not help. Neither does a look at the lock just before the write.

So the object itself must detect a late write. It can do so by its version (`If-Match`), or by an
epoch, if it keeps the highest epoch that it has seen (notebook 12). The lock is then an
optimisation: it saves work that would be refused.
""")

# %% [markdown]
# ## In production
#
# * **`Lock`** works on S3, Google Cloud Storage, Azure and file systems. `ttl_s` is 300 by default,
#   as in Hudi. Use one handle per thread, `lock.assert_held()` before expensive work, and `on_lost`
#   to be notified at once.
# * **Apache Hudi** has only the lock: its storage lock is a lease that is measured by clocks
#   ([RFC-91](https://github.com/apache/hudi/blob/master/rfc/rfc-91/rfc-91.md)), and a writer
#   creates its completed file even if another writer holds the lock by then. Notebook 08 shows the
#   consequences.
# * **Delta Lake and Iceberg** do the opposite: they have no lock. One conditional write decides:
#   that of the log's next entry, or of the catalog's pointer. They need no lock service, but a
#   writer that loses has to repeat its work.
#
# ## Your turn
#
# W1's late write was refused, so its 10 are still unpaid. Set `THEN` to what W1 does now: `give
# up`, `write it again` or `begin again`. The last two acquire the lock once more.

# %%
THEN = "give up"
mine = late(guarded=True, then=THEN)
print(mine.verdict.kind, repr(mine))
print("solved" if mine.balance == 30 and mine.verdict.kind == "VALID" else "not yet")

# %% [markdown]
# Now write `pay` without a lock: add `amount` to the balance of the account, exactly once. The
# account is JSON with `balance` and `receipts`, a list that you may use as you like. `receipt` is
# the id of this payment: a client that has restarted calls `pay` again with the receipt of a
# payment that it made before. The simulator calls your function in 200 small worlds of three
# clients, in which answers are lost, writes land late, and a request is sometimes delivered twice.
# `judge` draws the shortest world that went wrong.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/pay.py`.

# %%
import json
from lockkit.lab.course.exercises import Applied, IfVersion, Put, Sleep, judge, read


def pay(key, amount, receipt):
    seen = yield from read(key)
    account = json.loads(seen.body)
    account["balance"] += amount
    yield Put(key, json.dumps(account).encode(), IfVersion(seen.version))


judge(pay)
