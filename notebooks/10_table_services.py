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
# # Table services: who gives way to whom?
#
# A table that is updated all day fills up with old files, and with many small ones. A *clean*
# deletes the old, a *clustering* joins the small, and both do so while others read and write. What
# can they take away from under a reader or a writer, and if two want the same files, who loses?
#
# This takes about a minute. Clocks are put forward, so that nobody has to wait for a stall.

# %% [markdown]
# ## Predict: a slow reader
#
# `k1` is updated six times; every update writes a new file with the new row, and the old file is
# superseded. After each commit a clean runs, which keeps the files of the newest commit. A reader
# opened the table after the second commit, had a long look at the first rows, and reads on now.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.upkeep import CLASH_GUESSES, READER_GUESSES
from lockkit.lab.course.upkeep import hold_back, matrix, oversleep, read_slowly

slow = Predict("What does the reader get?", READER_GUESSES)
slow

# %% [markdown]
# ## Run: too short a retention

# %%
cleaned = slow.run(read_slowly, retained=1)
cleaned

# %% [markdown]
# ## See
#
# Not wrong rows, but an error, and that is a choice: a reader that skipped a missing file would
# have answered with fewer rows, and nobody would know. The clean did nothing wrong by its own
# rules either. A reader leaves no trace in the store, so no service can wait for it; the only thing
# between the two is the number of commits that keep their files.

# %%
kept = read_slowly(retained=10)
kept

# %% [markdown]
# A **writer** is another matter, for it is on the timeline from its first moment: the files that
# it may be reading stay until it has committed or was rolled back. So cleans never harm a slow
# writer. A dead one harms them:

# %%
blocked = hold_back()
blocked

# %% [markdown]
# ## Predict: a clustering that oversleeps
#
# Three files, `k1`, `k2`, `k3`. A service C rewrites them into one. It makes its conflict check,
# all is well, and stands still until its lease is over. Meanwhile W1, which began before all this,
# commits its update of `k1`. Then C goes on. Nothing but the lock guards its commit.

# %%
asleep = Predict("Who gives way?", CLASH_GUESSES)
asleep

# %% [markdown]
# ## Run: the wrong version first

# %%
wrong = asleep.run(oversleep, fence=False)
print(repr(wrong))
Workbench.replay(wrong.events)

# %% [markdown]
# W1 was told that `k1` is 10, and it was. Then C put its new file in the place of all three, made
# from the rows as they had been: a table service, which changes nothing by definition, took an
# acknowledged update back. With the fence it is refused, and since a rewrite can be done again at
# any time, it simply takes itself back:

# %%
right = oversleep(fence=True)
print(repr(right))

# %% [markdown]
# ## Who gives way, if all goes well
#
# The same two in other orders, and once more under Hudi's *PreferWriter* strategy. **Guess first:**
# in how many of the four does the upsert lose, and in which can both win?

# %%
all_orders = matrix()
all_orders

# %% [markdown]
# By default whoever comes second loses, and the clustering's *plan*, written down before a row is
# copied, counts as coming: who begins after it is refused, even though nothing is committed yet.
# Where writers go first, the plan stops nobody, and the service looks for living writers (their
# heartbeats and markers) before it commits.
#
# ## Check

# %%
assert str(cleaned).startswith("an error") and str(kept).startswith("the rows as they were")
assert blocked.beside == 0 and blocked.after > 0
assert wrong.verdict.kind == "INVALID" and right.verdict.kind == "VALID"
assert {each.kind for each in all_orders.verdicts} == {"VALID"}
print(wrong.verdict.because)

# %% [markdown]
# ## Why
#
# The three services differ in what can make them wrong. A **clean** needs no lock to delete: what
# is superseded stays superseded, so a plan that was right when it was written cannot become wrong,
# however late it is carried out. A **clustering** is a commit as any other, with a conflict check
# that can become stale, so it needs what any commit needs. A **rollback** decides something about
# somebody else, who may be awake: it needs the fence most of all (notebook 09).
#
# Adding rows meets nobody, for it touches no file group that is there already. That is why it is
# cheap to write together, and dear to update.
#
# ## In production
#
# * **Apache Hudi:** `hoodie.clean.commits.retained` is 10: with a commit a minute, queries of more
#   than ten minutes fail with a missing file. Retain by hours where commits come irregularly
#   (`hoodie.clean.policy=KEEP_LATEST_BY_HOURS`).
# * **Overlapping writers** that are refused are the most asked about of its errors
#   ([#7653](https://github.com/apache/hudi/issues/7653)): it is the check doing its work. Retries
#   are off by default (`hoodie.write.num.retries.on.conflict.failures`), and each does the whole
#   batch again.
# * **PreferWriter** is
#   `hoodie.write.lock.conflict.resolution.strategy=…PreferWriterConflictResolutionStrategy`; say
#   it to writers and services alike.
# * **Here:** `lockkit table clean URL --dry-run` and `lockkit table cluster URL --dry-run` say what
#   they would do.
#
# ## Your turn
#
# The reader of the first cell again: it opened the table after the second commit of seven. Find the
# **smallest** retention under which it still gets all its rows. (Think first, then run: which
# commits are newer than its own? And does a file go out of use when its own commit is too old, or
# when the one that superseded it is?)

# %%
RETAINED = 10
tried = read_slowly(RETAINED)
print("solved" if tried.solved and tried.verdict.kind == "VALID" else f"not yet: {tried}, "
      f"and {tried.files} data files are left")
