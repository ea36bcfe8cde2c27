"""The pytest plugin: which runs it makes of a test, what it says of them, and what it leaves."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from lockkit.lab.testing import options
from lockkit.lab.testing.cases import STRIKES, generic
from lockkit.lab.testing.options import NAME

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
Run = Callable[..., pytest.RunResult]

CLIENT = '''
import http.client
from urllib.error import HTTPError
from urllib.request import Request, urlopen
import pytest

def send(lake, method, key, body=None, tries=2, **headers):
    """A client that sends a request once more where it got no answer, or a 5xx."""
    request = Request(f"{lake.s3}/{lake.name}/{key}", body, headers, method=method)
    try:
        with urlopen(request) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        if error.code < 500 or tries == 1:
            return error.code, b""
    except OSError:
        if tries == 1:
            raise
    return send(lake, method, key, body, tries - 1, **headers)

def claim(lake, **more):
    return send(lake, "PUT", "claim", b"mine", **{"If-None-Match": "*"}, **more)[0]
'''
WRONG = """
def test_claim(lost_responses, lake):
    with lost_responses:
        won = claim(lake) == 200
    assert won == (send(lake.direct, "GET", "claim")[1] == b"mine")
"""  # it takes a 412 for somebody else's
RIGHT = """
def test_put(lost_responses, lake):
    with lost_responses:
        assert send(lake, "PUT", "orders/log", b"1")[0] == 200
        assert send(lake, "GET", "orders/log")[1] == b"1"
"""


class LoadedModules:
    """What a run has imported stays: pytester would take it out of `sys.modules`, and the next test
    of the suite would import it again, beside the copies that packages and classes still hold.
    """

    def __init__(self, preserve: object = None) -> None:
        pass

    def restore(self) -> None:
        sys.modules.pop("test_it", None)


@pytest.fixture
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program of tests in this process, with this plugin alone."""
    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", LoadedModules)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester: pytest.Pytester = request.getfixturevalue("pytester")

    def run(program: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=CLIENT + program)
        return pytester.runpytest_inprocess("-p", NAME, *arguments)

    return run


def test_each_request_is_struck_once_by_each_fault_and_a_sound_client_passes(run: Run) -> None:
    result = run(RIGHT)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["5 cases of 3 tests, 0 failed"])  # of 2 requests, 1 write


def test_a_case_that_fails_is_named_drawn_and_can_be_repeated(run: Run) -> None:
    result = run(WRONG)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([
        "*won == *",
        "1 of 1 cases fail: the store applied the request, and its answer was lost",
        "lost:put claim",
        "   1 PUT    claim * 200 * nothing  <-- lost",
        "   2 PUT    claim * 412 * 412",
        "FAILED test_it.py::test_claim[[]lost[]]*",
    ])  # fmt: skip
    picture = Path(re.findall("^picture: (.*)$", result.stdout.str(), re.M)[0]).read_text()
    assert "PUT    claim" in picture and picture.count("marker-end") == 4
    (repeat,) = re.findall("^repeat:  pytest (.*)$", result.stdout.str(), re.M)
    again = run(WRONG, *shlex.split(repeat))
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["1 cases of 1 tests, 1 failed"])


def test_a_key_with_control_characters_is_shown_escaped_and_its_case_can_be_repeated(
    run: Run,
) -> None:
    program = WRONG.replace('"claim"', '"cl%1B%5B31maim"')
    program = program.replace("claim(lake)", 'send(lake, "PUT", "cl%1B%5B31maim", b"mine", '
                              '**{"If-None-Match": "*"})[0]')  # fmt: skip
    result = run(program, "--color=no")
    shown = result.stdout.str()
    assert "\x1b" not in shown and "\nlost:put cl\\x1b[31maim\n" in shown
    (repeat,) = re.findall("^repeat:  pytest (.*)$", shown, re.M)
    again = run(program, *shlex.split(repeat))
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["1 cases of 1 tests, 1 failed"])


def test_without_pytests_cache_each_run_has_a_folder_of_its_own_for_its_pictures(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = set()
    for _ in range(2):
        shown = run(WRONG, "-p", "no:cacheprovider").stdout.str()
        folder = Path(re.findall("^picture: (.*)$", shown, re.M)[0]).parent
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o077 == 0
        folders.add(folder)
    assert len(folders) == 2


def test_a_late_write_arrives_when_the_block_ends(run: Run) -> None:
    result = run('''
def test_it(lost_responses, lake):
    with lost_responses.allowing(OSError):
        send(lake, "PUT", "state", b"old", tries=1)
    if lost_responses.error:
        assert lost_responses.case.endswith(":put state")
        assert send(lake.direct, "GET", "state")[1] == b"old"
        send(lake.direct, "PUT", "state", b"new")
''')  # fmt: skip
    result.assert_outcomes(passed=3)
    late = run('''
def test_it(lost_responses, lake):
    with lost_responses:
        send(lake, "PUT", "state", b"old")
        send(lake, "PUT", "state", b"new")
    assert send(lake.direct, "GET", "state")[1] == b"new"
''')  # fmt: skip
    late.assert_outcomes(passed=2, failed=1)
    late.stdout.fnmatch_lines([
        "1 of 2 cases fail: *reached the store later", "late:put state",
        "   1 PUT    state * - * nothing  <-- late",
        "   2 PUT    state * 200 * 200",
        "     at the end of the block, PUT    state arrived: status 200",
    ])  # fmt: skip


def test_an_error_is_allowed_only_where_a_fault_was_made(run: Run) -> None:
    result = run('''
def test_it(lost_responses, lake):
    with lost_responses.allowing(OSError):
        send(lake, "PUT", "state", b"old")
        raise OSError("always")
''')  # fmt: skip
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["This was the run without faults: the test fails by itself."])


def test_each_case_has_fresh_fixtures_and_those_of_the_module_stay(run: Run) -> None:
    result = run('''
places, modules = [], []

@pytest.fixture(scope="module")
def module():
    modules.append(1)
    yield
    print("module ends after", len(places))

@pytest.fixture
def place(lake, tmp_path, module):
    places.append((lake.name, lake.s3, tmp_path))
    send(lake, "PUT", "made/before", b"1")  # not within the block: no case

def test_it(lost_responses, lake, place):
    with lost_responses:
        assert claim(lake) in (200, 412)

def test_last():
    assert len(places) == len(set(places)) == 6 and modules == [1]
''', "-rP")  # fmt: skip
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["3 cases of 3 tests, 0 failed"])
    result.stdout.fnmatch_lines(["module ends after 6"])


def test_nothing_passes_without_a_case(run: Run) -> None:
    result = run('''
def test_no_block(lost_responses, lake):
    claim(lake)

def test_no_request(lost_responses, lake):
    with lost_responses:
        claim(lake.direct)

def test_no_write(lost_responses, lake):
    with lost_responses:
        send(lake, "GET", "state")
''', "--lockkit-faults=late", "-rs")  # fmt: skip
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["the test never entered*", "no request was sent*"])
    result.stdout.fnmatch_lines(["SKIPPED*it sends no writes, so none can be late (late)"])


def test_a_case_that_the_test_skips_is_reported_and_does_not_pass(run: Run) -> None:
    result = run("""
def test_each(lost_responses, lake):
    with lost_responses:
        if claim(lake, tries=1) != 200:
            pytest.skip("no")

def test_one(lost_responses, lake):
    with lost_responses:
        first = claim(lake) == 200
        if send(lake, "PUT", "two", b"2", tries=1)[0] != 200:
            pytest.skip("no")
""", "--lockkit-faults=throttle", "-rs")
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*1 skipped by the test itself: throttle:put two*", "SKIPPED*: throttle:put claim*"]
    )


def test_in_a_unittests_testcase_the_fixture_is_one_clear_failure(run: Run) -> None:
    result = run("""
import unittest

class TestIt(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def bucket(self, lost_responses, lake):
        self.lost_responses, self.lake = lost_responses, lake

    def test_it(self):
        with self.lost_responses:
            claim(self.lake)

    @unittest.skip("later")
    def test_later(self):
        pass

def test_another():
    pass
""")
    result.assert_outcomes(errors=1, passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*which a unittest.TestCase does not allow; write the test as*"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_an_error_with_control_characters_is_escaped_in_the_section_of_lockkit(run: Run) -> None:
    result = run("""
def test_it(lost_responses, lake):
    with lost_responses:
        if claim(lake, tries=1) != 200:
            raise ValueError(chr(27) + "[31m red")
""", "--lockkit-faults=throttle")
    result.assert_outcomes(failed=1)
    assert "    ValueError: \\x1b[31m red" in result.stdout.str()


def test_a_bound_on_the_cases_selects_writes_first_and_reports_it(run: Run) -> None:
    result = run(RIGHT, "--lockkit-cases-max=1", "--lockkit-faults=lost,error")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 cases of 2 tests*", "*1 of 2 cases ran, writes first*"])


def test_a_mark_says_which_faults_a_test_is_for_and_the_option_narrows_it(run: Run) -> None:
    program = "@pytest.mark.lost_responses('lost', 'error')" + RIGHT
    run(program).assert_outcomes(passed=2)
    run(program, "--lockkit-faults=error,late").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--lockkit-faults=lots", "no fault is called 'lots'; there are lost, late"),
        ("--lockkit-cases-max=0", "a whole number from 1 to 1000000, not '0'"),
        ("--lockkit-block-s-max=1.5", "a whole number from 1 to 1000000, not '1.5'"),
        ("--lockkit-case=put claim", "a case begins with its fault and a colon"),
    ],
)
def test_an_option_that_means_nothing_is_refused(run: Run, option: str, says: str) -> None:
    result = run(RIGHT, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()


def test_a_mark_on_a_test_without_the_fixture_is_an_error(run: Run) -> None:
    result = run("@pytest.mark.lost_responses('lost')\ndef test_claim(lake): pass")
    assert "has no effect, since the test does not use the fixture" in result.stdout.str()
    result.assert_outcomes(errors=1)
    module = "pytestmark = pytest.mark.lost_responses('lost')\ndef test_other(): pass" + RIGHT
    run(module).assert_outcomes(passed=2)


@pytest.mark.parametrize("wrong", ["'OSError'", "OSError()", ""])
def test_allowing_takes_classes_of_errors(run: Run, wrong: str) -> None:
    result = run(f"def test_it(lost_responses):\n    lost_responses.allowing({wrong})")
    result.stdout.fnmatch_lines(["*FaultError: allowing*is no class of errors*"])


TRACED = """
import sys
from lockkit.lab.testing.limit import BlockLimit
BlockLimit(600).stop()
sys.settrace(lambda *_: None)
print((lambda: "ended")())
"""


def test_a_program_can_be_traced_after_a_block_has_ended() -> None:
    """As hypothesis does after a failure: the interpreter must have nothing left to raise."""
    command = [sys.executable, "-c", TRACED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_a_block_that_never_ends_fails_with_its_case_and_its_picture(run: Run) -> None:
    program = """
import time

def test_claim(lost_responses, lake):
    with lost_responses:
        while claim(lake) == 412:
            try:
                time.sleep(0.01)
            except Exception:
                pass
"""
    result = run(program, "--lockkit-block-s-max=1", "--lockkit-faults=lost,throttle")
    result.assert_outcomes(passed=1, failed=1)
    said = result.stdout.str()
    assert "the block of lost_responses did not end in the time of --lockkit-block-s-max" in said
    assert "--lockkit-case=lost:put claim" in said
    assert ".svg" in said


def test_a_block_that_a_person_interrupts_names_its_case_its_picture_and_how_to_repeat_it(
    run: Run, pytester: pytest.Pytester
) -> None:
    program = """
def test_claim(lost_responses, lake):
    with lost_responses:
        if claim(lake) == 412:
            raise KeyboardInterrupt  # Ctrl-C in a block that hangs
"""
    pytester.makepyfile(test_it=CLIENT + program)
    result = pytester.runpytest_inprocess(
        "-p", NAME, "--lockkit-faults=lost", no_reraise_ctrlc=True
    )
    said = result.stdout.str()
    assert "lost:put claim ran:" in said and "1 PUT    claim" in said
    assert "picture: " in said and "--lockkit-case=lost:put claim" in said


def test_the_picture_of_a_test_whose_parameter_has_a_slash_has_the_tests_name(run: Run) -> None:
    program = """
import pytest

@pytest.mark.parametrize("place", ["a[x]/$y"])
def test_one(lost_responses, lake, place):
    with lost_responses:
        assert claim(lake) != 412

@pytest.mark.parametrize("place", ["b[x]/$y"])
def test_two(lost_responses, lake, place):
    with lost_responses:
        assert claim(lake) != 412
"""
    said = run(program, "--lockkit-faults=lost").stdout.str()
    pictures = re.findall(r"^picture: .*[/\\](.*)$", said, re.M)
    assert ["test_one" in each for each in pictures] == [True, False]
    assert all(each.startswith("test_it.py_") for each in pictures)


def test_a_case_that_no_test_has_is_an_error_that_lists_the_cases(run: Run) -> None:
    result = run(RIGHT, "--lockkit-case=lost:put order")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no case fits*", "  lost:put orders/log", "  lost:get orders/log"])
    result = run("def test_other(): pass", "--lockkit-case=lost:put order")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "none of the selected tests uses lost_responses" in result.stderr.str()


def test_a_glob_selects_cases_of_every_fault(run: Run) -> None:
    result = run(RIGHT, "--lockkit-case=*:put *")
    kinds = len(options.FAULTS)
    result.assert_outcomes(passed=kinds)
    result.stdout.fnmatch_lines([f"{kinds} cases of {kinds} tests, 0 failed"])


def test_a_known_bug_can_be_marked(run: Run) -> None:
    result = run("@pytest.mark.xfail(strict=True)" + WRONG, "--lockkit-faults=lost")
    result.assert_outcomes(xfailed=1)
    result = run("@pytest.mark.xfail(strict=True)" + RIGHT, "--lockkit-faults=lost")
    result.assert_outcomes(failed=1)


def test_with_the_option_a_test_stops_at_its_first_failure(run: Run) -> None:
    program = """
def test_it(lost_responses, lake):
    with lost_responses:
        for key in "ab":
            send(lake, "PUT", key, b"1", tries=1)
"""
    run(program, "--lockkit-faults=lost").stdout.fnmatch_lines(["2 of 2 cases fail*"])
    first = run(program, "--lockkit-faults=lost", "-x")
    first.stdout.fnmatch_lines(["1 of 1 cases fail*", "*1 of 2 cases ran*until the first failure*"])


def test_a_run_leaves_no_thread(run: Run) -> None:
    before = set(threading.enumerate())
    run(RIGHT + WRONG).assert_outcomes(passed=5, failed=1)
    left = [each.name for each in threading.enumerate() if each not in before]
    assert left == []


def test_faults_in_the_process_strike_below_the_retries_of_an_sdk(run: Run) -> None:
    pytest.importorskip("boto3", reason="make test installs boto3")
    result = run('''
import boto3

def test_it(lost_responses, lake):
    client = boto3.client("s3", **lake.direct.boto3)  # no proxy
    lost_responses.install(client)
    with lost_responses:
        client.put_object(Bucket=lake.name, Key="state", Body=b"1")
    assert send(lake.direct, "GET", "state")[1] == b"1"
''', "--lockkit-faults=lost,late")  # fmt: skip
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 cases of 2 tests, 0 failed"])


def test_the_other_fixtures_make_the_faults_that_a_test_requests(run: Run) -> None:
    result = run('''
from lockkit import Fault

def test_it(lockkit_server, lockkit_proxy, lockkit_faulty, lake):
    proxy = lockkit_proxy(lockkit_server.s3)
    proxy.inject(Fault("drop"))
    with pytest.raises(OSError):
        urlopen(f"{proxy.url}/b/k")
    assert [each["key"] for each in proxy.faults] == ["k"]
    assert set(lake.environ) > {"AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"}
    assert lake.gcs != lake.s3 and lake.azure in lake.azure_connection
''')  # fmt: skip
    result.assert_outcomes(passed=1)


def test_the_pages_first_test_fails_and_its_repair_passes(run: Run) -> None:
    pytest.importorskip("boto3", reason="make test installs boto3")
    page = (ROOT / "docs" / "howto" / "test_faults.md").read_text(encoding="utf-8")
    wrong, repair, allowing = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.DOTALL)
    found = run(wrong, "--lockkit-faults=lost")
    found.assert_outcomes(failed=1)
    shown = re.search(r"^(1 of 1 cases.*?)^picture", page, re.M | re.DOTALL)
    assert shown is not None
    lines = [" ".join(each.split()) for each in found.outlines]
    missing = [each for each in shown[1].splitlines() if " ".join(each.split()) not in lines]
    assert missing == []
    run(wrong + repair + allowing, "--lockkit-faults=lost").assert_outcomes(passed=2)


CLAIMS = {
    "gcs": """
from google.api_core.exceptions import PreconditionFailed as Refused
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

def blob(lake):
    options = {"api_endpoint": lake.gcs}
    client = Client("any", credentials=AnonymousCredentials(), client_options=options)
    return client.bucket(lake.name).blob("leader")

def create(lake):
    blob(lake).upload_from_string(b"W1", if_generation_match=0)

def read(lake):
    return blob(lake).download_as_bytes()
""",
    "azure": """
from azure.core.exceptions import ResourceExistsError as Refused
from azure.storage.blob import BlobClient, ExponentialRetry

def blob(lake):
    at_once = ExponentialRetry(initial_backoff=0, increment_base=1, random_jitter_range=0)
    return BlobClient.from_connection_string(
        lake.azure_connection, lake.name, "leader", retry_policy=at_once)

def create(lake):
    blob(lake).upload_blob(b"W1")

def read(lake):
    return blob(lake).download_blob().readall()
""",
}
CLAIM = """
def test_claim(lost_responses, lake):
    won = True
    with lost_responses:
        try:
            create(lake)
        except Refused:
            won = False
    assert won == (read(lake.direct) == b"W1")
"""


@pytest.mark.soak
@pytest.mark.parametrize("provider", CLAIMS)
def test_the_sdks_of_google_and_azure_report_defeat_to_the_winner(run: Run, provider: str) -> None:
    package = {"gcs": "google.cloud.storage", "azure": "azure.storage.blob"}[provider]
    pytest.importorskip(package, reason="make test installs the SDKs")
    result = run(CLAIMS[provider] + CLAIM)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["lost:put leader"])


@pytest.mark.soak
def test_workers_of_xdist_share_the_faults_of_a_test(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="make test installs pytest-xdist")
    pytester.makepyfile(test_it=CLIENT + WRONG)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:lockkit", "-p", NAME]
    result = pytester.run(*command, timeout=60)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["lost:put claim", "3 cases of 3 tests, 1 failed"])
    pytester.makepyfile(test_it="def test_other(): pass")
    none = pytester.run(*command, "--lockkit-case=lost:put claim", timeout=60)
    assert none.ret == pytest.ExitCode.USAGE_ERROR
    none.stdout.fnmatch_lines(["ERROR: *none of the selected tests uses lost_responses"])


def test_a_start_of_pytest_loads_the_options_alone() -> None:
    program = f"import sys, {NAME}; print(*[m for m in sys.modules if m.startswith('lockkit')])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    package = NAME.rpartition(".")[0]
    allowed = {"lockkit", "lockkit.lab", package, NAME, options.__name__}
    assert set(done.stdout.split()) == allowed


def test_the_plugin_needs_no_sdk() -> None:
    """A project has the SDK of the store that it uses, and no other."""
    program = (
        "import sys; from lockkit import Emulator; from lockkit.lab.testing import bucket, runner\n"
        "with Emulator() as server, bucket.EmbeddedBucket(server, None) as lake: lake.environ\n"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert not {"azure", "boto3", "botocore", "google", "requests"} & set(done.stdout.split())


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    assert module == NAME and hasattr(importlib.import_module(module), "pytest_runtest_protocol")


def test_every_fault_of_the_options_can_be_made() -> None:
    assert STRIKES.keys() == options.FAULTS.keys() >= set(options.DEFAULT.split(","))


@pytest.mark.parametrize(
    ("key", "pattern"),
    [
        ("t/_delta_log/00000000000000000001.json", "t/_delta_log/00000000000000000001.json"),
        ("t/part-00000-0f4ff0c2-1b1f-4f0b-9d4d-9c5c4c0b1b1e-c000.p", "t/part-00000-*-c000.p"),
        ("m/snap-2764928374650192837-0-0f4ff0c21b1f4f0b9d4d9c5c4c0b1b1e.avro", "m/snap-*-0-*.avro"),
        ("t/data/01010111010100001010111ab48d3e4b7f.lance", "t/data/*.lance"),
        ("orders/2026/report-of-november.csv", "orders/2026/report-of-november.csv"),
    ],
)  # fmt: skip
def test_a_case_is_named_without_what_differs_from_run_to_run(key: str, pattern: str) -> None:
    assert generic(key) == pattern
