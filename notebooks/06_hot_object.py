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
# # A hot object: one write per second
#
# Google Cloud Storage accepts one write per second to an object and answers 429 to the rest. A lock
# is one object, and each grant takes two writes: a claim and a release. What happens to a writer
# that needs the lock for a tenth of a second, and to the writers that wait for it?
#
# This takes about 20 seconds on a quiet machine, and twice as long on a busy one.

# %% [markdown]
# ## Predict
#
# W1 creates the lock object, finds that it has nothing to do, and releases the lock at once, by a
# conditional write that marks the object as free. W1 sends that write only once and exits, whatever
# the answer is.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.hot import GUESSES, release_once, use, wait

once = Predict("On Google Cloud Storage, with a lease of one minute: what is left?", GUESSES)
once

# %% [markdown]
# ## Run: one try

# %%
gcs = once.run(release_once, "gcs")
print("S3: ", repr(release_once("s3")))
print("GCS:", repr(gcs))

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
once.explain("""
The store answered the release with 429. No code was wrong and there was no other writer, but the
object's last write was less than a second old. The lock is now *dangling*: the others must wait for
the end of a lease that no client uses.
""")

# %% [markdown]
# ## What `Lock` does

# %% jupyter={"source_hidden": true}
once.explain("""
A 429 is the one refusal that is also a promise: the write was *certainly not done*. (This holds
only if no SDK sends a request again on its own: notebook 03.) So the same release can be sent again
until the lease ends.
""")

# %%
again = use("gcs", times=2)
print("S3: ", repr(use("s3", times=2)))
print("GCS:", repr(again))
Workbench.replay(again.events)

# %% jupyter={"source_hidden": true}
once.explain("""
The same code frees the lock on both stores. On Google's storage that took seconds. (On a server
that is not the provider's own, `Lock` first *proves* that the server honours conditions, on a
scratch object that has a limit of its own. That check is two of the six `PUT 200`, and about two of
these seconds.)
""")

# %% [markdown]
# ## What waiting clients do
#
# A waiter cannot queue on an object store; it can only poll. If it polled by writing, it would
# use up the <abbr title="holder: the client to which the lock was granted last">holder</abbr>'s
# one write per second. So it reads, and each read names the version that it already knows:

# %%
waited = wait("gcs")
print("S3: ", wait("s3").requests("W2"))
print("GCS:", waited.requests("W2"))

# %% [markdown]
# The first answer is 200, with the record. Every later one is 304, *not modified*, without a body.
# The waiter adapts its polling interval to the duration of a request and to the length of past
# grants. On Google's storage it also skips the second in which the lock cannot change hands.
#
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert not gcs.free and gcs.requests("W1")["PUT 429"] == 1
assert again.free and again.verdict.kind == "VALID"
assert not [each for each in waited.requests("W2") if each.startswith("PUT")]
assert waited.requests("W2")["GET 200"] == 1 and waited.verdict.kind == "VALID"

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
once.explain("""
The limit holds for one *object name* and all its writers together. Claims, renewals, releases and
the confirming write after a lost answer all share it. Two writes per grant allow half a grant per
second. No code can raise that limit; it can only avoid waste. So waiters read, and a release is
retried. A renewal is not retried at once, because the old lease is still valid until the next
renewal. On this store, renewing every second would use up the one write per second.

To relieve the object, take the lock less often: make many commits under one grant, or spread the
keys over many lock objects (notebook 13). Holding it for a shorter time does not help.
""")

# %% [markdown]
# ## In production
#
# * **Google Cloud Storage:** [quotas](https://cloud.google.com/storage/quotas), *one write per
#   second* to the same object name. Cloudflare's R2 has the same limit for each key. S3 has a limit
#   for each prefix: thousands of writes per second.
# * **Apache Hudi:** [#18438](https://github.com/apache/hudi/issues/18438): a throttled release left
#   the lock dangling. Version 1.2.0 fixes this for 429. A 503 on release still leaves it dangling
#   ([#20027](https://github.com/apache/hudi/issues/20027)), and S3 throttles with 503.
# * **Google's SDK** retries a 429 by default for up to two minutes. This hides the limit. The same
#   retries also make a successful write with a lost answer look like a refusal (notebook 03).
# * **`Lock`** sends each request once. Within the lease, it repeats only a request that was
#   certainly not carried out. It warns (`UnprovenRelease`) if the outcome of the release stays
#   unknown.
#
# ## Your turn
#
# Let W1 acquire and release the lock `TIMES` times. Find a number of grants for which Google's
# storage needs more than ten seconds. The checker judges the history of each run.

# %%
TIMES = 1
tried, on_s3 = use("gcs", times=TIMES), use("s3", times=TIMES)
print(f"{tried.seconds:.1f} s for {TIMES}; the checker says {tried.verdict.kind}.")
print(f"S3 took {on_s3.seconds:.1f} s.")
print("solved" if tried.seconds > 10 and tried.verdict.kind == "VALID" else "not yet: try more")

# %% [markdown]
# Now write `claim`: wait until the lock at `key` is free, replace it with `mine`, and return. The
# lock is a JSON object whose field `free` is true or false. The holder needs the object's one write
# per second to release it. So before *each* of your writes, read the object and make sure that the
# lock is free. The simulator calls your function in 200 small worlds of three clients, in which
# answers are lost, writes land late, and a request is sometimes delivered twice.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/claim.py`.

# %%
import json
from lockkit.lab.course.exercises import Applied, IfVersion, Put, Sleep, judge, read


def claim(key, mine):
    seen = yield from read(key)
    while not isinstance((yield Put(key, mine, IfVersion(seen.version))), Applied):
        yield Sleep(0.5)


judge(claim)
