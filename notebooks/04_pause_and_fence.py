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
# # A pause at the worst moment: what a lease can't do, and a fence can
#
# Two PySpark programs write to one table, and a lock with a lease of four seconds keeps them apart.
# W1 has the lock, has checked that it conflicts with nobody, and is stopped for longer than its
# lease: by a garbage collection, a suspended laptop, here by SIGSTOP. It wakes, and its next
# instruction is the one that publishes. What stops it?
#
# This takes about a minute, most of which Spark takes to start, twice. With less than 4 GB of
# memory the writers are plain Python: the same lock, the same commit, ten seconds.

# %% [markdown]
# ## Predict
#
# While W1 stands still, its lease ends, W2 takes the lock over and commits: another version of the
# very file that W1 has written anew. Then W1 wakes. There is **no fence**: the lock alone is to
# keep the two apart, as in Hudi.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.stalled import GUESSES, SideBySide, stall

late = Predict("W1 goes on where it was stopped. What becomes of its commit?", GUESSES)
late

# %% [markdown]
# ## Run: without the fence

# %%
without = late.run(stall, fence=False)
without

# %% [markdown]
# Both writers were told that they had committed. Each had written the same file group anew from
# what it had read, and a reader takes the newer of the two files: the orders in the other one are
# nowhere. Nobody was told.
#
# ## Predict: with the fence
#
# The same two programs, the same lock, the same stop between the same two instructions. But now to
# publish is itself a write under a condition: *only if nothing was decided since I read*.

# %%
fenced = Predict("Fence on. What becomes of W1's late commit now?", GUESSES)
fenced

# %%
with_fence = fenced.run(stall, fence=True)
with_fence

# %% [markdown]
# ## See
#
# Time runs down; both runs take the same turns until W1 wakes. On the left its commit is a write
# that nothing guards, *stale commit accepted*; on the right it is `fence: 412`. The hatched bar is
# the stop; where W1's belief is red, it still thinks that it holds a lock which is W2's. (Reads are
# left out: a writer that waits does little else.)

# %%
SideBySide(without, with_fence)

# %% [markdown]
# ## Check
#
# The checker has the store's record of every request, and what both writers believed. How many
# orders are lost depends on who had got how far; that a commit was published that nobody had
# checked against the one before it does not.

# %%
for run in (without, with_fence):
    print(f"{run.title}: {run}. {run.verdict.kind}: {run.verdict.because}\n")
assert str(without) == GUESSES[0] and without.verdict.kind == "INVALID"
assert str(with_fence) == GUESSES[1] and with_fence.verdict.kind == "VALID"
assert with_fence.lost == 0

# %% [markdown]
# ## Why
#
# W1 did look at its lease, and it still stood: the stop came between that look and the write. There
# is always such a gap, whatever one looks at and however late. A shorter lease makes the harm more
# likely, a longer one makes a dead writer block the others for longer, and no length is longer than
# every pause.
#
# The store has no such gap. It compares and writes in one step, so the last word is its own: W2's
# commit has changed `.hoodie/.locks/fence.json`, W1's write says *if it is as I read it*, and that
# is no longer so. W1 learns it from the answer, not from a clock. It then begins again on the table
# as it is, and nothing is lost.
#
# It matters *which process* is stopped. Here it is the driver, and it can be: the lock, its
# heartbeat and the commit are all in its own Python. Spark's executors go on meanwhile, and may.
#
# ## In production
#
# * **Martin Kleppmann**, [How to do distributed
#   locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html): the
#   drawing of this pause, and the fencing token against it.
# * **Apache Hudi** publishes by creating a completed file, which nothing guards but the lock
#   ([RFC-91](https://github.com/apache/hudi/blob/master/rfc/rfc-91/rfc-91.md)). A lease lasts five
#   minutes and is renewed every 30 s; a writer that stands still for longer is in the left picture.
#   Since [#17871](https://github.com/apache/hudi/pull/17871) its *release* fails if somebody else
#   has the lock by then: the writer hears of it, after the commit is visible.
# * **Apache Iceberg and Delta Lake** publish by a compare-and-set of their own (a catalog's swap,
#   or create-if-absent of the next log entry): there the table is the fence.
# * **Tables that `lockkit` makes** are fenced. One that Hudi's writers share can't be, since they
#   know nothing of the fence: choose a lease longer than any pause that you believe in.
#
# ## Your turn
#
# The usual drawing has a *token*: the store keeps the highest epoch that it has seen, and refuses
# lower ones. It would have stopped W1 above. Is it enough for a table? The explorer searches every
# order of events for the shortest harm. Change `RULE` (`fence off`, `fence token`) until the
# checker finds a lost update **although the epochs of the accepted commits rise**, and read the
# story: who had checked what, and when?

# %%
from lockkit.lab.verify.check import check
from lockkit.lab.verify.explore import explore_rows

RULE = "fence off"

# %%
story = explore_rows([RULE])[0].counterexample
verdict, history = check(story.history()), story.history()
epochs = [each["epoch"] for each in history if each.kind == "published"]
print("\n".join(story.story()), f"\n{verdict.kind}: {verdict.because}")
rising = verdict.kind == "INVALID" and epochs == sorted(set(epochs))
print("solved" if rising else f"not yet: a token refuses epochs {epochs}, in this order")
