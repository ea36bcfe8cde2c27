"""A moment as a link to the playground: `PAGE#scenario=lease&seed=17&rule=fence%20off&step=23`.

A stage's moment is `PAGE#play=wal&decisions=W1%20lose`.

The page is `LOCKKIT_PLAYGROUND` (an address, or the path of a built page), or else the page that
the repository publishes. Everything after `#` stays in the browser.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

PLAYGROUND = "LOCKKIT_PLAYGROUND"
NEEDS_ARROW = ("mor", "group-table", "archive-table", "group-archive", "late-table")
"""Scenarios that read or write files by pyarrow, which the page does not have."""
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+)")
_NAMES = {"scenario": r"[\w.-]+", "rule": r"[^/:@]*"}
_WAY = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)


def playground() -> str:
    """The address of the page; "" if the package does not say where its repository is."""
    named = os.environ.get(PLAYGROUND, "")
    if named and "://" not in named:
        return Path(named).resolve().as_uri()
    return named or _published()


@cache
def _published() -> str:
    try:
        addresses = metadata("lockkit").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    source = next((each for each in addresses if each.startswith("Source,")), "")
    found = _GITHUB.search(source)
    return f"https://{found[1].lower()}.github.io/{found[2]}/playground.html" if found else ""


def fragment(**fields: object) -> str:
    """`scenario=lease&seed=17`: without the fields that are empty."""
    said = [(name, str(value)) for name, value in fields.items() if value not in (None, "")]
    return urlencode(said, quote_via=quote, safe=",")


def seed_fragment(moment: str) -> str:
    """`wal/MISTAKE:17@57+3@80` as `scenario=wal&seed=17&rule=MISTAKE&way=57.3&step=80`."""
    about, _, rest = moment.rpartition(":")
    scenario, _, rule = about.partition("/")
    seed, *stops = rest.split("@")
    ways = [each.replace("+", ".") for each in stops if "+" in each]
    step = next((each for each in stops if "+" not in each), None)
    return fragment(scenario=scenario, seed=seed, rule=rule, way=",".join(ways), step=step)


def stage_fragment(moment: object) -> str:
    """`wal/MISTAKE: W1 lose` as `play=wal&rule=MISTAKE&decisions=W1%20lose`."""
    about, _, decisions = str(moment).partition(":")
    play, _, rule = about.partition("/")
    return fragment(play=play, rule=rule, decisions=decisions.strip())


def link(moment: object) -> str:
    """A seed's moment as a link; only its part from `#` on if there is no page.

    "" for a scenario that the page cannot play.
    """
    named = str(moment)
    playable = not named.startswith(tuple(f"{name}{end}" for name in NEEDS_ARROW for end in "/:"))
    return f"{playground()}#{seed_fragment(named)}" if playable else ""


def stage_link(moment: object) -> str:
    """The same of a stage's moment."""
    return f"{playground()}#{stage_fragment(moment)}"


def fields_of(said: str, *known: str) -> dict[str, str]:
    """A link's fields; the first of `known` must be there. Raises `ValueError`."""
    pairs = parse_qsl(said.rpartition("#")[2].strip(), keep_blank_values=True)
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("this link names a field twice")
    kinds = [each for each in ("scenario", "play", "search") if each in fields]
    if len(kinds) > 1:
        raise ValueError(f"this link names a {' and a '.join(kinds)}: leave out one of them")
    for kind in kinds:
        if kind != known[0]:
            raise ValueError(f"this link names a {kind}, not a {known[0]}: open it in a browser")
    if unknown := fields.keys() - set(known):
        raise ValueError(f"a link to a moment has no field {min(unknown)[:20]!r}")
    if not fields.get(known[0]):
        raise ValueError(f"this link does not name its {known[0]}: #{known[0]}=...")
    for name, digits in (("seed", 9), ("step", 6)):
        if not re.fullmatch(rf"[0-9]{{1,{digits}}}", value := fields.get(name, "0")):
            wanted = f"is not a number of at most {digits} digits"
            raise ValueError(f"the {name} {value[:20]!r} of this link {wanted}")
    return fields


def moment_of(said: str) -> str:
    """The moment's text in a link, or what was given if it is none.

    Raises `ValueError` for a link without a seed, or with a field that moments do not have.
    """
    if said.startswith("scenario="):
        said = "#" + said  # a shell takes what is behind a "#" for a comment
    if "#" not in said:
        return said
    fields = fields_of(said, "scenario", "seed", "rule", "way", "step")
    if not fields.get("seed"):
        raise ValueError("a link to a moment names a scenario and a seed: #scenario=lease&seed=17")
    for name, written in _NAMES.items():
        if not re.fullmatch(written, value := fields.get(name, "")):
            raise ValueError(f"{value[:20]!r} in this link is no {name}'s name; a link is written "
                             "#scenario=lease&rule=fence off&seed=17")
    ways = [_WAY.fullmatch(each) for each in fields.get("way", "").split(",") if each]
    if None in ways:
        raise ValueError("the field 'way' of a link is written 57.3: after move 57, the third way")
    about = "/".join(filter(None, (fields["scenario"], fields.get("rule", ""))))
    turns = "".join(f"@{each[1]}+{each[2]}" for each in ways if each)
    return f"{about}:{fields['seed']}{turns}" + (f"@{fields['step']}" if fields.get("step") else "")
