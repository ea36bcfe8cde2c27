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
# # Probe a store: is it safe for locks?
#
# A lock on an object store depends on one promise of the store: *of several conditional writes to
# one object, at most one succeeds*. Many stores speak S3's protocol, but not all of them keep the
# promise. Some refuse the condition (501), which is honest. Some ignore it and answer 200. And some
# check the condition first and write a moment later, so the promise holds only until two writers
# meet.
#
# How many requests does it take to find out which kind of store you have?
#
# The code takes about 20 seconds on a quiet machine, and up to half a minute on a busy one. The
# panel takes as long as you like.

# %% [markdown]
# ## Predict
#
# Choose a store and say what you expect of it. The button is locked until then.
#
# ## Run
#
# Press **Probe**. Each named store is the embedded server, which imitates that provider. For a
# store of your own choose *another, by its URL*. The probe uses the credentials of your environment
# and scratch objects under that prefix, which it deletes afterwards.

# %%
from lockkit.lab.widgets import StoreProbe

probe = StoreProbe()
probe

# %% [markdown]
# ## See
#
# The sentence above the checks says what the probe found, and from how many races. Every check
# shows what the probe tried and what the store answered. Below the checks you see the cost of a
# conditional read (*has the object changed?*), compared with a full read. A client that waits for a
# lock sends conditional reads all the time.
#
# ## Predict: one request at a time
#
# Next, the code below probes four stores of the list: DigitalOcean Spaces, Ceph's gateway, a bucket
# of Ceph's gateway that keeps versions, and a server that checks first and writes ten milliseconds
# later. The probe sends its requests one by one, without a race.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.honest import COUNTS, one_by_one

singly = Predict("In how many of the four does the probe find a violation?", COUNTS)
singly

# %%
four = singly.run(one_by_one, "spaces", "rgw", "rgw, versioned bucket", "two-steps")
print(repr(four))

# %% jupyter={"source_hidden": true}
singly.explain("""
Spaces ignores conditions. Two requests are enough to see it: create, and create again. And one
product can behave like two stores: Ceph's gateway, as measured, honours conditions, but ignores
`If-None-Match` on a bucket that keeps versions. The fourth server behaves perfectly as long as one
request comes at a time. Only a race reveals what it does:
""")

# %%
raced = singly.run(probe.run, "two-steps", rounds=5, requests=20)
print(raced.sentence)
sound = singly.run(probe.run, "aws", rounds=5, requests=20)
print(sound.sentence)

# %% jupyter={"source_hidden": true}
singly.explain("""
Races can prove a store unsafe, never safe. So the sentence names the number of races, and a probe
without races calls no store safe. In moto, which many test suites use, about one race in five
hundred has two winners: a build with 200 rounds passed, and the next day's build failed.
""")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert str(four) == COUNTS[1] and sound.report.safe
assert raced.report.verdict.value == "not-atomic"

# %% [markdown]
# The matrix in the panel shows what each vendor documents, what a probe found, and when. The tests
# of this checkout produce the rows called *probed*; none of their verdicts is typed by hand. These
# are the rows about other servers:

# %%
from lockkit.lab.probe import Suitability
from lockkit.lab.probe.providers import PROBED, providers
from lockkit.lab.widgets.probing import SAID

for row in providers():
    if row.basis == PROBED and "lockkit serve" not in row.store:
        print(f"{SAID[Suitability(row.verdict)]:34}{row.store}")

# %% [markdown]
# ## Why
#
# A conditional write is a comparison and a write *in one step*. Only the store can do both in one
# step, because only the store sees all writers. HTTP tells servers to ignore headers that they do
# not know. If a store ignores a condition in this way, even a correct lock library gives one lock
# to two owners. The failure is silent: both owners get a 200.
#
# A vendor's documentation does not settle the question. It describes what is intended, for the
# current release and for one kind of bucket. The probe tests *this* endpoint, with *this* bucket
# and *these* credentials.
#
# A loser may not even learn that it lost: a 5xx answer in a race, as from Ceph's gateway, says
# nothing about the write. lockkit treats it as *unknown*, reads the object back and looks for its
# own attempt.
#
# ## In production
#
# Run `lockkit probe s3://bucket/scratch` once for each endpoint, bucket and server version. It
# exits with 0 if it found no violation, 1 if it found one, and 3 if the store could not be tested.
# If in doubt, use `--rounds 600`, through every node of a cluster. `lockkit probe --matrix` prints
# the matrix, and `lockkit bench conditional-get s3://bucket/scratch` prints the cost of waiting.
#
# ## Your turn
#
# Six entries of the panel's list speak S3's protocol: `aws`, `spaces`, `rgw`, `two-steps`, `rgw,
# versioned bucket` and `rgw, quoted ETags`. A probe that sends one request at a time proves some of
# them unsafe, though it does not detect every unsafe store. Put these entries into `UNSAFE`, and no
# others. The code then probes all six.

# %%
from lockkit.lab.course.honest import sort_out

UNSAFE = ("spaces", "two-steps")
sort_out(*UNSAFE)

# %% [markdown]
# Now write a probe yourself. `honours` returns True if the store honours both conditions of a
# write, `IfAbsent()` and `IfVersion(version)`, and False if it ignores one of them. You may write
# to `key`, which no other client uses. The simulator calls your function in 200 small worlds with
# stores of both kinds, in which answers are lost and a request is sometimes delivered twice.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/honours.py`.

# %%
from lockkit.lab.course.exercises import Applied, IfAbsent, IfVersion, Put, Sleep, judge


def honours(key):
    yield Put(key, b"first", IfAbsent())
    answer = yield Put(key, b"second", IfAbsent())
    return not isinstance(answer, Applied)


judge(honours)
