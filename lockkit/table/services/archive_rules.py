"""When a writer archives, and how many commits stay in the timeline: Hudi's keys and defaults."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockkit.table.errors import RefusedOption
from lockkit.table.format.option_values import flag, whole

AUTOMATIC_KEY = "hoodie.archive.automatic"
KEEP_MIN_KEY, KEEP_MAX_KEY = "hoodie.keep.min.commits", "hoodie.keep.max.commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRules:
    """Once there are more than `keep_max` commits, all but `keep_min` leave the timeline."""

    keep_min: int = 20
    keep_max: int = 30
    young_ms: int | None = None
    """With group commit: what is younger stays. None: two hours (`archive_group`)."""
    until: str = ""
    """Version 6: what is older leaves in any case (`HiddenCommits`)."""


class NothingArchived(UserWarning):
    """A warning: the options say how much to archive, and this writer does not archive."""


def archive_rules(options: Mapping[str, Any], cleaned: int) -> ArchiveRules | None:
    """From Hudi's options; `TableError` if they contradict each other, by Hudi's two rules.

    None, and a warning, if they do not turn archiving on. `cleaned`: a clean by commits keeps the
    files of so many; 0 for other policies.
    """
    default = ArchiveRules()
    rules = checked(ArchiveRules(
        keep_min=whole(options, KEEP_MIN_KEY, default=default.keep_min),
        keep_max=whole(options, KEEP_MAX_KEY, default=default.keep_max),
    ), cleaned)  # fmt: skip
    if flag(options, AUTOMATIC_KEY):
        return rules
    if AUTOMATIC_KEY not in options:
        warnings.warn(NothingArchived(
            f"{KEEP_MIN_KEY} and {KEEP_MAX_KEY} have no effect here: unlike Hudi, lockkit archives "
            f"only with {AUTOMATIC_KEY}=true, or by lockkit table archive"
        ), stacklevel=2)  # fmt: skip
    return None


def checked(rules: ArchiveRules, cleaned: int) -> ArchiveRules:
    for key, value in ((KEEP_MIN_KEY, rules.keep_min), (KEEP_MAX_KEY, rules.keep_max)):
        if type(value) is not int or value < 1:
            raise RefusedOption(key, "must be a whole number from 1", value=f"{value!r:.40}")
    if rules.keep_min >= rules.keep_max:
        raise RefusedOption(
            KEEP_MAX_KEY, f"must be greater than {KEEP_MIN_KEY} ({rules.keep_min})",
            value=str(rules.keep_max),
        )  # fmt: skip
    if rules.keep_min <= cleaned:
        raise RefusedOption(
            KEEP_MIN_KEY, f"must be greater than hoodie.clean.commits.retained ({cleaned}): a "
            "clean finds old files through commits", value=str(rules.keep_min),
        )  # fmt: skip
    return rules
