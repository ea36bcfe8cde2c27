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
# It is three in the morning, writers stand still, and somebody says: *just delete the lock file*.
# Who owns the lock, does its owner live, what happened, and may it be broken? The console answers
# from the bucket, by reading only; a look takes seconds.
#
# **Before you look, decide:** a lock was taken over from a writer whose lease had not ended. Which
# of the two do you stop? And what will the next writer do if you delete the file?

# %% [markdown]
# ## Look
#
# Give the table's URL, or none: then **Look** makes a table in trouble on an embedded server. A
# real bucket is asked with the credentials of your environment; `lockkit incident URL` says the
# same in a terminal.

# %%
from lockkit.lab.course.table_trouble import TroubledTable
from lockkit.lab.widgets import Console

console = Console(demo=TroubledTable)
console

# %% [markdown]
# ## See
#
# 1. **The pill**: held, overdue (nobody renewed it in time: any writer may take it), free, or
#    garbled. Under it, how much is left *by whose clock*: the holder wrote `validUntil` by its own,
#    this machine compares it with its own, and the store compares its own two times. Where they
#    disagree by minutes, a clock is wrong.
# 2. **The card**: the pattern that the evidence shows, or *unknown* rather than a guess; what to
#    do, what not to do, and the command. Click a line of the evidence, and the diagram selects it.
# 3. **Folded away**: the lock object's generations as the bucket kept them, what is pending or dead
#    beside it, Hudi's audit log with Hudi's own verdict.
#
# The same by code:

# %%
by_code = Console(demo=TroubledTable, watch_s=0.0)
found = by_code.look()
print(found.diagnosis.pattern, "-", found.diagnosis.because)

# %% [markdown]
# ## Check
#
# The evidence is in the bucket, the lease still lasts, and nobody may break it by accident.

# %%
assert found.diagnosis.pattern == "clock skew"
assert len(found.diagnosis.evidence) == 2
assert not found.standing.holder.breakable
print(found.standing.holder.why)

# %% [markdown]
# ## Drop in what was recorded
#
# A history, Hudi's audit files, a bucket's listing of versions (`aws s3api list-object-versions`,
# `gcloud storage objects list --all-versions --format=json`, `az storage blob list --include v`),
# or an SDK's debug log: all become the same picture. This is what boto3 logged when the answer to
# its claim was lost. Its own retry was then told 412, by its own write.

# %%
recorded = Console()
recorded.read("../datasets/incidents/logs/botocore-claim-retried.log")
recorded

# %% [markdown]
# A log shows what one client sent and heard; what the store did is concluded only where it is
# proven, and what was written is often not in it. Drop a log in *beside* a table that was looked
# at, and the bucket's generations fill that in.
#
# To have such a log: `boto3.set_stream_logger('')`; `http.client.HTTPConnection.debuglevel = 1` for
# any of the three; for Azure `logging_enable=True, logging_body=True`. Credentials in it are not
# kept, drawn or exported.

# %% [markdown]
# ## Why it is never a delete
#
# Deleting the lock file frees the table, and forgets the epoch. A holder that only seemed dead goes
# on under its old epoch, the next one may get the same number, and no fence can tell them apart. So
# breaking is a *takeover*: a tombstone with the next epoch replaces the very version that you were
# shown, or nothing at all if somebody wrote in between. The holder, if it lives, meets another's
# version at its next renewal, and stops.
#
# The **dry run** shows what would be written. While the lease lasts, or while its holder renews it,
# the break is refused unless you type its epoch in: only you know that W2's machine is gone. Who
# did it is kept in `.hoodie/.locks/breaks/`.

# %%
plan = by_code.dry_run()
print(plan.refused)

# %%
done = by_code.break_lock(epoch=42)
print(f"epoch {done.epoch} stands as a tombstone; logged as {done.log[:27]}…")
assert by_code.found.standing.holder.state == "released"

# %% [markdown]
# ## In production
#
# - A failed release (5xx, 429) leaves a lock that stands until its lease ends, five minutes with
#   Hudi's default: [hudi #20027](https://github.com/apache/hudi/issues/20027),
#   [#18438](https://github.com/apache/hudi/issues/18438). Wait, or break it; both are safe.
# - A renewal that is told 412 by its own first copy is taken for a loss:
#   [#14373](https://github.com/apache/hudi/issues/14373). There was no other writer.
# - A claim whose answer was lost locks its own owner out, in Terraform's kin too:
#   [OpenTofu #4405](https://github.com/opentofu/opentofu/issues/4405).
# - Hudi's audit (`CALL set_audit_lock(table => 'orders', state => 'enabled')`) and versions on the
#   lock's prefix cost little, and are what tells you the story afterwards. Switch both on before
#   the night.

# %% [markdown]
# ## Your turn
#
# This was recorded after a published report. Read the picture, and name the pattern: in the words
# of a card, or `unknown`. `datasets/incidents/` has more of them, `answers.json` beside them what
# they were; in four nothing can be named, and the console says so.

# %%
from lockkit.lab.widgets import Workbench

Workbench.replay("../datasets/incidents/opentofu-4405-lock-against-itself.jsonl")

# %%
guess = ""
told = Console().read("../datasets/incidents/opentofu-4405-lock-against-itself.jsonl")
print("solved" if guess == told.pattern else "not yet")
