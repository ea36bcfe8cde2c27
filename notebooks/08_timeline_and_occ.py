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
# A table's timeline is a list of instants, each stored as a few small files. Readers see only
# completed instants. Two writers each prepare a commit from the same state of the table. Which
# commits may stand, who detects a conflict, and at which request?
#
# This takes a few seconds on a quiet machine, and up to half a minute on a busy one. You can also
# step through it yourself, for as long as you like.

# %% [markdown]
# ## Predict
#
# W1 and W2 have both read `order-1` (amount 0). W1 wants to write 10 and W2 wants to write 20, each
# as a new version of the same file. W1's lease ended while W1 was paused, and W2 now holds the
# lock. The table is in `hudi` mode, which is Hudi's own contract: **only the lock** keeps writers
# apart, and each writer checks for conflicts before it publishes.
#
# W1 finishes its conflict check and is then paused. W2 commits from beginning to end. Then W1
# resumes.

# %%
from lockkit.lab.widgets import Predict, Stepper, Steps
from lockkit.lab.course.overtaking import GUESSES, overtake

overtaken = Predict("What answer does W1 get?", GUESSES)
overtaken

# %% [markdown]
# ## Run
#
# Press **Show it** and step through it yourself, request by request: **Next** under W1 until it
# says *checked*, **To the end** under W2, then **To the end** under W1. Then choose *fenced: the
# store decides* and do it again. (Or let the code below do it.)

# %%
overtaken.reveal(Stepper("hudi"))

# %%
hudi = overtaken.run(overtake, "hudi")
hudi

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
overtaken.explain("""
Both commits are acknowledged and both instants are completed, but a reader sees only one of the
two amounts. Each completed file was created *only if absent*, and neither existed before.
""")

# %% [markdown]
# An instant has at most three files: `T.commit.requested` (who owns the instant), `T.inflight` (the
# whole content of the commit) and `T.commit` (readers see it). This table has version 6. In version
# 9, the default, the files are in `timeline/`, and a completed one is named `T_C.commit`, with its
# completion time.
#
# On a *fenced* table, the commit has one more conditional write: it replaces `fence.json` *if it is
# as I read it before the check*.

# %%
fenced = overtake("fenced")
fenced

# %% jupyter={"source_hidden": true}
overtaken.explain("""
W1's write of the fence was answered with 412. W1 read the fence again and found a decision of a
later epoch. Its own instant stays inflight and has no living owner. A table service will roll it
back (notebook 10).
""")

# %% [markdown]
# ## Predict: is a refusal a conflict?
#
# Now W1 holds the lock. W2 is the late writer: its lease has ended, and it resumes. W2 commits just
# before W1 replaces the fence. W1 updates `order-1`. W2 has updated **`order-2`, in another file**.

# %%
refusal = Predict("W1's write of the fence is answered with 412. What happens next?", GUESSES[:2])
refusal

# %%
APART = ("fenced", "update order-1", "update order-2")
apart = refusal.run(overtake, *APART, late="W2")
apart

# %% jupyter={"source_hidden": true}
refusal.explain("""
A refused write of the fence says only that *something was decided since you read it*. So W1 checks
the commits that it has not checked yet, and only those. The two writers wrote different *file
groups* (a file and its later versions), so neither hides a row of the other. W1 therefore tries
again, this time with the fence that it has just read. The rule compares file groups, not rows. Two
commits conflict if both wrote the same file group, or if one wrote to a file group that the other
removed. An insert goes into a new file group, so it conflicts only with an overwrite: an overwrite
must not leave behind a row that it has not seen. This table shows every pair of writes:
""")

# %%
from lockkit.lab.course.overtaking import who_goes_with_whom

pairs = refusal.run(who_goes_with_whom)
print(pairs.met["update order-1", "update order-1"].ended["W1"])
pairs

# %% [markdown]
# ## Lose an answer, kill a writer
#
# W1's write of the fence is applied, but W1 receives no answer. It reads the fence again, finds its
# own `attempt` there, and continues.

# %%
lost = Steps("fenced")
lost.until("W1", "fence.json", "PUT")
lost.step("W1", lose=True)
print(lost.finish("W1"), lost.rows)

# %% [markdown]
# W1 has replaced the fence, and dies before it creates its completed file. No reader sees its
# commit yet, but it is decided. So W2 first makes that commit visible. Then W2's own commit fails,
# because the two conflict.

# %%
killed = Steps("fenced")
killed.until("W1", ".commit")
killed.kill("W1")
before = killed.rows
print(killed.finish("W2"))
print(before, "then", killed.rows)

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert hudi.verdict.kind == "INVALID" and str(hudi) == GUESSES[2]
assert fenced.verdict.kind == apart.verdict.kind == "VALID" and apart.rounds == 2
assert {each.verdict.kind for each in pairs.met.values()} == {"VALID"}
assert lost.rows == {"order-1": 10} and lost.verdict.kind == "VALID"
assert before == {"order-1": 0} and killed.rows == {"order-1": 10}

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
refusal.explain("""
A conflict check covers only the commits that it has read. Any amount of time may pass between the
check and the write that publishes, and no lease covers that gap. So the publishing write names the
state on which the check was based (*the fence, as I read it*), and the store compares and writes in
one step. That write is the moment of commit. Creating the completed file afterwards only makes the
commit visible, and any writer can do that for a writer that died.

The fence also contains what the latest commits wrote, so the check needs no listing. An uncontended
append takes ten requests here. Many of them run in parallel: at most five follow one another. By
default several writers decide together (notebook 17), and such an append takes four.
""")

# %% [markdown]
# ## In production
#
# * Tables that lockkit makes are fenced. A table that is shared with **Apache Hudi's** writers is
#   in `hudi` mode (`lockkit.commit.mode` in `hoodie.properties`). There only the lock protects a
#   commit, so a lease must be longer than any pause you expect.
# * The check is Hudi's `SimpleConcurrentFileWritesConflictResolutionStrategy`, in Hudi and in
#   lockkit. `PreferWriter...` (table services give way) and `BucketIndex...` (the unit is a bucket)
#   are available, too: `hoodie.write.lock.conflict.resolution.strategy`.
# * *Cannot resolve conflicts for overlapping writes* is the most frequent question about it
#   ([#7653](https://github.com/apache/hudi/issues/7653)). `CommitConflict` names the instant, the
#   partition and the file. `hoodie.write.num.retries.on.conflict.failures` (0 by default) repeats
#   the whole write.
# * **Delta Lake** and **Iceberg** decide in the same way, by one conditional write. Their check
#   compares the partitions and files that were read or deleted.
#
# ## Your turn
#
# Write `conflicts`, the conflict check. `mine` is the set of file groups that I rewrote from my
# snapshot. `later` lists, oldest first, the sets that other writers have committed since. Return
# True to refuse my write. The simulator runs three writers with your function in 200 small worlds.
# It finds lost updates, and writes that are refused without a reason. The function below looks at
# the newest commit only. A solution is in `solutions/conflicts.py`.

# %%
from lockkit.lab.course.exercises import judge


def conflicts(mine, later):
    return bool(later) and bool(mine & later[-1])


judge(conflicts)
