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
# # Striped locks: many keys on a fixed number of locks
#
# Apache Ozone's object store had one lock for each bucket, so writers of different keys waited for
# each other. Its designers therefore planned separate locks for volume, bucket and key. No store
# can keep a lock for every possible key, so keys are hashed onto a fixed number of *stripes*.
#
# Two clients each lock exactly the keys that they need. What can go wrong between them?
#
# This takes less than a minute on a quiet machine, and a minute and a half on a busy one. Most of
# that is for two races of ten seconds.

# %% [markdown]
# ## Predict
#
# Two clients rename at the same moment, one `a` to `b` and the other `b` to `a`. Each client locks
# the key that it renames, then the new key. It holds both until it has finished.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.striping import GUESSES, RACE_GUESSES, Stories, operations, race
from lockkit.lab.course.striping import rename_at_once, three_renames

both = Predict("What is the worst possible outcome?", GUESSES)
both

# %% [markdown]
# ## Run: two renames at once
#
# The search tries every order of the steps of both clients and shows the shortest one with the
# worst outcome.

# %%
unordered = both.run(rename_at_once, ("a", "b"), ("b", "a"), ordered=False)
unordered

# %% [markdown]
# Each planted mistake has a shortest story of its own. Press **Show it** and choose one. If you
# choose *Nothing*, every rule is on, and all operations are searched.

# %%
both.reveal(Stories("upgrades"))

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
both.explain("""
The remedy is a fixed order: volume before bucket before key, and the lowest stripe first. Each
stripe is locked once, in the strongest mode that the operation needs. Then a client that holds a
stripe never waits for a lower one, so no circle of waiting clients can form. The search proves this
within its bounds. In the tests, real threads run the same plan.
""")

# %%
ordered = rename_at_once(("a", "b"), ("b", "a"))
ordered

# %% [markdown]
# The table of locks for each operation is taken row by row from the design document (HDDS-11898):

# %%
operations("key")

# %% [markdown]
# ## Run: the same idea on object storage
#
# Google Cloud Storage accepts one write per second to an object. A lease costs two writes per
# grant, so one lock object allows half a grant per second, however many writers wait for different
# partitions. `StripedLock` spreads the keys over many objects: here 64 of them, for six writers
# with one key each.

# %%
faster = Predict("How many commits do they make, compared with one lock object?", RACE_GUESSES)
faster

# %%
raced = faster.run(race)
print(f"{raced.times:.1f} times as many, on {raced.stripes_met} stripes")
raced.figure()

# %% jupyter={"source_hidden": true}
# Check
assert unordered.violation and not ordered.violation
assert raced.stripes_met == raced.writers  # no two of these keys meet

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
faster.explain("""
A stripe is an ordinary lease with its own epoch and fence. The keys of one call are locked in the
order of their stripes, within one deadline. If one of them cannot be acquired, all are released.
Two keys on the same stripe only wait for each other, which costs time but never safety. Two
clients that hash onto different numbers of stripes would be unsafe. So the first client writes
the number beside the stripes, once, and a client with another number is refused.

With more stripes fewer keys collide, but a call that needs many keys costs more. The chance that
a key shares its stripe with one of *k* others is 1 − (1 − 1/S)^k.
""")

# %% [markdown]
# ## In production
#
# `StripedLock("gs://bucket/locks", stripes=64)`, then `with striped.keys("part=7", "part=9"):`. A
# table's own commits do not need this: by default they take no lock (notebook 17).
# `make bench BENCH_ARGS=striped` measures eight processes.
#
# ## Your turn
#
# Write `order`: the order in which to take the locks of `keys`, as a list. A caller may name a key
# twice. The simulator runs three clients with your function in 200 small worlds; each is a process
# of its own and wants two or three locks at once. A solution is in `solutions/order.py`.

# %%
from lockkit.lab.course.exercises import judge


def order(keys):
    return keys


judge(order)

# %% [markdown]
# Without an order, two renames that share a key may still do no harm. Find **three** renames of the
# keys `a`, `b` and `c`: any two of them always finish, in every order of their steps, but all three
# together may wait for ever. This is how deadlocks reach systems that were tested only in pairs.

# %%
RENAMES = ("a", "b"), ("b", "a"), ("a", "c")
three_renames(*RENAMES)
