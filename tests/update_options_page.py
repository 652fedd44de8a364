"""Render the texts of the options where readers meet them; run as a module to rewrite both places.

They are the table in ``docs/options.md``, and the text below each keyword in ``dlock_core/keywords.py``, which editors show.
"""

from __future__ import annotations

import re
from pathlib import Path

from dlock_core import ClientOptions, LockOptions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "options.md"
KEYWORDS = ROOT / "dlock_core" / "keywords.py"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"
_KEYWORD = re.compile(r'^    (?P<name>\w+): .+\n(?:    """.*"""\n)?', re.MULTILINE)


def render() -> str:
    """Return the page as it should be now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has lost its markers {BEGIN!r} and {END!r}"
    rows = [
        f"| `{name}` | {'lock, client' if name in LockOptions.model_fields else 'client'} | {field.description} |\n"
        for name, field in ClientOptions.model_fields.items()
    ]
    return before + BEGIN + "\n| option | of | meaning |\n|---|---|---|\n" + "".join(rows) + "\n" + END + after


def render_keywords() -> str:
    """Return the module of the keywords as it should be now."""

    def described(keyword: re.Match[str]) -> str:
        declared = keyword[0].splitlines()[0]
        return f'{declared}\n    """{ClientOptions.model_fields[keyword["name"]].description}"""\n'

    return _KEYWORD.sub(described, KEYWORDS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    KEYWORDS.write_text(render_keywords(), encoding="utf-8")
