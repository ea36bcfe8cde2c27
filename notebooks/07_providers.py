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
# beside the table. All of them exclude; they differ in how soon the next one gets the lock, what a
# grant costs, and above all in what happens when the holder stands still, dies, or when the service
# itself goes away. Which of them would you want at three in the morning?
#
# The cells take a minute; the panel runs as long as you like.

# %% [markdown]
# ## Run
#
# ZooKeeper watches its clients and pushes; an object store can only be asked. After the holder is
# stopped, which of the two hands over sooner: a session of 4 seconds, or a lease of 4 seconds?
#
# 1. Choose two services, predict, press **Start**. Real services start on this machine (ZooKeeper
#    and the Hive Metastore from the jars inside pyspark), and three processes contend for each
#    lock.
# 2. **Stall the holder**: SIGSTOP for two and a half leases, on both sides. Watch the narrow bar:
#    nobody may believe in the lock above it once its lease is over.
# 3. **Kill the holder**, then **Restart the service**.
# 4. **Stop**, and read the table.

# %%
from lockkit.lab.widgets import Providers

providers = Providers("storage", "zookeeper")
providers

# %% [markdown]
# ## See
#
# Each coloured bar is one grant, from the moment when a process was told to the moment when it
# let go, or ceased to believe. Two bars above one another would be two holders.
#
# ## Predict: the holder that wakes up
#
# Whoever holds the lock is stopped (SIGSTOP) for two and a half leases. Long before that somebody
# else has been granted it. Then the first one goes on, in the middle of a statement, and has
# noticed nothing.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.contention import GUESSES, stall_both, wait

woken = Predict("For how long do two processes believe that they hold the lock?", GUESSES)
woken

# %% [markdown]
# ## Run: an object and a file
#
# Three processes on each, with leases of two seconds.

# %%
if woken.picked:
    handed = woken.run(stall_both, "storage", "filesystem")
    print(repr(handed))
print(woken.said)

# %% [markdown]
# ## Check

# %%
if woken.did:
    assert handed.overlap_s == 0
    for name, figures in handed.sides:
        print(f"{name}: {figures.grants} grants, at most {figures.longest_run} in a row to one")

# %% [markdown]
# ## Why
#
# All of these are leases, whatever they are called: a session, a heartbeat, an expiry. Nobody can
# tell a holder that is dead from one that is slow, so after a crash the others wait for the
# lease. ZooKeeper's server runs that clock itself, and tells the next in line at once; a
# contender on an object store must look, and must allow for the store's clocks.
#
# And in none of them does the lock stop a holder that wakes up late. Even ZooKeeper's own client
# still says `is_acquired` after its session has expired; here every handle ceases to believe by
# its own clock before the service may grant the lock again. What *refuses* a late write is a
# token that rises with every grant, checked by whatever is written: `lock.fence`. An object store
# can check it in the write itself. A file has no such number (`lock.fence` is `None`).
#
# ## In production
#
# `lockkit.open_lock` takes Hudi's own configuration, or an URL such as
# `zookeeper://host:2181/hudi/locks/orders`. To move a live table from one provider to another,
# hold both while writers change over (`lockkit.providers.both`). Mind the sum of Hudi's retries:
# with its defaults an acquire may take 55 minutes to fail. `make providers` starts all the
# services.
#
# ## Your turn
#
# Hudi waits for a lock by three keys: one try lasts `wait_time_ms`; after a failed one comes a
# pause, and another try, `client.num_retries` times. Choose them so that a writer outlives a holder
# that died with a lease of one minute, and says within two minutes if the lock is not to be had.
# Both are played (no time goes by), and the checker judges both histories.

# %%
WAIT_TIME_MS, NUM_RETRIES, WAIT_BETWEEN_MS = 60_000, 50, 5_000
wait(WAIT_TIME_MS, NUM_RETRIES, WAIT_BETWEEN_MS)
