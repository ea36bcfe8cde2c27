"""Runs a test once without faults, then once for each case, and reports it as one test."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from lockkit.events import plain
from lockkit.lab.testing.cases import Case, cases_of, chosen
from lockkit.lab.testing.faulty import FaultScript
from lockkit.lab.testing.options import FAULTS, NAME, PROPERTY, RUN, cases_max
from lockkit.lab.testing.report import as_text, command, draw

LISTED_MAX = 20
ERROR_CHARACTERS_MAX = 100
NO_CASES = (
    "lost_responses repeats a test, which a unittest.TestCase does not allow; write the test as a "
    "function, or as a method of a class that does not inherit from TestCase"
)
PICTURES = pytest.StashKey[Path]()
"""A folder of this run alone, where pytest keeps no cache."""


class CaseRun:
    """The runs of one test; `script` is that of the present one."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.script = FaultScript(None)
        self.raised: list[pytest.CallInfo[None]] = []

    def once(self, case: Case | None) -> list[pytest.TestReport]:
        """Set up, call, tear down, with fresh fixtures; those of a wider scope stay."""
        self.script, self.raised = FaultScript(case), []
        stay = cast(pytest.Item, self.item.parent)  # the next "item": all but this one is needed
        return runtestprotocol(self.item, log=False, nextitem=stay)

    def report_of(self, reports: list[pytest.TestReport]) -> pytest.TestReport | None:
        """The report of what went wrong in the last run, even where it was expected to."""
        wrong = [each for each in self.raised if not _skips(each)]
        return next((each for each in reports if wrong and each.when == wrong[0].when), None)

    def error(self) -> str:
        wrong = next(each for each in self.raised if not _skips(each))
        assert wrong.excinfo is not None
        text = " ".join(wrong.excinfo.exconly(tryshort=True).split())
        return plain(text.removesuffix(" Use -v to get more diff"), limit=ERROR_CHARACTERS_MAX)


def _skips(call: pytest.CallInfo[None]) -> bool:
    return call.excinfo is not None and isinstance(call.excinfo.value, pytest.skip.Exception)


def run(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The whole protocol of one test."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, nextitem):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _no_cases(item: pytest.Item) -> None:
    for each in (getattr(item, "obj", None), getattr(item, "cls", None)):
        if getattr(each, "__unittest_skip__", False):
            pytest.skip(getattr(each, "__unittest_skip_why__", ""))
    pytest.fail(NO_CASES, pytrace=False)


def _reports(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[pytest.TestReport]:
    """Setup, call and teardown, as of one test."""
    if not hasattr(item, "callspec"):
        yield _made(item, "setup", lambda: _no_cases(item))
        yield _made(item, "teardown", lambda: item.session._setupstate.teardown_exact(nextitem))
        return
    cases = item.stash[RUN] = CaseRun(item)
    try:
        clean = cases.once(None)
        yield from (each for each in clean if each.when == "setup")
        ended = next((each for each in clean if each.when == "call"), None)
        failing = cases.report_of(clean)
        if failing is not None:
            _add(failing, "lockkit", "This was the run without faults: the test fails by itself.")
            yield from (each for each in clean if each.when == "call")
        elif ended is not None and not ended.skipped:
            yield _all_cases(item, cases, ended)
        elif ended is not None:
            yield ended
    finally:
        del item.stash[RUN]
    broken = [each for each in clean if each.when == "teardown" and each.failed]
    yield from broken
    teardown = _made(item, "teardown", lambda: item.session._setupstate.teardown_exact(nextitem))
    if teardown.failed or not broken:
        yield teardown


def _all_cases(item: pytest.Item, cases: CaseRun, clean: pytest.TestReport) -> pytest.TestReport:
    """The report of the call: that of the clean run, or of the first case that fails."""
    script, config = cases.script, item.config
    kind = item.callspec.params["lost_responses"]  # type: ignore[attr-defined]
    pattern = config.getoption("lockkit_case") or ""
    known = cases_of(kind, script.sent)
    pick = chosen(known, pattern, cases_max(config))
    if why := _nothing_to_do(script, known, pick.cases, kind, pattern):
        return _made(item, "call", why)
    first: pytest.TestReport | None = None
    said: list[str] = []
    unreached: list[str] = []
    skipped: list[str] = []
    duration, ran = clean.duration, 0
    for case in pick.cases:
        try:
            reports, ran = cases.once(case), ran + 1
        except KeyboardInterrupt as error:  # of a block that hangs; pytest prints the note
            error.add_note(f"{plain(case.id)} ran:\n{_shown(item, case, cases.script)}")
            raise
        duration += sum(each.duration for each in reports)
        failing = cases.report_of(reports)
        if cases.script.struck is None:
            unreached.append(case.id)
        if failing is None:
            skipped += [case.id] if any(map(_skips, cases.raised)) else []
            continue
        said.append(f"{plain(case.id)}\n    {cases.error()}\n{_shown(item, case, cases.script)}")
        first = first or failing
        if config.getoption("maxfail") == 1:
            break
    if len(unreached) == ran and first is None:
        return _made(item, "call", lambda: pytest.fail(_unreached(unreached), pytrace=False))
    if len(skipped) == ran:
        return _made(item, "call", lambda: pytest.skip(_skipped(skipped)))
    report = first or clean
    report.when, report.duration = "call", duration
    if said:
        head = f"{len(said)} of {ran} cases fail: {FAULTS[kind]}"
        _add(report, "lockkit", "\n\n".join([head, *said[:LISTED_MAX], *_rest(said)]))
    notes = []
    if pick.wanted > ran:
        notes.append(
            f"{ran} of {pick.wanted} cases ran, writes first"
            + (" (until the first failure)" if ran < len(pick.cases) else
               " (--lockkit-cases-max, or --lockkit-case to select)")
        )  # fmt: skip
    if unreached:
        notes.append(_unreached(unreached))
    if skipped:
        notes.append(_skipped(skipped))
    result = {"ran": ran, "failed": len(said), "notes": notes}
    report.user_properties.append((PROPERTY, json.dumps(result)))
    return report


def _nothing_to_do(
    script: FaultScript, known: list[Case], pick: tuple[Case, ...], kind: str, pattern: str
) -> Any:
    """What ends the test where it has no case: nothing must pass without one."""
    if not script.entered:
        why = "the test never entered `with lost_responses:`; put what your code does into it"
    elif not any(each.counts for each in script.sent):
        why = (
            "no request was sent within `with lost_responses:`; does the client use `lake.s3`, "
            "`lake.gcs`, `lake.azure` or `lost_responses.install(client)`?"
        )
    elif not known:
        return lambda: pytest.skip(f"it sends no writes, so none can be late ({kind})")
    elif not pick:
        listed = [plain(each.id) for each in known]
        why = f"no case fits --lockkit-case={pattern}; there are:\n  " + "\n  ".join(
            [*listed[:LISTED_MAX], *_rest(listed)]
        )
    else:
        return None
    return lambda: pytest.fail(why, pytrace=False)


def _rest(listed: list[str]) -> list[str]:
    return [f"and {len(listed) - LISTED_MAX} more"] if len(listed) > LISTED_MAX else []


def _unreached(cases: list[str]) -> str:
    more = " and others" if len(cases) > 1 else ""
    return f"{len(cases)} not reached, as the request was not sent again: {plain(cases[0])}{more}"


def _skipped(cases: list[str]) -> str:
    more = " and others" if len(cases) > 1 else ""
    return f"{len(cases)} skipped by the test itself: {plain(cases[0])}{more}"


def _shown(item: pytest.Item, case: Case, script: FaultScript) -> str:
    nodeid = _nodeid(item)
    file, _, within = nodeid.partition("::")
    name = re.sub(r"[^\w.-]+", "_", f"{Path(file).name}::{within}-{case.id}")[-180:]
    title = f"{nodeid}  {plain(case.id)}"
    picture = draw(title, case.kind, script.sent, _folder(item) / f"{name}.svg")
    by_name = NAME if NAME in item.config.option.plugins else ""
    return (
        f"{as_text(script.sent)}\n"
        f"picture: {picture}\n"
        f"repeat:  {command(nodeid, case.id, loaded_by_name=by_name)}"
    )


def _nodeid(item: pytest.Item) -> str:
    """As the command line takes it, from where pytest was started."""
    grouped = item.get_closest_marker("xdist_group") is not None
    nodeid = re.sub(r"@[^@\]]*$", "", item.nodeid) if grouped else item.nodeid
    within = "".join(nodeid.partition("::")[1:])
    return os.path.relpath(item.path, item.config.invocation_params.dir) + within


def _folder(item: pytest.Item) -> Path:
    cache = getattr(item.config, "cache", None)
    if cache:
        return cast(Path, cache.mkdir("lockkit"))
    if PICTURES not in item.config.stash:
        item.config.stash[PICTURES] = Path(tempfile.mkdtemp(prefix="lockkit-"))
    return item.config.stash[PICTURES]


def _add(report: pytest.TestReport, name: str, text: str) -> None:
    """Beside the traceback, where every style of it shows it."""
    shown: Any = report.longrepr
    if hasattr(shown, "addsection"):
        shown.addsection(name, text)
    else:
        report.longrepr = f"{shown}\n\n{text}"


def _made(item: pytest.Item, when: Any, what: Any) -> pytest.TestReport:
    """The report of something done in place of the test's own phase."""
    call = pytest.CallInfo.from_call(what, when, reraise=(pytest.exit.Exception, KeyboardInterrupt))
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report
