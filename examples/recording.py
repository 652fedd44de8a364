"""The recording of ``make demo`` in the README: ``python -m examples.demo | python -m examples.recording > docs/pictures/demo.svg``.

It draws what a terminal of 100 columns would show, line by line at the times that the demonstration prints; a viewer that shows no motion,
or is asked for none, shows all of it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from html import escape

__all__ = ["draw"]

_COLUMNS, _INDENT = 100, 10
_LINE_PX, _CHARACTER_PX, _MARGIN_PX = 18, 7.8, 16
_AT = re.compile(r"^ *(\d+\.\d\d) s  ")
_LOUD = {
    "bad": re.compile(r"KILLED|STOPPED|WRONG"),
    "good": re.compile(r"took \w+ over|REFUSED|EXACT|promises were kept"),
}
_DESCRIPTION = (
    "Workers move money under locks. One is killed and one stopped; others take their locks over with greater tokens, the zombie's late "
    "write is refused, and the books are exact. Without locks they are wrong."
)
_STYLE = """\
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #24292f; white-space: pre; animation: appear .2s both }
.back { fill: #f6f8fa } .good { fill: #1a7f37 } .bad { fill: #cf222e }
@keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { text { animation: none } }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .back { fill: #161b22 } .good { fill: #3fb950 } .bad { fill: #ff7b72 }
}"""


def draw(printed: str) -> str:
    """Return the SVG of what the demonstration *printed*."""
    rows, shown_s = [], 0.0
    for line in printed.splitlines():
        told = _AT.match(line)
        shown_s = float(told[1]) if told else shown_s
        kind = next((name for name, words in _LOUD.items() if words.search(line)), "")
        rows += [
            (shown_s, kind, part)
            for part in textwrap.wrap(
                line, _COLUMNS, subsequent_indent=" " * _INDENT, drop_whitespace=False, replace_whitespace=False
            )
        ]
    width, height = int(_COLUMNS * _CHARACTER_PX) + 2 * _MARGIN_PX, len(rows) * _LINE_PX + 2 * _MARGIN_PX
    texts = [
        f'<text class="{kind}" style="animation-delay:{at:.2f}s" x="{_MARGIN_PX}" y="{_MARGIN_PX + number * _LINE_PX - 4}">'
        f"{escape(part.rstrip())}</text>"
        for number, (at, kind, part) in enumerate(rows, 1)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">',
            '<title id="t">A recording of make demo</title>',
            f'<desc id="d">{_DESCRIPTION}</desc>',
            f"<style>\n{_STYLE}\n</style>",
            f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
            *texts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(draw(sys.stdin.read()))
