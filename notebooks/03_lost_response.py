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
# A lock object is created under a condition: *only if nothing is there*. Of several writers, the
# store accepts one and answers the others with 412. Suppose that the store has just written your
# object, and its response is lost. What does your SDK report, and what should you do?
#
# This takes about a minute; Azure's SDK waits for 15 seconds of it.

# %% [markdown]
# ## Predict
#
# boto3 is used with its default settings. There is **one** writer and nobody else. Pick a guess:
# the next cell is locked until then.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.lost import GUESSES

told = Predict("The write landed, its answer did not. What does boto3 tell its caller?", GUESSES)
told

# %% [markdown]
# ## Run
#
# A real client, an object server on this machine, and between them a proxy that forwards the
# request and drops the response.

# %%
from lockkit.lab.course.lost import lose_answer

told.run(lose_answer, "s3")

# %% [markdown]
# ## See
#
# There was one call, but two requests. The SDK took the missing response for a failure and sent the
# request again. The second request found the object of the first, and was refused. The caller is
# told only of the refusal. Google's SDK does the same, and hides a 429 as well:

# %%
lose_answer("gcs")

# %% [markdown]
# Azure's SDK does it, too. Its answer is 409, after 15 seconds: the first pause of its default
# retry policy is longer than many leases. (This cell really waits that long.)

# %%
azure = lose_answer("azure")
assert azure.mine and azure.status == 409  # it is told that it lost, and its object is there
azure

# %% [markdown]
# ## The wrong conclusion
#
# "412, so somebody else has the lock: wait for it." This is `lockkit`'s own lock with that mistake
# planted: retries are on, and the rule `claim_412` is changed from *read it back* to *it is lost*.

# %%
from lockkit.lab.widgets import Workbench
from lockkit.lab.course.lost import CAREFUL, TRUSTING, acquire

trusting = acquire("s3", TRUSTING)
Workbench.replay(trusting.events)

# %% [markdown]
# W1 now waits for itself. Nobody will ever release this lock. It stays until its lease expires, and
# a lock without a lease (Terraform's) stays until somebody deletes it by hand.
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
# Retries are off, so W1 gets *no answer* instead of a misleading 412. It reads the object back and
# recognises its own write by its `attempt`, an id that no other write has. It confirms that with
# one more conditional write, and only then counts the lock as held.
#
# ## Check
#
# The checker compares the store's record with W1's events, for each of the three providers.

# %%
for provider in ("s3", "gcs", "azure"):
    tried = acquire(provider)
    print(f"{provider:6}{tried}; the checker says {tried.verdict.kind}")
    assert tried.holds and tried.verdict.kind == "VALID"
assert trusting.verdict.kind == "INVALID" and not trusting.holds

# %% [markdown]
# ## Why
#
# A condition makes a write safe to repeat: at most one copy is applied. It does not make the
# *answer* safe to repeat. The first copy's 200 and the second copy's 412 are both true, of
# different requests. An SDK that sends both under one call reports only the last.
#
# So a 412 after a hidden retry does not say who won, and code above the SDK cannot get the first
# answer back. An id inside the object helps: not the owner's, who may have other writes under way,
# but the id of this very write. Its absence proves nothing either, since a request that is still on
# its way may arrive after the look. The confirming write is for that case.
#
# ## In production
#
# * **S3:** [aws-sdk-java-v2 #6580](https://github.com/aws/aws-sdk-java-v2/issues/6580) reports
#   exactly this, by a maintainer of Trino; it was closed as stale, not fixed.
# * **Apache Hudi:** [#14373](https://github.com/apache/hudi/issues/14373): its storage lock's own
#   success became a 412. Its clients' retries were then turned off
#   ([#17869](https://github.com/apache/hudi/pull/17869)); reading back was designed, not merged.
# * **OpenTofu:** [#4405](https://github.com/opentofu/opentofu/issues/4405): a plan failed because
#   of its own lock file on Cloudflare R2, and the lock was left behind.
# * **`Lock` and `open_store`** in lockkit send each request once, on all three SDKs. With `boto3`
#   that takes `Config(retries={"total_max_attempts": 1})`, with Google's SDK `retry=None` on
#   *every* call, and with Azure's `retry_total=0`.
#
# ## Your turn
#
# If a 412 may come from one's own retry, why not assume that it always does? The explorer searches
# every order of events for the shortest one in which a mistake does harm. Change `ROW` until the
# checker finds two holders: `claim_412 lost`, `renew_412 lost`, `claim_412 ours`, `recognise` (a
# write is recognised by its owner instead of its attempt). Two of the four do; one of these two
# reads the object back.

# %%
from lockkit.lab.verify.check import check
from lockkit.lab.verify.explore import explore_rows

ROW = "claim_412 lost"
story = explore_rows([ROW])[0].counterexample
print("\n".join(story.story()))
print("solved" if "believe" in check(story.history()).because else "not yet: nobody else believes")
