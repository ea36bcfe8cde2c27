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
# # Which lock? Two services, the same contention
#
# Apache Hudi can take its lock from ZooKeeper, DynamoDB, a Hive Metastore, a file, or one object
# beside the table. All of them provide mutual exclusion. They differ in how soon the next writer
# gets the lock, and in the cost of a grant. Above all, they differ in what happens when the <abbr
# title="holder: the client to which the lock was granted last">holder</abbr> pauses, when it dies,
# or when the service itself is down. Which of them would you want at three in the morning?
#
# The code takes about 15 seconds on a quiet machine, and up to half a minute on a busy one. The
# panel runs until you stop it.

# %% [markdown]
# ## Run
#
# ZooKeeper watches its clients and notifies them. An object store can only be polled. After the
# holder is paused, which of the two hands the lock over sooner: a session of 4 seconds or a lease
# of 4 seconds?
#
# 1. Choose two services, make a prediction and press **Start**. Real services start on this machine
#    (ZooKeeper and the Hive Metastore from the jars inside pyspark), and three processes contend
#    for each lock.
# 2. **Stall the holder** sends SIGSTOP for two and a half leases, on both sides. Watch the
#    coloured part of its bar: for how long does the paused process count on the lock?
# 3. **Kill the holder**, then **Restart the service**.
# 4. **Stop**, and read the table.

# %%
from lockkit.lab.widgets import Providers

providers = Providers("storage", "zookeeper")
providers

# %% [markdown]
# ## See
#
# Each coloured bar is one grant. It starts when a process learns of its grant and ends when the
# process releases the lock or stops counting on it. Two bars above one another would be two
# holders. The bar of a paused or killed process is hatched.
#
# ## Predict: the holder that resumes
#
# The holder is paused (SIGSTOP) for two and a half leases. Long before the pause ends, the lock is
# granted to another process. Then the first holder resumes in the middle of a statement, without
# any sign that it was paused.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.contention import GUESSES, stall_both, wait

woken = Predict("For how long do two processes both count on the lock?", GUESSES)
woken

# %% [markdown]
# ## Run: an object and a file
#
# Three processes contend for each lock, with leases of two seconds.

# %%
if woken.picked:
    handed = woken.run(stall_both, "storage", "filesystem")
    print(repr(handed))
print(woken.said)

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
if woken.did:
    assert handed.overlap_s == 0
    for name, figures in handed.sides:
        print(f"{name}: {figures.grants} grants, at most {figures.longest_run} in a row to one")

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
woken.explain("""
Each of these is a lease, even if it is called a session, a heartbeat or an expiry. No service can
distinguish a dead holder from a slow one, so after a crash the others wait until the lease ends.
ZooKeeper's server measures that time itself and notifies the next client at once. On an object
store, a contender must poll and must allow for the error of the store's clocks.

No lock in this list stops a holder that resumes late. Even ZooKeeper's own client still reports
`is_acquired` after its session has expired. In lockkit, every handle stops, by its own clock,
before the service may grant the lock again. A late write can be *refused* only with a token that
rises with every grant, and only if the target of the write checks it. This token is `lock.fence`.
An object store can check it in the write itself. A file lock has no such number (`lock.fence` is
`None`).
""")

# %% [markdown]
# ## In production
#
# `lockkit.open_lock` accepts Hudi's own configuration or a URL such as
# `zookeeper://host:2181/hudi/locks/orders`. To move a live table from one provider to another, hold
# both locks while the writers change over (`lockkit.providers.both`). Add up Hudi's retries: with
# its defaults an acquire may take 55 minutes to fail. `make providers` starts all the services.
#
# ## Your turn
#
# Three of Hudi's keys say how long a writer waits for a lock. One try lasts `wait_time_ms`. After a
# failed try the writer pauses and then tries again, up to `client.num_retries` times. Choose the
# values so that a writer outlasts a holder that died with a lease of one minute, but reports within
# two minutes that it cannot get the lock. The simulator plays both cases (no real time passes), and
# the checker judges both histories.

# %%
WAIT_TIME_MS, NUM_RETRIES, WAIT_BETWEEN_MS = 60_000, 50, 5_000
wait(WAIT_TIME_MS, NUM_RETRIES, WAIT_BETWEEN_MS)

# %% [markdown]
# Now write `until`: when must a holder stop? A service such as ZooKeeper ends a session `ttl_ms`
# after it *received* the last heartbeat, by its own clock. The holder knows only when it sent that
# heartbeat (`sent_ms`) and when the answer came (`answered_ms`), by its own clock, which runs up to
# 1% too fast or too slow. Return the time at which the holder must stop, by its own clock. The
# holder must use at least 90% of the session. The simulator runs three clients with your function
# in 200 small worlds, in which requests are slow, answers are lost and processes are paused. A
# solution is in `solutions/until.py`.

# %%
from lockkit.lab.course.exercises import judge


def until(sent_ms, answered_ms, ttl_ms):
    return answered_ms + ttl_ms


judge(until)
