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
# # Markers and heartbeats: who may tidy up after the dead?
#
# A batch writes its files for an hour before it commits them. If it dies on the way, somebody has
# to delete what it left; and nobody can tell a writer that is dead from one that is only slow. Who
# may delete its files, and what if it wakes up while that is done?
#
# This takes about half a minute. Everything is real, on a server on this machine, but for one
# thing: all its clocks are put forward together, so that a stall of five minutes takes none.

# %% [markdown]
# ## Predict
#
# W1 has written its file and holds the lock. It makes its last check, all is well, and stands still
# for five minutes right before the one write that publishes. Its lease runs out, its heartbeat
# stops; W2 takes it for dead, takes the lock and rolls it back. Then W1 goes on. It is a writer as
# most are: nothing but *create if absent* guards its commit.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.dead import GUESSES, RACE_GUESSES
from lockkit.lab.course.dead import ages, late_beat, meet, remains, tune, wake

woken = Predict("What does the table have after that?", GUESSES)
woken

# %% [markdown]
# ## Run: the wrong version first

# %%
wrong = woken.run(wake, fence=False)
print(repr(wrong))
Workbench.replay(wrong.events)

# %% [markdown]
# ## See
#
# W1 was told that it had committed, and so were all readers. The file is gone. W2 did nothing
# wrong: W1 had been silent for five minutes. W1 did nothing wrong either: it had looked.
#
# The same minutes once more. Now a rollback and a commit are two answers to one question, what
# becomes of this instant, and the question is one object, the *fence*. Whoever replaces it first
# has decided; only then is anything deleted.

# %%
right = wake(fence=True)
print(repr(right))
assert (wrong.verdict.kind, right.verdict.kind) == ("INVALID", "VALID")

# %% [markdown]
# ## What a writer leaves
#
# Had W1 really died, this is what it would have left. The **marker** is written before the file
# that it names, so that no file is ever without one: a rollback need not list the table. The
# **heartbeat** is the only one of these objects that says anything about time.

# %%
remains()

# %% [markdown]
# ## Who is dead?
#
# Hudi's rule, and lockkit's: a beat each minute, two may be missed. *Lazy* is for tables with
# several writers, *eager* for those with only one: the next write takes back whatever it finds.
# (Between 120 s and 122 s nobody is dead yet: the store's dates are whole seconds, and its front
# ends need not agree.)

# %%
table = ages()
assert table.dead(0, "EAGER") and not table.dead(110, "LAZY") and table.dead(130, "LAZY")
table

# %% [markdown]
# ## Predict: between the look and the deed
#
# W1 lives. It sent its beat in time, but the beat is under way for six seconds. A service looks in
# these seconds: expired. Then the beat lands; then the service does what it has decided to do.

# %%
late = Predict("With lockkit's rules: what becomes of W1's work?", RACE_GUESSES)
late

# %%
print(repr(late.run(late_beat, guarded=True)))
print("And where a service goes by what it saw:", repr(late_beat(guarded=False)))

# %% [markdown]
# A beat replaces the very version of the beat before, and so does a service that wants to end it:
# of the two, the store lets one through. Where heartbeats are overwritten unconditionally, as an
# empty file is, nobody is told anything. The fence keeps the table right even then; but an hour's
# work was thrown away, and nobody had been dead.
#
# ## What else a marker is good for
#
# Two batches rewrite the same file group; the second one will lose. When does it hear of that?

# %%
print("At its commit:   ", repr(meet(early=False)))
print("From the markers:", repr(meet(early=True)))

# %% [markdown]
# ## Check

# %%
assert str(wrong) == "a commit whose file is gone" and "k3 3" in right.again
assert str(late_beat(guarded=True)).startswith("the service lets go")
assert (meet(early=False).files, meet(early=True).files) == (1, 0)
print(right.verdict.because)

# %% [markdown]
# ## Why
#
# A heartbeat is a lease on an instant, and has a lease's limits: it tells others when they *may*
# act, never the holder that they *have*. So three things are needed, not one. The writer stops
# believing in its own heartbeat before anybody else may call it dead. Who ends a heartbeat ends
# the very version that it saw. And what was decided about an instant is decided in one place, for
# the case that the first two were of no use: W1 was asleep.
#
# Deleting comes last, and the plan of what to delete comes first, so that a service that dies
# half-way is finished by the next one.
#
# ## In production
#
# * **Apache Hudi** keeps these very objects: `.hoodie/.temp/<instant>/…marker.CREATE`,
#   `.hoodie/.heartbeat/<instant>`, an empty file whose date is the beat, and
#   `hoodie.client.heartbeat.interval_in_ms` with `…tolerable.misses`. No file counts as a beat of
#   1970: dead. `hoodie.clean.failed.writes.policy` is EAGER for one writer, LAZY for several.
# * **Found at the commit only:** [#12522](https://github.com/apache/hudi/issues/12522), a heartbeat
#   that had expired hours before; since then a writer that is over fails fast.
# * **Early detection** is Hudi's too, off by default:
#   `hoodie.write.concurrency.early.conflict.detection.enable`.
# * **Here:** `lockkit table rollback URL --dry-run` says who is dead; without it they are taken
#   back.
#
# ## Your turn
#
# W1's machine stands still for up to 100 s, at the worst moment: right before a beat. What a dead
# writer left is to be gone after 300 s. Choose the interval and the misses; every beat is a
# request that somebody pays for. A slow writer, a dead one and a service are run, and judged.

# %%
INTERVAL_S, MISSES = 60, 2
tune(INTERVAL_S, MISSES)
