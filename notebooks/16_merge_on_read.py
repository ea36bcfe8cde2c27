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
# # Merge on read: two writers change the same rows. Must one of them be refused?
#
# A merge-on-read table stores changes in *log files* beside its base files. Readers merge both. So
# a writer reads nothing and replaces nothing. If two writers change the same rows at the same time,
# could both commit? Which row does a reader get then? And what if the log files are merged into a
# new base file meanwhile?
#
# This takes a few seconds on a quiet machine, and up to half a minute on a busy one. You can press
# the buttons for as long as you like.

# %% [markdown]
# ## Predict
#
# A table has 20,000 orders in one file group. One order changes. In a copy-on-write table the
# upsert writes the whole base file again, with that row changed. In a merge-on-read table it writes
# a log file with only that row.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.merging import COST_GUESSES, LATE_GUESSES, OVERLAP_GUESSES, Overlap
from lockkit.lab.course.merging import change_one, compact_beside, open_log

cost = Predict("Merge on read writes how many bytes, compared with copy on write?", COST_GUESSES)
cost

# %% [markdown]
# ## Run

# %%
changed = cost.run(change_one)
changed

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
cost.explain("""
The work has not gone away; it has moved to the readers. Each reader merges every log file of the
file group, until a *compaction* writes the next base file.
""")

# %% [markdown]
# A log file is a sequence of blocks. Each block has a header, with the instant that wrote it and
# the schema of its rows. The name of the log file contains the file group and the instant. Here is
# one with two rows:

# %%
opened = open_log()
opened

# %% [markdown]
# ## Predict: the same overlap under two kinds of control
#
# Two orders are in one file group. W1 and W2 both read the table, and both write a log file with a
# new amount for `order-1`. Then W2 commits, and W1 commits after it. Each row has a time (`at`), by
# which readers order the rows of one key: W2's row is the newer one.
#
# One table is under **optimistic** control: a commit is checked against the commits since its
# snapshot. The other is under **non-blocking** control, which is made for log files.

# %%
overlap = Predict("How many of the two commits stand?", OVERLAP_GUESSES)
overlap

# %% [markdown]
# Press **Show it**, then **W1 writes**, **W2 writes**, **W2 commits** and **W1 commits**, and watch
# both tables. Then press **Compact**, or begin again in another order. (Or run the code below.)

# %%
tables = Overlap()
overlap.reveal(tables)

# %%
both = overlap.run(tables.overlap)
print(repr(both))

# %% jupyter={"source_hidden": true}
overlap.explain("""
Both commits stand under non-blocking control, and the reader gets W2's amount, although W1
committed later: its row is the older one. Under optimistic control W1 was refused, and deleted its
log file. Here the refusal gains nothing: a retry of W1 writes the same row again, and the reader
still gets W2's amount.
""")

# %% [markdown]
# ## Predict: a compaction beside a slow writer
#
# W1 has written its log file and has not committed yet. W2 commits another log file. A compaction
# merges what is committed (the base file and W2's log file) into a new base file, and commits. Now
# W1 commits. W1 began before the compaction, so W1's instant is the **older** one.

# %%
late = Predict("What becomes of W1's row?", LATE_GUESSES)
late

# %% [markdown]
# ### Run: a reader that compares instants
#
# This reader puts each log file on top of the newest base file that is older than the log file's
# own instant.

# %%
by_request = late.run(compact_beside, completion=False)
by_request

# %% jupyter={"source_hidden": true}
late.explain("""
By its instant, W1's log file belongs to the old base file. Readers no longer read that base file,
and the compaction did not merge the log file, because it was not committed. An acknowledged row is
lost, although no writer made a mistake. A correct reader compares another time: *when the log file
was committed*.
""")

# %%
by_completion = compact_beside(completion=True)
by_completion

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert str(changed) == COST_GUESSES[2] and str(both) == OVERLAP_GUESSES[1]
assert both.verdicts == ["VALID", "VALID"]
assert both.stages[0].rows == both.stages[1].rows == (("order-1", 3, 15), ("order-2", 1, 0))
assert str(by_request) == LATE_GUESSES[2] and str(by_completion) == LATE_GUESSES[1]

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
late.explain("""
Two base files of one file group cannot both be the newest, so one of two commits hides the
other's rows: optimistic control must refuse one. Two log files do not hide each other's
rows. Only the order of their rows must be decided, and that needs no conflict check:

* **Of two rows with the same key** the one with the greater `at` stays (the table's *precombine
  field*). If both are equal, or the table has no such field, the row of the later instant stays.
* **Which log files belong to which base file** is decided by completion times. A compaction with
  the instant T merges exactly what was committed before T. What is committed later stays on top.

Whatever *replaces* a file group (an overwrite, a clustering) still conflicts with every writer of
that file group. And the commit itself is the same as in notebook 08: one conditional write decides.
""")

# %% [markdown]
# ## In production
#
# * **Apache Hudi:** `hoodie.write.concurrency.mode=NON_BLOCKING_CONCURRENCY_CONTROL`, for
#   merge-on-read tables with a bucket index, since 1.0. That version gave each instant its
#   completion time, which is in the name of the completed file.
# * **Readers pay.** Until a compaction, each read merges all log files. A query that does not need
#   the newest rows can read base files alone: `table.read(query="read_optimized")`.
# * **Compaction** runs inline (`hoodie.compact.inline=true`), in a thread beside the writer, or in
#   another process (`lockkit table compact URL`, like Hudi's HoodieCompactor).
# * **In lockkit:** `Table.create(..., table_type="MERGE_ON_READ", index="BUCKET")`, and the option
#   above for the writers. *Share a table with Apache Hudi* in the documentation has the details.
# * **Delta Lake** and **Iceberg** have deletion vectors and delete files: an upsert marks old rows
#   as deleted instead of copying their file. Two such commits to one data file conflict as before.
#
# ## Your turn
#
# Write `file_slice`, the reader's choice. `bases` and `logs` are the base files and the log files
# of one file group, in any order. Each file is a pair: the instant at which its writer began, and
# the time at which the writer committed (`None`: not yet). Return a pair: the instant of the base
# file to read (`None` if there is none), and the list of the log files on top of it, sorted by
# instant. The simulator runs two writers and a compaction in 200 small worlds. It finds lost rows.
# It also finds log files that are read although they were merged (a clean may have deleted them). A
# solution is in `solutions/file_slice.py`.

# %%
from lockkit.lab.course.exercises import judge


def file_slice(bases, logs):
    base = max((instant for instant, done in bases if done is not None), default=None)
    newer = [instant for instant, done in logs if done is not None and instant > (base or 0)]
    return base, sorted(newer)


judge(file_slice)
