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
# # The incident console
#
# It is three in the morning, all writers are blocked, and a colleague says: *just delete the lock
# file*. Who owns the lock, is its owner alive, what happened, and may the lock be broken? The
# console answers these questions from the bucket. It only reads; an inspection takes seconds.
#
# **Decide before you look:** a lock was taken over from a writer whose lease had not ended. Which
# of the two writers do you stop? And what will the next writer do if you delete the file?

# %% [markdown]
# ## Look
#
# Enter the table's URL. If you leave it empty, **Look** creates a table with a problem on an
# embedded server. A real bucket is read with the credentials of your environment. `lockkit incident
# URL` prints the same in a terminal.

# %%
from lockkit.lab.course.table_trouble import TroubledTable
from lockkit.lab.widgets import Console

console = Console(demo=TroubledTable)
console

# %% [markdown]
# ## See
#
# 1. **The label** at the top: held, overdue (not renewed in time, so any writer may take it
#    over), free, or garbled. Below it is the remaining time *by each clock*: the <abbr
#    title="holder: the client to which the lock was granted last">holder</abbr> wrote
#    `validUntil` by its own clock, this machine compares it with this machine's clock, and the
#    store compares two times of its own. If the three disagree by minutes, a clock is wrong.
# 2. **The card** names the pattern that the evidence shows, or *unknown* rather than a guess. It
#    says what to do, what not to do, and gives the command. Click a line of the evidence to select
#    it in the diagram.
# 3. **The folded sections** show the <abbr title="generation: one state of the lock object, made
#    by one successful write">generation</abbr>s of the lock object that the bucket kept, pending
#    and dead writers, and Hudi's audit log with Hudi's own verdict.
#
# The same in code:

# %%
by_code = Console(demo=TroubledTable, watch_s=0.0)
found = by_code.look()
print(found.diagnosis.pattern, "-", found.diagnosis.because)

# %% [markdown]
# ## Check
#
# The evidence is in the bucket, the lease has not ended, and the lock cannot be broken by accident.

# %%
assert found.diagnosis.pattern == "clock skew"
assert len(found.diagnosis.evidence) == 2
assert not found.standing.holder.breakable
print(found.standing.holder.why)

# %% [markdown]
# ## Drop in what was recorded
#
# You can drop in a recorded history, Hudi's audit files, a bucket's listing of versions (`aws s3api
# list-object-versions`, `gcloud storage objects list --all-versions --format=json`, `az storage
# blob list --include v`) or an SDK's debug log. All of them become the same picture. This is
# boto3's log of a claim whose answer was lost. boto3 then sent the claim again, and got a 412
# because of its own first write.

# %%
recorded = Console()
recorded.read("../datasets/incidents/logs/botocore-claim-retried.log")
recorded

# %% [markdown]
# A log shows what one client sent and received. The console says what the store did only where the
# log proves it, and a log often lacks the bodies that were written. If you have inspected the table
# first, the bucket's generations fill these gaps.
#
# To record such a log: `boto3.set_stream_logger('')`; `http.client.HTTPConnection.debuglevel = 1`
# for any of the three SDKs; for Azure `logging_enable=True, logging_body=True`. Credentials in a
# log are neither kept nor drawn nor exported.

# %% [markdown]
# ## Why you should never delete the lock file
#
# Deleting the lock file frees the table and loses the epoch. A holder that only seemed dead
# continues under its old epoch, the next holder may get the same number, and no fence can
# distinguish them. So breaking a lock is a *takeover*: a tombstone with the next epoch replaces
# exactly the version that you were shown. If another client has written since then, nothing is
# replaced. If the holder is alive, it finds another version at its next renewal and stops.
#
# The **dry run** shows what would be written. While the lease lasts, or while its holder renews it,
# the break is refused unless you type the epoch: only you can know that W2's machine is gone.
# `.hoodie/.locks/breaks/` records who broke the lock.

# %%
plan = by_code.dry_run()
print(plan.refused)

# %%
done = by_code.break_lock(epoch=42)
print(f"epoch {done.epoch} is now a tombstone; the break is logged in {done.log[:27]}…")
assert by_code.found.standing.holder.state == "released"

# %% [markdown]
# ## In production
#
# - A failed release (5xx, 429) leaves a lock that blocks others until its lease ends, five minutes
#   with Hudi's default: [hudi #20027](https://github.com/apache/hudi/issues/20027),
#   [#18438](https://github.com/apache/hudi/issues/18438). Wait, or break it; both are safe.
# - A client can mistake its own renewal for a lost lock, if the renewal's first copy causes a 412
#   for the second: [#14373](https://github.com/apache/hudi/issues/14373). There was no other
#   writer.
# - A claim whose answer is lost can lock its own owner out, also in tools like Terraform: [OpenTofu
#   #4405](https://github.com/opentofu/opentofu/issues/4405).
# - Hudi's audit (`CALL set_audit_lock(table => 'orders', state => 'enabled')`) and versions on the
#   lock's prefix cost little and tell you afterwards what happened. Enable both before you need
#   them.

# %% [markdown]
# ## Your turn
#
# This history was made from a published report. Read the picture and name the pattern in the words
# of a card, or `unknown`. `datasets/incidents/` has more such histories, and `answers.json` there
# has the answers. For four of them the console names no pattern.

# %%
from lockkit.lab.widgets import Workbench

Workbench.replay("../datasets/incidents/opentofu-4405-lock-against-itself.jsonl")

# %%
guess = ""
found = Console().read("../datasets/incidents/opentofu-4405-lock-against-itself.jsonl")
print("solved" if guess == found.pattern else "not yet")
