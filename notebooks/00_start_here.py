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
# # Start here: several writers, one lock, and one writer is paused
#
# Several processes commit to one table in object storage. A small JSON object beside the table is
# the lock that keeps them apart. What happens if the lock's
# <abbr title="holder: the client to which the lock was granted last">holder</abbr> is paused in the
# middle of a commit, for longer than its
# <abbr title="lease: a grant that ends by itself unless its holder renews it in time">lease</abbr>,
# and then continues? And what happens if a write succeeds, but its response is lost?
#
# The first picture appears within seconds after you press **Launch**. Point at a word with a dotted
# underline to read what it means.

# %% [markdown]
# ## Predict
#
# While W1 is paused, its lease expires. W2 takes the lock and commits. W1 then continues. It has
# not noticed the pause, so it finishes its commit: it creates, *only if absent*, the file that
# makes the commit visible. There is no <abbr title="fence: the object that a commit must replace;
# the store refuses a commit whose conflict check is out of date">fence</abbr> yet: only the lock
# protects the table.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.lock_testbed import said
from lockkit.lab.course.recorded import GUESSES, lacking, stalled

late = Predict("What becomes of W1's commit?", GUESSES, then="go on below to Show it, under See")
late

# %% [markdown]
# ## Run
#
# Nothing starts before you press **Launch**, and **Stop** always works.

# %%
bench = Workbench()
bench

# %% [markdown]
# 1. **Launch.** Real processes commit orders to one table on an object server on this machine. The
#    server speaks the protocol of the provider that you chose. The writers are plain Python
#    programs, which start at once. Until the first request, you see a recorded run. **PySpark**
#    starts Spark programs with the same lock and the same commit. Spark needs up to half a minute
#    to start in the background, and the plain writers run until then. If you have stalled a plain
#    writer or lost a response, they run until you press **PySpark** again.
# 2. **Stall W1.** At its next commit W1 takes the lock and checks for conflicting commits. Right
#    after that check its process is paused (SIGSTOP). It does nothing and notices nothing.
# 3. Wait until another writer takes over the lock, then press **Resume W1**.
# 4. **Lose next response.** The store applies one write of the lock or of the commit, and its
#    response is dropped on the way back.
# 5. **Stop.** Drag the slider through everything that happened, or press Tab and use the arrow
#    keys. **Export** saves the run as a page that you can send to a colleague.
# 6. Now untick **Fence** and run it again.

# %% [markdown]
# ## See
#
# Time runs downwards. The lane on the left is **what is true**: the lock object as the store
# recorded it, in the colour of its owner. A label such as `g7 9f1c` marks one successful write, a
# <abbr title="generation: one state of the lock object, made by one successful
# write">generation</abbr>, and shows the first characters of its ETag, the store's name for that
# state. The table with the picture lists the generations; click one to see it in the picture. The
# writers' lanes show **what each writer knows**. A writer that wrongly counts on the lock is red.
# The lane on the right shows what readers of the table see.
#
# The next picture was recorded with the fence off. Pick a guess above, and press **Show it**. Then
# follow W1 downwards from where it resumes, or press **Show the evidence**.

# %%
fence_off = stalled("../datasets/histories", fence=False)
late.reveal(fence_off)

# %% [markdown]
# This is the same stall with the fence on. Compare the end of W1's lane.
#
# In your own run, `release` may come before `publish`. The write of the fence decides the commit.
# After that write a writer no longer needs the lock, so it releases the lock and creates its
# completed file at the same time. The recorded writers, and writers without the fence, create that
# file first.

# %%
fence_on = stalled("../datasets/histories", fence=True)
late.reveal(fence_on.view)

# %% [markdown]
# The last picture shows a lost response. The cross marks where it was lost: W1's write is in the
# lock object (`g1`), but W1 received no answer. W1 does not guess. It reads the object back,
# recognises its own write by the `attempt` in it, and confirms it with one more conditional write.
# Only then does it use the lock.

# %%
Workbench.replay("../datasets/histories/good/lost_response_recovered.jsonl")

# %% [markdown]
# ## Check
#
# A checker reads the history: the store's record and the writers' events. It names the events that
# prove its verdict.

# %% jupyter={"source_hidden": true}
# Check
assert (fence_off.verdict.kind, fence_on.verdict.kind) == ("INVALID", "VALID")
print(said(fence_on.verdict))

# %% [markdown] tags=["not-in-app"]
# Code can do everything that the buttons do, on the same workbench. The next cells start processes,
# so they are switched off at first: set `BY_CODE = True`, run them, and watch the panel above.

# %%
import os

BY_CODE = os.environ.get("LOCKKIT_FAST") == "1"

# %%
if BY_CODE:
    bench.launch(overlap=1.0, fence=True)
    bench.stall("W1")
    bench.until("stalled", who="W1")
    bench.until("published")  # another writer took the lock over, and has committed
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
    print(without_fence.said)

# %% jupyter={"source_hidden": true}
# Check
if BY_CODE:
    assert (with_fence.kind, without_fence.kind) == ("VALID", "INVALID")

# %% [markdown]
# ## Why
#
# A lease is not mutual exclusion. The holder and the store do not share a clock, and a process can
# be paused between any two instructions: for example after its last look at the lock, and before
# the write that the lock was meant to protect. A shorter lease does not close that gap. Neither
# does another check just before the write.
#
# So the lock does not decide. With the fence on, publishing a commit is itself a conditional write:
# *nothing was published since my conflict check*. The store decides that in one step. The lock then
# only saves work; the fence makes the result correct.
#
# The lost response shows the same problem from the client's side: without a response, it cannot
# know what happened. Each write carries a unique `attempt`, so a later read can distinguish *ours*,
# *not ours* and *not yet decided*.
#
# ## In production
#
# A table that only lockkit writes has the fence by default. If the table is copy-on-write, its
# commits take no lock (notebook 17); here they do, as for merge-on-read tables. Put
# `with Lock("s3://bucket/table", ttl_s=60) as lock:` around other work, and attach
# `lock.fence.epoch` to its writes. Apache Hudi's writers use the same lock, but not the fence.
# `lockkit lock show s3://bucket/table` shows who holds a lock, and since when.

# %% [markdown] tags=["not-in-app"]
# ## Your turn
#
# Produce one run in which a commit is refused *and* a response is lost, and which the checker still
# judges VALID. Launch, stall, resume, lose, **Stop**; then run the line below.

# %% tags=["not-in-app"]
lacks = lacking(bench.verdict)
print(f"not yet: {lacks}" if lacks else "solved")
