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
# # A hot object: one write a second
#
# Google Cloud Storage takes one write a second to an object, and answers 429 to the rest. A lock is
# one object, and taking it and giving it back are two writes. What happens to a writer that needs
# the lock for a tenth of a second, and to those who wait for it?
#
# This takes about half a minute.

# %% [markdown]
# ## Predict
#
# W1 creates the lock object, finds at once that there is nothing to do, and releases: a guarded
# write that marks the object as free. It is sent once, and whatever comes back, W1 goes home.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.hot import GUESSES, release_once, use, wait

once = Predict("On Google Cloud Storage, a minute's lease, W1 has gone. What is left?", GUESSES)
once

# %% [markdown]
# ## Run: one try

# %%
gcs = once.run(release_once, "gcs")
print("S3: ", repr(release_once("s3")))
print("GCS:", repr(gcs))

# %% [markdown]
# ## See
#
# The release met a 429. Nobody did anything wrong and nobody else was there: the object was simply
# too young. The lock now *dangles*, and everybody waits for a lease that nobody uses.
#
# ## What a lock does
#
# A 429 is the one refusal that is a promise: *certainly not done*. So the release may be sent
# again, as it is, for as long as the lease lasts.

# %%
twice = use("gcs", times=2)
print("S3: ", repr(use("s3", times=2)))
print("GCS:", repr(twice))
Workbench.replay(twice.events)

# %% [markdown]
# The same lock, the same code: free in the end on both, and on Google's storage it took seconds.
# (The first grant on a server that isn't the provider's own also *proves* that it keeps its
# conditions, by two writes that must be refused; those count, too.)
#
# ## Those who wait
#
# A waiter can't queue on an object store, it can only look. If it tried to write, it would use up
# the holder's one write a second. So it reads, and says which version it knows:

# %%
waited = wait("gcs")
print("S3: ", wait("s3").requests("W2"))
print("GCS:", waited.requests("W2"))

# %% [markdown]
# Once 200, the record; then 304, *not modified*, without a body. How often it looks, it learns:
# from the time that a request takes, from how long turns last, and on Google's storage from the
# second under which nothing can change hands.
#
# ## Check

# %%
assert not gcs.free and gcs.requests("W1")["PUT 429"] == 1
assert twice.free and twice.verdict.kind == "VALID"
assert not [each for each in waited.requests("W2") if each.startswith("PUT")]
assert waited.requests("W2")["GET 200"] == 1 and waited.verdict.kind == "VALID"

# %% [markdown]
# ## Why
#
# The limit is of the *object name*, whoever writes: claims, renewals, releases and the confirming
# write after a lost answer share it. Two writes a grant make half a grant a second, and no code can
# make it more; it can only not waste any. That is why waiters read, why a release insists and a
# renewal does not (it keeps the old lease and comes again), and why renewing every second is a
# mistake on this store.
#
# What helps is to take the lock less often, not for less long: many commits under one grant, or
# many lock objects in place of one (notebook 13).
#
# ## In production
#
# * **Google Cloud Storage:** [quotas](https://cloud.google.com/storage/quotas), *one write per
#   second* to the same object name. Cloudflare's R2 has the same limit for a key. S3's limit is of
#   a prefix, and in the thousands.
# * **Apache Hudi:** [#18438](https://github.com/apache/hudi/issues/18438), a release that was
#   throttled left the lock dangling, mended in 1.2.0 for 429. A 503 on release still does
#   ([#20027](https://github.com/apache/hudi/issues/20027)), and S3 throttles with 503.
# * **Google's SDK** repeats a 429 by itself, for up to two minutes, without being asked. That hides
#   the limit; and the same retries turn a lost answer into a defeat (notebook 03).
# * **`Lock`** sends each request once, repeats what was certainly not done, within the lease, and
#   warns (`UnprovenRelease`) if it never heard of the end.
#
# ## Your turn
#
# Let W1 take and give back the lock `TIMES` times. Find the smallest number of grants for which
# Google's storage needs more than five seconds; the history of each run is judged.

# %%
TIMES = 1
tried = use("gcs", times=TIMES)
print(f"{tried.seconds:.1f} s for {TIMES}; {tried.verdict.kind}: {tried.verdict.because}")
print("solved" if tried.seconds > 5 and tried.verdict.kind == "VALID" else "not yet: more of them")
