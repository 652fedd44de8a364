"""Render the table of options in ``docs/options.md`` from the options models; run as a module to rewrite it."""

from __future__ import annotations

from pathlib import Path

from dlock_core import ClientOptions, LockOptions

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"


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


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
