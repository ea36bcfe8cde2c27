"""What the incident console shows, as HTML: text from a bucket, log or file is never markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lockkit.cli.service_lock import holder_facts
from lockkit.events import Event, clock_time, shortened
from lockkit.lab.incident.audit import Validation
from lockkit.lab.incident.diagnosis import Diagnosis
from lockkit.lab.incident.dropped import ParsedFile
from lockkit.lab.incident.patterns import NOT_SIMULATED, SIMULATED, UNJUDGED, Pattern
from lockkit.lab.incident.service import ServiceExamination
from lockkit.lab.incident.words import audit_facts, command_of
from lockkit.lab.widgets.links import link, playground
from lockkit.lab.widgets.ui import shown, table
from lockkit.protocol.record import Garbled, Record, encode
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.process_state import ProcessState
from lockkit.table.inspect.standing import LockHolder, LockInspection
from lockkit.table.inspect.takeover import PlannedBreak
from lockkit.table.inspect.versions import Generation
from lockkit.table.inspect.words import lock_facts, table_facts

CELL_CHARS_MAX = 80
ROWS_MAX = 200
PILLS = {
    "held": ("●", "warn", "held"),
    "renewed": ("●", "good", "held, and renewed"),
    "silent": ("▲", "warn", "held, not renewed"),
    "overdue": ("▲", "bad", "overdue"),
    "died": ("▲", "bad", "its holder has died"),
    "absent": ("○", "good", "free: never locked, or deleted"),
    "released": ("○", "good", "free: released"),
    "garbled": ("✗", "bad", "garbled: no lock record"),
}
"""For each state a sign, a colour and words, so that colour is never the only cue."""
NAMES = {
    "state": "owner", "process": "process", "since": "since", "written": "written",
    "until": "until", "left": "what is left", "renewed": "renewed?", "break": "safe to break?",
    "version": "version",
}  # fmt: skip
STYLE = """<style>
.lockkit-console .lc-pill{display:inline-block;border:1px solid currentColor;border-radius:999px;
padding:2px 14px;font-weight:600;font-size:14px}
.lockkit-console .lk-table{margin:6px 0}
.lockkit-console .lk-table td{font-size:13px;overflow-wrap:anywhere}
.lockkit-console .lc-facts tr+tr td{border:0}
.lc-facts td:first-child{opacity:.75;white-space:nowrap}
.lc-rows td,.lc-rows th{white-space:nowrap}
.lockkit-console .lk-wide{max-height:320px}
.lc-card{border:1px solid var(--jp-border-color2,#ddd);border-left:4px solid var(--lk-warn);
border-radius:3px;padding:6px 12px;font-size:13px;line-height:1.4}
.lc-card h4{margin:0 0 4px;font-size:15px}
.lc-card p{margin:4px 0}
.lc-card a{color:var(--jp-content-link-color,#0067b8);text-decoration:underline}
.lc-pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(400px,100%),1fr));gap:0 20px;
align-items:center}
.lockkit-console-folds{display:flex!important;flex-flow:row wrap;gap:2px 6px}
.lockkit-console-folds>.jupyter-widget-Collapse{flex:1 1 170px;margin:0!important}
.lockkit-console-folds .jupyter-widget-Collapse-header{padding:3px 10px;font-size:13px}
.lockkit-console-reading>.widget-html{flex:1 1 0}
.lockkit-console-evidence>*{flex:none}
@media (max-width:900px){.lockkit-console-evidence{max-height:132px;overflow-y:auto}
.lc-card{font-size:12px}}
.lockkit-console-folds>.jupyter-widget-Collapse-open{flex-basis:100%}
.lc-card.unknown{border-left-color:var(--jp-border-color1,#bbb)}
.lc-code{display:block;user-select:all;cursor:copy;font-family:var(--jp-code-font-family,monospace);
font-size:12px;background:var(--jp-layout-color2,#eee);color:var(--jp-content-font-color0,#111);
padding:6px 10px;border-radius:3px;white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0}
.lockkit-console .lockkit-console-evidence button{width:auto;max-width:100%;height:auto;
text-align:left;white-space:normal;overflow-wrap:anywhere;line-height:1.4;padding:2px 10px;
margin:1px 2px;font-family:var(--jp-code-font-family,monospace);font-size:12px}
</style>"""


def lock_html(holder: LockHolder, since: str = "") -> str:
    """The state, the owner, the lease's start and end (by whose clock), and whether to break it."""
    (_, state), *facts = lock_facts(holder, since)
    silent = holder.renews is False and holder.state == "held"
    died = holder.process_state is ProcessState.ENDED and holder.breakable
    name = "renewed" if holder.renews else "died" if died else "silent" if silent else holder.state
    sign, colour, said = PILLS[name]
    pill = f"<span class='lc-pill {colour}' data-state='{holder.state}'>{sign} {said}</span>"
    if not facts:
        return f"{pill}<p class='lk-note'>{shown(holder.why)}</p>"
    who = state.removeprefix(f"{holder.state}: ")
    return pill + _facts((NAMES[name], reported) for name, reported in [("state", who), *facts])


def table_html(standing: LockInspection) -> str:
    return _facts(table_facts(standing))


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return table((), facts, "lc-facts")


def service_html(found: ServiceExamination) -> str:
    """The state as a pill, then what the service reports."""
    name = "absent" if found.holder is None else "renewed" if found.renews else "held"
    if found.troubled:
        name = "silent" if found.diagnosis.pattern is Pattern.HOLDER_SILENT else "overdue"
    sign, colour, said = PILLS[name]
    said = {"absent": "free", "overdue": PILLS["died"][2]}.get(name, said)
    pill = f"<span class='lc-pill {colour}' data-state='{name}'>{sign} {said}</span>"
    if found.holder is None:
        return pill
    (_, owner), *rest = holder_facts(found.holder)
    return pill + _facts([("owner", owner), *rest])


def grant_html(grant: ServiceHolder | None, url: str) -> str:
    """The dry run of a break of a service's lock."""
    if grant is None:
        return "<div class='lc-card'><h4>Dry run</h4><p>The lock is free.</p></div>"
    others = "It is another program's lease. If its next lease has the same version, the break "
    others += "ends that one."
    risk = "It cannot end a later grant." if grant.certain else others
    breakable, why = grant.breakable
    refused = f"<p class='bad'><b>Must not be broken now:</b> {shown(why)}.</p>"
    confirm = "" if grant.by_hand else f"<p>To break it anyway, type in <b>{FORCE}</b>.</p>"
    return (
        f"<div class='lc-card'><h4>Dry run: nothing was changed</h4><p>A break would end the grant "
        f"of <b>{shown(grant.owner)}</b> at {shown(url)}, version <b>{shown(grant.version)}</b>. "
        f"{risk} The service does not stop its holder: make sure that it is dead.</p>"
        f"{refused + confirm if breakable is False else ''}</div>"
    )


FORCE = "force"
"""What a person types in to end the grant of a holder that lives."""
NOT_HERE = "<p class='lk-note'>A service's lock keeps no versions, and has no table.</p>"


def card_html(found: Diagnosis, url: str, flags: str = "") -> str:
    """The pattern, why, and its page of the runbook; one click selects the command."""
    line = command_of(found, url, flags)
    calm = found.pattern in (*UNJUDGED, Pattern.HEALTHY)
    colour = "unknown" if calm else "named"
    also = "".join(
        f"<p class='lk-note'>also: {shown(each.pattern)}: {shown(each.because)}</p>"
        for each in found.also
    )
    return (
        f"<div class='lc-card {colour}' data-pattern='{shown(found.pattern)}'>"
        f"<h4>{shown(found.pattern)}</h4>"
        f"<p title='{shown(found.because)}'>{shown(shortened(found.because))}</p>{also}"
        f"<div class='lc-pair'><p><b>Do:</b> {shown(found.card.do)}</p>"
        f"<p><b>Don't:</b> {shown(found.card.dont)}</p></div>"
        f"<div class='lc-pair'>{code_html(line)}{simulated_html(found.pattern)}</div></div>"
    )


def simulated_html(pattern: Pattern) -> str:
    """A link to a simulated run with this pattern, or why there is none; "" if no playground."""
    if why := NOT_SIMULATED.get(pattern):
        which = "belongs to this card" if pattern is Pattern.UNKNOWN else "shows this pattern"
        return f"<p class='lk-note'>No simulated run {which}: {shown(why)}.</p>"
    if not playground():
        return ""
    moment = SIMULATED[pattern]
    return (
        f"<p><a href='{escape(link(moment))}' target='_blank' rel='noopener'>Step through a "
        f"simulated run with this pattern</a> ({shown(moment)})</p>"
    )


def code_html(line: str) -> str:
    return f"<code class='lc-code' title='click selects all of it'>{shown(line)}</code>"


def generations_html(kept: Sequence[Generation], untold: str) -> str:
    """Newest first, as the bucket kept them."""
    if untold:
        return f"<p class='lk-note'>The generations cannot be listed: {shown(untold)}</p>"
    rows = [_generation(each) for each in kept[:ROWS_MAX]]
    return _table(("written", "version", "epoch", "state", "owner", "until"), rows)


def _generation(each: Generation) -> tuple[object, ...]:
    written, version = clock_time(each.number.modified_ms), each.number.version
    match each.record:
        case None:
            return written, version, "", "deleted", "", ""
        case Garbled(why):
            return written, version, "", f"no lock record: {why}", "", ""
        case Record() as record:
            state = "released" if record.expired else "held"
            until = clock_time(record.valid_until_ms)
            return written, version, record.epoch or "none", state, record.owner, until


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p class='lk-note'>There are none.</p>"
    return f"<div class='lk-wide'>{table(head, rows, 'lc-rows', limit=CELL_CHARS_MAX)}</div>"


def audit_html(said: Validation | None, events: Iterable[Event]) -> str:
    """Hudi's verdict on its own log, and its lines."""
    if said is None:
        return "<p class='lk-note'>No audit log: Hudi's lock audit was never enabled.</p>"
    lines = "".join(f"<p class='lk-note'>{shown(line)}</p>" for line in audit_facts(said))
    rows = [
        (clock_time(each.at_ms), each.who, each.kind,
         clock_time(each["until_ms"]) if "until_ms" in each.data else "")
        for each in events if each.get("audit")
    ]  # fmt: skip
    return lines + _table(("by its own clock", "owner", "state", "until"), rows[-ROWS_MAX:])


def taken_html(taken: Sequence[ParsedFile]) -> str:
    return _table(
        ("file", "kind", "content"),
        [(each.name, each.kind, each.said) for each in taken],
    )


def plan_html(plan: PlannedBreak, url: str) -> str:
    """The dry run: what would be written, what it replaces, and why it would be refused now."""
    body = encode(plan.tombstone).decode()
    refused = f"<p class='bad'><b>A break is refused now.</b> {shown(plan.refused)}</p>"
    return (
        f"<div class='lc-card'><h4>Dry run: nothing was changed</h4>"
        f"<p>A break would replace only version <b>{shown(plan.version)}</b> of the lock object of "
        f"{shown(url)} by:</p>"
        f"{code_html(body)}<p>It is logged first, as {shown(plan.log)}. Nothing is deleted.</p>"
        f"{refused if plan.refused else ''}</div>"
    )
