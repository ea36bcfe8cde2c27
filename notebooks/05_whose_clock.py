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
# # Whose clock says that a lease is over?
#
# A lease ends at a time, and somebody has to say when that is: the holder, the challenger or the
# store. No two of their clocks agree, and nobody asks anybody before acting. What does a clock cost
# that is three seconds off, and what does Hudi's buffer of half a second buy?
#
# This takes about half a minute.

# %% [markdown]
# ## Predict
#
# The lock object says `validUntil`, in W1's time. W1 has a lease of two seconds and renews it well
# before it ends. W2's clock is **three seconds fast**. It looks once, and goes by its own clock and
# a buffer of 500 ms, which is Hudi's rule.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.clocks import GUESSES, meet, search

wall = Predict("After W2's look, while W1 goes on working:", GUESSES)
wall

# %% [markdown]
# ## Run: by the wall clock

# %%
by_wall = wall.run(meet, "wall", 3.0)
Workbench.replay(by_wall.events)

# %% [markdown]
# ## See
#
# Nothing was slow, nothing was lost, and W1 did all that it should. For W2 the lease had been over
# before it was granted. W2's claim is an honest compare-and-set, so the store lets it through; W1
# learns of it at its next renewal, and until then both believe.
#
# A lock cannot mend a clock, but it can notice: every answer of the store has a `Date`.

# %%
print(by_wall.warned[0])

# %% [markdown]
# The same two locks, with two other rules. **store**: the store wrote down when the object was last
# modified, and says in the same answer what time it is now; both are *its* clock. **observed**: W2
# must have watched the same version for a whole lease, on its own clock; only how fast clocks run
# matters, not what they show.

# %%
for expiry in ("wall", "store", "observed"):
    for fast_s in (-3.0, 3.0):
        print(f"{expiry:10}W2's clock {fast_s:+.0f} s: {meet(expiry, fast_s)}")

# %% [markdown]
# Three seconds *slow* is safe under every rule; by the wall clock W2 then waits three seconds more
# than it must, after W1 has died.
#
# The explorer finds the same without a server, as the shortest of all orders of events in which two
# clients believe. (Here a tick is a second, a lease is two, the buffer is one.)

# %%
print(search("skew").story)

# %% [markdown]
# ## Predict: a buffer for both
#
# Hudi adds its 500 ms when it asks whether *somebody else's* lock is over, and by the same function
# when it asks whether *its own* still stands. In the explorer: clocks differ by one second, and the
# buffer is one second, so it should be just enough.

# %%
both = Predict("The challenger waits, and the holder believes, a second longer:", GUESSES)
both

# %%
hudi = both.run(search, "drift_for_holder")
print(hudi.story)
Workbench.replay(hudi.events)

# %% [markdown]
# The challenger waits for the end of the lease plus the buffer, and the holder believes until the
# end of the lease plus the buffer. On both sides it cancels out: what is left is the difference of
# their clocks. A buffer belongs to the challenger alone; the holder should stop *early*.
#
# ## Check

# %%
by_store, by_watch = meet("store", 3.0), meet("observed", 3.0)
assert by_wall.verdict.kind == "INVALID"
assert by_store.verdict.kind == by_watch.verdict.kind == "VALID"
assert hudi.row.as_expected and str(hudi) == GUESSES[1]

# %% [markdown]
# ## Why
#
# To take a lock over is to say that somebody else's time is up. By the wall clock that compares two
# numbers of two machines, and is wrong by as much as they differ. The store's two times come from
# one clock, so a wrong one costs nothing; what is left is that HTTP cuts times to a second and that
# a store has more than one front end, which is why `lockkit` adds two seconds of slack. Watching
# needs no clock but a steady one; it costs a whole lease of waiting, even if the holder died long
# ago.
#
# The holder has no such choice: it counts from *before* its request left, on a clock that cannot be
# set, and stops a little early. No rule about clocks helps against a process that is paused; for
# that there is the fence (notebook 00).
#
# ## In production
#
# * **Apache Hudi** goes by the wall clock, with `CLOCK_DRIFT_BUFFER_MS = 500` on both sides. Its
#   leases are five minutes, renewed every 30 s, so three seconds only matter in the last three
#   seconds of a lease that was not renewed. That is when takeovers happen.
# * **DynamoDB's lock client** watches: a lease "expires only after another acquire has waited for
#   it", so as to avoid clock skew.
# * **Terraform's S3 lock** has no lease: nobody's clock is wrong, and nobody's lock ends.
# * **`Lock`** goes by the store; where a store does not tell its time, by the wall clock with the
#   buffer on the challenger's side only. It warns (`ClockSkew`) when this machine's clock is off.
#
# ## Your turn
#
# By the wall clock, a lease of 2 s and a buffer of 0.5 s: how fast may W2's clock be? Find the
# largest whole or half number of seconds at which one believes, and two at half a second more.

# %%
FAST_S = 0.5
here, beyond = meet("wall", FAST_S), meet("wall", FAST_S + 0.5)
print(here.verdict.kind, "at", FAST_S, "and", beyond.verdict.kind, "at", FAST_S + 0.5)
print("solved" if (here.verdict.kind, beyond.verdict.kind) == ("VALID", "INVALID") else "not yet")
