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
# # A lost response: when 412 means that you have won
#
# A lock object is created under a condition, *only if nothing is there*; of several writers the
# store lets one through and tells the others 412. The store has just written your object, and its
# answer is lost on the way. What are you told, and what do you do?
#
# This takes about a minute, of which 15 seconds are Azure's.

# %% [markdown]
# ## Predict
#
# boto3 is used as it comes, with nothing set. There is **one** writer and nobody else. Pick a
# guess; the next cell is locked until then.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.lost import GUESSES

told = Predict("The write landed, its answer did not. What does boto3 tell its caller?", GUESSES)
told

# %% [markdown]
# ## Run
#
# A real client, an object server on this machine, and between them a proxy that passes the request
# on and drops the answer.

# %%
from lockkit.lab.course.lost import lose_answer

told.run(lose_answer, "s3")

# %% [markdown]
# ## See
#
# There was one call and two requests. The SDK took the silence for a failure and sent the request
# again; the second copy met the first one, and was refused. Only the refusal is told. Google's SDK
# does the same, and hides a 429 on top of it:

# %%
lose_answer("gcs")

# %% [markdown]
# Azure's as well, but there it is 409, and it comes after 15 seconds: the first pause of its usual
# retry policy is longer than many leases. (Now wait for it.)

# %%
azure = lose_answer("azure")
assert azure.mine and azure.status == 409  # it is told that it lost, and its object is there
azure

# %% [markdown]
# ## The wrong conclusion
#
# 412, so somebody else has the lock: wait for it. This is `lockkit`'s own lock, made to reason like
# that: retries on, and the rule `claim_412` switched from *read it back* to *it is lost*.

# %%
from lockkit.lab.widgets import Workbench
from lockkit.lab.course.lost import CAREFUL, TRUSTING, acquire

trusting = acquire("s3", TRUSTING)
Workbench.replay(trusting.events)

# %% [markdown]
# W1 waits, politely, for W1. Nobody will ever release this lock; it stays until its lease has run
# out, and a lock without a lease (Terraform's) stays until somebody deletes it by hand.
#
# ## What lockkit does about it

# %%
careful = Predict(
    "Retries off, the same answer lost. W1 is not told anything. And then?",
    ["it waits for itself", "it holds the lock"],
)
careful

# %%
s3 = careful.run(acquire, "s3", CAREFUL)
Workbench.replay(s3.events)

# %% [markdown]
# Retries are off, so W1 hears *nothing* in place of a 412: the honest answer. It reads the object
# back and recognises its own write by its `attempt`, an id that no other write has. It confirms
# that with one more guarded write, and only then believes that it holds the lock.
#
# ## Check
#
# The checker has the store's record and what W1 believed, on each of the three.

# %%
for provider in ("s3", "gcs", "azure"):
    tried = acquire(provider)
    print(f"{provider:6}{tried}; the checker says {tried.verdict.kind}")
    assert tried.holds and tried.verdict.kind == "VALID"
assert trusting.verdict.kind == "INVALID" and not trusting.holds

# %% [markdown]
# ## Why
#
# A condition makes a write safe to repeat: at most one copy lands. It does not make the *answer*
# safe to repeat. The first copy's 200 and the second copy's 412 are both true, of different
# requests, and an SDK that sends both under one call tells you only the last.
#
# So a 412 after a hidden retry says nothing about who won, and no amount of care above the SDK
# brings the first answer back. What helps is to have one's own name in the object: not the owner's,
# who may have other writes under way, but this very write's. Absence settles nothing either: a
# request that is still on its way may land after the look. The confirming write is for that.
#
# ## In production
#
# * **S3:** [aws-sdk-java-v2 #6580](https://github.com/aws/aws-sdk-java-v2/issues/6580) reports
#   exactly this, by a maintainer of Trino; it was closed as stale, not fixed.
# * **Apache Hudi:** [#14373](https://github.com/apache/hudi/issues/14373), its storage lock's own
#   success became a 412. Its clients' retries were then turned off
#   ([#17869](https://github.com/apache/hudi/pull/17869)); reading back was designed, not merged.
# * **OpenTofu:** [#4405](https://github.com/opentofu/opentofu/issues/4405), a plan failed against
#   its own lock file on Cloudflare R2, and the lock was left behind.
# * **`Lock` and `open_store` here** send each request once, on all three SDKs. `boto3` wants
#   `Config(retries={"total_max_attempts": 1})` for that, Google's `retry=None` on *every* call, and
#   Azure's `retry_total=0`.
#
# ## Your turn
#
# If 412 may be one's own retry, why not believe that it always is? The explorer searches every
# order of events for the shortest harm of a mistake. Change `ROW` until the checker finds two
# believers: `claim_412 lost`, `renew_412 lost`, `claim_412 ours`, `recognise` (one's own write is
# known by its owner). Two of the four do; one of these two does read back.

# %%
from lockkit.lab.verify.check import check
from lockkit.lab.verify.explore import explore_rows

ROW = "claim_412 lost"
story = explore_rows([ROW])[0].counterexample
print("\n".join(story.story()))
print("solved" if "believe" in check(story.history()).because else "not yet: nobody else believes")
