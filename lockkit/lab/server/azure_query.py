"""The parameters of Azure's queries: any other is a 501, so that none is silently ignored."""

from __future__ import annotations

from lockkit.lab.server.call import DialectError, DialectRequest

PARAMETERS = {
    "comp", "restype", "timeout", "prefix", "delimiter", "marker", "maxresults", "include",
    "startfrom", "versionid", "snapshot", "blockid", "blocklisttype",
}  # fmt: skip
OF_LINKS = {
    "sv", "ss", "srt", "sp", "se", "st", "spr", "sig", "sr", "si", "sip", "skoid", "sktid", "skt",
    "ske", "sks", "skv", "saoid", "suoid", "scid", "sdd", "ses", "skdutid", "sduoid",
}  # fmt: skip
"""Of a shared access signature, which is not verified."""
_WANTED = {
    "rscc": "Cache-Control", "rscd": "Content-Disposition", "rsce": "Content-Encoding",
    "rscl": "Content-Language", "rsct": "Content-Type",
}  # fmt: skip
_KNOWN = PARAMETERS | OF_LINKS | _WANTED.keys()
INCLUDED = {
    "", "metadata", "versions", "snapshots", "tags", "copy", "deleted", "immutabilitypolicy",
    "legalhold", "deletedwithversions", "permissions",
}  # fmt: skip
"""What a listing can include; some of these never exist here."""


def check(call: DialectRequest) -> None:
    if not call.query and "x-ms-if-tags" not in call.headers:
        return
    unknown = [f"?{name}" for name in call.query if name.lower() not in _KNOWN]
    included = call.query.get("include", "").lower().split(",")
    unknown += [f"?include={each}" for each in included if each.strip() not in INCLUDED]
    if {"snapshots", "versions"} <= set(included) or (
        "snapshots" in included and call.query.get("delimiter")
    ):
        unknown.append("snapshots in one listing with versions or a delimiter")
    if "snapshot" in call.query and not (
        (call.method in ("GET", "HEAD") and call.query.get("comp", "") in ("", "metadata", "tags"))
        or call.method == "DELETE"
    ):
        unknown.append("?snapshot")
    unknown += [name for name in call.headers if name == "x-ms-if-tags"]
    if unknown:
        text = f"this server does not know {', '.join(unknown)} of {call.method} {call.path}"
        raise DialectError(501, "NotImplemented", text)


def wanted_headers(call: DialectRequest) -> dict[str, str]:
    """Headers that a signed link sets in place of the blob's own."""
    return {header: call.query[name] for name, header in _WANTED.items() if name in call.query}
