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
# The lock is one small JSON object beside the table, and everybody may read it. What does it say,
# what becomes of it when the lock is renewed, released and taken again, and why is it never
# deleted?
#
# This takes about a quarter of a minute.

# %% [markdown]
# ## Predict
#
# W1 and W2 want the lock at the same moment. Both look, and there is no object. Both write their
# record with a plain `PUT`, one after the other, W1 first.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.lock_testbed import said, stand
from lockkit.lab.course.lockfile import GUESSES, claim_at_once, kept, look

plain = Predict("What does the store tell them?", GUESSES)
plain

# %% [markdown]
# ## Run: without a condition

# %%
both = plain.run(claim_at_once, conditional=False)
print(said(both.verdict))
Workbench.replay(both.events)

# %% [markdown]
# ## See
#
# To the store these are two writes of one object, and both are fine. To look first does not help:
# both looked. The store itself has to look, in the same step in which it writes:
# `If-None-Match: *`, *only if nothing is there*.

# %%
claim_at_once(conditional=True)

# %% [markdown]
# This is what W1 wrote, by the library's own `Lock`, as a GET brings it back.

# %%
bucket = stand("s3")
bucket.keep_versions()
lock = bucket.lock("W1", ttl_s=30)
lock.acquire()
look(bucket)

# %% [markdown]
# | field | whose | what it is for |
# |---|---|---|
# | `expired` | Hudi's | true once it was released |
# | `validUntil` | Hudi's | until when, in ms, by the holder's clock |
# | `owner` | Hudi's | a UUID for each handle |
# | `epoch` | lockkit's | rises by one with each grant: what a fence compares |
# | `attempt` | lockkit's | names this very write: how a lost answer is recognised (notebook 03) |
# | `ttlMs` | lockkit's | how long the lease is: what others count from the *store's* clock (05) |
# | `holder` | lockkit's | host, process, name: for whoever has to find it at night |
#
# Hudi's writers ignore the last four, and drop them when they write. The version is not in the
# object: the store makes it. `If-Match: <version>` is how everything after the first write is
# written.

# %%
from lockkit.lab.course.lockfile import version_of

for provider in ("s3", "gcs", "azure"):
    print(f"{provider:6}{version_of(provider)}")

# %% [markdown]
# Now renew it and release it, and let W2 take it. This bucket keeps what was overwritten, so that
# every state can still be read.

# %%
lock.renew()
lock.release()
with bucket.lock("W2", ttl_s=30):
    kept_by_bucket = kept(bucket)
kept_by_bucket

# %% [markdown]
# Each renewal is a new object with a new ETag, of the same epoch. (The second write is a proof:
# on a server that is not the provider's own, `Lock` first sees it refuse two writes whose
# condition is false.) The release is a write, too: `expired`, a *tombstone*. W2's grant is the
# next epoch because W2 could read the last one.
#
# ## Predict: tidy up
#
# A lock that nobody holds needs no file. So let a release *delete* the object, and only if it is
# still its own (`If-Match`). W1 takes the lock and lets go, then W2 does.

# %%
from lockkit.lab.course.lockfile import EPOCH_GUESSES, hand_on

tidy = Predict("Which epochs are they granted?", EPOCH_GUESSES)
tidy

# %%
deleted = tidy.run(hand_on, "conditional delete")
deleted

# %% [markdown]
# Nobody wrote anything wrong. But with the object its memory is gone: W2 begins again at 1, and so
# does everybody after it. A write of W1's that comes late, with epoch 1, looks like one of W2's;
# whatever keeps *the highest epoch that I have seen* lets it pass.
#
# ## Check

# %%
assert both.verdict.kind == "INVALID" and str(both) == GUESSES[1]
assert deleted.verdict.kind == "INVALID" and deleted.epochs == (1, 1)
tombstone = hand_on("tombstone")
assert tombstone.verdict.kind == "VALID" and tombstone.epochs == (1, 2)
print(said(bucket.verdict))

# %% [markdown]
# ## Why
#
# A lock in an object store is a *compare-and-set* on one object, and nothing more: whoever read
# version *v* may replace version *v*. Two who read the same one can't both succeed, and that is
# the whole of mutual exclusion. What makes it a lease (`validUntil`), fair or fast is built above
# it.
#
# S3's ETag of such an object is a hash of its content, so that equal bytes have equal ETags: an
# object that went from A to B and back to A would pass for untouched. No two records here are
# equal, because no two writes have one `attempt`.
#
# And *who may act* is decided by what is remembered. A deleted object remembers nothing, a
# tombstone remembers the epoch.
#
# ## In production
#
# * **Apache Hudi** (`StorageBasedLockProvider`, RFC-91): `.hoodie/.locks/table_lock.json`, the
#   three fields, `If-None-Match: *` and `If-Match` on S3 and Azure, `ifGenerationMatch` on Google's
#   storage. It does not delete either, but has no epoch: a Hudi writer's turn takes ours away, so
#   on a shared table the fence remembers it, too (`lock.heard`).
# * **Stuck files that people delete by hand** are as old as lock files
#   ([#9015](https://github.com/apache/hudi/issues/9015),
#   [#11347](https://github.com/apache/hudi/issues/11347), both of the file system provider).
#   `lockkit lock break` writes a tombstone instead, over the version that it showed to you.
# * **Terraform's S3 backend** creates `<state>.tflock` under `If-None-Match: *`, and deletes it. It
#   has no lease and no epoch; a `force-unlock` of the wrong one is a human's mistake.
# * `lockkit lock show s3://bucket/table` prints the object, and its states where the bucket keeps
#   them.
#
# ## Your turn
#
# A table was copied to another bucket, without its lock object. Its fence has seen epoch 41.
# Write the object by hand, so that it counts as free and the next grant is of epoch 42.

# %%
from lockkit.lab.course.lockfile import resume

LEFT = {"expired": True, "validUntil": 0, "owner": "copied"}
mine = resume(**LEFT)
print(repr(mine))
print("solved" if mine.epochs == (42,) and mine.verdict.kind == "VALID" else "not yet")
