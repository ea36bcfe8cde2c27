"""Commands that are printed: complete, with the options of the command that prints them.

A message of the library can only say `lockkit lock break URL`. On a server of one's own that
command would ask Amazon, so the endpoint and the region are added. Credentials never are.
"""

from __future__ import annotations

import argparse
import re
import shlex
from urllib.parse import urlsplit, urlunsplit

_COMMAND = r"(\blockkit (?:lock (?:show|watch|break)|table [a-z-]+|probe|incident)) "


def store_flags(endpoint: str | None, region: str | None = None) -> str:
    """` --endpoint URL --region NAME`, quoted for a shell; "" where neither was given."""
    found = ""
    if endpoint:
        parts = urlsplit(endpoint)
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        found += f" --endpoint {shlex.quote(urlunsplit(bare))}"
    return found + (f" --region {shlex.quote(region)}" if region else "")


def address_of(args: argparse.Namespace) -> tuple[str, str]:
    """The URL that a command was given, and its flags; ("", "") for a command without one."""
    url = getattr(args, "url", None) or next(iter(getattr(args, "source", None) or ()), "")
    if not isinstance(url, str) or "://" not in url or not hasattr(args, "endpoint"):
        return "", ""
    return url.rstrip("/"), store_flags(args.endpoint, getattr(args, "region", None))


def pasteable(text: str, url: str, flags: str) -> str:
    """The text, in which each command of lockkit about `URL` or this URL has both."""
    if not url:
        return text
    place = f"(?:URL|{re.escape(shlex.quote(url))}|{re.escape(url)})/?"
    ends = r"(?![\w/.-])" + (f"(?!{re.escape(flags)})" if flags else "")
    whole = f"{shlex.quote(url)}{flags}"
    return re.sub(_COMMAND + place + ends, lambda found: f"{found[1]} {whole}", text)
