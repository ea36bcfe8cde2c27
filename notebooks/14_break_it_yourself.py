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
# Every rule of these protocols exists because something breaks without it. The simulator runs the
# library's own code in thousands of worlds, in which clocks are wrong, answers are lost, and
# processes pause and die. One number, the *seed*, determines everything that happens in a world. If
# you switch one rule off, how soon does a world go wrong, and what does the shortest such world
# look like?
#
# This takes ten seconds on a quiet machine, and up to two minutes on a busy one. The ladder at the
# end takes as much time as you give it.

# %% [markdown]
# ## Predict
#
# The clocks of different computers disagree. A client that takes over an expired lease waits a
# moment longer, the *drift*, in case the <abbr title="holder: the client to which the lock was
# granted last">holder</abbr>'s clock is slow. Here that rule is off: no client waits, and clocks
# differ by up to a second. A lease lasts ten seconds.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.breaking import GUESSES, Ladder, hunt, play, survey

soon = Predict("In which seed do two clients first hold the lock at once?", GUESSES)
soon

# %% [markdown]
# ## Run: three hundred worlds

# %%
found = soon.run(hunt, "lease", "drift")
print(repr(found.shortest))

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
soon.explain("""
Most seeds do no harm. Harm needs a clock that is wrong in the harmful direction, and a client that
looks at the wrong moment. So a manual test hardly ever meets such a mistake, but a company with a
thousand tables meets it every week. This is the shortest of the worlds that went wrong:
""")

# %%
found.shortest.draw()

# %% [markdown]
# The simulator stops at the first harm and names the violated invariant. Then a checker judges the
# history independently: the same checker judges histories of real buckets, and it shares no code
# with the simulator. It reaches the same conclusion.
#
# ## Check: it was the rule
#
# The same seed gives the same world. With the rule on, no harm is done.

# %%
worst, sound = found.shortest, play("lease", "", found.shortest.seed)
print(repr(worst), repr(sound), sep="\n")

# %% jupyter={"source_hidden": true}
# Check
assert worst.verdict.kind == "INVALID" and "two clients count on the lock" in worst.verdict.because
assert not sound.harm and sound.verdict.kind == "VALID"

# %% [markdown]
# ## Choose your own
#
# The scenarios are a lease, tables of several kinds with their writers, services and readers, a
# leader election, a write-ahead log, a queue, Terraform's state lock, locks of many keys, commits
# in groups, and a lock that readers share. Choose a scenario, switch a rule off, guess how soon
# that does harm, and press **Play**.

# %%
from lockkit.lab.course.breaker import Breaker

breaker = Breaker("election", "recognise")
breaker

# %% [markdown]
# ## How soon does each missing rule do harm?
#
# Now every rule of the lease is switched off in turn. Among them are `drift` (see above),
# `claim_412 lost` (a 412 to a claim is read as a lost race), `confirm` (a write that is found by
# reading is trusted without a further write) and `fence off` (nothing guards a commit).

# %%
from lockkit.lab.course.breaking import LAST_GUESSES

longest = Predict("Which missing rule takes the longest to do harm?", LAST_GUESSES)
longest

# %%
table = longest.run(survey, "lease", seeds=300)
table

# %% jupyter={"source_hidden": true}
longest.explain("""
One missing rule does no harm in three hundred worlds, and yet it is needed. Without it, a client
that returns to its own old claim mistakes it for a new grant. It counts the lease from the time of
its read, but the other clients count from the time at which the claim was written. A *search* of
every order of a few moves finds that story in seconds (`lockkit explore`). Random seeds find it
only after some two thousand worlds. Both methods are needed: the search is complete but small, and
the worlds are large but random.
""")

# %% jupyter={"source_hidden": true}
# Check
assert table.hidden == ["confirm"]

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
longest.explain("""
A run without harm proves nothing about a rule: most of the 300 worlds went well without it. A test
of a safety rule is worth something only if someone has seen it fail without the rule. In the
library's tests, each of these rules has a planted mistake that removes it, and a test fails if no
search finds the mistake.

A seed also says more than a stack trace, because one number contains the whole world:
`lease/drift:279` is the same history on your machine, today and next year.
""")

# %% [markdown]
# ## In production
#
# * **Antithesis, FoundationDB and TigerBeetle** test in this way: one seed, with simulated time,
#   storage and network, and any fault on demand. **Jepsen** does it with real processes and judges
#   a history.
# * **Hudi #14373, OpenTofu #4405, Terraform's force-unlock**: each is a missing rule of these lists
#   (`claim_412 lost`, `settle`, `delete_version`) that was found in production.
# * **In lockkit:** `lockkit simulate --scenario lease --seeds 1..1000 --mutant drift`. Add
#   `--history run.jsonl` and open that file with `Workbench.replay`.
#
# ## Your turn: the ladder
#
# The ladder has six rungs, which you can climb in any order. Name a scenario, the rule that is off,
# and a seed. Run the second part as often as you like; the ladder remembers. `hunt` and `survey`
# find seeds, and the panel above lists the rules. (For the fifth rung: what guards a commit against
# a writer that resumes late? For the last: see the table above.)

# %%
ladder = Ladder()

# %%
SCENARIO, RULE, SEED = "lease", "drift", 1
ladder.climb(SCENARIO, RULE, SEED)

# %% [markdown]
# A simulated world is only as useful as its checker. Write one: `two_holders` returns True if two
# clients held the lock at the same moment. `history` lists what the clients knew, oldest first. The
# entry `(at_ms, who, "held", until_ms)` is a grant that ends at `until_ms` by itself. The entry
# `(at_ms, who, "released", 0)` ends the client's grant earlier. The simulator calls your function
# with the histories of 200 small worlds; in half of them the lock has a mistake, which does harm
# now and then. A solution is in `solutions/two_holders.py`.

# %%
from lockkit.lab.course.exercises import judge


def two_holders(history):
    holder = None
    for _at_ms, who, kind, _until_ms in history:
        if kind == "held" and holder not in (None, who):
            return True
        holder = who if kind == "held" else None
    return False


judge(two_holders)
