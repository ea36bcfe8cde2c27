"""Commands in what is printed can be pasted: the URL, the endpoint and the region are in them."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest

from lockkit.cli.main import main
from lockkit.cli.terminal import address_of, pasteable, store_flags
from lockkit.lab.server import Emulator

AT = ("s3://lake/orders", " --endpoint http://127.0.0.1:9000")
WHOLE = "lockkit lock break s3://lake/orders --endpoint http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("free it with lockkit lock break s3://lake/orders", f"free it with {WHOLE}"),
        ("lockkit lock break URL shows how", f"{WHOLE} shows how"),
        ("see (lockkit lock break s3://lake/orders/).", f"see ({WHOLE})."),
        ("lockkit lock break s3://lake/orders_2", "lockkit lock break s3://lake/orders_2"),
        ("lockkit lock break s3://other/orders", "lockkit lock break s3://other/orders"),
        (WHOLE, WHOLE),
        ("lockkit lock break s3://lake/orders --version 7", f"{WHOLE} --version 7"),
        ("lockkit lock break", "lockkit lock break"),
        ("URL", "URL"),
    ],
)
def test_a_printed_command_about_this_table_has_its_options(text: str, said: str) -> None:
    assert pasteable(text, *AT) == said
    assert pasteable(pasteable(text, *AT), *AT) == said


def test_a_command_that_takes_a_lock_has_the_endpoint_and_no_flag_that_it_does_not_know() -> None:
    flags = f"{AT[1]} --timeout-s 30"
    said = pasteable("lockkit lock acquire s3://lake/orders -- true", AT[0], flags)
    assert said == f"lockkit lock acquire {AT[0]}{AT[1]} -- true"


def test_without_a_table_nothing_is_changed() -> None:
    assert pasteable("lockkit lock break URL", "", "") == "lockkit lock break URL"


def test_words_for_a_shell_are_quoted_and_passwords_left_out() -> None:
    flags = store_flags("http://me:s3cret@h:1/a b", "x;y")
    assert flags == " --endpoint 'http://h:1/a b' --region 'x;y'"
    assert shlex.split(pasteable("lockkit table show URL", "s3://b/it's", ""))[3] == "s3://b/it's"
    assert store_flags("http://me:s3cret@[::1") == " --endpoint '[::1'"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"url": "s3://b/t/", "endpoint": None, "region": "eu-1"}, ("s3://b/t", " --region eu-1")),
        ({"source": ["s3://b/t", "log"], "endpoint": "http://h", "region": None},
         ("s3://b/t", " --endpoint http://h")),
        ({"source": ["a.jsonl"], "endpoint": None, "region": None}, ("", "")),
        ({"seeds": "1..3"}, ("", "")),
    ],
)  # fmt: skip
def test_the_url_and_the_options_of_a_command_are_its_address(
    given: dict[str, Any], found: tuple[str, str]
) -> None:
    assert address_of(argparse.Namespace(**given)) == found


def test_a_command_line_that_a_command_prints_runs_as_it_is(
    shared_emulator: Emulator, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card of a garbled lock names a command; pasted, it breaks that lock."""
    from lockkit import open_store
    from lockkit.lock.handle import LOCK_KEY
    from lockkit.protocol.outcome import IfAbsent

    url = f"s3://{bucket}/pasted"
    open_store(url, endpoint=shared_emulator.s3).put(LOCK_KEY, b"not a lock", IfAbsent())
    assert main(["incident", url, "--endpoint", shared_emulator.s3, "--watch-s", "0"]) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("run ")]
    words = shlex.split(line.removeprefix("run"))
    assert words[:2] == ["lockkit", "lock"]
    assert main([*words[1:], "--watch-s", "0"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    words = shlex.split(last.partition("to break it: ")[2])
    assert main([*words[1:], "--watch-s", "0"]) == 0
    assert main(["incident", url, "--endpoint", shared_emulator.s3, "--watch-s", "0"]) == 0
