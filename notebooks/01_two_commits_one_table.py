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
# # Two commits, one table: where exactly is the moment of commit?
#
# W1 and W2 have both read `order-1` (amount 0). W1 wants to write 10, W2 wants to write 20, each
# as a new version of the same file. W1's lease has run out while it was paused, and W2 has the
# lock. Both are about to commit, and every request of theirs waits for you.
#
# **Before you run anything, decide:** W1 does its conflict check, then pauses. W2 commits from
# beginning to end. Then W1 goes on. What do readers see, and what is W1 told?

# %% [markdown]
# ## Run
#
# 1. Press **Next** under W1 until it says *checked*. It has looked at everything; only its write
#    is left.
# 2. Press **To the end** under W2.
# 3. Press **To the end** under W1.
# 4. Choose *hudi: the lock decides* and do the same again.

# %%
from lockkit.workbench import Stepper, Steps

stepper = Stepper()
stepper

# %% [markdown]
# ## See
#
# The same by code. On a *fenced* table the commit is one write under a condition, the `PUT if
# unchanged` of `fence.json`: it fails if anything was decided since W1 read it.

# %%
fenced = Steps("fenced")
fenced.until("W1", "checked")
fenced.finish("W2")
print(fenced.finish("W1"))
assert fenced.rows == {"order-1": 20} and fenced.verdict.kind == "VALID"

# %% [markdown]
# In `hudi` mode, Hudi's own contract, the lock alone keeps writers apart. Both are told that they
# committed; one of the two amounts is gone.

# %%
hudi = Steps("hudi")
hudi.until("W1", "checked")
print(hudi.finish("W2"))
print(hudi.finish("W1"))
print(hudi.verdict.because)
assert hudi.verdict.kind == "INVALID"

# %% [markdown]
# ## Lose an answer
#
# Take W1 up to the fence and lose that answer: the write landed, W1 is not told. It looks again,
# finds its own `attempt` in the fence, and goes on.

# %%
lost = Steps("fenced")
lost.until("W1", "fence.json")  # it reads the fence
lost.step("W1")
lost.until("W1", "fence.json")  # it is about to replace it
lost.step("W1", lose=True)
print(lost.finish("W1"))

# %% [markdown]
# ## Kill a writer at the worst moment
#
# W1 has replaced the fence and dies before it creates its completed file. Nobody sees its commit
# yet, but it is decided: W2 rolls it forward before it commits anything of its own, and is then
# told that the two conflict.

# %%
killed = Steps("fenced")
killed.until("W1", ".commit")
killed.kill("W1")
before = killed.rows
print(killed.finish("W2"))
assert before == {"order-1": 0} and killed.rows == {"order-1": 10}

# %% [markdown]
# ## Why
#
# A conflict check is worth what it has seen. Between the check and the write that publishes, any
# amount of time may pass, and no lock held by a lease covers it. So the write that publishes says
# what the check was based on (*the fence, as I read it*), and the store compares the two in one
# step. That write is the moment of commit; creating the completed file afterwards only makes it
# visible, and anybody can do that for a writer who died.
#
# The fence also carries what the latest commits wrote, so that the check needs no listing: an
# uncontended append takes ten requests, of which no more than five wait for one another.
#
# ## In production
#
# Tables that lockkit makes are fenced. A table that Apache Hudi's writers share is in `hudi` mode
# (`lockkit.commit.mode` in `hoodie.properties`): there the lock is all there is, so leases must be
# longer than any pause that you can imagine. `CommitConflict` says which instant, which partition
# and which file; `hoodie.write.num.retries.on.conflict.failures` repeats the whole write.
