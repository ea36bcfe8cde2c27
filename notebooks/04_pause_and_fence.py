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
# # A pause at the worst moment: what stops a writer that resumes too late?
#
# Two PySpark programs write to one table. A lock with a lease of four seconds keeps them apart. W1
# holds the lock and has passed its conflict check. Then it is paused for longer than its lease: by
# a garbage collection, by a suspended laptop, or here by SIGSTOP. When it resumes, its next
# instruction publishes the commit. What stops it?
#
# This takes about a minute on a quiet machine, and three or four on a busy one. Most of that is
# Spark, which starts twice. In an app, and with less than 4 GB of memory, the writers are plain
# Python programs with the same lock and the same commit, and it takes ten seconds.

# %% [markdown]
# ## Predict
#
# While W1 is paused, its lease ends. W2 takes over the lock and commits a new version of the file
# that W1 has rewritten, too. Then W1 resumes. There is **no <abbr title="fence: the object that a
# commit must replace; the store refuses a commit whose conflict check is out of
# date">fence</abbr>**: only the lock keeps the two apart, as in Hudi.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.lock_testbed import said
from lockkit.lab.course.stalled import GUESSES, SideBySide, stall

late = Predict("W1 resumes where it was paused. What happens to its commit?", GUESSES)
late

# %% [markdown]
# ## Run: without the fence

# %%
without = late.run(stall, fence=False)
without

# %% jupyter={"source_hidden": true}
late.explain("""
The store acknowledged both commits. Each writer had rewritten the same file group from what it
had read. A reader takes the newer of the two files, so the orders in the other file are lost.
Neither writer received an error.
""")

# %% [markdown]
# ## Predict: with the fence
#
# These are the same two programs, with the same lock and the same pause between the same two
# instructions. This time publishing is itself a conditional write: *only if no commit was decided
# since I read the table*.

# %%
fenced = Predict("The fence is on. What happens to W1's late commit now?", GUESSES)
fenced

# %%
with_fence = fenced.run(stall, fence=True)
with_fence

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
fenced.explain("""
Time runs down the page. Both runs have the same pause at the same instruction, in the first commit
of the table. Without the fence, W1's late commit is an unguarded write, marked *stale*. With the
fence, the store refuses it, marked *412*. The hatched bar is the pause. Where W1's bar is red, W1
still counts on a lock that W2 now owns. (Tick *reads* to see reads, too: a waiting writer sends
hardly anything else.)
""")

# %%
SideBySide(without, with_fence)

# %% [markdown]
# ## The lines that matter
#
# Here is the guarded write in plain boto3, against an object server on this machine. Both writers
# read the fence, and W2 publishes first.

# %%
from botocore.exceptions import ClientError
from lockkit.lab.course.lost import plain_s3

# The lines that matter:
with plain_s3() as s3:
    fence = {"Bucket": "lake", "Key": "orders/.hoodie/.locks/fence.json"}
    s3.put_object(**fence, Body="1 commit", IfNoneMatch="*")
    seen = s3.get_object(**fence)["ETag"]  # W1 reads, checks for conflicts, and is paused here
    s3.put_object(**fence, Body="2 commits, the newest by W2", IfMatch=seen)
    try:
        s3.put_object(**fence, Body="2 commits, the newest by W1", IfMatch=seen)
    except ClientError as error:
        print("the store answers W1:", error.response["ResponseMetadata"]["HTTPStatusCode"])
    print("the fence says:", s3.get_object(**fence)["Body"].read().decode())

# %% [markdown]
# ## Try other times
#
# Here the two writers are simulated, so each move of a slider runs them again. Lengthen the pause.
# How long must it be for W1's late commit to replace W2's? Then switch the fence on. (W1 is paused
# right before its write. The latency is the time from a request to its answer.)

# %%
from lockkit.lab.widgets import TimeSliders

TimeSliders(lease_s=6, stall_s=6, fence=False)

# %% [markdown]
# ## Check
#
# The checker compares the store's record of every request with what both writers recorded.

# %% jupyter={"source_hidden": true}
# Check
for run in (without, with_fence):
    print(f"{run.title}. W1's late commit: {run}. {said(run.verdict)}\n")
assert str(without) == GUESSES[0] and without.verdict.kind == "INVALID"
assert str(with_fence) == GUESSES[1] and with_fence.verdict.kind == "VALID"
assert with_fence.lost == 0

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
fenced.explain("""
W1 did check its lease, and the lease was valid. The pause came between that check and the
write. Such a gap always exists, whatever a program checks and however late it checks. A shorter
lease makes this more likely. A longer lease makes a crashed <abbr title="holder: the client to
which the lock was granted last">holder</abbr> block the others for longer. No lease is longer
than every possible pause.

The store has no such gap, because it compares and writes in one step. W2's commit changed
`.hoodie/.locks/fence.json`. W1's write carries the condition *if it is as I read it*, and the
condition is now false. W1 learns this from the store's answer, not from a clock. It then starts
again from the current table, and no order is lost.

It matters *which process* is paused. Here it is the driver, because the lock, its heartbeat and
the commit all run in the driver's own Python process. Spark's executors keep running, which does
no harm.

The number of lost orders depends on how far each writer had got. The violation does not: a commit
was published without a conflict check against the commit before it.
""")

# %% [markdown]
# ## In production
#
# * **Martin Kleppmann**, [How to do distributed
#   locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html), drew this
#   pause and the fencing token that stops it.
# * **Apache Hudi** publishes by creating a completed file, which only the lock guards
#   ([RFC-91](https://github.com/apache/hudi/blob/master/rfc/rfc-91/rfc-91.md)). A lease lasts five
#   minutes and is renewed every 30 s. A writer that is paused for longer than its lease can do what
#   W1 did without the fence. Since [#17871](https://github.com/apache/hudi/pull/17871) its
#   *release* fails if another writer has taken the lock: the writer learns about it, but only after
#   the commit is visible.
# * **Apache Iceberg and Delta Lake** publish by their own compare-and-set (a swap in the catalog,
#   or the creation of the next log entry). There the table itself is the fence.
# * **Tables that `lockkit` makes** are fenced. A table that is shared with Hudi's own writers
#   cannot be fenced, because they do not know the fence. Choose a lease that is longer than any
#   pause you expect.
#
# ## Your turn
#
# Write `publish`, the guarded write. It replaces version `seen` of `key` with `body`. Return True
# if `body` is published. Return False if it is not and never will be: the caller then reads again
# and makes a new body. Each body is the list of all entries so far, and `entry` is its last line.
# The simulator calls your function in 200 small worlds of three writers, in which writers are
# paused and answers are lost.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/publish.py`.

# %%
from lockkit.lab.course.exercises import Applied, IfVersion, Put, Sleep, judge, read


def publish(key, seen, body, entry):
    answer = yield Put(key, body, IfVersion(seen))
    return isinstance(answer, Applied)


judge(publish)
