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
# # A timeline, and commits that check: where exactly is the moment of commit?
#
# A table's timeline is a list of instants, each a few small files; a reader believes those that
# are completed. Two writers prepare a commit each from the same state of the table. Which of them
# may stand, who finds out, and at which request?
#
# This takes a few seconds; stepping through it yourself, as long as you like.

# %% [markdown]
# ## Predict
#
# W1 and W2 have both read `order-1` (amount 0). W1 wants to write 10, W2 wants to write 20, each as
# a new version of the same file. W1's lease has run out while it was paused, and W2 has the lock.
# The table is in `hudi` mode, Hudi's own contract: **the lock alone** keeps writers apart, and each
# checks for conflicts before it publishes.
#
# W1 does its conflict check, then pauses. W2 commits from beginning to end. Then W1 goes on.

# %%
from lockkit.lab.widgets import Predict, Stepper, Steps
from lockkit.lab.course.overtaking import GUESSES, overtake

overtaken = Predict("What is W1 told?", GUESSES)
overtaken

# %% [markdown]
# ## Run
#
# Step it yourself, request by request: **Next** under W1 until it says *checked*, **To the end**
# under W2, **To the end** under W1. Then choose *fenced: the store decides* and do it again. (Or
# only run the next cell.)

# %%
overtaken.reveal(Stepper("hudi"))

# %%
hudi = overtaken.run(overtake, "hudi")
hudi

# %% [markdown]
# ## See
#
# Both are told that they have committed, both instants are completed, and a reader sees one of the
# two amounts. Each completed file was created *only if absent*, and neither was there.
#
# Each instant is three files at most: `T.commit.requested` (whose instant it is), `T.inflight` (all
# that the commit is going to say), `T.commit` (readers see it). This table has version 6.
# In version 9, the default, they are in `timeline/`, and the completed ones are named `T_C.commit`,
# with the time of completion.
#
# On a *fenced* table the commit is one more write, under a condition: `fence.json`, *if it is as I
# read it before I checked*.

# %%
fenced = overtake("fenced")
fenced

# %% [markdown]
# W1's write of the fence met 412. W1 looked again, and found that a later epoch has decided since.
# Its instant stays behind, inflight, and is nobody's: a table service rolls it back (notebook 10).
#
# ## Predict: is a refusal a conflict?
#
# Now W1 has the lock, and W2 is the late one: its lease has run out, and it wakes up. W1 is about
# to replace the fence when W2 commits. W1 updates `order-1`; W2 has updated **`order-2`, in another
# file**.

# %%
refusal = Predict("W1's write of the fence meets 412. And then?", GUESSES[:2])
refusal

# %%
APART = ("fenced", "update order-1", "update order-2")
apart = refusal.run(overtake, *APART, late="W2")
apart

# %% [markdown]
# A refused fence only says *something was decided since you looked*. So W1 looks: at what it has
# not covered yet, and at nothing else. The two wrote different *file groups* (a file and its later
# versions), so nothing of either is hidden by the other, and W1 tries again, with what it has seen
# now. The same happens to every pair of writes:

# %%
from lockkit.lab.course.overtaking import who_goes_with_whom

pairs = who_goes_with_whom()
print(pairs.met["update order-1", "update order-1"].ended["W1"])
pairs

# %% [markdown]
# The rule is about file groups, not rows: both wrote it, or one wrote what the other took away. An
# insert goes into a new file group, so it conflicts with an overwrite only: that must not leave a
# row standing which it never saw.
#
# ## Lose an answer, kill a writer
#
# W1's write of the fence lands, and W1 is not told. It looks again, finds its own `attempt` in the
# fence, and goes on.

# %%
lost = Steps("fenced")
lost.until("W1", "fence.json", "PUT")
lost.step("W1", lose=True)
print(lost.finish("W1"), lost.rows)

# %% [markdown]
# W1 has replaced the fence, and dies before it creates its completed file. Nobody sees its commit
# yet, but it is decided: W2 makes it visible before it commits anything of its own, and is then
# told that the two conflict.

# %%
killed = Steps("fenced")
killed.until("W1", ".commit")
killed.kill("W1")
before = killed.rows
print(killed.finish("W2"))
print(before, "then", killed.rows)

# %% [markdown]
# ## Check

# %%
assert hudi.verdict.kind == "INVALID" and str(hudi) == GUESSES[2]
assert fenced.verdict.kind == apart.verdict.kind == "VALID" and apart.rounds == 2
assert {each.verdict.kind for each in pairs.met.values()} == {"VALID"}
assert lost.rows == {"order-1": 10} and lost.verdict.kind == "VALID"
assert before == {"order-1": 0} and killed.rows == {"order-1": 10}

# %% [markdown]
# ## Why
#
# A conflict check is worth what it has seen. Between the check and the write that publishes, any
# amount of time may pass, and no lock held by a lease covers it. So the write that publishes says
# what the check was based on (*the fence, as I read it*), and the store compares the two in one
# step. That write is the moment of commit; creating the completed file afterwards only makes it
# visible, and anybody can do that for a writer who died.
#
# The fence also carries what the latest commits wrote, so that the check needs no listing: an
# uncontended append takes ten requests, of which no more than five wait for one another.
#
# ## In production
#
# * Tables that lockkit makes are fenced. A table that **Apache Hudi's** writers share is in `hudi`
#   mode (`lockkit.commit.mode` in `hoodie.properties`): there the lock is all there is, so leases
#   must be longer than any pause that you can imagine.
# * The check is Hudi's `SimpleConcurrentFileWritesConflictResolutionStrategy`, here and there, with
#   `PreferWriter...` (table services give way) and `BucketIndex...` (a bucket is the unit) beside
#   it: `hoodie.write.lock.conflict.resolution.strategy`.
# * *Cannot resolve conflicts for overlapping writes* is the commonest question about it
#   ([#7653](https://github.com/apache/hudi/issues/7653)). `CommitConflict` says which instant,
#   which partition and which file; `hoodie.write.num.retries.on.conflict.failures` (0 by default)
#   repeats the whole write.
# * **Delta Lake** and **Iceberg** decide the same way, by one conditional write, and check by
#   partitions and files that were read or deleted.
#
# ## Your turn
#
# The checker says VALID of every pair, and a reader can still see an order twice. Find two writes
# that do that: `update order-1`, `update order-2`, `insert order-3`, `overwrite all`.

# %%
W1, W2 = "update order-1", "update order-2"
mine = overtake("fenced", W1, W2, late="W2")
orders = [order for order, amount in mine.rows]
print(mine.verdict.kind, mine.rows)
print("solved" if len(orders) > len(set(orders)) and mine.verdict.kind == "VALID" else "not yet")
