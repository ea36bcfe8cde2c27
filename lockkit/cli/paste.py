"""Commands that are printed: complete, with the options of the command that prints them.

A message of the library can only say `lockkit lock break URL`. For a self-hosted server that
command would contact Amazon, so the endpoint and the region are added. Credentials never are.
"""

from __future__ import annotations

import argparse
import re
import shlex
from urllib.parse import urlsplit, urlunsplit

from lockkit.errors import masked

_COMMAND = r"(\blockkit (?:lock (?:show|watch|break)|table [a-z-]+|probe|incident)) "
_OF_A_STATE = r"(\blockkit tflock (?:show|lock|unlock|force-unlock|run|move)) "
_WORKSPACE = re.compile(r" --workspace(-key-prefix)? \S+")
"""Flags that only a state's lock has."""
TIMEOUT_S = 10.0
"""The default of --timeout-s, which is not repeated."""


def store_flags(endpoint: str | None, region: str | None = None) -> str:
    """` --endpoint URL --region NAME`, quoted for a shell; "" where neither was given."""
    found = ""
    if endpoint:
        try:
            parts = urlsplit(endpoint)
            bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        except ValueError:  # it is no URL, as the command says
            bare = endpoint.rpartition("@")[2]
        found += f" --endpoint {shlex.quote(bare)}"
    return found + (f" --region {shlex.quote(region)}" if region else "")


def flags_of(args: argparse.Namespace) -> str:
    """Every flag of a command that selects its server, its object, or how it connects."""
    found = store_flags(getattr(args, "endpoint", None), getattr(args, "region", None))
    for name, default in (
        ("workspace", "default"), ("workspace_key_prefix", "env:"), ("faults", None),
        ("timeout_s", TIMEOUT_S),
    ):  # fmt: skip
        value = getattr(args, name, None)
        if value not in (None, default):
            said = f"{value:g}" if isinstance(value, float) else str(value)
            found += f" --{name.replace('_', '-')} {shlex.quote(said)}"
    return found


def address_of(args: argparse.Namespace) -> tuple[str, str]:
    """The URL that a command was given, and its flags; ("", "") for a command without one."""
    url = getattr(args, "url", None) or next(iter(getattr(args, "source", None) or ()), "")
    if not isinstance(url, str) or "://" not in url or not hasattr(args, "endpoint"):
        return "", ""
    return masked(url.rstrip("/")), flags_of(args)


def pasteable(text: str, url: str, flags: str) -> str:
    """The text, in which each command of lockkit about `URL` or this URL has both."""
    if not url:
        return text
    others = _WORKSPACE.sub("", flags)
    return _whole(_OF_A_STATE, _whole(_COMMAND, text, url, others), url, flags)


def _whole(command: str, text: str, url: str, flags: str) -> str:
    place = f"(?:URL|{re.escape(shlex.quote(url))}|{re.escape(url)})/?"
    ends = r"(?![\w/.-])" + (f"(?!{re.escape(flags)})" if flags else "")
    whole = f"{shlex.quote(url)}{flags}"
    return re.sub(command + place + ends, lambda found: f"{found[1]} {whole}", text)
