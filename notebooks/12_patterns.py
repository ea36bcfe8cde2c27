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
# on nothing but an object store, and each has a mistake that everybody makes once.
#
# **Before you run anything, decide:** W1 leads in epoch 1 and is about to write. It pauses. W2
# finds epoch 1 over, leads in epoch 2, and writes. W1 goes on. Its write carries a condition: *if
# the file is as I read it*. Is that enough?

# %% [markdown]
# ## Run: leader election, the wrong version first
#
# One object for each epoch, `lock_0000000001.json`, created only if absent: whoever creates it
# leads in that epoch. W2's clock is a minute ahead, so to it any epoch of W1's is over.
#
# 1. Choose the mistake *the resource does not look at the epoch*.
# 2. Press **Next** under W1 until it is about to *PUT* `resource.json`.
# 3. Press **To the end** under W2, then under W1. Who wrote last?
# 4. Choose *nothing: as it should be* and do the same again.

# %%
from lockkit.workbench import PatternStepper, PatternSteps

election = PatternStepper("election")
election

# %% [markdown]
# ## See
#
# The write with a condition is refused, and W1 does what every retry loop does: it reads again
# and writes again. A condition protects against what one *read*, not against being late. The
# epoch does: it is the fencing token, and `resource.json` keeps the highest that ever wrote it.

# %%
late = PatternSteps("election", "the resource does not look at the epoch")
late.until("W1", "resource.json", "PUT")
late.finish("W2"), late.finish("W1")
print(late.verdict.because)
assert not late.verdict.well

# %%
fenced = PatternSteps("election")
fenced.until("W1", "resource.json", "PUT")
fenced.finish("W2")
print(fenced.finish("W1"))
assert fenced.verdict.well

# %% [markdown]
# ## Run: a write-ahead log
#
# A writer claims the next slot, `wal/00000000000000000001.json`, by creating it. Slots are never
# written again, so all readers replay the same order. W1's answer is lost: press **Next** under
# W1 until it *PUT*s slot 1, then **Next, answer lost**, then **To the end**. Then the same with
# **Next, request lost**.
#
# **Decide first:** with *a lost answer is a no*, what does a reader find in either case?

# %%
PatternStepper("wal")

# %% [markdown]
# ## See
#
# An answer that was lost is neither a yes nor a no. Taken for a no, the record is there twice, or
# the log has a gap that no reader gets past. Taken for a yes, it may not be there at all. The
# slot itself knows: W1 reads it back, and finds its own `attempt` there or not.

# %%
twice = PatternSteps("wal", "a lost answer to a claim is a no")
twice.until("W1", "1.json", "PUT")
twice.step("W1", lose=True)
twice.finish("W1"), twice.finish("W2")
print(twice.verdict.because)
assert not twice.verdict.well

# %%
never = PatternSteps("wal", "a lost answer to a claim is a yes")
never.until("W1", "1.json", "PUT")
never.step("W1", drop=True)
print(never.finish("W1"), "|", never.finish("W2"), "|", never.verdict.because)
assert not never.verdict.well

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
doubled = PatternSteps("queue", "the file does not remember past writes")
doubled.until("W1", "queue.json", "PUT")
doubled.step("W1", lose=True)
doubled.finish("W2"), doubled.finish("W1")
print(doubled.verdict.because)
assert not doubled.verdict.well

# %%
remembered = PatternSteps("queue")
remembered.until("W1", "queue.json", "PUT")
remembered.step("W1", lose=True)
remembered.finish("W2"), remembered.finish("W1")
print(remembered.verdict.because)
assert remembered.verdict.well

# %% [markdown]
# ## Run: Terraform's lock file
#
# `prod.tfstate.tflock` is created if absent, and deleted at the end; nothing ever expires. Two
# mistakes to plant: Terraform and OpenTofu make the first, and make the second where the store
# cannot delete under a condition. For the second, stop W1 at its *DELETE*, press **To the end**
# under W2 (an impatient colleague's `force-unlock`, and a lock), then under W1. **Decide:** what
# does W1 delete?

# %%
PatternStepper("statelock")

# %%
alone = PatternSteps("statelock", "a lost answer is not looked into")
alone.until("W1", ".tflock", "PUT")
alone.step("W1", lose=True)
print(alone.finish("W1"), "|", alone.verdict.because)
assert not alone.verdict.well

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
# `lockkit.patterns` has them as handles: `Election`, `Wal`, `Queue` and its broker, `StateLock`
# (Terraform's lock file) and `StripedLock`. `lockkit simulate --scenario wal --seeds 1..200` runs
# one under faults, `--mutant` with a mistake planted. One file takes one write a second on Google
# Cloud Storage, so the queue commits in groups, and a broker commits for everybody: `make bench
# BENCH_ARGS=queue` compares the three.
