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
# What can go wrong between two clients that both lock exactly the keys that they need?
#
# This takes less than a minute, most of it for two races of ten seconds.

# %% [markdown]
# ## Predict
#
# Two clients rename at the same moment, one `a` to `b`, the other `b` to `a`. Each locks its two
# keys, one after the other, in the order in which its user named them, and holds both until it is
# done.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.striping import GUESSES, RACE_GUESSES, Deadlocks, operations, race
from lockkit.lab.course.striping import rename_at_once, three_renames

both = Predict("What is the worst that can come of it?", GUESSES)
both

# %% [markdown]
# ## Run: the wrong version first
#
# Every order of the steps of both is searched; the shortest that does harm is shown.

# %%
wrong = both.run(rename_at_once, ("a", "b"), ("b", "a"), ordered=False)
wrong

# %% [markdown]
# Each of the planted mistakes has such a story. Choose one; *nothing* searches all of their
# operations with every rule on.

# %%
Deadlocks("upgrades")

# %% [markdown]
# ## See
#
# The cure is an order: volume before bucket before key, and of several stripes the lowest first,
# each once and in the strongest mode that is wanted. Then nobody who waits is waited for by
# somebody lower. The search is a proof within its bounds; the threads in the tests run the very
# same plan.

# %%
right = rename_at_once(("a", "b"), ("b", "a"))
assert wrong.violation and not right.violation
right

# %% [markdown]
# Which operation takes what is data, row by row from the design document (HDDS-11898):

# %%
operations("key")

# %% [markdown]
# ## Run: the same idea on object storage
#
# Google Cloud Storage takes one write a second per object. A lease costs its object two writes a
# grant, so one lock object allows half a grant a second, however many writers wait for different
# partitions. `StripedLock` spreads keys over many objects: here 64 of them, for six writers with a
# key each.

# %%
faster = Predict("How many commits do they make, against one lock object?", RACE_GUESSES)
faster

# %%
raced = faster.run(race)
print(f"{raced.times:.1f} times as many, on {raced.stripes_met} stripes")
assert raced.stripes_met == raced.writers  # no two of these keys meet
raced.figure()

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
#
# ## Your turn
#
# Without an order, two renames need not do harm, even if they share a key. Find **three** renames,
# of keys `a`, `b` and `c`, of which any two go well together in every order of their steps, and all
# three at once may wait for ever. (It is how deadlocks get into systems that were tested in pairs.)

# %%
RENAMES = ("a", "b"), ("b", "a"), ("a", "c")
three_renames(*RENAMES)
