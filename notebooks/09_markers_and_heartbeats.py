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
# # Markers and heartbeats: who may clean up after a dead writer?
#
# A batch writes files for an hour before it commits them. If it dies before that, another process
# has to delete its files. But no one can distinguish a dead writer from a slow one. Who may delete
# the files, and what happens if the writer resumes meanwhile?
#
# This takes about 15 seconds on a quiet machine, and up to a minute on a busy one. Real code runs
# against a server on this machine, with one exception: all clocks are moved forward together, so
# that a pause of five minutes takes no time.

# %% [markdown]
# ## Predict
#
# W1 has written its file and holds the lock. Its last check succeeds, and then W1 is paused for
# five minutes, right before the one write that publishes. Its lease ends and its heartbeat stops.
# W2 considers W1 dead, takes the lock and rolls W1 back. Then W1 resumes. Like most writers, W1
# guards its commit only with *create if absent*.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.lock_testbed import said
from lockkit.lab.course.dead import GUESSES, RACE_GUESSES
from lockkit.lab.course.dead import ages, late_beat, meet, remains, tune, wake

woken = Predict("What does the table contain afterwards?", GUESSES)
woken

# %% [markdown]
# ## Run: without the fence

# %%
unfenced = woken.run(wake, fence=False)
print(repr(unfenced))
Workbench.replay(unfenced.events)

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
woken.explain("""
W1's commit was acknowledged, and every reader sees it on the timeline. Its file is gone. W2 made
no mistake: W1 had been silent for five minutes. W1 made no mistake either: it had checked.

Now the same five minutes with the *fence*. A rollback and a commit are two answers to the same
question: what becomes of this instant? The answer is stored in one object, the fence. The first
process to replace it decides, and files are deleted only after that.
""")

# %%
fenced = wake(fence=True)
print(repr(fenced))

# %% [markdown]
# ## What a writer leaves
#
# W1 tried twice, and both tries were refused: what is decided stays decided.
#
# If W1 had really died, it would have left these objects. A writer creates a file's **marker**
# before the file itself. So every file has a marker, and a rollback need not list the table. The
# **heartbeat** is the only one of these objects that says anything about time.
# (A short write of a table that only lockkit writes leaves neither. Its files have the instant in
# their names, and a rollback finds them by listing the table. Hudi's writers and long writes leave
# both, as here.)

# %%
remains()

# %% [markdown]
# ## Who is dead?
#
# Hudi and lockkit have the same rule: one beat per minute, and two may be missed. *Lazy* is for
# tables with several writers. *Eager* is for tables with one writer: the next write rolls back
# whatever it finds. (Between 120 s and 122 s no writer counts as dead yet, because the store's
# dates are whole seconds and its front ends may disagree.)

# %%
table = ages()
table

# %% [markdown]
# ## Predict: between the check and the rollback
#
# W1 is alive. It sent its heartbeat in time, but the request takes six seconds to arrive. Meanwhile
# a service reads the heartbeat and finds that it has expired. Then W1's beat arrives. After that
# the service carries out what it has decided.

# %%
late = Predict("With lockkit's rules, what happens to W1's work?", RACE_GUESSES)
late

# %%
print(repr(late.run(late_beat, guarded=True)))
print("If a service trusts its old read:", repr(late_beat(guarded=False)))

# %% jupyter={"source_hidden": true}
late.explain("""
Each beat replaces exactly the version of the beat before it. A service that wants to end the
heartbeat does the same, so the store accepts only one of the two writes. Hudi overwrites its empty
heartbeat file without a condition, so there neither side notices the other. The fence keeps the
table correct even then, but an hour of work is thrown away although no writer had died.
""")

# %% [markdown]
# ## Another use of markers
#
# Two batches rewrite the same file group, and the second one will lose. When does it find out?

# %%
print("At its commit:   ", repr(meet(early=False)))
print("From the markers:", repr(meet(early=True)))

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert (unfenced.verdict.kind, fenced.verdict.kind) == ("INVALID", "VALID")
assert table.dead(0, "EAGER") and not table.dead(110, "LAZY") and table.dead(130, "LAZY")
assert str(unfenced) == "a commit whose file is missing" and "k3 3" in fenced.again
assert str(late_beat(guarded=True)).startswith("the service gives up")
assert (meet(early=False).files, meet(early=True).files) == (1, 0)
print(said(fenced.verdict))

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
late.explain("""
A heartbeat is a lease on an instant and has the limits of a lease. It shows other clients when they
*may* act. It never shows the <abbr title="holder: the client to which the lock was granted
last">holder</abbr> that another client *has* acted. So three rules are needed, not one. First, the
writer stops relying on its own heartbeat before any other process may call it dead. Second, a
service that ends a heartbeat replaces exactly the version that it read. Third, the fate of an
instant is decided in one place. That covers the cases in which the first two rules do not help,
such as W1's pause here.

The list of files to delete is written first, and the files are deleted last. If a service dies
halfway, the next service finishes its work.
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi** keeps the same objects: `.hoodie/.temp/<instant>/…marker.CREATE`, and
#   `.hoodie/.heartbeat/<instant>`, an empty file whose date is the last beat. Its keys are
#   `hoodie.client.heartbeat.interval_in_ms` and `…tolerable.misses`. A missing heartbeat file
#   counts as a beat in 1970, so the writer counts as dead. `hoodie.clean.failed.writes.policy` is
#   EAGER for one writer and LAZY for several.
# * **Detected only at the commit:** in [#12522](https://github.com/apache/hudi/issues/12522) a
#   heartbeat had expired hours before. Since then, a writer whose heartbeat has expired fails fast.
# * **Early conflict detection** exists in Hudi, too, and is off by default:
#   `hoodie.write.concurrency.early.conflict.detection.enable`.
# * **In lockkit:** `lockkit table rollback URL --dry-run` lists the dead writers; without
#   `--dry-run` it rolls them back.
#
# ## Your turn
#
# W1's machine may be paused for up to 100 s at the worst moment, right before a beat. A dead
# writer's files must be gone after 300 s. Choose the interval and the tolerable misses; every beat
# is a request that costs money. The code then runs a slow writer, a dead writer and a service, and
# judges them.

# %%
INTERVAL_S, MISSES = 60, 2
tune(INTERVAL_S, MISSES)

# %% [markdown]
# Now write `roll_back`: undo the `instant` of a writer that has been silent. `files` are the files
# of that instant. The object `fence` is JSON with two lists of instants, `committed` and `rolled
# back`. A writer creates its files and then adds its instant to `committed`. It does so only if its
# instant is in neither list and the fence has not changed since it read it. Return True if the
# instant was rolled back and its files are deleted, or False if it was committed. In the 200 small
# worlds of the simulator the silent writer is often alive.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/roll_back.py`.

# %%
import json
from lockkit.lab.course.exercises import Applied, Delete, IfVersion, Put, Sleep, judge, read


def roll_back(fence, instant, files):
    for file in files:
        yield Delete(file)
    seen = yield from read(fence)
    decided = json.loads(seen.body)
    decided["rolled back"].append(instant)
    yield Put(fence, json.dumps(decided).encode(), IfVersion(seen.version))
    return True


judge(roll_back)
