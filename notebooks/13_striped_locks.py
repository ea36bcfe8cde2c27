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
# # Striped locks: many keys, some locks, one order
#
# Apache Ozone's object store had one lock for each bucket. Two writers of different keys waited
# for each other, so its designers planned locks of volume, bucket and key. Nobody keeps a lock
# for every key there may ever be: keys are hashed onto a fixed number of *stripes*.
#
# **Before you run anything, decide:** two clients rename at the same moment, one `a` to `b`, the
# other `b` to `a`. Each locks the keys as its user named them. What is the shortest way to harm?

# %% [markdown]
# ## Run: the wrong version first
#
# Choose *keys are locked as they are named*. Every order of the steps of both operations is
# searched; the shortest that does harm is shown. Then try the other mistakes, and at last
# *nothing*.

# %%
from lockkit.course.striping import Deadlocks, operations, race

Deadlocks("ordered")

# %% [markdown]
# ## See
#
# The cure is an order: volume before bucket before key, and of several stripes the lowest first,
# each once and in the strongest mode that is wanted. Then nobody who waits is waited for by
# somebody lower. The search is a proof within its bounds; the threads in the tests run the very
# same plan.

# %%
from lockkit.patterns.granular.deadlocks import MISTAKES, deadlock

wrong = MISTAKES["ordered"]
assert wrong.search().violation and not deadlock(wrong.ops).violation

# %% [markdown]
# Which operation takes what is data, row by row from the design document (HDDS-11898):

# %%
operations("key")

# %% [markdown]
# ## Run: the same idea on object storage
#
# Google Cloud Storage takes one write a second per object. A lease costs its object two writes a
# grant, so one lock object allows half a grant a second, however many writers wait for different
# partitions. `StripedLock` spreads keys over many objects. **Decide:** six writers, 64 stripes;
# how many times as many commits?
#
# It takes half a minute, so it waits for you: set `BY_CODE = True`.

# %%
import os

BY_CODE = os.environ.get("LOCKKIT_FAST") == "1"

# %%
if BY_CODE:
    raced = race(seconds=5.0)
    print(f"{raced.times:.1f} times as many, on {raced.stripes_met} stripes")
    raced.figure().show()
    assert raced.stripes_met == raced.writers  # no two of these keys meet

# %% [markdown]
# ## Why
#
# A stripe is an ordinary lease, with its own epoch and fence; the keys of one call are locked in
# the order of their stripes, within one deadline, and all of them are given back if one cannot be
# had. Two keys on one stripe only wait for each other: that costs time, never safety. What does
# cost safety is two clients that hash onto different numbers of stripes: the first writes the
# number beside the stripes, once, and whoever has another is refused.
#
# More stripes meet less often, and cost more where a call needs many: the chance that a key
# shares its stripe with one of *k* others is 1 − (1 − 1/S)^k.
#
# ## In production
#
# `StripedLock("gs://bucket/locks", stripes=64)`, then `with striped.keys("part=7", "part=9"):`.
# For a table's own commits none of this is needed: `lockkit`'s commits hold one lock for a moment
# only, and lose nothing when they meet. `make bench BENCH_ARGS=striped` measures eight processes.
