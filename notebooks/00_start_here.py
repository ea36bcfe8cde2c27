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
# # Start here: several writers, one lock, and one of them stands still
#
# Several processes commit to one table in object storage, and a small JSON object beside the table
# is the lock that keeps them apart. What happens if the process that holds the lock is stopped in
# the middle of a commit, for longer than its lease, and then wakes up? And what happens if a write
# succeeds, but the answer never arrives?
#
# The first picture is a minute away.

# %% [markdown]
# ## Predict
#
# While W1 stands still, its lease ends, and W2 takes the lock and commits. W1 wakes, still sure
# that it holds the lock, and finishes its commit: it creates its completed file, *only if absent*.
# There is no fence yet: the lock alone is to keep the two apart.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.recorded import GUESSES, lacking, recorded

late = Predict("What becomes of W1's commit?", GUESSES)
late

# %% [markdown]
# ## Run
#
# Run the next cell. Nothing starts until you press **Launch**; **Stop** always works. (After a
# kernel restart the old buttons are dead: run the cell again.)

# %%
bench = Workbench()
bench

# %% [markdown]
# 1. **Launch.** Real processes start and commit orders to one table on an object server on this
#    machine, which speaks the protocol of the provider that you chose. PySpark takes some seconds
#    to start; plain Python writers take one.
# 2. **Stall W1.** At its next commit, while it holds the lock and has just checked that it
#    conflicts with nobody, its process is stopped (SIGSTOP). It can neither act nor notice.
# 3. Wait until another writer takes the lock over, then **Resume W1**.
# 4. **Lose next response.** One write of the lock or of the commit is applied by the store, and
#    its answer is dropped on the way back.
# 5. **Stop.** Scrub through all that happened, or press Tab and walk with the arrow keys.
# 6. Then take the tick from **Fence**, and do it all again.

# %% [markdown]
# ## See
#
# Time runs down. On the left is **what is true**: the lock object as the store recorded it,
# coloured by the owner that it names. Each `g7 9f1c` is one successful write, a *generation*, with
# the head of its ETag; the table beside the picture lists them, and a click in one shows the
# other. The lanes of the writers show **what each believes**. Where the two disagree, the belief
# is red. On the right appears what readers of the table see.
#
# This was recorded with the fence off; it is shown once you have made your guess. Follow W1 down
# from where it wakes, or press **Show the evidence**.

# %%
fence_off = recorded("../datasets/histories/bad/stalled_commit_accepted.jsonl")
late.reveal(fence_off)

# %% [markdown]
# The same stall with the fence on: W1 wakes and tries to publish, and the store refuses with a
# 412.

# %%
fence_on = recorded("../datasets/histories/good/stalled_commit_refused.jsonl")
fence_on.view

# %% [markdown]
# And an answer that was lost. The cross is where it disappeared: W1's write is in the lock object
# (`g1`), but W1 was never told. It does not guess. It reads the object back, recognises its own
# write by the `attempt` in it, and confirms it with one more guarded write before it believes.

# %%
Workbench.replay("../datasets/histories/good/lost_response_recovered.jsonl")

# %% [markdown]
# ## Check
#
# A checker reads the history, truth and beliefs, and names the events that prove its verdict.

# %%
assert (fence_off.verdict.kind, fence_on.verdict.kind) == ("INVALID", "VALID")
print(fence_on.verdict.kind, "-", fence_on.verdict.because)

# %% [markdown]
# Everything that the buttons do can be done by code, on the same workbench. The next cells start
# processes, so they wait for you: set `BY_CODE = True`, run them, and watch the panel above.

# %%
import os

BY_CODE = os.environ.get("LOCKKIT_FAST") == "1"

# %%
if BY_CODE:
    bench.launch(overlap=1.0, fence=True)
    bench.stall("W1")
    bench.until("stalled", who="W1")
    bench.until("published")  # somebody else took the lock over, and has committed
    bench.resume("W1")

# %%
if BY_CODE:
    print(bench.until("refused", who="W1")["why"])
    bench.lose_response()
    print(bench.until("fault").data)
    bench.until("published")
    with_fence = bench.stop()

# %%
if BY_CODE:
    without_fence = bench.rehearse(fence=False)  # the same once more
    print(without_fence.because)
    assert (with_fence.kind, without_fence.kind) == ("VALID", "INVALID")

# %% [markdown]
# ## Why
#
# A lease is not mutual exclusion. The holder and the store do not share a clock, and a process can
# be stopped between any two instructions: after its last look at the lock and before the write
# that the lock was to protect. No shorter lease, and no check just before the write, closes that
# gap.
#
# So the last word is not the lock's. With the fence on, publishing a commit is itself a write
# under a condition: *nothing was published since I checked*. The store decides that in one step,
# whoever believes what. The lock then only saves work; the fence is what makes the result right.
#
# The lost answer is the same lesson from the other side: a client that was not told does not know.
# Each write carries an `attempt` that no other write has, so that looking again can tell *ours*,
# *not ours* and *not yet decided* apart.
#
# ## In production
#
# `with Lock("s3://bucket/table", ttl_s=60) as lock:` around the commit, and the fence on: it is
# the default for tables that only lockkit writes. Apache Hudi's writers take part in the same
# lock, but not in the fence. `lockkit lock show s3://bucket/table` says who holds a lock, and
# since when.
#
# ## Your turn
#
# With your own hands: one run in which a commit was refused *and* an answer was lost, and which the
# checker calls VALID. Launch, stall, resume, lose, **Stop**; then run this cell.

# %%
lacks = lacking(bench.verdict)
print(f"not yet: {lacks}" if lacks else "solved")
