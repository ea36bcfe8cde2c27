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
# # One lock file: what is in it, and who may write it
#
# The lock is one small JSON object beside the table, and anyone may read it. What does it
# contain, how does it change when the lock is renewed, released and acquired again, and why is it
# never deleted?
#
# This takes less than ten seconds on a quiet machine, and up to half a minute on a busy one.

# %% [markdown]
# ## Predict
#
# W1 and W2 want the lock at the same moment. Both read, and find no object. Both write their record
# with a plain `PUT`, W1 first and W2 just after it.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.lock_testbed import said, stand
from lockkit.lab.course.lockfile import GUESSES, claim_at_once, kept, look

plain = Predict("What does the store answer?", GUESSES)
plain

# %% [markdown]
# ## Run: without a condition

# %%
both = plain.run(claim_at_once, conditional=False)
Workbench.replay(both.events)

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
plain.explain("""
For the store these are two writes of one object, and it accepts both. Reading first does not help:
both clients did. The store itself has to check, in the same step in which it writes:
`If-None-Match: *`, *only if nothing is there*.
""")

# %%
claim_at_once(conditional=True)

# %% [markdown]
# Next, W1 acquires the lock with the library's own `Lock`. A GET of the lock object then returns
# this:

# %%
bucket = stand("s3")
bucket.keep_versions()
lock = bucket.lock("W1", ttl_s=30)
lock.acquire()
look(bucket)

# %% [markdown]
# | field | owner | purpose |
# |---|---|---|
# | `expired` | Hudi's | true after a release |
# | `validUntil` | Hudi's | the end of the lease, in ms, by its owner's clock |
# | `owner` | Hudi's | a UUID for each handle |
# | `epoch` | lockkit's | the number of the grant: each grant has a higher one |
# | `attempt` | lockkit's | a unique id of this write, to recognise it after a lost response (03) |
# | `ttlMs` | lockkit's | the length of the lease; others measure it by the *store's* clock (05) |
# | `holder` | lockkit's | host, process and name, for the person who has to find the client |
#
# Hudi's writers ignore the last four fields, and drop them when they write. The version is not in
# the object: the store assigns it. Every write after the first is conditional on that version:
# `If-Match: <version>`.

# %%
from lockkit.lab.course.lockfile import version_of

for provider in ("s3", "gcs", "azure"):
    print(f"{provider:6}{version_of(provider)}")

# %% [markdown]
# Now renew and release the lock, and let W2 acquire it. This bucket keeps old versions, so every
# state can still be read.

# %%
lock.renew()
lock.release()
with bucket.lock("W2", ttl_s=30):
    kept_by_bucket = kept(bucket)
kept_by_bucket

# %% [markdown]
# A renewal, as in the second row, is a new object with a new ETag and the same epoch. The release
# is a write, too: a *tombstone*, with `expired` true.
#
# ## Predict: delete instead
#
# A free lock seems to need no file. So let a release *delete* the object, but only if it is
# unchanged (`If-Match`). W1 acquires and releases the lock, and then W2 does the same.

# %%
from lockkit.lab.course.lockfile import EPOCH_GUESSES, hand_on

tidy = Predict("Which epochs are W1 and W2 granted?", EPOCH_GUESSES)
tidy

# %%
deleted = tidy.run(hand_on, "conditional delete")
deleted

# %% jupyter={"source_hidden": true}
tidy.explain("""
No client made a mistake. If W2 finds a tombstone, it reads the last epoch and takes the next one.
Here the epoch was deleted with the object, so W2 starts again at 1, and so does every later writer.
A late write of W1 with epoch 1 looks like a write of W2. A fence that keeps *the highest epoch that
I have seen* lets it pass.
""")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert both.verdict.kind == "INVALID" and str(both) == GUESSES[1]
assert deleted.verdict.kind == "INVALID" and deleted.epochs == (1, 1)
tombstone = hand_on("tombstone")
assert tombstone.verdict.kind == "VALID" and tombstone.epochs == (1, 2)
print(said(bucket.verdict))

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
tidy.explain("""
A lock in an object store is a *compare-and-set* on one object, and nothing more: a client that has
read version *v* may replace version *v*. Of two clients that have read the same version, at most
one can succeed. Mutual exclusion needs nothing else. The lease (`validUntil`), fairness and speed
are built on top.

For such an object, S3's ETag is a hash of its content: equal bytes have equal ETags. An object
that changed from A to B and back to A would look unchanged. No two records here are equal,
because every write has its own `attempt`.

Finally, a decision about who may act needs memory. A deleted object remembers nothing; a
tombstone remembers the epoch.
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi** (`StorageBasedLockProvider`, RFC-91) uses `.hoodie/.locks/table_lock.json` with
#   the first three fields; `If-None-Match: *` and `If-Match` on S3 and Azure, `ifGenerationMatch`
#   on Google Cloud Storage. Hudi does not delete the object either, but it has no epoch: when a
#   Hudi writer takes the lock, our epoch disappears from the object. On a shared table the fence
#   therefore remembers the epoch as well (`lock.observe_epoch`).
# * **Stuck lock files that people delete by hand** are an old problem
#   ([#9015](https://github.com/apache/hudi/issues/9015),
#   [#11347](https://github.com/apache/hudi/issues/11347), both of the file system provider).
#   `lockkit lock break` instead writes a tombstone over exactly the version that it showed you.
# * **Terraform's S3 backend** creates `<state>.tflock` with `If-None-Match: *`, and deletes it. It
#   has no lease and no epoch, so a person can `force-unlock` the wrong one.
# * `lockkit lock show s3://bucket/table` prints the object, and its older states if the bucket
#   keeps versions.
#
# ## Your turn
#
# A table was copied to another bucket, without its lock object. Its fence has seen epoch 41. Write
# the lock object by hand, so that the lock is free and the next grant has epoch 42.

# %%
from lockkit.lab.course.lockfile import resume

LEFT = {"expired": True, "validUntil": 0, "owner": "copied"}
mine = resume(**LEFT)
print(repr(mine))
print("solved" if mine.epochs == (42,) and mine.verdict.kind == "VALID" else "not yet")

# %% [markdown]
# Now write `release`, which ends a grant. The lock object is `record` (`owner`, `epoch`, `free`)
# and has this `version`. Return as soon as the grant is over, either by your write or because
# another client took over the lock. The next client reads the object and takes the next epoch; if
# there is no object, it takes epoch 1. The simulator calls your function in 200 small worlds of
# three clients, in which answers are lost, writes land late, and clients are paused.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/release.py`.

# %%
import json
from lockkit.lab.course.exercises import Applied, Delete, IfVersion, Put, Sleep, judge, read


def release(key, version, record):
    yield Delete(key, IfVersion(version))


judge(release)
