"""The matrix of providers: their documentation of conditional writes, and a probe's findings."""

from __future__ import annotations

import csv
import http.client
import ssl
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from lockkit.lab.probe.report import RACES, CheckOutcome, Report
from lockkit.stores import Store
from lockkit.stores.endpoint import is_providers_own

MATRIX = Path(__file__).with_name("providers.csv")
"""In a checkout a link to datasets/providers.csv."""
SERVER_S_MAX = 3.0
SERVER_CHARS_MAX = 60
DOCUMENTED, PROBED = "documented", "probed"
CAPABILITIES = {
    "create_if_absent": "create if absent",
    "compare_and_set": "compare and set",
    "conditional_delete": "conditional delete",
    "conditional_multipart": "join parts under a condition",
    "conditional_read": "conditional read (304)",
}
"""Multipart, block list or compose: all join an object from parts."""
NOT_TRIED = "not tried"
_UNKEPT = ("ignored", "refused")
_ANYTHING = ("yes", "no", "create only", *_UNKEPT, "not atomic", "undecided")
LEAVES_OPEN = {
    **dict.fromkeys(("no", "not listed", "own header", "own API"), _UNKEPT),
    **dict.fromkeys(("recent only", "proposed", "designed", "not found"), _ANYTHING),
}
"""Words in a documented row that are kept by more than one finding."""
OWN_PLACES = {"s3": "AWS S3", "s3a": "AWS S3", "gs": "Google Cloud Storage"} | dict.fromkeys(
    ("az", "abfs", "abfss"), "Azure Blob Storage"
)
"""The provider of a URL whose requests go to its own servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """One store, as its provider documents it, or as a probe found it on a date."""

    store: str
    known_by: str = ""
    """Ends of its host names, or `server=` and the head of its Server header; by spaces."""
    basis: str
    create_if_absent: str
    compare_and_set: str
    conditional_delete: str
    conditional_multipart: str = NOT_TRIED
    conditional_read: str = NOT_TRIED
    verdict: str = ""
    """Only for a probed row: documentation gives no verdict."""
    limits_and_traps: str = ""
    as_of: str
    source: str
    """A URL for the whole row; then `capability=URL`, by spaces, where another page says it."""

    def source_of(self, capability: str) -> str:
        urls = dict(each.partition("=")[::2] for each in self.source.split()[1:])
        return urls.get(capability, self.source.split()[0] if self.source else "")

    def __post_init__(self) -> None:
        if self.basis not in (DOCUMENTED, PROBED) or not self.store:
            raise ValueError(f"an incomplete row of the providers' matrix: {astuple(self)!r}"[:300])


def providers(path: Path = MATRIX) -> tuple[ProviderRow, ...]:
    """Every row, in the file's order."""
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(ProviderRow(**row) for row in csv.DictReader(lines))


def save(rows: Sequence[ProviderRow], path: Path = MATRIX) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(ProviderRow))
        writer.writerows(astuple(row) for row in rows)


def documented(url: str, endpoint: str | None, rows: Sequence[ProviderRow]) -> ProviderRow | None:
    """The documented row of the store that serves `url`; None if it is not recognised.

    `endpoint` is where its requests go, if not to the provider's own servers (see `elsewhere`). An
    unknown host is identified by its Server header.
    """
    known = [row for row in rows if row.basis == DOCUMENTED]
    scheme = url.partition("://")[0].lower()
    if endpoint is None:
        return next((row for row in known if row.store == OWN_PLACES.get(scheme)), None)
    host = f".{urlsplit(endpoint).hostname or ''}"
    for row in known:
        ends = [each for each in row.known_by.split() if "=" not in each]
        if any(host.endswith(f".{each.lstrip('.')}") for each in ends):
            return row
    server = served_by(endpoint).lower()
    for row in known:
        names = [each[7:].lower() for each in row.known_by.split() if each.startswith("server=")]
        if any(server.startswith(name) for name in names):
            return row
    return None


def elsewhere(store: Store) -> str | None:
    """The server of an open store's requests; None: the provider's own, or there is none."""
    if not store.server or is_providers_own(store.url, store.server):
        return None
    return store.server


def served_by(endpoint: str) -> str:
    """The Server header of one anonymous request; empty if there is none."""
    parts = urlsplit(endpoint)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=SERVER_S_MAX)
    try:
        connection.request("HEAD", "/")
        return connection.getresponse().headers.get("Server", "")[:SERVER_CHARS_MAX]
    except (OSError, ssl.SSLError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def probed(report: Report, store: str, *, as_of: str, source: str) -> ProviderRow:
    """A report's findings, as a row."""
    return ProviderRow(
        store=store, basis=PROBED, create_if_absent=_found(report, "create", "create-race"),
        compare_and_set=_found(report, "compare-and-set", "compare-and-set-race"),
        conditional_delete=_found(report, "delete"),
        conditional_multipart=_tried(report, "multipart", "multipart-race"),
        conditional_read={"refused": "no"}.get(read := _tried(report, "conditional-read"), read),
        verdict=report.verdict.value, limits_and_traps="; ".join(_traps(report)), as_of=as_of,
        source=source,
    )  # fmt: skip


def differences(found: ProviderRow, row: ProviderRow) -> list[str]:
    """The capabilities in which a store differs from its row, in words."""
    said = []
    for name, words in CAPABILITIES.items():
        now, then = getattr(found, name), getattr(row, name)
        if now != NOT_TRIED and now not in LEAVES_OPEN.get(then, (then,)):
            said.append(f"{words}: documented {then}, found {now}")
    return said


def compared(found: ProviderRow, row: ProviderRow) -> str:
    """One sentence that says whether the store behaves as documented."""
    where = f"what {row.store} documents (as of {row.as_of})"
    if differs := differences(found, row):
        return f"That is not {where}; {'; '.join(differs)}."
    tried = [name for name in CAPABILITIES if getattr(found, name) != NOT_TRIED]
    said = ", ".join(f"{CAPABILITIES[name]} {getattr(row, name)}" for name in tried)
    return f"That agrees with {where}: {said or 'nothing else was tried'}."


def _found(report: Report, name: str, race: str = "") -> str:
    checks = {check.name: check for check in report.checks}
    check = checks.get(name)
    if check is None:
        refused = checks.get("create")
        return "refused" if refused and refused.evidence.get("refused") else NOT_TRIED
    match check.finding:
        case CheckOutcome.FAILED | CheckOutcome.NOTED:
            if check.evidence.get("create_only"):
                return "create only"
            applied = check.evidence.get("answer") == "Applied"
            return "ignored" if applied else "refused"
        case CheckOutcome.UNDECIDED:
            return "undecided"
    raced = {each: checks[each] for each in (*RACES, "multipart-race") if each in checks}
    if race in raced and raced[race].finding is not CheckOutcome.PASSED:
        return "not atomic" if raced[race].evidence.get("winners") else "undecided"
    return NOT_TRIED if race and race not in raced and raced else "yes"


def _tried(report: Report, name: str, race: str = "") -> str:
    """As `_found`, of what no lock needs: it is not tried where a store fails earlier."""
    return _found(report, name, race) if any(c.name == name for c in report.checks) else NOT_TRIED


def _traps(report: Report) -> list[str]:
    evidence = {check.name: check.evidence for check in report.checks}
    findings = {check.name: check.finding for check in report.checks}
    traps = []
    if evidence.get("content-versions", {}).get("content_versions"):
        traps.append("versions are content hashes")
    if evidence.get("write-rate", {}).get("throttled"):
        traps.append("429 to writes of one key in quick succession")
    if findings.get("resumable-upload") is CheckOutcome.NOTED:
        traps.append("a resumable upload checks its condition only when it begins")
    if any(evidence.get(race, {}).get("unknown") for race in RACES):
        traps.append("losers of a race may be told 5xx")
    if findings.get("clocks") is CheckOutcome.NOTED:
        traps.append("leases can expire by wall clock only")
    return traps
