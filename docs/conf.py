"""How ``make docs`` makes the site: from the pages in this folder, the README and the docstrings. Nothing is fetched."""
# ruff: noqa: INP001  # Sphinx reads this file as a script

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi  # noqa: F401  # here, since autodoc imports with TYPE_CHECKING true, which pydantic's models in it do not bear

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "dlock"
release = version_of("dlock-core")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"dlock {release}"
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True

# Pages that are files of the repository, and files that a page of the site describes.
_COPIES = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
_PAGE_OF = {file: f"{page}.md" for page, file in _COPIES.items()} | {
    "dlock_core/store.py": "reference/port.md",
    "dlock_core/lease.py": "reference/machine.md",
}
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _source(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the file of the repository before what its page says, and let links lead to pages of the site."""
    text, folder = source[0], Path(app.srcdir, page).parent
    if page in _COPIES:
        copied = ROOT / _COPIES[page]
        app.env.note_dependency(str(copied))  # the page is made anew when that has changed
        text, folder = copied.read_text(encoding="utf-8") + "\n" + text, ROOT
    source[0] = _LINK.sub(lambda link: _link(app, page, folder, link), text)


def _link(app: Sphinx, page: str, folder: Path, link: re.Match[str]) -> str:
    label, path, anchor = link[1], (folder / link[2]).resolve(), link[3] or ""
    srcdir = Path(app.srcdir)
    if not path.is_relative_to(ROOT):
        raise ValueError(f"{page}: the link to {link[2]} leads out of the repository")
    name = path.relative_to(ROOT).as_posix()
    if name in _PAGE_OF:
        path = srcdir / _PAGE_OF[name]
    elif not path.is_relative_to(srcdir):
        return label  # the site has no page of it
    up = "../" * page.count("/")
    return f"[{label}]({up}{path.relative_to(srcdir).as_posix()}{anchor})"


def _clauses(app: Sphinx, what: str, name: str, *rest: Any) -> None:
    """Keep the shape of the port's clauses, which are a table in plain text."""
    lines: list[str] = rest[-1]
    if name == "dlock_core.store":
        lines[:] = ["::", "", *(f"    {line}" for line in lines)]


def setup(app: Sphinx) -> None:
    """Register the hooks."""
    app.connect("source-read", _source)
    app.connect("autodoc-process-docstring", _clauses)
