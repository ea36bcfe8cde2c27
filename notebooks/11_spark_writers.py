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
# # PySpark writers: three programs write DataFrames into one table at the same time
#
# One call writes a DataFrame into a table and returns the commit that it made. Three programs make
# that call at the same moment. Which of them conflict, what happens to the second one, and does a
# retry help? And in which process does a commit run: does it stop when its driver is paused?
#
# This takes about a minute on a quiet machine and up to eight on a busy one. Spark starts once,
# and three PySpark programs share it. Without Spark (with `LOCKKIT_FAST`, or with less than 4 GB of
# memory) some runs print *skipped*, and the three are plain Python programs that make the same
# commits.

# %% [markdown]
# ## Predict
#
# The amount of order *a* is 0. At the same moment, W1, W2 and W3 each read it, add 10, and upsert
# the result. A conflict is retried up to twenty times
# (`hoodie.write.num.retries.on.conflict.failures`).

# %%
from lockkit.lab.widgets import Predict, Workbench
from lockkit.lab.course.programs import ANEW, COLUMNS, COUNTS, FATES, ONCE, SKIPPED, SUMS, Programs

added = Predict("Each program adds ten. What is the final amount of order a?", SUMS,
                then="go on below")
added

# %% [markdown]
# ## Run
#
# The run uses an object server on this machine, one Spark and three programs. Each program is a
# process with its own lock, its own retries and its own commit. All of them end with this kernel,
# or with `crew.stop()`.

# %%
crew = Programs()
crew.start()

# %% [markdown]
# First, each program does the obvious: it reads the table, computes, and calls `write(...,
# retries=20)`.

# %%
once = added.run(crew.add, ONCE)
once

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
added.explain("""
All three commits were acknowledged, and each was checked against all before it. (The fourth client,
W0, made the table.) But the *rows* were old: each program read and collected them once, and each
retry wrote the same rows again. So the second writer wrote *0 + 10* once more, over a 10 that it
had not read. The checker still says VALID, because it judges locks and commits: no acknowledged
commit was overwritten without a check. It does not know how a program computed its rows. (A
DataFrame from `read` or `load()` that is written back unchanged does not get this far: `write`
detects that others have committed since it was read, and refuses it with `OldRows`.)

A correct retry must begin with the read. In the next run each attempt reads the table again. It
also makes sure that no other commit came between its read and the start of its write.
""")

# %%
anew = crew.add(ANEW)
anew

# %% [markdown]
# ## A DataFrame, and back
#
# Now this notebook makes the call itself, on the same Spark. (A table stores the names of three
# columns: its key, its partition, and the column that shows which of two rows is newer. The first
# write sets them with `record_key=`, `partition_path=` and `precombine=`.)

# %%
if crew.spark:
    from lockkit.spark import read, write
    df = crew.spark.createDataFrame([("a", "eu", 2, 5), ("e", "us", 1, 7)], COLUMNS)
    print(f"commit ..{write(df, crew.url, endpoint=crew.endpoint).instant[-6:]}")
    read(crew.spark, crew.url, endpoint=crew.endpoint).orderBy("id").show()
print("" if crew.spark else SKIPPED)

# %% [markdown]
# Spark's own reader can read the table as it was before that write:

# %%
if crew.spark:
    orders = crew.spark.read.format("lockkit").option("endpoint", crew.endpoint)
    orders.option("as.of.instant", crew.first).load(crew.url).orderBy("id").show()
print(f"as of {crew.first}: {crew.rows(as_of=crew.first)}; now: {crew.rows()}")

# %% [markdown]
# ## Predict: which writes conflict?
#
# This time each program writes its own order. W1 upserts *b* and W2 upserts *c*, both in region
# `eu`. W3 upserts *d* in region `us`. No program retries. A region is a partition, and here each
# partition has one file group.

# %%
met = Predict("Three orders, each written by one program only. How many programs commit?", COUNTS)
met

# %%
rows = {"W1": [("b", "eu", 2, 1)], "W2": [("c", "eu", 2, 2)], "W3": [("d", "us", 2, 3)]}
apart = met.run(crew.together, rows)
print(*apart.reported, sep="\n")
Workbench.replay(apart.events, apart.refused)

# %% jupyter={"source_hidden": true}
met.explain("""
Two writers conflict if they write to the same *file group*, not only if they write the same row. A
copy-on-write table rewrites the whole file, so the second writer would hide the rows of the first.
The file group of a new key is decided by its bucket, a hash of the key, so two programs agree on it
without communicating.
""")

# %% [markdown]
# ## Predict: where does a commit run?
#
# Spark has an interface for commits: `df.write.format("lockkit").save()` hands the commit to Spark.
# W1 uses this interface. Its driver is paused (SIGSTOP) as soon as the commit has acquired the
# lock. W2 wants to commit as well.

# %%
stopped = Predict("W1's driver is paused. What does its commit do?", FATES)
stopped

# %%
save = stopped.run(crew.stop_driver, "save")
direct = crew.stop_driver("write")
print(f"{save!r}\n{direct!r}")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert (str(once), str(anew), str(apart)) == (SUMS[1], SUMS[0], COUNTS[1])
assert once.verdict.kind == anew.verdict.kind == apart.verdict.kind == "VALID"
assert all(each.error == "CommitConflict" for each in apart.reported if not each.done)
assert (str(save), str(direct)) == ((FATES[1], FATES[0]) if crew.spark else (SKIPPED, SKIPPED))

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
stopped.explain("""
**Executors write, the driver commits.** Each executor merges the rows of a file group, puts the
new file into the store, and returns one line of statistics. No reader sees these files until the
driver publishes them in its own Python process. On this table it does so under the lock; a new
table's commits take no lock by default (lesson 17). `write` returns the commit or raises
`CommitConflict`, `LockLost` or `CommitUnknown`.

Spark's `DataSourceWriter.commit()` runs elsewhere: in a Python worker beside Spark's JVM, possibly
on another machine. A driver that is paused, or that has lost its lock, cannot stop that commit.
`save()` returns nothing, and an error arrives as text (`with lockkit.spark.unwrapped():` turns it
into a `CommitConflict` again). The commit is fenced and correct in both cases, but with `save()`
the driver does not know about it.

**A retry repeats the write, not your program.** The conflict check covers what was committed since
the write *began*. Your program must protect what it read before that: begin again with the read,
and pass `write(..., claim=...)`, which refuses the write if the table has changed in between.
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi** has the same unit of conflict and the same default: no retries
#   (`hoodie.write.num.retries.on.conflict.failures` is 0). To let two programs write to one table,
#   give each its own partitions, or use more buckets.
# * **Spark** retries *tasks* automatically, four times on a cluster, and repeats stages. So a
#   file's name contains its attempt, and files of a lost task are never published.
# * **A thread is not a program:** give each writer its own lock handle. `Lock` refuses to be used
#   by two threads at once.
# * **`mode("append")` of `format("lockkit")`** is an upsert by the table's key. Streams should
#   write with `foreachBatch`, where a conflict can be retried in place.
#
# ## Your turn
#
# W1, W2 and W3 have one order each, all in region `eu`, and want to commit at the same moment
# without a conflict. A table has `hoodie.bucket.index.num.buckets` file groups in a partition. Find
# the smallest number of `BUCKETS` with which all three commit at once; the checker has to agree.
# (What does a reader of the region pay for a large number?)

# %%
BUCKETS = 1
three = {"W1": [("a", "eu", 2, 1)], "W2": [("b", "eu", 2, 2)], "W3": [("c", "eu", 2, 3)]}
tried = crew.together(three, BUCKETS)
fewer = any(crew.together(three, each).committed == 3 for each in range(1, BUCKETS))
solved = tried.committed == 3 and tried.verdict.kind == "VALID" and not fewer
print(f"{tried!r}\n", "solved" if solved else f"not yet: try {'fewer' if fewer else 'more'}")

# %% [markdown]
# A new order has no file group yet. Write `bucket`, which chooses one: a number from 0 to
# `len(sizes) - 1`. `sizes` lists how many rows this writer sees in each file group. No key may ever
# be in two file groups, and no file group may get most of the orders. The simulator runs three
# writers with your function in 200 small worlds. Each writer is a process of its own: as in Python,
# `hash(key)` differs from process to process, and no variable is shared. A solution is in
# `solutions/bucket.py`.

# %%
from lockkit.lab.course.exercises import judge


def bucket(key, sizes):
    return sizes.index(min(sizes))


judge(bucket)
