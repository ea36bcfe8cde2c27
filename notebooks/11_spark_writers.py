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
# # PySpark writers: a DataFrame into a table, and two others at the same time
#
# One call writes a DataFrame into a table, and says which commit it became. Three programs make
# that call at the same moment: which of them meet, what is the one told that comes second, and does
# it help to try again? And in which process does a commit run, if its driver stands still?
#
# This takes a minute or two: Spark starts once, and three PySpark programs share it. Where it says
# *skipped* there is no Spark (with `LOCKKIT_FAST`, or on less than 4 GB of memory): the three are
# then plain Python programs, which make the same commits.

# %% [markdown]
# ## Predict
#
# Order *a* has the amount 0. W1, W2 and W3 each read it, add 10, and upsert what they get, all at
# the same moment. A conflict is retried, up to twenty times: that is
# `hoodie.write.num.retries.on.conflict.failures`.

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.programs import ANEW, COLUMNS, COUNTS, FATES, ONCE, SKIPPED, SUMS, Programs

added = Predict("Three times ten. What is the amount of order a in the end?", SUMS)
added

# %% [markdown]
# ## Run
#
# An object server on this machine, one Spark, and three programs (processes of their own), each
# with its own lock, its own retries and its own commit. All of it ends with this kernel, or with
# `crew.stop()`.

# %%
crew = Programs()
crew.start()

# %% [markdown]
# The obvious way first: read the table, compute, `write(..., retries=20)`.

# %%
once = added.run(crew.add, ONCE)
once

# %% [markdown]
# ## See
#
# Three commits, all acknowledged, and nothing wrong with any of them: each was checked against all
# before it. It's the *rows* that were old. They were read and collected once, and each new attempt
# writes the same ones. So the second attempt wrote *0 + 10* once more, over the 10 that it had not
# seen. (A DataFrame of `read` or `load()` that is written back as it is does not get so far:
# `write` sees that others have committed since it was read, and refuses it with `OldRows`.)
#
# To begin again has to mean: from the read. In the next run each attempt reads anew, and also makes
# sure that nobody has committed between its read and its write's beginning.

# %%
anew = crew.add(ANEW)
anew

# %% [markdown]
# ## A DataFrame, and back
#
# This is the call, from this notebook, on the same Spark. (A table knows its key, its partitions,
# and which of two versions is the newer; the first write says so with `record_key=`,
# `partition_path=` and `precombine=`.)

# %%
if crew.spark:
    from lockkit.spark import read, write
    df = crew.spark.createDataFrame([("a", "eu", 2, 5), ("e", "us", 1, 7)], COLUMNS)
    print(write(df, crew.url, endpoint=crew.endpoint))
    read(crew.spark, crew.url, endpoint=crew.endpoint).orderBy("id").show()
print("" if crew.spark else SKIPPED)

# %% [markdown]
# And by Spark's own reader, as the table was before that:

# %%
if crew.spark:
    orders = crew.spark.read.format("lockkit").option("endpoint", crew.endpoint)
    orders.option("as.of.instant", crew.first).load(crew.url).orderBy("id").show()
print(f"as of {crew.first}: {crew.rows(as_of=crew.first)}; now: {crew.rows()}")

# %% [markdown]
# ## Predict: who meets whom?
#
# Three different orders this time. W1 upserts *b* and W2 *c*, both of region `eu`; W3 upserts *d*,
# of region `us`. Nobody retries. A region is a partition, and has one file group here.

# %%
met = Predict("Three orders, each of them written by one program only. How many commit?", COUNTS)
met

# %%
rows = {"W1": [("b", "eu", 2, 1)], "W2": [("c", "eu", 2, 2)], "W3": [("d", "us", 2, 3)]}
apart = met.run(crew.together, rows)
print(repr(apart))
Workbench.replay(apart.events)

# %% [markdown]
# Writers do not meet at a row, they meet at a *file group*: a copy-on-write table writes it anew,
# whole, and the second one would hide what the first has put in. Which group a new key goes to is
# decided by its bucket, a hash of the key, so that two programs agree on it without asking.
#
# ## Predict: where does a commit run?
#
# Spark has an interface for that: `df.write.format("lockkit").save()` hands the commit to Spark.
# W1 does so. The moment its commit has taken the lock, its driver is stopped (SIGSTOP), and W2
# wants to commit as well.

# %%
stopped = Predict("W1's driver stands still. What does its commit do?", FATES)
stopped

# %%
save = stopped.run(crew.stop_driver, "save")
direct = crew.stop_driver("write")
print(f"{save!r}\n{direct!r}")

# %% [markdown]
# ## Check

# %%
assert (str(once), str(anew), str(apart)) == (SUMS[1], SUMS[0], COUNTS[1])
assert once.verdict.kind == anew.verdict.kind == apart.verdict.kind == "VALID"
assert all(each.error == "CommitConflict" for each in apart.told if not each.done)
assert (str(save), str(direct)) == ((FATES[1], FATES[0]) if crew.spark else (SKIPPED, SKIPPED))

# %% [markdown]
# ## Why
#
# **Executors write, the driver commits.** Each executor merges the rows of a file group and puts
# the new file into the store; one line of statistics comes back. No reader sees these files until
# the driver publishes them, under the lock, in its own Python: `write` returns the commit, or
# raises `CommitConflict`, `LockLost` or `CommitUnknown` as what they are.
#
# Spark's `DataSourceWriter.commit()` runs elsewhere: in a Python worker beside Spark's JVM, on
# another machine if that is where the JVM is. A driver that was stopped, or lost its lock, can't
# hold it back, there is nothing to return, and an error comes out as text
# (`with lockkit.spark.unwrapped():` makes it a `CommitConflict` again). The commit is fenced and
# right in both; only, of one of them the driver knows nothing.
#
# **A retry repeats the write, not your program.** The conflict check covers what was committed
# since the write *began*. What you read before that is yours to guard: begin again from the read,
# and with `write(..., claim=...)` refuse to go on if the table has moved in between.
#
# ## In production
#
# * **Apache Hudi** has the same unit of conflict and the same default: no retries
#   (`hoodie.write.num.retries.on.conflict.failures` is 0). Whoever wants two programs at one table
#   gives each partitions of its own, or more buckets.
# * **Spark** retries *tasks* by itself, four times on a cluster, and repeats stages: that is why a
#   file's name tells its attempt, and why what a lost task left behind is never published.
# * **A thread is not a program:** a lock handle for each writer. `Lock` refuses to be used by two
#   threads at once.
# * **`mode("append")` of `format("lockkit")`** is an upsert by the table's key; streams should
#   write with `foreachBatch`, where a conflict can be retried in place.
#
# ## Your turn
#
# W1, W2 and W3 have one order each, all of region `eu`, and want to commit at the same moment
# without meeting. A table has `hoodie.bucket.index.num.buckets` file groups in a partition. Find
# the smallest number of `BUCKETS` with which all three commit at once; the checker has to agree.
# (And what does a reader of the region pay for a large number?)

# %%
BUCKETS = 1
three = {"W1": [("a", "eu", 2, 1)], "W2": [("b", "eu", 2, 2)], "W3": [("c", "eu", 2, 3)]}
tried = crew.together(three, buckets=BUCKETS)
solved = tried.committed == 3 and tried.verdict.kind == "VALID"
print(f"{tried!r}\n", "solved" if solved else f"not yet: {tried.committed} of 3 committed")
