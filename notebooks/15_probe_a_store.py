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
# # Probe a store: may anybody lock on it?
#
# A lock on an object store is one promise of the store: *of several conditional writes to one
# object, at most one succeeds*. Many stores speak S3's protocol; not all of them keep the promise.
# Some refuse the condition (501), which is honest. Some ignore it and answer 200. And some look at
# the condition first and write a moment later, so that the promise holds until two writers meet.
#
# How many requests does it take to find out which of them you have?
#
# The cells take about twenty seconds; the panel, as long as you like.

# %% [markdown]
# ## Predict
#
# Choose a store, and say what you expect of it: the button is locked until then.
#
# ## Run
#
# Press **Probe**. Each of the named ones is the embedded
# server, made to behave as that provider does. For a store of your own choose *another, by its
# URL*: it is asked with the credentials of your environment, on scratch objects under that prefix,
# which are deleted afterwards.

# %%
from lockkit.lab.widgets import StoreProbe

probe = StoreProbe()
probe

# %% [markdown]
# ## See
#
# Above all checks stands one sentence: what the probe found, and from how many races. Every check
# says what was tried and what came back. Under them: what it costs to ask whether an object
# changed, against reading it again. A client that waits for a lock asks that all the time.
#
# The same by code. A store on which no violation is found:

# %%
sound = probe.run("aws", rounds=5, requests=20)
print(sound.sentence)
assert sound.report.safe

# %% [markdown]
# One that ignores conditions. Two requests are enough to see it: create, and create again.

# %%
ignores = probe.quick("spaces")
print(ignores.conclusion)
assert not ignores.safe

# %% [markdown]
# The same software can be two stores. Ceph's gateway, as it was measured, honours conditions, but
# on a bucket that keeps versions it ignores `If-None-Match`.

# %%
for place in ("rgw", "rgw, versioned bucket"):
    print(place, "-", probe.quick(place).conclusion)

# %% [markdown]
# ## What needs a race
#
# This server looks first and writes ten milliseconds later. One request after another, it is
# perfect.

# %%
print(probe.quick("two-steps").conclusion)
raced = probe.run("two-steps", rounds=5, requests=20)
print(raced.sentence)
assert raced.report.verdict.value == "not-atomic"

# %% [markdown]
# Races can prove a store unsafe, never safe. That is why the sentence names their number, and why a
# probe without races calls no store safe. moto, which many test suites run on, has two winners in
# one race of about five hundred: 200 rounds passed, and the next day's build failed.

# %% [markdown]
# ## Check
#
# The matrix: what each maker documents, what a probe found, and when. Rows called *probed* are
# made by the tests of this checkout, on the embedded server and on other people's; nobody typed
# their verdicts.

# %%
from lockkit.lab.probe.providers import PROBED, providers

for row in providers():
    if row.basis == PROBED:
        print(f"{row.verdict:20}{row.store}")

# %% [markdown]
# ## Why
#
# A conditional write is a comparison and a write *in one step*. Only the store can make it one: it
# alone sees all writers. So a lock library can do everything right and still hand one lock to two
# owners, if the store drops a header that it does not know, which is what HTTP tells servers to do.
# The failure is silent on both sides: two 200s.
#
# Documentation does not settle it. It says what was meant, for the current release, for one kind of
# bucket. The probe asks *this* endpoint, with *this* bucket and *these* credentials.
#
# And a loser need not be told that it lost: a 5xx in a race, as from Ceph's gateway, says nothing.
# lockkit takes it for *unknown*, reads the object back and looks for its own attempt.
#
# ## In production
#
# `lockkit probe s3://bucket/scratch` once for each endpoint, bucket and change of the server's
# version; it exits 0 if it found no violation, 1 if it found one, and 3 if the store could not be
# tested. `--rounds 600` where you have doubts, through every node of a cluster.
# `lockkit probe --matrix` prints the matrix, `lockkit bench conditional-get s3://bucket/scratch`
# the cost of waiting.
#
# ## Your turn
#
# Six places in the panel's list speak S3's protocol: `aws`, `spaces`, `rgw`, `two-steps`,
# `rgw, versioned bucket` and `rgw, quoted ETags`. Put those into `UNSAFE` that one request after
# another proves unsafe, and only those; all six are then probed. (Not every unsafe store is caught
# like that.)

# %%
from lockkit.lab.course.honest import sort_out

UNSAFE = ("spaces", "two-steps")
sort_out(*UNSAFE)
