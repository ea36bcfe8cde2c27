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
# *Create if absent* and *replace if unchanged* are all that a lease needs. They are also enough to
# elect a leader, to keep a write-ahead log and to run a queue. Each of these has been built on
# nothing but an object store, and each has one mistake that nearly everyone makes first. Which
# one?
#
# The code takes a few seconds on a quiet machine, and up to a minute on a busy one. You can step
# through four protocols for as long as you like.

# %% [markdown]
# ## Predict
#
# W1 leads in epoch 1. Just before it writes `resource.json`, it is paused. W2 finds that epoch 1 is
# over, leads in epoch 2, and writes. Then W1 resumes. Its write carries a condition, *if the file
# is as I read it*, but nothing checks the epoch.

# %%
from lockkit.lab.widgets import PatternStepper, PatternSteps, Predict
from lockkit.lab.course.worst import AS_YES, GUESSES, JOB_GUESSES, LOG_GUESSES, PLANTED, play

late = Predict("What does resource.json contain in the end?", GUESSES)
late

# %% [markdown]
# ## Run: leader election
#
# There is one object for each epoch, `lock_0000000001.json`. The client that creates it (*only if
# absent*) leads in that epoch. W2's clock is a minute fast, so by that clock every epoch of W1 has
# ended.
#
# 1. Press **Show it**, then **Next** under W1 until it is about to *PUT* `resource.json`.
# 2. Press **To the end** under W2, then under W1. Who wrote last?
# 3. Choose another line in the menu at the top, and do the same again.

# %%
late.reveal(PatternStepper("election", PLANTED["election"]))

# %% [markdown]
# Or let the simulator play the same steps:

# %%
unfenced = play("election", PLANTED["election"])
late.reveal(unfenced)

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
late.explain("""
The store refuses a conditional write if the file has changed. Then W1 does what every retry loop
does: it reads again and writes again. A condition protects what a client has *read*; it does not
detect that the client is late. The epoch detects that. It is the fencing token, and `resource.json`
stores the highest epoch in which it was ever written.
""")

# %%
fenced = play("election")
fenced

# %% [markdown]
# ## Run: a write-ahead log
#
# A writer claims the next slot, `wal/00000000000000000001.json`, by creating it. Slots are never
# overwritten, so all readers replay the same order. The store applies W1's claim, and its answer is
# lost. W1 treats a lost answer as a failure.

# %%
claim = Predict("How many times does a reader of the log find W1's record?", LOG_GUESSES)
claim

# %% [markdown]
# Try it. Press **Show it**, then **Next** under W1 until it is about to *PUT* slot 1. Then press
# **Answer lost** and **To the end**. Do the same with **Request lost**.

# %%
claim.reveal(PatternStepper("wal", PLANTED["wal"]))

# %%
logged = claim.run(play, "wal", PLANTED["wal"])
for other in (play("wal", AS_YES), play("wal")):
    print(f"{other.mistake or 'as it should be'}: {other.because}")
logged

# %% jupyter={"source_hidden": true}
claim.explain("""
A lost answer means neither success nor failure. If it is treated as a failure, the record is in the
log twice, or the log has a gap that no reader passes. If it is treated as success, the record may
be missing. The slot itself tells which is true: W1 reads it back and looks for its own `attempt`.
""")

# %% [markdown]
# A second writer can stop the first one inside the log itself. It takes the next epoch and puts an
# empty slot, its *fence*, behind the last acknowledged record. Here W1 is paused before its claim,
# W2 opens the log and appends, and then W1 resumes.

# %%
asleep = PatternSteps("wal")
asleep.until("W1", "1.json", "PUT")
asleep.finish("W2")
print(asleep.finish("W1"))

# %% [markdown]
# ## Run: a queue in one file
#
# A client reads `queue.json`, changes the content, and replaces the file if it is unchanged. W1
# pushes a job, and the answer is lost. Before W1 reads the file again, W2 claims the job, does it
# and completes it. The file that W1 then reads contains no trace of its push.

# %%
job = Predict("W1 reads the file again. What does it do?", JOB_GUESSES)
job

# %%
job.reveal(PatternStepper("queue", PLANTED["queue"]))

# %%
again, sound = job.run(play, "queue", PLANTED["queue"]), play("queue")
print(repr(sound))
again

# %% [markdown]
# ## Run: Terraform's lock file
#
# A client creates `prod.tfstate.tflock` if it is absent, and deletes it at the end. The file never
# expires. You can plant two mistakes. Terraform and OpenTofu make the first one. On stores without
# a conditional delete, they make the second one, too. W2 is an impatient colleague, who sends a
# `force-unlock` with W1's ID and then takes the lock.

# %%
PatternStepper("statelock")

# %%
alone = play("statelock", PLANTED["statelock"])
alone

# %% jupyter={"source_hidden": true}
# Check
assert fenced.well and not unfenced.well
assert "Fenced" in asleep.actors["W1"].ended and asleep.verdict.well
assert sound.well and not (again.well or logged.well)
assert not alone.well

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
job.explain("""
In an object that is overwritten, *applied and then superseded* looks like *never applied*. There
are two remedies: slots that are never overwritten (the log and the epochs), or a file that
contains the ids of its latest writes (the queue). A lease needs neither, because a superseded
lease is a lost lease.

And each resource must check for itself *who may use it*. The file checks the epoch. The log checks
the fence. The queue checks the number of attempts, when a slow worker completes a job that was
given to another.
""")

# %% [markdown]
# ## In production
#
# * **Election:** the protocol is Gunnar Morling's (2024). The epoch is part of the object's name
#   and is the fencing token. Every resource that the leader writes must check it.
# * **Log:** SlateDB's writer fences the one before it with an empty slot of the log, and on 412 it
#   reads the slot back and looks for its own id. turbopuffer commits a namespace's writes into
#   numbered files.
# * **Queue:** turbopuffer's [queue.json](https://turbopuffer.com/blog/object-storage-queue), then
#   group commit, then a broker, because one file accepts one write per second on Google Cloud
#   Storage.
# * **Lock file:** Terraform's and OpenTofu's S3 backends read the file and then delete whatever is
#   there. [OpenTofu #4405](https://github.com/opentofu/opentofu/issues/4405) is the first mistake
#   on Cloudflare's R2: its own lock kept OpenTofu out, and the lock stayed.
# * **`lockkit.recipes`** offers them as handles: `Election`, `Wal`, `Queue` and its broker,
#   `StateLock` (Terraform's lock file) and `StripedLock`. `lockkit simulate --scenario wal --seeds
#   1..200` runs one with faults, and `--mutant` plants a mistake. `make bench BENCH_ARGS=queue`
#   compares the three queues.
#
# ## Your turn
#
# Write `append`: add `record` to a log of numbered objects (`folder` + six digits, from `000001`
# on, without a gap), and return the number of its slot. Three clients append at once, in 200 small
# worlds in which answers are lost and writes land late. Each record must be in the log once.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/append.py`.

# %%
from lockkit.lab.course.exercises import Applied, Found, IfAbsent, Put, Sleep, judge, read


def append(folder, record):
    slot = 1
    while not isinstance((yield Put(f"{folder}{slot:06}", record, IfAbsent())), Applied):
        slot += 1
    return slot


judge(append)

# %% [markdown]
# Now do the same for an election. Write `campaign`: create the next epoch (`folder` + six digits,
# one more than the highest), and return its number if you lead in it, else None. `owner` is the
# name of your process. After a restart the old process may live on under the same name. `attempt`
# is an id that no other call has. `yield from listing(folder)` lists objects, each with its `key`.
# A solution is in `solutions/campaign.py`.

# %%
from lockkit.lab.course.exercises import listing


def campaign(folder, owner, attempt):
    epochs = [int(each.key[-6:]) for each in (yield from listing(folder))]
    number = max(epochs, default=0) + 1
    yield Put(f"{folder}{number:06}", owner.encode(), IfAbsent())
    seen = yield from read(f"{folder}{number:06}")
    return number if seen.body == owner.encode() else None


judge(campaign)
