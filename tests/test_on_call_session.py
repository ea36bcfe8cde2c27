"""The session on the page for on-call staff: each provider, with the least rights."""

from __future__ import annotations

import getpass
import re
from importlib import import_module
from pathlib import Path
from socket import gethostname

import pytest

DOCS = Path(__file__).parents[1] / "docs"
CURES = {
    "s3": "403 AccessDenied; access is denied: these credentials need s3:PutObject",
    "gcs": "403 forbidden; access is denied: these credentials need storage.objects.create",
    "azure": "AuthorizationPermissionMismatch; access is denied: these credentials need the role",
}


@pytest.mark.xdist_group("on_call_session")
@pytest.mark.parametrize("kind", CURES)
def test_on_call_staff_see_the_holder_and_only_a_writer_breaks_the_lock_of_a_dead_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    said = import_module("on_call_session").story(kind)
    steps = re.split(r"^\$ lockkit lock ", said, flags=re.MULTILINE)[1:]
    assert [each.split()[0] for each in steps] == [
        "show",
        "break",
        "show",
        "break",
        "break",
        "break",
        "acquire",
        "show",
    ]
    exits = [re.findall(r"^\[exit (\d+)\]$", each, re.MULTILINE) for each in steps]
    assert exits == [["0"], ["75"], ["1"], ["0"], ["3"], ["0"], ["0"], ["0"]]
    lives, refused, died, preview, denied, broken, _, after = steps
    assert re.search(r"  held: 7f3c0b1e-\S+ \(host-4/8121@\S+/spark-orders\), epoch 2\n", lives)
    taken, renewed = (
        re.findall(rf"^  {word} +(\S+ \S+)Z \(the store's clock\)", lives, re.MULTILINE)
        for word in ("since", "renewed")
    )
    assert taken < renewed, "since shows the grant, and not its last renewal"
    assert "break    no: its holder renews it" in refused
    assert "  overdue: 7f3c0b1e-" in died and "takeable now" in died
    assert "break    yes: its lease is over" in preview and "nothing was changed" in preview
    assert "cannot write .hoodie/.locks/breaks/" in denied and CURES[kind] in denied
    printed = preview.partition("to break it: lockkit lock ")[2].splitlines()[0]
    assert words_of(denied) == words_of(broken) == sorted(printed.split())
    assert "broken: the lock is free now" in broken
    assert re.search(r"  released: \S+ \(laptop/", after) and "epoch 3" in after
    assert getpass.getuser() + "@" not in said and gethostname() + "/" not in said


def words_of(step: str) -> list[str]:
    """The words of the command of a step. The printed command has them in another order."""
    return sorted(step.splitlines()[0].split())
