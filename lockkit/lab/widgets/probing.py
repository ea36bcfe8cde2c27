"""What the probe's panel shows: places to probe, the findings, and its tables as HTML."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from lockkit.clock import Clock, utc
from lockkit.lab.probe import CheckOutcome, Report, Suitability, probe, quick_probe
from lockkit.lab.probe.providers import (
    CAPABILITIES,
    DOCUMENTED,
    ProviderRow,
    compared,
    documented,
    elsewhere,
    probed,
    providers,
)
from lockkit.lab.probe.reads import Reads, compare_reads, saved
from lockkit.lab.server import Emulator
from lockkit.lab.widgets.ui import Html, coloured, shown, table
from lockkit.sinks import Emit, silent
from lockkit.stores import Store, open_store

URL = "s3://bucket/scratch"
TIMEOUT_S = 5.0
VERSIONED = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
SAID = {
    Suitability.FULL: "no violation in any race",
    Suitability.CREATE_ONLY: "only creating is conditional",
    Suitability.IGNORES_CONDITIONS: "it ignores conditions",
    Suitability.NOT_ATOMIC: "a race can have two winners",
    Suitability.REFUSED: "it refuses conditions",
    Suitability.UNTESTED: "it cannot be tested",
}
MARKS = {
    CheckOutcome.PASSED: ("✓", "good"),
    CheckOutcome.FAILED: ("✗", "bad"),
    CheckOutcome.NOTED: ("•", ""),
    CheckOutcome.UNDECIDED: ("?", "bad"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBehaviour:
    """One behaviour of the embedded server; `store` is the store that it imitates."""

    label: str
    profile: str
    dialect: str = "s3"
    versioned: bool = False
    store: str = ""


PLACES = {
    "aws": ServerBehaviour(label="Amazon S3", profile="aws", store="AWS S3"),
    "gcs": ServerBehaviour(label="Google Cloud Storage (waits for its 429s)", profile="gcs",
                           dialect="gcs", store="Google Cloud Storage"),
    "azure": ServerBehaviour(label="Azure Blob Storage", profile="azure", dialect="azure",
                             store="Azure Blob Storage"),
    "spaces": ServerBehaviour(label="DigitalOcean Spaces", profile="spaces",
                              store="DigitalOcean Spaces"),
    "rgw": ServerBehaviour(label="Ceph RGW", profile="rgw", store="Ceph RGW"),
    "rgw, versioned bucket": ServerBehaviour(label="Ceph RGW, a versioned bucket", profile="rgw",
                                             versioned=True, store="Ceph RGW"),
    "rgw, quoted ETags": ServerBehaviour(label="Ceph RGW, as SDKs quote ETags",
                                         profile="rgw-quoted", store="Ceph RGW"),
    "two-steps": ServerBehaviour(label="a server that checks, then writes", profile="two-steps"),
}  # fmt: skip
"""All of them embedded: nothing leaves this machine."""
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFindings:
    """The outcome of one probe."""

    report: Report
    reads: tuple[Reads, ...]
    found: ProviderRow
    known: ProviderRow | None
    """What its maker documents, if that is known."""

    @property
    def sentence(self) -> str:
        return self.report.conclusion

    @property
    def as_documented(self) -> str:
        return "" if self.known is None else compared(self.found, self.known)


def at(place: str) -> ServerBehaviour:
    if place not in PLACES:
        raise ValueError(f"no place {place!r}; there are {', '.join(PLACES)}, or give a url=")
    return PLACES[place]


@contextmanager
def embedded(place: ServerBehaviour) -> Iterator[Store]:
    """A new server with this behaviour, which lasts as long as the probe."""
    with Emulator(profile=place.profile) as emulator:
        if place.versioned:
            url = f"{emulator.s3}/bucket?versioning"
            urllib.request.urlopen(urllib.request.Request(url, VERSIONED, method="PUT")).close()
        url = f"{SCHEMES[place.dialect]}://bucket/scratch"
        with closing(open_store(url, endpoint=getattr(emulator, place.dialect))) as store:
            yield store


def quick_look(place: str) -> Report:
    """Probe with sequential requests only, without races: the verdict is never `FULL`."""
    with embedded(at(place)) as store:
        return _called(quick_probe(store), at(place))


def _called(report: Report, place: ServerBehaviour) -> Report:
    """The same findings; the conclusion names the store that the embedded server imitates."""
    return replace(report, conclusion=report.conclusion.replace(report.url, place.label, 1))


def look_at(
    place: str, *, rounds: int, racers: int, requests: int, emit: Emit = silent
) -> ProbeFindings:
    """Probe an embedded place, then time its reads."""
    chosen = at(place)
    rows = {row.store: row for row in providers() if row.basis == DOCUMENTED}
    with embedded(chosen) as store:
        found = _findings(store, rows.get(chosen.store), rounds, racers, requests, emit)
    return replace(found, report=_called(found.report, chosen))


def look_at_url(
    url: str, endpoint: str | None, *, rounds: int, racers: int, requests: int, emit: Emit = silent
) -> ProbeFindings:
    """Probe any store, then time its reads; raises `StoreError` if it cannot be reached."""
    with closing(open_store(url, endpoint=endpoint, timeout_s=TIMEOUT_S)) as store:
        known = documented(url, elsewhere(store), providers())
        return _findings(store, known, rounds, racers, requests, emit)


def _findings(
    store: Store, known: ProviderRow | None, rounds: int, racers: int, requests: int, emit: Emit
) -> ProbeFindings:
    report = probe(store, rounds=rounds, racers=racers, emit=emit)
    reads: list[Reads] = []
    if report.verdict is not Suitability.REFUSED:
        emit("note", text=f"{requests} full reads, and as many that are conditional")
        reads = compare_reads(store, requests=requests, emit=emit)
    today = utc(Clock().wall_ms())[:10]
    found = probed(report, "what was probed here", as_of=today, source=report.url)
    return ProbeFindings(report=report, reads=tuple(reads), found=found, known=known)


# --- as HTML: a store's text is untrusted, so all of it is escaped --------------------------------


def verdict_html(findings: ProbeFindings, predicted: Suitability | None = None) -> str:
    """The conclusion, and what was predicted."""
    report = findings.report
    colour, mark = ("good", "✓") if report.safe else ("bad", "✗")
    lines = [f"<div class='lp-verdict {colour}'>{mark} {shown(findings.sentence)}</div>"]
    if predicted is not None:
        hit = "You predicted that." if predicted is report.verdict else (
            f"You predicted: {SAID[predicted]}. The probe found: {SAID[report.verdict]}."
        )  # fmt: skip
        lines.append(f"<div class='lp-predicted'>{shown(hit)}</div>")
    if findings.known is not None:
        lines.append(f"<div>{shown(findings.as_documented)}</div>")
    if findings.reads:
        lines.append(f"<div>{shown(saved(findings.reads))}</div>")
    return "".join(lines)


def checks_html(report: Report) -> str:
    """What passed or was only noted is folded, so that a verdict and its reasons fit one screen."""
    rows: dict[CheckOutcome, list[tuple[object, ...]]] = {each: [] for each in MARKS}
    for check in report.checks:
        mark, colour = MARKS[check.finding]
        finding = coloured(f"{mark} {check.finding.value}", colour)
        rows[check.finding].append((finding, check.name, check.because))
    refused = ", ".join(
        f"{status} {code} ×{times}".replace(f"{status} {status} ", f"{status} ")  # botocore's 304
        for status, code, times in report.refusals
    )
    below = f"<div class='lk-note'>Refusals on the way: {shown(refused or 'none')}</div>"
    head = ("finding", "check", "because")
    wrong = [*rows[CheckOutcome.FAILED], *rows[CheckOutcome.UNDECIDED]]
    others = table(head, wrong, "lp-checks") if wrong else ""
    folded = "".join(
        f"<details><summary>{MARKS[each][0]} {len(rows[each])} {each.value}: "
        f"{shown(', '.join(str(name) for _, name, _ in rows[each]))}</summary>"
        f"{table((), rows[each], 'lp-checks')}</details>"
        for each in (CheckOutcome.PASSED, CheckOutcome.NOTED) if rows[each]
    )  # fmt: skip
    return f"{others}{folded}{below}"


def matrix_html(rows: Sequence[ProviderRow], found: ProviderRow | None = None) -> str:
    """Every row: first the new findings, then what is documented and what was probed before."""
    head = ("store", "basis", *CAPABILITIES.values(), "verdict", "limits and traps", "as of")
    every = ([found] if found else []) + [*rows]
    name = "lp-matrix lp-new" if found else "lp-matrix"
    return f"<div class='lk-wide'>{table(head, map(_cells, every), name)}</div>"


def _cells(row: ProviderRow) -> list[object]:
    cells: list[object] = [row.store, row.basis]
    for name in CAPABILITIES:
        value = getattr(row, name)
        colour = "good" if value == "yes" else "bad" if value in ("ignored", "not atomic") else ""
        cells.append(coloured(value, colour))
    day = shown(row.as_of)
    if (page := row.source_of("")).startswith("https://"):
        day = f"<a href='{shown(page)}' target='_blank' rel='noopener'>{day}</a>"
    return [*cells, row.verdict or "–", row.limits_and_traps, Html(day)]
