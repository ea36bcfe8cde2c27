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
# # Group commit: what happens to the rate when the writers double?
#
# A commit replaces one object, such as a fence, a version file or a pointer in a catalog. Only one
# replacement at a time succeeds. Google Cloud Storage takes one write per second to an object. Does
# a table there take one commit per second, however many writers it has?
#
# This takes less than a minute on a quiet machine, and two on a busy one.

# %% [markdown]
# ## Predict
#
# Writers append to one table, and each makes one commit after the other. For each commit a writer
# reads the fence, adds its own commit, and writes the fence back *if it is as I read it*. A writer
# that is refused reads the fence again and tries again. A request takes 60 ms, and the fence takes
# one write per second.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.together import GUESSES, KILL_GUESSES, Combining, Writing
from lockkit.lab.course.together import batches, figure, rates
from lockkit.lab.course.peers import peers

alone = Predict("Writers double from 1 to 16. What happens to the commits per second?", GUESSES)
alone

# %% [markdown]
# ## Run: each writer for itself

# %%
retried = alone.run(rates, helping=False)
retried

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
alone.explain("""
One write of the fence decides one commit. More writers only make more writers wait: the rate stays
below one commit a second. Nothing makes the writers take turns: in this run one writer wins each
time, and all others wait to the end. On a store without that limit there is at most one commit for
each round trip, and most requests are refused.
""")

# %% [markdown]
# Other libraries decide by one conditional write, too. If deltalake and pylance are installed,
# they run here, in real time, on a store that answers after 60 ms and does not limit writes. Look
# at the longest wait, and at the commits of the unluckiest writer.

# %%
print(peers())

# %% [markdown]
# ## Predict: deciding together
#
# Now a writer that loses the fence makes an *offer*: a small object that says what it wants to
# commit. Before a writer replaces the fence, it may list the offers and put all of them into the
# same write. It checks each offer for conflicts with the others, and with the commits that the
# offer's writer has not seen.

# %%
together = Predict("The writers double again. What happens to the rate now?", GUESSES)
together

# %%
helped = together.run(rates, helping=True)
helped

# %%
figure(retried, helped)

# %% jupyter={"source_hidden": true}
together.explain("""
The store's record shows who decided for whom. In the picture, *offer* is a writer's request,
*decides 3* is one write of the fence with three commits, and a ring marks a commit that another
writer decided. On the right, a diamond in its writer's colour is a commit that readers see. A check
mark shows when its writer has made sure of that.
""")

# %%
history = Writing(5).play(2.0).events
batches(history)

# %% [markdown]
# ## Predict: kill the combiner
#
# The writer that decides for others is called the combiner. Here it is killed just before it sends
# the write that decides.

# %%
killed = Predict("What becomes of the offers that it was about to decide?", KILL_GUESSES)
killed

# %% [markdown]
# Press **Show it**, then **Kill the combiner**, and then **Go on** as long as the button says so.
# What became of the offers? (Or run the code below.)

# %%
combining = Combining()
killed.reveal(combining)

# %%
rest = killed.run(combining.kill_and_go_on)
print(repr(rest))

# %% jupyter={"source_hidden": true}
killed.explain("""
Any writer may decide an offer. The combiner is not elected, and it holds no lock, so nobody waits
for a lease to end. The next writer that lists the offers decides them. Even a writer that wins the
fence each time lists them after four commits at the latest; until then it decides only its own
commits. If the killed writer had offered its own commit, that one is decided, too.
""")

# %% [markdown]
# ## Check

# %% jupyter={"source_hidden": true}
# Check
assert str(retried) == GUESSES[1] and str(helped) == GUESSES[2]
assert helped.grows > 4 > 2 > retried.grows
assert batches(history).helped and str(rest) == KILL_GUESSES[2]

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
killed.explain("""
Three rules make it safe for another client to decide.

* **Data first.** An offer is sent when the files and the exact bytes of the commit are in the
  store. A decider needs nothing from the offer's writer.
* **The base.** An offer says up to which decision its writer has seen the table. The decider
  compares it with every later commit, and with those before it in the same batch. If the fence
  no longer lists all of them, it leaves the offer to its writer.
* **Irrevocable.** Once its writer has sent an offer, it may say *not committed* only if the fence
  has decided so. A timeout decides nothing.

A commit is final when the fence names it. Its completed file appears a moment later, and any
writer or reader can create it from the writer's own bytes.
""")

# %% [markdown]
# ## In production
#
# * A new copy-on-write table commits in this way: appends, upserts and deletes take no lock. *Group
#   commit* in the documentation says what works and what does not. With `Table.create(url,
#   record_key="id", commit="serial")` the commits of a table take turns under its lock.
# * The figures above come from a simulation: requests take time, and processors take none. The page
#   *Figures* has measured rates. They include the client's processor time, which is the limit on a
#   fast store.
# * **Delta Lake** and **Lance** put one file per version, so that writers contend for the next
#   number. A log or a database between the writers and the store (Delta's commit coordinators, an
#   Iceberg REST catalog) can batch commits, too, but it must stay alive.
# * Databases call it *group commit*; *flat combining* (Hendler and others, 2010) is the same idea
#   for threads: the thread that holds the structure does the work that others have announced.
#
# ## Your turn
#
# Write `decide`, the decision. `window` lists the file groups of the latest decisions, oldest
# first; `window[0]` is decision number `first`. Each offer is `(instant, base, groups)`, in the
# order of the instants; its writer has seen every decision up to number `base`. Return a dict. Its
# value is `True` for an offer that becomes a commit. It is `False` for an offer that conflicts: a
# commit that the offer's writer has not seen wrote one of the same groups. Leave out an offer that
# cannot be judged. The simulator runs three writers in 200 small worlds, and any of them decides
# for the others. A solution is in `solutions/decide.py`.

# %%
from lockkit.lab.course.exercises import judge


def decide(first, window, offers):
    decided = {}
    for instant, base, groups in offers:
        unseen = window[base + 1 - first :]
        decided[instant] = not any(groups & each for each in unseen)
    return decided


judge(decide)
