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
# # The whole library in a few lines, and what they do not promise
#
# What is the least code with which two processes never write at once? And what does it not
# promise, however carefully it is used?
#
# This takes about a quarter of a minute.

# %% [markdown]
# ## Predict
#
# A balance is one small object in a bucket, and is empty. W1 pays in 10 and W2 pays in 20: each
# reads the balance, adds to it, and writes the whole object. Both read before either writes, and
# there is no lock.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.account import GUESSES, at_once

alone = Predict("What is the balance in the end?", GUESSES)
alone

# %% [markdown]
# ## Run: without a lock

# %%
alone.run(at_once)

# %% [markdown]
# ## See: the least code
#
# Both were told 200, and only the later write is there. So: one at a time.
#
# On a bucket of your own it is `with Lock("s3://bucket/table") as lock:` and nothing else. Here
# `bucket.of("W1")` says where the server on this machine is, and keeps what W1 believes.

# %%
from lockkit import Lock, LockBusy, LockLost
from lockkit.lab.course.lock_testbed import said, stand

bucket = stand("s3")
with Lock(bucket.url, **bucket.of("W1")) as lock:
    print(lock, "is held:", lock.fence)

# %% [markdown]
# `with` waits for `timeout` seconds (60, unless you say otherwise), and then raises `LockBusy`
# rather than run the block. The message says who has it, until when, and what next.

# %%
one, two = (Lock(bucket.url, timeout=0, **bucket.of(name)) for name in ("W1", "W2"))
try:
    with one, two:
        print("two holders: never printed")
except LockBusy as busy:
    print(busy)

# %% [markdown]
# A lease is renewed while the block runs. If it is lost all the same (the process was paused for
# longer than the lease, or, as here, a colleague took W1 for dead and broke the lock), `with` says
# so at the end: do not count as done what was done under it.

# %%
try:
    with one:
        bucket.break_lock()
except LockLost as lost:
    print(lost)

# %% [markdown]
# That is all: `Lock`, `LockBusy`, `LockLost`, and `fence.epoch`, which rises with every grant.
#
# ## Predict: what it does not promise
#
# Both pay under the lock now, one after the other. W1 reads 0, and sends its write of 10. The
# request is stuck somewhere in the network; W1 is not answered, gives up, and gives the lock back.
# W2 takes it, reads 0, and pays in 20. **Then W1's request arrives.**

# %%
from lockkit.lab.course.account import LATE_GUESSES, late

stray = Predict("Both did all that a lock asks for. What is the balance in the end?", LATE_GUESSES)
stray

# %%
by_lock_alone = stray.run(late, guarded=False)
by_lock_alone

# %% [markdown]
# Nobody was paused and no lease ran out. At no time did two clients believe that they held the
# lock, and the checker says so. The lock keeps *processes* apart; nothing keeps their *requests*
# apart, and a request that was given up on is not a request that was not made.
#
# The store can: the same late write, with *if it is still as I read it* (`If-Match`).

# %%
guarded = late(guarded=True)
print("the lock, both times:", by_lock_alone.verdict.kind, guarded.verdict.kind)
guarded

# %% [markdown]
# A table's commits do that for you. The lock keeps writers from getting in each other's way; the
# *fence*, one write under a condition, is what decides.

# %%
import pyarrow as pa
from lockkit.runtime import run
from lockkit.table import Table, TableConfig, create_table
with Table(bucket.url, **bucket.of("W1")) as table:
    run(create_table(TableConfig(name="orders", record_key="id")), table.store, table.clock)
    print(table.append(pa.table({"id": ["order-1"], "amount": [10]})))

# %% [markdown]
# And where Apache Hudi's writers are, its own configuration opens the very same lock, on the same
# object: each keeps the other out.

# %%
from lockkit import open_lock

PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
hudi = {"hoodie.write.lock.provider": PROVIDER, "hoodie.base.path": bucket.url}
hudi["hoodie.write.lock.client.num_retries"] = "0"  # Hudi's own default makes it 55 minutes
with one:
    print("granted beside W1:", open_lock(hudi, **bucket.of("W3")).acquire(timeout=0))

# %% [markdown]
# ## Check

# %%
print(said(bucket.verdict))
assert bucket.verdict.kind == by_lock_alone.verdict.kind == guarded.verdict.kind == "VALID"
assert (by_lock_alone.balance, guarded.balance) == (10, 20)

# %% [markdown]
# ## Why
#
# A lock promises one thing: at most one client *believes* at any time that it may write, and the
# epochs of those who believed rise. It can't promise that what was written under it arrives while
# it is held. Requests are delayed, SDKs repeat them, processes are paused between two lines of
# code; each of these brings a write of an earlier holder into a later holder's time. A shorter
# lease does not help, and neither does a look at the lock just before the write.
#
# So the last word belongs to what is written: it must be able to tell that a write is late. A
# version does (`If-Match`), and so does an epoch, if whatever is written keeps the highest that it
# has seen (notebook 12). With that, the lock is an optimisation: it saves work that would be
# refused.
#
# ## In production
#
# * **`Lock`** on S3, Google Cloud Storage, Azure or a file system, `ttl_s=300` as in Hudi unless
#   you say otherwise. A handle for each thread; `lock.check()` before what is dear; `on_lost` to
#   hear of it at once.
# * **Apache Hudi** has the lock, and nothing behind it: the storage lock is a lease by clocks
#   ([RFC-91](https://github.com/apache/hudi/blob/master/rfc/rfc-91/rfc-91.md)), and a completed
#   file is created whoever holds it by then. Notebook 08 shows what that does.
# * **Delta Lake and Iceberg** do the opposite: no lock, and one conditional write that decides, of
#   the log's next entry or of the catalog's pointer. What that saves in locks it costs in work that
#   is done again.
#
# ## Your turn
#
# W1's late write was refused. Its 10 are still to be paid in: choose what it does `THEN` (`give
# up`, `write it again`, `begin again`; the last two under the lock, which it takes once more).

# %%
THEN = "give up"
mine = late(guarded=True, then=THEN)
print(mine.verdict.kind, repr(mine))
print("solved" if mine.balance == 30 and mine.verdict.kind == "VALID" else "not yet")
