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
# # Table services: which of two writers gives way?
#
# A table that is updated all day accumulates old files and many small files. A *clean* deletes the
# old ones and a *clustering* merges the small ones, while others read and write. What can these
# services take away from a reader or a writer? And if a service and a writer want the same files,
# who loses?
#
# This takes 10 to 20 seconds on a quiet machine, and more than a minute on a busy one. The code
# moves the clocks forward, so pauses take no real time.

# %% [markdown]
# ## Predict: a slow reader
#
# `k1` is updated six times. Every update writes a new file with the new row, which replaces the old
# file. After each commit a clean runs, and keeps only the files of the newest commit. A reader
# opened the table after the second commit and read the first rows. Now the reader continues.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.upkeep import CLASH_GUESSES, READER_GUESSES
from lockkit.lab.course.upkeep import hold_back, matrix, oversleep, read_slowly

slow = Predict("What does the reader get?", READER_GUESSES)
slow

# %% [markdown]
# ## Run: keep one commit

# %%
cleaned = slow.run(read_slowly, retained=1)
cleaned

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
slow.explain("""
The reader gets an error instead of wrong rows, and that is a choice: a reader that skipped a
missing file would return fewer rows, and no one would notice. The clean followed its own rules,
too. A reader leaves no trace in the store, so no service can wait for it. Its only protection is
the number of commits whose files are kept.
""")

# %%
kept = read_slowly(retained=10)
kept

# %% jupyter={"source_hidden": true}
slow.explain("""
A **writer** is different: the timeline names it from the start. A clean keeps the files that the
writer may be reading until the writer commits or is rolled back. So a clean never harms a slow
writer. But a dead writer stops every clean:
""")

# %%
blocked = hold_back()
blocked

# %% [markdown]
# ## Predict: a clustering that is paused
#
# A service C rewrites three files, `k1`, `k2` and `k3`, into one. Its conflict check succeeds, and
# then it is paused until its lease has ended. Meanwhile W1, which began earlier, commits its update
# of `k1`. Then C resumes. Only the lock guards its commit.

# %%
asleep = Predict("Who gives way?", CLASH_GUESSES)
asleep

# %% [markdown]
# ## Run: without the fence

# %%
unfenced = asleep.run(oversleep, fence=False)
print(repr(unfenced))
Workbench.replay(unfenced.events)

# %% jupyter={"source_hidden": true}
asleep.explain("""
W1's update of `k1` to 10 was acknowledged and visible. Then C replaced all three files by its new
file, made from the old rows. A table service must not change any data, and this one reverted an
acknowledged update. With the fence its commit is refused. Since a rewrite can be repeated at any
time, the service simply rolls itself back:
""")

# %%
fenced = oversleep(fence=True)
print(repr(fenced))

# %% [markdown]
# ## Who gives way without a pause
#
# Here are the same two operations in four orders: first with the default strategy, then with Hudi's
# *PreferWriter*. In three orders the write upserts `k1`; in the fourth it only adds new rows.

# %%
from lockkit.lab.course.upkeep import COUNT_GUESSES

yields = Predict("By default, in how many of the four does the write lose?", COUNT_GUESSES)
yields

# %%
all_orders = yields.run(matrix)
all_orders

# %% jupyter={"source_hidden": true}
yields.explain("""
By default the second of the two loses. The clustering counts as the first from the moment when its
*plan* is written, before any row is copied. A write that begins after the plan is refused, even
though nothing is committed yet. With PreferWriter the plan stops no writer. Instead the service
looks for living writers (their heartbeats and markers) before it commits.
""")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert str(cleaned).startswith("an error") and str(kept).startswith("the rows as they were")
assert blocked.beside == 0 and blocked.after > 0
assert unfenced.verdict.kind == "INVALID" and fenced.verdict.kind == "VALID"
assert {each.kind for each in all_orders.verdicts} == {"VALID"}
print(unfenced.verdict.said)

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
yields.explain("""
The three services differ in what can make their decision wrong. A **clean** needs no lock to
delete. A file that was replaced stays replaced, so the clean's plan stays right, however late the
clean deletes. A **clustering** is a commit like any other. Its conflict check can become stale, so
it needs the same guard as any commit. A **rollback** decides about another writer, which may still
be alive. It needs the fence most of all (notebook 09).

Adding rows conflicts with nothing, because it touches no existing file group. So concurrent
inserts are cheap and concurrent updates are expensive.
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi:** `hoodie.clean.commits.retained` is 10. With one commit per minute, the files of
#   a query are safe for ten minutes. Where commits are irregular, retain by hours
#   (`hoodie.clean.policy=KEEP_LATEST_BY_HOURS`).
# * **Refused overlapping writes** are the most frequent question about Hudi's errors
#   ([#7653](https://github.com/apache/hudi/issues/7653)): the conflict check works as intended.
#   Retries are off by default (`hoodie.write.num.retries.on.conflict.failures`), and each retry
#   repeats the whole batch.
# * **PreferWriter** is
#   `hoodie.write.lock.conflict.resolution.strategy=…PreferWriterConflictResolutionStrategy`. Set it
#   for writers and services alike.
# * **In lockkit:** `lockkit table clean URL --dry-run` and `lockkit table cluster URL --dry-run`
#   print what they would do.
#
# ## Your turn
#
# Return to the reader of the first run, which opened the table after the second of seven commits.
# Find the **smallest** retention with which it still gets all its rows. (Think first, then run.
# Which commits are newer than the one that it reads? And when is a file out of use: when its own
# commit is too old, or when the commit that replaced the file is too old?)

# %%
RETAINED = 10
tried = read_slowly(RETAINED)
print("solved" if tried.solved and tried.verdict.kind == "VALID" else f"not yet: {tried}, "
      f"and {tried.files} data files are left")

# %% [markdown]
# Now write the rule itself: `clean` returns the set of files that may be deleted. `commits` lists a
# pair of sets for each commit, oldest first: the files that it added, and the files that it
# replaced. A reader may have opened the table after any of the newest `retained` commits. The
# simulator runs two writers and a service with your function in 200 small worlds. It finds deleted
# files that a reader still needs, and files that are kept without a reason. A solution is in
# `solutions/clean.py`.

# %%
from lockkit.lab.course.exercises import judge


def clean(commits, retained):
    too_old = commits[:-retained]
    return {file for added, replaced in too_old for file in added}


judge(clean)
