"""The documentation is true: its examples run, and what it shows is what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pages import section

from lockkit.events import read
from lockkit.lab.server import Emulator

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```python\n(.*?)^```$", re.M | re.DOTALL)
NEEDS = {"needs Spark", "needs a ZooKeeper", "needs a port"}


@dataclass(frozen=True)
class Example:
    """One block of Python, and why it is not run, if it is not."""

    code: str
    not_run: str


def examples(page: Path) -> list[Example]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Example(code, why) for why, code in found]


WITH_EXAMPLES = [page for page in PAGES if examples(page)]
NOT_RUN = [page for page in PAGES if any(each.not_run for each in examples(page))]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """What the pages' s3:// addresses mean here, in a folder of their own; its address."""
    monkeypatch.chdir(tmp_path)
    with Emulator() as server:
        for name, value in (
            ("AWS_ENDPOINT_URL", server.s3), ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "us-east-1"),
        ):  # fmt: skip
            monkeypatch.setenv(name, value)
        yield server.s3


def readme_names() -> dict[str, Any]:
    """The README's table is there already, and so are the rows."""
    pa = pytest.importorskip("pyarrow", reason="make test installs pyarrow")
    for example in examples(DOCS / "howto" / "commit.md")[:1]:
        exec(example.code, {})
    columns = {"order_id": ["a", "b"], "region": ["EU", "US"], "at": [1, 1], "amount": [1, 2]}
    return {"arrow_rows": pa.table(columns), "changed_rows": pa.table(columns)}


NAMES: dict[str, Callable[[], dict[str, Any]]] = {"README.md": readme_names}


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_from_its_top_to_its_bottom(
    page: Path, bucket: str, tmp_path: Path
) -> None:
    names = NAMES.get(page.name, dict)()
    for number, example in enumerate(examples(page), 1):
        code = example.code.replace("/tmp/lockkit", str(tmp_path / "lockkit"))
        program = compile(code, f"{page.name}, example {number}", "exec")
        if not example.not_run:
            exec(program, names)


@pytest.mark.parametrize("page", NOT_RUN, ids=lambda page: page.stem)
def test_an_example_that_is_not_run_imports_existing_names(page: Path) -> None:
    for example in examples(page):
        if not example.not_run:
            continue
        assert example.not_run in NEEDS
        if "Spark" in example.not_run:
            pytest.importorskip("pyspark", reason="make test installs pyspark")
        for each in ast.walk(ast.parse(example.code)):
            if isinstance(each, ast.ImportFrom):
                module = import_module(str(each.module))
                assert all(hasattr(module, alias.name) for alias in each.names), example.code


def test_the_readmes_lock_names_its_holder(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lockkit import Lock

    first = examples(ROOT / "README.md")[0].code.replace("/tmp/lockkit", str(tmp_path))
    code = first.replace("acquire_timeout=10", "acquire_timeout=0")
    assert code != first
    with Lock(f"file://{tmp_path}/orders"):
        exec(code, {})
    assert "is held by" in capsys.readouterr().out
    exec(code, {})
    assert "this grant has epoch 2" in capsys.readouterr().out


def test_the_readmes_line_for_the_embedded_server_works(bucket: str) -> None:
    from lockkit import Lock

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r'`(Lock\("s3://bucket/orders", endpoint=.*?\))`', readme)
    with eval(line.replace("http://127.0.0.1:9000", bucket), {"Lock": Lock}) as lock:
        assert lock.fence.epoch >= 1


# --- what is generated ----------------------------------------------------------------------------


@pytest.fixture
def docs_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def test_the_picture_is_drawn_from_the_recorded_history(docs_path: None) -> None:
    picture = import_module("picture")
    with picture.HISTORY.open(encoding="utf-8") as lines:
        drawn = picture.draw(list(read(lines)))
    assert drawn == picture.PICTURE.read_text(encoding="utf-8"), "run: python docs/picture.py"
    assert "412, refused" in drawn


def test_the_protocols_table_and_diagram_have_every_transition_that_the_code_makes(
    docs_path: None,
) -> None:
    drawn = import_module("transitions")
    section("protocol.md", "transitions", f"{drawn.table()}\n")
    there = drawn.arrows_of(drawn.DIAGRAM.read_text(encoding="utf-8"))
    assert there == drawn.arrows(), "run: python docs/transitions.py"


@pytest.mark.xdist_group("on_call_session")  # it runs once for this test and its own
def test_every_generated_part_of_a_page_can_be_made(docs_path: None) -> None:
    generate = import_module("generate")
    marks = {
        mark
        for page in PAGES
        for mark in re.findall(r"<!-- generated: (\w+) -->", page.read_text(encoding="utf-8"))
    }
    assert {"command_line", "mistakes", "repairs"} < marks
    for mark in marks:
        assert len(getattr(generate, mark)().splitlines()) > 10, mark


def test_the_page_of_stores_has_every_cell_of_the_matrix_with_its_source(docs_path: None) -> None:
    from lockkit.lab.probe.providers import CAPABILITIES, DOCUMENTED, providers

    generate = import_module("generate")
    tables = generate.stores_documented() + "\n" + generate.stores_probed()
    shown = {line.split(" | ")[0].removeprefix("| "): line for line in tables.splitlines()}
    rows = providers()
    documented = [row for row in rows if row.basis == DOCUMENTED]
    page = (DOCS / "howto" / "probe.md").read_text(encoding="utf-8")
    assert len(documented) >= 20 and f"what {len(documented)} stores document" in page
    for row in rows:
        line = shown[row.store]
        assert line.endswith(f" | {row.limits_and_traps} | {row.as_of} |")
        words = line.split(" | ")[1 : 1 + len(CAPABILITIES)]
        assert [word.partition("](")[0].lstrip("[") for word in words] == [
            getattr(row, name) for name in CAPABILITIES
        ]
        for name, word in zip(CAPABILITIES, words, strict=True):
            said = getattr(row, name) != "not found" and row in documented
            assert (f"]({row.source_of(name)})" in word and "https://" in word) is said, row.store


def test_the_command_line_page_has_every_command(docs_path: None) -> None:
    page = import_module("generate").command_line()
    for command in ("demo", "lock show", "lock break", "table mode", "tflock lock", "soak"):
        assert f"# lockkit {command}\n" in page, command


def test_the_api_pages_have_every_public_name_of_lockkit(docs_path: None) -> None:
    import lockkit

    page = import_module("generate").api_lock()
    for name in lockkit.__all__:
        assert name.startswith("_") or f":: lockkit.{name}\n" in page, name


def test_every_page_opens_with_a_sentence_on_what_the_reader_gets() -> None:
    """A heading, then prose: not a list, a table or code."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if text.startswith("```{include}"):
            continue
        heading, _, rest = text.partition("\n\n")
        assert heading.startswith("# ") and "\n" not in heading, page
        first = rest.partition("\n\n")[0]
        assert first[0].isalpha() and first.rstrip().endswith("."), f"{page}: {first}"


def test_every_module_and_file_that_a_page_names_is_there() -> None:
    """Modules, what is in them, and files, in running text: a page does not outlive a move."""
    missing = set()
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    for page in [each for each in pages if each.name not in ("options.md", "changelog.md")]:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:lockkit|tests|datasets|docs|notebooks)/[\w./-]*)`", text):
            if not (ROOT / path).exists():
                missing.add(f"{page.name}: {path}")
        for name in re.findall(r"`(lockkit(?:\.\w+)+)(?=[`(])", text):
            if not resolves(name) and not is_exported(name):
                missing.add(f"{page.name}: {name}")
    assert missing == set()


def is_exported(name: str) -> bool:
    """Whether OpenTelemetry gets something of this name: a metric, a label or a span."""
    from lockkit.sinks import otel

    source = Path(str(otel.__file__)).read_text(encoding="utf-8")
    return name in otel.INSTRUMENTS or f'"{name}"' in source


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, last = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return bool(module) and resolves(module) and hasattr(import_module(module), last)
    return True


# --- what the code cites --------------------------------------------------------------------------

BASES = (ROOT, ROOT / "tests", DOCS, DOCS / "concepts")
ELSEWHERE = {"doc/xxhash_spec.md"}  # in github.com/Cyan4973/xxHash, as the citation says
CITED = re.compile(r"(?<![\w/.\"'-])((?:[\w-]+/)*[\w-]+\.md)\b")


def test_every_document_that_the_code_cites_is_in_the_repository() -> None:
    """In prose; a name in quotes is a file that a program opens."""
    missing = set()
    for folder in ("lockkit", "tests", "notebooks", "datasets"):
        for path in (ROOT / folder).rglob("*.py"):
            text = re.sub(r"https?://\S+", "", path.read_text(encoding="utf-8"))
            for cited in set(CITED.findall(text)) - ELSEWHERE:
                if not any((base / cited).exists() for base in (path.parent, *BASES)):
                    missing.add(f"{path.relative_to(ROOT)}: {cited}")
    assert missing == set()


def test_sphinx_builds_every_page_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="make test installs the documentation's tools")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees"),
         str(DOCS), str(tmp_path / "html")],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert 'id="lockkit.Lock"' in (tmp_path / "html" / "reference" / "api-lock.html").read_text()
