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
# # Break it yourself
#
# Every rule of these protocols is there because something breaks without it. The simulator plays
# the library's own code in thousands of worlds, each made by a number, its *seed*: clocks are
# wrong, answers get lost, processes sleep and die. If you switch one rule off, how soon does a
# world go wrong, and what does the shortest such world look like?
#
# This takes about a minute; the ladder at the end takes as long as you like.

# %% [markdown]
# ## Predict
#
# Clocks of computers differ. Who takes over a lease that has run out waits a moment longer, the
# *drift*, in case the holder's clock is slow. Here nobody waits, and clocks differ by up to a
# second; a lease lasts ten.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.breaking import GUESSES, Ladder, hunt, play, survey

soon = Predict("In which seed do two clients first believe that they hold the lock?", GUESSES)
soon

# %% [markdown]
# ## Run: three hundred worlds

# %%
found = soon.run(hunt, "lease", "drift")
print(repr(found.shortest))

# %% [markdown]
# ## See
#
# Most seeds do no harm: it takes clocks that are wrong in the right direction, and a client that
# looks at the right moment. That is why nobody meets such a mistake while testing by hand, and
# somebody does every week with a thousand tables. This is the shortest of them:

# %%
found.shortest.draw()

# %% [markdown]
# The simulator stops at the first harm and says which invariant broke. The history is then judged
# once more, by the checker that judges histories of real buckets; it knows nothing of the
# simulation, and comes to the same conclusion.
#
# ## Check: it was the rule
#
# The same seed is the same world. With the rule on, it goes well.

# %%
broken, sound = found.shortest, play("lease", "", found.shortest.seed)
print(repr(broken), repr(sound), sep="\n")
assert broken.verdict.kind == "INVALID" and "two believers" in broken.verdict.because
assert not sound.harm and sound.verdict.kind == "VALID"

# %% [markdown]
# ## Choose your own
#
# Eight scenarios: a lease, transactions on a table, the same with cleans and rollbacks, a leader
# election, a write-ahead log, a queue, Terraform's state lock, and locks of many keys. Choose one,
# switch a rule off, say how soon it will be missed, and press **Play**.

# %%
from lockkit.lab.course.breaker import Breaker

breaker = Breaker("election", "recognise")
breaker

# %% [markdown]
# ## Which rules are missed soonest?
#
# Every rule of the lease, off in turn. **Guess first:** which is missed last?

# %%
table = survey("lease", seeds=300)
assert table.hidden == ["confirm"]
table

# %% [markdown]
# One of them is not missed in three hundred worlds. It is no decoration. Without it a client that
# comes back to an old claim of its own takes it for a new grant. It counts the lease from its look;
# the others count from when the claim was written. A *search* of every order of a few moves finds
# that story in seconds (`lockkit explore`); chance needs some two thousand worlds. Both are needed:
# the search is complete and small, the worlds are large.
#
# ## Why
#
# A run that goes well proves nothing about a rule: without it, most of 300 went well, too. So a
# test of a safety rule is only worth something if it has been seen to fail without it. All the
# rules here are in the library's tests as planted mistakes: a mistake that nothing finds would be a
# hole in the net, and the tests would say so.
#
# And a seed is worth more than a stack trace. It is the whole world in one number:
# `lease/drift:279` is the same history on your machine, today and next year.
#
# ## In production
#
# * **Antithesis, FoundationDB, TigerBeetle** test in this way: one seed, all of time, storage and
#   network simulated, faults at will. **Jepsen** does it with real processes, and judges a history.
# * **Hudi #14373, OpenTofu #4405, Terraform's force-unlock**: each is a rule in these lists
#   (`claim_412 lost`, `settle`, `delete_version`), and was found in production.
# * **Here:** `lockkit simulate --scenario lease --seeds 1..1000 --mutant drift`; add
#   `--history run.jsonl` and open that file with `Workbench.replay`.
#
# ## Your turn: the ladder
#
# Six rungs, in any order. Name a scenario, a rule that is off, and a seed; run the second cell as
# often as you like, the ladder remembers. `hunt` and `survey` find seeds, the panel above lists the
# rules. (For the fifth: what guards a commit against a writer that wakes up late? For the last: the
# table above.)

# %%
ladder = Ladder()

# %%
SCENARIO, RULE, SEED = "lease", "drift", 1
ladder.climb(SCENARIO, RULE, SEED)
