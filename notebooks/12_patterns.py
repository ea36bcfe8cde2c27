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
# # Other protocols on the same two writes: elections, logs, queues
#
# *Create if absent* and *replace if unchanged* are all that a lease needs. They are also enough
# to elect a leader, to keep a write-ahead log, and to run a queue. Each of these has been built
# on nothing but an object store, and each has a mistake that everybody makes once: which?
#
# The code takes a few seconds; stepping through four protocols, as long as you like.

# %% [markdown]
# ## Predict
#
# W1 leads in epoch 1 and is about to write `resource.json`. It pauses. W2 finds epoch 1 over, leads
# in epoch 2, and writes. W1 goes on. Its write carries a condition, *if the file is as I read it*;
# nobody looks at the epoch.

# %%
from lockkit.lab.widgets import PatternStepper, PatternSteps, Predict
from lockkit.lab.course.worst import AS_NO, AS_YES, FORGETFUL, GUESSES, UNASKED, UNLOOKED, play

late = Predict("What is in resource.json in the end?", GUESSES)
late

# %% [markdown]
# ## Run: leader election, the wrong version first
#
# One object for each epoch, `lock_0000000001.json`, created only if absent: whoever creates it
# leads in that epoch. W2's clock is a minute ahead, so to it any epoch of W1's is over.
#
# 1. The mistake is planted: *the resource does not look at the epoch*.
# 2. Press **Next** under W1 until it is about to *PUT* `resource.json`.
# 3. Press **To the end** under W2, then under W1. Who wrote last?
# 4. Choose *nothing: as it should be* and do the same again.

# %%
late.reveal(PatternStepper("election", UNLOOKED))

# %% [markdown]
# Or let it be played, to the very same moment:

# %%
unfenced = play("election", UNLOOKED)
late.reveal(unfenced)

# %% [markdown]
# ## See
#
# A write under a condition is refused if the file has changed, and then W1 does what every retry
# loop does: it reads again and writes again. A condition protects against what one *read*, not
# against being late. The epoch does: it is the fencing token, and `resource.json` keeps the highest
# that ever wrote it.

# %%
fenced = play("election")
assert fenced.well and not unfenced.well
fenced

# %% [markdown]
# ## Run: a write-ahead log
#
# A writer claims the next slot, `wal/00000000000000000001.json`, by creating it. Slots are never
# written again, so all readers replay the same order. W1's answer is lost: press **Next** under
# W1 until it *PUT*s slot 1, then **Next, answer lost**, then **To the end**. Then the same with
# **Next, request lost**.
#
# **Decide first:** with *a lost answer to a claim is a no*, what does a reader find in either case?

# %%
PatternStepper("wal")

# %% [markdown]
# ## See
#
# An answer that was lost is neither a yes nor a no. Taken for a no, the record is there twice, or
# the log has a gap that no reader gets past. Taken for a yes, it may not be there at all. The
# slot itself knows: W1 reads it back, and finds its own `attempt` there or not.

# %%
for mistake in (AS_NO, AS_YES, ""):
    log = play("wal", mistake)
    print(repr(log))
    assert log.well is (mistake == "")

# %% [markdown]
# A second writer makes the first one harmless in the log itself: it takes the next epoch, and
# puts an empty slot, its *fence*, behind everything that is acknowledged. W1 sleeps before its
# claim; W2 opens the log and appends; W1 goes on.

# %%
asleep = PatternSteps("wal")
asleep.until("W1", "1.json", "PUT")
asleep.finish("W2")
print(asleep.finish("W1"))
assert "Fenced" in asleep.actors["W1"].ended and asleep.verdict.well

# %% [markdown]
# ## Run: a queue in one file
#
# `queue.json` is read, changed, and replaced if unchanged. W1 pushes a job, and that answer is
# lost. Before W1 looks again, W2 claims the job, does it, and completes it: the file that W1 then
# reads shows nothing of its push. **Decide:** did it land?

# %%
PatternStepper("queue")

# %%
doubled, remembered = play("queue", FORGETFUL), play("queue")
print(repr(doubled))
print(repr(remembered))
assert remembered.well and not doubled.well

# %% [markdown]
# ## Run: Terraform's lock file
#
# `prod.tfstate.tflock` is created if absent, and deleted at the end; nothing ever expires. Two
# mistakes to plant: Terraform and OpenTofu make the first, and make the second where the store
# cannot delete under a condition. W2 is an impatient colleague: a `force-unlock` by W1's ID, then a
# lock of its own.

# %%
PatternStepper("statelock")

# %%
alone = play("statelock", UNASKED)
assert not alone.well
print(alone.because)

# %% [markdown]
# ## Why
#
# In an object that is overwritten, *applied, then superseded* looks like *never applied*. Two
# things cure it: slots that are never overwritten (the log, the epochs), or a file that carries
# the ids of its latest writes (the queue). A lease needs neither: there, being superseded is
# being lost.
#
# And whatever decides *who may act* must be looked at by *what is acted upon*: the epoch by the
# resource, the fence by the log, the number of attempts by the queue when a slow worker completes
# a job that was handed on.
#
# ## In production
#
# * **Election:** Gunnar Morling's, of 2024: the epoch is in the object's name, and is the fencing
#   token. Whatever is written must look at it.
# * **Log:** SlateDB's writer fences the one before it with an empty slot of the log, and reads back
#   an id of its own on 412. turbopuffer commits a namespace's writes into numbered files.
# * **Queue:** turbopuffer's [queue.json](https://turbopuffer.com/blog/object-storage-queue), then
#   group commit, then a broker: one file takes one write a second on Google Cloud Storage.
# * **Lock file:** Terraform's and OpenTofu's S3 backends read it and then delete whatever is there.
#   [OpenTofu #4405](https://github.com/opentofu/opentofu/issues/4405) is the first mistake, met on
#   Cloudflare's R2: its own lock refused it, and stayed.
# * **`lockkit.recipes`** has them as handles: `Election`, `Wal`, `Queue` and its broker,
#   `StateLock` (Terraform's lock file) and `StripedLock`. `lockkit simulate --scenario wal --seeds
#   1..200` runs one under faults, `--mutant` with a mistake planted; `make bench BENCH_ARGS=queue`
#   compares the three queues.
#
# ## Your turn
#
# Terraform's second mistake: *an unlock deletes whatever is there by then*. On the stage above,
# plant it, and bring it about that W1 deletes W2's lock. Then copy the stage's *Moment* to here.

# %%
from lockkit.lab.widgets.stage.fork import at

MOMENT = "statelock/an unlock deletes whatever is there by then: W1 answer"
mine = at(MOMENT)
print(mine.verdict.because)
print("not yet" if mine.verdict.well else "solved")
