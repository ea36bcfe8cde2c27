"""How often a writer's heartbeat beats, when it counts as dead, and who rolls dead writers back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lockkit.protocol.policy import Expiry
from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import one_of, whole

INTERVAL_KEY = "hoodie.client.heartbeat.interval_in_ms"
MISSES_KEY = "hoodie.client.heartbeat.tolerable.misses"
POLICY_KEYS = ("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes")
"""Two names of one setting; the newer one takes precedence."""
INTERVAL_MS_MIN = 1_000
TTL_MS_MAX = 86_400_000
MARGIN_MS = 1_000
Policy = Literal["EAGER", "LAZY", "NEVER"]
_POLICIES: tuple[Policy, ...] = ("EAGER", "LAZY", "NEVER")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRules:
    """When a writer counts as dead; the defaults are Hudi's."""

    interval_ms: int = 60_000
    misses: int = 2
    expiry: Expiry = Expiry.STORE
    """Judged by the store's clock where it reports one, else by this machine's (`WALL`)."""
    slack_ms: int = 2_000
    """`STORE`: 1 s because HTTP dates are floored, and up to 1 s between the store's front ends."""
    drift_ms: int = 500
    """`WALL`: how far another machine's clock may be off."""

    @property
    def ttl_ms(self) -> int:
        return min(self.interval_ms * self.misses, TTL_MS_MAX)

    @property
    def belief_ms(self) -> int:
        """How long a writer relies on a beat: it stops before another client may end it."""
        return self.ttl_ms - min(MARGIN_MS, self.ttl_ms // 10)


def heartbeat_rules(options: Mapping[str, Any]) -> HeartbeatRules:
    """From Hudi's option names; `TableError` names an invalid one."""
    default = HeartbeatRules()
    return HeartbeatRules(
        interval_ms=whole(
            options, INTERVAL_KEY, default=default.interval_ms, least=INTERVAL_MS_MIN, most=10**9
        ),
        misses=whole(options, MISSES_KEY, default=default.misses, most=10**9),
    )


def failed_writes_policy(options: Mapping[str, Any], *, writers: int = 1) -> Policy:
    """Which dead writers are rolled back: EAGER by default, LAZY if several may write.

    `TableError` if the option says EAGER for several writers: it would roll back live ones.
    """
    usual: Policy = "LAZY" if writers > 1 else "EAGER"
    policy = one_of(options, *POLICY_KEYS, of=_POLICIES, default=usual)
    if policy == "EAGER" and writers > 1:
        raise RefusedOption(
            POLICY_KEYS[0], "rolls back every other writer's instant, also those of live writers",
            "with several writers choose LAZY", value="EAGER",
        )  # fmt: skip
    return policy
