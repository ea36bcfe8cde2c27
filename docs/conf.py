"""How Sphinx builds the documentation: `make docs`.

Pages are Markdown. Three things happen to a page before Sphinx parses it: a comment
`<!-- generated: NAME -->` becomes what `generate.NAME()` returns; a link to a file outside docs/
becomes a link to the repository; and the docstrings of the API pages are parsed as Markdown too.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

import address  # noqa: E402
import generate  # noqa: E402
import playground_page  # noqa: E402
from docutils import nodes  # noqa: E402
from docutils.parsers.rst import Directive  # noqa: E402
from docutils.utils import new_document  # noqa: E402
from myst_parser.parsers.sphinx_ import MystParser  # noqa: E402

import lockkit  # noqa: E402

project = "lockkit"
copyright = "the lockkit authors, Apache License 2.0"
release = version = lockkit.__version__
SOURCE = address.current()

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["**/README.md", "playground"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

highlight_language = "none"  # of blocks that name no language: commands and what they print

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = f"lockkit {release}"
html_static_path = ["_static"]
html_css_files = ["lockkit.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "github_url": SOURCE,
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "back_to_top_button": False,  # it covers the pictures
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "tutorial": [], "playground": [], "changelog": []}

GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"(\]\()(\.\.?/[^)#\s]+)")


def complete(_app: Any, page: str, source: list[str]) -> None:
    """A page with what is generated, and with links that work outside the checkout."""
    text = GENERATED.sub(lambda found: getattr(generate, found[1])(), source[0])
    folder = posixpath.dirname(page)

    def absolute(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        outside = not path.startswith("docs/")
        return f"{found[1]}{SOURCE}/blob/main/{path}" if outside else found[0]

    source[0] = LINK.sub(absolute, text)


def outdated(_app: Any, env: Any, *_: Any) -> list[str]:
    """Pages with generated parts are read at every build: their files do not tell of changes."""
    paths = {page: Path(env.doc2path(page)) for page in env.found_docs}
    return [page for page, path in paths.items() if GENERATED.search(path.read_text("utf-8"))]


class Markdown(Directive):
    """Its content, parsed as Markdown in the midst of reStructuredText."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document("docstring", self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return document.children


PARAMETER = re.compile(r"^:(param|raises) ([\w, ]+): (.*)")


def tables(lines: list[str], of: Any) -> list[str]:
    """A docstring whose `:param` and `:raises` lines are tables; defaults are the signature's."""
    prose: list[str] = []
    rows: dict[str, list[list[str]]] = {"param": [], "raises": []}
    row: list[str] | None = None
    for line in lines:
        if found := PARAMETER.match(line):
            row = [found[2], found[3]]
            rows[found[1]].append(row)
        elif row is not None and line.startswith("    "):
            row[1] += " " + line.strip()
        else:
            row = None
            prose.append(line)
    if rows["param"]:
        known = inspect.signature(of).parameters
        prose += ["", "| parameter | default | meaning |", "|---|---|---|"]
        for names, meaning in rows["param"]:
            each = [name.strip() for name in names.split(",")]
            prose.append(f"| {_cell(each)} | {_cell(_default(known[n]) for n in each)} "
                         f"| {_escaped(meaning)} |")  # fmt: skip
    if rows["raises"]:
        prose += ["", "| error | when |", "|---|---|"]
        prose += [f"| `{error}` | {_escaped(when)} |" for error, when in rows["raises"]]
    return prose


def _default(parameter: inspect.Parameter) -> str:
    """The default as code; "" if there is none, or only Python's own text for an object."""
    if parameter.default is parameter.empty:
        return ""
    text = str(getattr(parameter.default, "__name__", repr(parameter.default)))
    return "" if text.startswith("<") or len(text) > 40 else text


def _cell(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(f"`{_escaped(each)}`" for each in words if each))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def markdown(_app: Any, _what: str, _name: str, of: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are Markdown: handed to the directive above, whatever signs they contain."""
    lines[:] = tables(lines, of)
    if any(lines):
        lines[:] = [".. markdown::", "", *("   " + line for line in lines), ""]


def served(app: Any, error: Exception | None) -> None:
    """The playground's other files go beside the built pages."""
    if error is None and app.builder.format == "html":
        playground_page.serve(Path(app.outdir))


def setup(app: Any) -> None:
    app.add_directive("markdown", Markdown)
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", complete)
    app.connect("build-finished", served)
    app.connect("autodoc-process-docstring", markdown)
