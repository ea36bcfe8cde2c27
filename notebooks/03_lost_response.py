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
# # A lost response: the store applied the write, and its answer was lost
#
# A lock object is created under a condition: *only if nothing is there*. Of several writers, the
# store accepts one and answers the others with 412 (*precondition failed*). Suppose that the store
# has just written your object, and its response is lost on the way to you. What does your SDK
# report, and what should you do?
#
# This takes about half a minute on a quiet machine, and a minute on a busy one. For 15 seconds of
# that time Azure's SDK waits.

# %% [markdown]
# ## Predict
#
# boto3 has its default settings. There is only **one** writer. The run is locked until you pick a
# guess.

# %%
from lockkit.lab.widgets import Predict
from lockkit.lab.course.lost import GUESSES

retried = Predict("The write was applied, its answer was lost. What does boto3 report?", GUESSES)
retried

# %% [markdown]
# ## Run
#
# A real client sends its request to an object server on this machine. A proxy between them forwards
# the request and drops the response.

# %%
from lockkit.lab.course.lost import lose_answer

retried.run(lose_answer, "s3")

# %% [markdown]
# ## See

# %% jupyter={"source_hidden": true}
retried.explain("""
There was one call, but two requests. The SDK took the missing response for a failure and sent the
request again. The second request found the object of the first, and was refused. The caller sees
only the refusal. Google's SDK does the same, and hides a 429 (*too many requests*) as well:
""")

# %%
lose_answer("gcs")

# %% jupyter={"source_hidden": true}
retried.explain("""
Azure's SDK also sends the request twice. It reports 409, and only after 15 seconds: the first pause
of its default retry policy is longer than many leases. (This run really waits that long.)
""")

# %%
azure = lose_answer("azure")
azure

# %% [markdown]
# ## How a lock can misread that answer

# %% jupyter={"source_hidden": true}
retried.explain("""
The wrong conclusion is: "412, so another client has the lock: wait for it." The picture shows
`lockkit`'s own lock with that mistake planted: the SDK's retries are on, and a 412 counts as a lost
race. Without the mistake, the lock would read the object first.
""")

# %%
from lockkit.lab.widgets import Workbench
from lockkit.lab.course.lost import CAREFUL, TRUSTING, acquire

trusting = acquire("s3", TRUSTING)
Workbench.replay(trusting.events)

# %% jupyter={"source_hidden": true}
retried.explain("""
W1 now waits for itself. No client will ever release this lock. It stays until its lease expires,
and a lock without a lease (Terraform's) stays until a person deletes it by hand.
""")

# %% [markdown]
# ## What lockkit does about it

# %%
careful = Predict(
    "Retries are off, and the same answer is lost. What happens to W1?",
    ["it waits for itself", "it holds the lock"],
)
careful

# %%
s3 = careful.run(acquire, "s3", CAREFUL)
Workbench.replay(s3.events)

# %% jupyter={"source_hidden": true}
careful.explain("""
Retries are off, so W1 gets *no answer* instead of a misleading 412. It reads the object back and
recognises its own write by its `attempt`, an id that no other write has. It then confirms the claim
with one more conditional write. Only after that does it count the lock as held.
""")

# %% [markdown]
# ## The lines that matter
#
# Here is the same in plain boto3, against the same server. The answer to the first write is lost:

# %%
import json
from botocore.exceptions import BotoCoreError, ClientError
from lockkit.lab.course.lost import plain_s3

# The lines that matter:
with plain_s3(lose=True) as s3:
    place = {"Bucket": "lake", "Key": "orders/.hoodie/.locks/table_lock.json"}
    mine = {"owner": "W1", "attempt": "7f3a"}
    try:
        s3.put_object(**place, Body=json.dumps(mine), IfNoneMatch="*")
        holds = True
    except (BotoCoreError, ClientError) as error:  # a broken connection, a timeout, a 412
        there = json.load(s3.get_object(**place)["Body"])
        holds = there["attempt"] == mine["attempt"]
        print(f"error: {type(error).__name__}; found: {there}; W1 holds the lock: {holds}")
assert holds

# %% [markdown]
# ## Check
#
# The checker compares the store's record with W1's events, for each of the three providers.

# %% jupyter={"source_hidden": true}
# Check
assert azure.mine and azure.status == 409  # the SDK reports a defeat, and the object is there
for provider in ("s3", "gcs", "azure"):
    tried = acquire(provider)
    print(f"{provider:6}{tried}; the checker says {tried.verdict.kind}")
    assert tried.holds and tried.verdict.kind == "VALID"
assert trusting.verdict.kind == "INVALID" and not trusting.holds

# %% [markdown]
# ## Why

# %% jupyter={"source_hidden": true}
careful.explain("""
A condition makes a write safe to repeat: at most one copy is applied. It does not make the
*answer* safe to repeat. The 200 is the true answer to the first copy, and the 412 is the true
answer to the second. An SDK that sends both copies for one call reports only the last answer.

So a 412 after a hidden retry does not say who won, and code above the SDK cannot get the first
answer back. An id inside the object can. It must be the id of this very write, because the same
owner may have other writes under way. If the id is not there, that proves nothing: the request may
still be on its way, and arrive after the read. The confirming write is for that case.
""")

# %% [markdown]
# ## In production
#
# * **S3:** a maintainer of Trino reported exactly this in [aws-sdk-java-v2
#   #6580](https://github.com/aws/aws-sdk-java-v2/issues/6580). The issue was closed as stale, not
#   fixed.
# * **Apache Hudi:** in [#14373](https://github.com/apache/hudi/issues/14373) the storage lock's
#   successful write was reported as a 412. The retries of its clients were then turned off
#   ([#17869](https://github.com/apache/hudi/pull/17869)). Reading the write back was designed, but
#   not merged.
# * **OpenTofu:** [#4405](https://github.com/opentofu/opentofu/issues/4405): a plan failed because
#   of its own lock file on Cloudflare R2, and the lock was left behind.
# * **`Lock` and `open_store`** in lockkit send each request once, on all three SDKs. With `boto3`
#   that takes `Config(retries={"total_max_attempts": 1})`, with Google's SDK `retry=None` on
#   *every* call, and with Azure's `retry_total=0`.
#
# ## Your turn
#
# Write `acquire`: create the object at `key`, with `mine` in it, unless another client was first.
# Return True if the object is `mine`, False if it is another client's. The simulator calls your
# function in 200 small worlds of three clients, in which responses are lost, writes land late
# (after their client has given them up), and a request is sometimes delivered twice. `judge` draws
# the shortest world that went wrong. The function below trusts every answer.
#
# `yield Put(...)` sends a request and returns its answer: `Applied`, `PreconditionFailed` (412),
# `Throttled` (429), or `Unknown` if no answer comes. `yield from read(key)` returns `Found`, which
# has a `body` and a `version`, or `Missing`. `yield Sleep(1)` waits a second. A solution is in
# `solutions/acquire.py`.

# %%
from lockkit.lab.course.exercises import Applied, Found, IfAbsent, Put, Sleep, judge, read


def acquire(key, mine):
    answer = yield Put(key, mine, IfAbsent())
    return isinstance(answer, Applied)


judge(acquire)
