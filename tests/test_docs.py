"""What the documentation shows works: its Python runs, its commands run, its links lead somewhere. :mod:`tests.documentation` reads it."""

from __future__ import annotations

import doctest
import importlib
import pickle
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import click
import pytest

from dlock_core.command import app
from tests.documentation import OWN_TEST, PAGES, RECIPE, ROOT, SERVERS, Block, Names, blocks, shown, without_blocks
from tests.update_public_api import PUBLIC_MODULES

COMMAND_TIMEOUT_S = 60
STORES = [
    f"dlock_{name}" for name in ("dynamodb", "etcd", "mongodb", "mysql", "postgres", "redis", "sqlite", "zookeeper")
]
_GROUP = click.Context(app.command)
DLOCK = {name: each for name in app.command.list_commands(_GROUP) if (each := app.command.get_command(_GROUP, name))}
PROGRAMS = {"dlock": [sys.executable, "-m", "dlock_core"], "python": [sys.executable]}

_LINK = re.compile(r"\[[^\]\n]*\]\((?P<inline>[^)\s]+)[^)\n]*\)|^\[[^\]\n]+\]:\s+(?P<reference>\S+)", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_DLOCK = re.compile(rf"\bdlock +(?P<name>{'|'.join(DLOCK)})\b(?P<rest>[^`|\n]*)")


def chains() -> list[list[Block]]:
    """Return the Python blocks to run, those that continue one another together."""
    result: list[list[Block]] = []
    for block in blocks("python"):
        if block.mark == "continue":
            assert result, f"{block.where} continues nothing"
            result[-1].append(block)
        elif block.mark not in (OWN_TEST, RECIPE):
            result.append([block])
    return result


def commands(block: Block) -> list[tuple[list[str], str]]:
    """Return the commands of a console block, each with the output that is shown for it."""
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.replace("\\\n", "").partition("\n")
        program, *arguments = shlex.split(command)
        assert program in PROGRAMS, f"{block.where}: only {', '.join(PROGRAMS)} can be run, not {program}"
        found.append(([*PROGRAMS[program], *(_from_root(argument) for argument in arguments)], output))
    return found


def _from_root(argument: str) -> str:
    path = ROOT / argument
    return str(path) if argument.endswith(".py") and path.is_file() else argument


@pytest.mark.parametrize("chain", chains(), ids=lambda chain: chain[0].where)
def test_python_in_the_documentation_runs(chain: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who copies it gets what the text promises."""
    monkeypatch.chdir(tmp_path)
    nothing: tuple[Names, dict[str, str]] = ({}, {})
    server = nullcontext(nothing) if chain[0].mark is None else SERVERS[chain[0].mark]()

    with server as (names, replaced):
        names["__name__"] = "__main__"
        for block in chain:
            block.run(names, replaced)
        for own in (names.get("old"), names.get("server"), getattr(names.get("tokens"), "_connection", None)):
            if own is not None and hasattr(own, "close"):
                own.close()  # a program would keep it


def test_each_other_piece_of_python_has_a_test_of_its_own() -> None:
    """Nothing is shown that no test runs."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    asked = {each for text in sources for each in re.findall(r'\bshown\("(docs/[^"]+)", "((?:[^"\\]|\\.)+)"\)', text)}
    run = {shown(page, containing).where for page, containing in asked}

    assert [
        block.where for block in blocks("python") if block.mark in (OWN_TEST, RECIPE) and block.where not in run
    ] == []


@pytest.mark.parametrize(
    "block", [block for block in blocks("console") if block.mark == "run"], ids=lambda block: block.where
)
def test_commands_in_the_documentation_run(block: Block, tmp_path: Path) -> None:
    """The command succeeds, and prints what is shown where something is shown; ``...`` stands for anything."""
    matches = doctest.OutputChecker().check_output
    for command, expected in commands(block):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
        )

        printed = done.stdout + done.stderr
        assert done.returncode == 0, printed
        if expected.strip():
            assert matches(expected, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE), printed


def options_shown() -> list[tuple[str, str, str]]:
    """Return where a page shows ``dlock`` with an option, the command and the option, in code of any language."""
    found = []
    for page in PAGES:
        text = re.sub(r"[\[\]\"',]+ ?", " ", page.read_text(encoding="utf-8"))  # lists of YAML are commands, too
        for match in _DLOCK.finditer(text):
            where = f"{page.relative_to(ROOT).as_posix()}:{text.count(chr(10), 0, match.start()) + 1}"
            own = match["rest"].partition(" -- ")[0]
            found += [(where, match["name"], option) for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", own)]
    return found


def test_commands_in_the_documentation_have_the_options_that_are_shown() -> None:
    """Also where a reader's host is needed to run them: cron, systemd, Kubernetes, and code in a sentence."""
    options = {name: {each for one in DLOCK[name].params for each in one.opts + one.secondary_opts} for name in DLOCK}
    found = options_shown()

    assert len(found) > 50
    assert [(where, name, option) for where, name, option in found if option not in options[name]] == []


def test_marks_are_known() -> None:
    """A mistyped mark would quietly mean nothing."""
    known = {"python": {None, "continue", OWN_TEST, RECIPE, *SERVERS}, "console": {None, "run"}}

    assert [
        block.where for language, marks in known.items() for block in blocks(language) if block.mark not in marks
    ] == []


# Strict but for what libraries without types make of it; whoever copies a piece knows the names that it does not define.
MYPY = """\
[mypy]
strict = true
ignore_missing_imports = true
disallow_untyped_decorators = false
disallow_subclassing_any = false
untyped_calls_exclude = redis, schedule
"""


def test_python_in_the_documentation_passes_mypy_strictly(tmp_path: Path) -> None:
    """Whoever copies it into a typed program gets no error."""
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    parts = [[block] for block in blocks("python") if block.mark in (OWN_TEST, RECIPE)]
    for number, chain in enumerate(chains() + parts):
        name = re.sub(r"\W", "_", f"{number}_{chain[0].where}")
        ignored = "# mypy: disable-error-code=name-defined\n" if chain[0].mark else ""
        text = ignored + "\n".join(block.text for block in chain)
        (tmp_path / f"block_{name}.py").write_text(text, encoding="utf-8")
    cache = ROOT / ".mypy_cache" / "documentation"
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--cache-dir", str(cache), "."]

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # ours

    assert len(chains()) >= 20
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_the_readme_shows_code() -> None:
    """A scan that finds no block would pass whatever the pages say."""
    assert [block for block in blocks("python") if block.page.name == "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the project, and a heading in it where it names one."""
    text = _CODE.sub("", without_blocks(page.read_text(encoding="utf-8")))
    targets = [match["inline"] or match["reference"] for match in _LINK.finditer(text)]

    assert [
        target
        for target in targets
        if "://" not in target and not target.startswith("mailto:") and not resolves(page, target)
    ] == []


def resolves(page: Path, target: str) -> bool:
    """Tell whether a relative link of *page* leads to something in the project."""
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    return not anchor or path.suffix != ".md" or anchor in anchors(path)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, numbered where a heading occurs again."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", without_blocks(page.read_text(encoding="utf-8")), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        candidates = [slug, *(f"{slug}-{number}" for number in range(1, 100))]
        found.add(next(candidate for candidate in candidates if candidate not in found))
    return found


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """``make docs``: each page is in the contents, each link leads somewhere, each docstring can be shown."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--builder",
        "html",
        "docs",
        str(tmp_path),
    ]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S * 4)

    assert done.stderr + done.stdout == ""
    assert "one protocol" in (tmp_path / "index.html").read_text().lower()
    environment = pickle.loads((tmp_path / ".doctrees" / "environment.pickle").read_bytes())  # noqa: S301  # just written
    assert "README.md" in {Path(each).name for each in environment.dependencies["index"]}
    assert "lease_duration" in (tmp_path / "reference" / "clients.html").read_text()
    reference = "".join(page.read_text() for page in (tmp_path / "reference").glob("*.html"))
    described = {name.rpartition(".")[2] for name in re.findall(r'id="(dlock_[\w.]+)"', reference)}
    modules = [importlib.import_module(name) for name in (*PUBLIC_MODULES, *STORES)]
    missing = [f"{module.__name__}.{name}" for module in modules for name in module.__all__ if name not in described]
    assert [name for name in missing if not name.endswith(".backend")] == []
