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
# # Whose clock says that a lease has ended?
#
# A lease ends at a point in time. Whose clock measures it: the <abbr title="holder: the client to
# which the lock was granted last">holder</abbr>'s, the challenger's or the store's? No two of
# these clocks agree. What happens if one is three seconds off, and how much does Hudi's buffer of
# half a second help?
#
# This takes less than ten seconds on a quiet machine, and up to half a minute on a busy one.

# %% [markdown]
# ## Predict
#
# The lock object contains `validUntil`, a time on W1's clock. W1's lease lasts two seconds, and W1
# renews it well before it ends. W2's clock is **three seconds fast**. W2 reads the object once and
# applies Hudi's rule: it compares `validUntil` plus a buffer of 500 ms with its own clock.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.clocks import GUESSES, meet, search

wall = Predict("After W2's read, while W1 continues to work:", GUESSES)
wall

# %% [markdown]
# ## Run: by the wall clock

# %%
by_wall = wall.run(meet, "wall", 3.0)
Workbench.replay(by_wall.events)

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
wall.explain("""
No request was slow, nothing was lost, and W1 did everything right. By W2's clock the lease was
over before it was granted. W2's claim is a valid compare-and-set, so the store accepts it. W1
learns about it at its next renewal. Until then both clients count on the lock.

A lock cannot correct a clock, but it can detect the error: every answer of the store has a `Date`
header. That date has whole seconds, so the difference may look up to a second larger than it is:
""")

# %%
print(by_wall.warned[0])

# %% [markdown]
# Here are the same two locks with two other rules. **store**: the store records when the object was
# last modified, and its answers carry its current time. Both times come from *its* clock.
# **observed**: W2 must see the same version for a whole lease, measured on its own clock. Then only
# the speed of the clocks matters, not the time that they show.

# %%
for expiry in ("wall", "store", "observed"):
    for fast_s in (-3.0, 3.0):
        print(f"{expiry:10}W2's clock {fast_s:+.0f} s: {wall.run(meet, expiry, fast_s)}")

# %% jupyter={"source_hidden": true}
wall.explain("""
A clock that is three seconds *slow* is safe under every rule. By the wall clock, W2 then waits
three seconds longer than necessary after W1 has died.
""")

# %% [markdown]
# The explorer tries every order of events, without a server. If a rule is broken in some of them,
# it shows the shortest. (Here a tick is one second, a lease is two ticks and the buffer is one.)

# %%
print(wall.run(search, "skew").story)

# %% [markdown]
# ## Predict: a buffer for both
#
# Hudi adds its 500 ms when a challenger tests whether *another writer's* lease has ended. The
# holder uses the same function to test whether *its own* lock is still valid, so it adds the
# buffer, too. In the explorer the clocks differ by one second and the buffer is one second, so it
# should be just enough.

# %%
both = Predict("Both the challenger and the holder allow one second more:", GUESSES)
both

# %%
hudi = both.run(search, "drift_for_holder")
print(hudi.story)
Workbench.replay(hudi.events)

# %% jupyter={"source_hidden": true}
both.explain("""
The challenger waits until the end of the lease plus the buffer. The holder counts on the lease
until the same time. The two buffers cancel out, and the difference between the clocks remains. So
only the challenger should add a buffer. The holder should stop *early*.
""")

# %% [markdown]
# ## Try other times
#
# Here the two writers are simulated, so each move of a slider runs them again. How far ahead may
# W2's clock be? Does a longer lease help? Does another rule? Then raise the latency: a lease counts
# from the moment when its request was sent, so a slow store leaves the holder less time.

# %%
from lockkit.lab.widgets import TimeSliders

TimeSliders(lease_s=6, skew_s=4, expiry="wall")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
by_store, by_watch = meet("store", 3.0), meet("observed", 3.0)
assert by_wall.verdict.kind == "INVALID"
assert by_store.verdict.kind == by_watch.verdict.kind == "VALID"
assert hudi.row.as_expected and str(hudi) == GUESSES[1]

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
both.explain("""
A takeover claims that another lease has ended. The wall-clock rule compares two times from
two machines, and its error is the difference between their clocks. The store's two times come
from one clock, so an error of that clock cancels out. Two small errors remain: HTTP dates are
whole seconds, and a store has more than one front end. For both, `lockkit` adds two seconds of
slack. The observed rule needs only a clock that runs at a steady speed. Its price is that a
challenger waits a whole lease, even if the holder died long ago.

The holder has no such choice. It counts from *before* it sent the request, on a clock that cannot
be set, and it stops a little early. No rule about clocks helps against a paused process. The
fence does (notebook 04).
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi** uses the wall clock, with `CLOCK_DRIFT_BUFFER_MS = 500` on both sides. Its
#   leases last five minutes and are renewed every 30 s. So a clock that is three seconds off does
#   harm only in the last three seconds of a lease that was not renewed. That is when takeovers
#   happen.
# * **DynamoDB's lock client** uses the observed rule: a lease expires only after a challenger has
#   watched it for its whole length. This avoids clock skew.
# * **Terraform's S3 lock** has no lease. It does not depend on a clock, and it never expires.
# * **`Lock`** uses the store's clock. If a store does not report its time, `Lock` uses the wall
#   clock, with the buffer on the challenger's side only. It warns (`ClockSkew`) when this machine's
#   clock is off.
#
# ## Your turn
#
# Write `free`: return True if the lease in `record` has expired. `record` has `valid_until_ms`, by
# its holder's wall clock, and `ttl_ms`. `wall_ms` is the time on this client's wall clock.
# `watched_ms` is the time for which this client has seen the same version of the object. The
# simulator runs three clients with your function in 200 small worlds. Each wall clock is up to 20 s
# off, so two of them may differ by 40 s. Some clients stop while they hold the lock; another client
# must take it over within half a minute. A solution is in `solutions/free.py`.

# %%
from lockkit.lab.course.exercises import judge


def free(record, wall_ms, watched_ms):
    return wall_ms > record["valid_until_ms"]


judge(free)
