"""A picture as SVG: it follows the reader's light or dark theme, and tells a screen reader what it shows."""

from __future__ import annotations

from html import escape

__all__ = ["Picture"]

_STYLE = """\
text { font: 14px sans-serif; fill: #24292f }
.small { font-size: 12px; fill: #57606a } .on { fill: #fff } .middle { text-anchor: middle } .end { text-anchor: end }
.back { fill: #fff } .box { fill: #f6f8fa; stroke: #8c959f } .room { fill: #ddf4ff; stroke: #0969da }
.lane { stroke: #8c959f; stroke-width: 1; fill: none } .edge { stroke: #57606a; stroke-width: 1.5; fill: none }
.tip { fill: #57606a } .label { font-size: 12px; fill: #57606a; paint-order: stroke; stroke: #fff; stroke-width: 4px }
.held { fill: #1f883d } .wait { fill: #d0d7de } .late { fill: #9a6700 } .run { fill: #0969da }
.ours { fill: #0969da } .other { fill: #8c959f }
.mark { stroke: #cf222e; stroke-width: 3; fill: none } .dot { fill: #24292f } .curve { stroke: #0969da; stroke-width: 2; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .on { fill: #fff } .back { fill: #0d1117 }
.box { fill: #161b22; stroke: #6e7681 } .room { fill: #121d2f; stroke: #4493f8 } .edge { stroke: #9198a1 } .tip { fill: #9198a1 }
.label { fill: #9198a1; stroke: #0d1117 } .wait { fill: #3d444d } .dot { fill: #e6edf3 } .other { fill: #6e7681 } .curve { stroke: #4493f8 }
}"""


class Picture:
    """A canvas of *width* and *height*, in pixels from the top left; *title* and *description* are its text alternative."""

    def __init__(self, width: int, height: int, *, title: str, description: str) -> None:
        self._size, self._title, self._description = (width, height), title, description
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write *text* with its baseline at *y*."""
        self._add("text", escape(text), kind, x=x, y=y)

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a rectangle with round corners."""
        self._add("rect", "", kind, x=x, y=y, width=width, height=height, rx=3)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "lane", *, dashed: bool = False) -> None:
        """Draw a straight line."""
        self._add("line", "", kind, x1=x1, y1=y1, x2=x2, y2=y2, **({"stroke-dasharray": "2 4"} if dashed else {}))

    def path(self, d: str, kind: str) -> None:
        """Draw the path *d*."""
        self._add("path", "", kind, d=d)

    def dot(self, x: float, y: float, kind: str = "dot") -> None:
        """Draw a dot."""
        self._add("circle", "", kind, cx=x, cy=y, r=4)

    def cross(self, x: float, y: float) -> None:
        """Draw the mark of an end."""
        self.path(f"M{x - 6:g} {y - 6:g}l12 12m0-12l-12 12", "mark")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, control: tuple[float, float] | None = None) -> None:
        """Draw an arrow, bent towards *control*."""
        cx, cy = control or ((x1 + x2) / 2, (y1 + y2) / 2)
        self.path(f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}", "edge")
        length = ((x2 - cx) ** 2 + (y2 - cy) ** 2) ** 0.5 or 1.0
        dx, dy = (x2 - cx) / length * 8, (y2 - cy) / length * 8
        left, right = (x2 - dx - dy / 2, y2 - dy + dx / 2), (x2 - dx + dy / 2, y2 - dy - dx / 2)
        self.path(f"M{x2:.1f} {y2:.1f}L{left[0]:.1f} {left[1]:.1f}L{right[0]:.1f} {right[1]:.1f}z", "tip")

    def svg(self) -> str:
        """Return the file."""
        width, height = self._size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">',
                f'<title id="t">{escape(self._title)}</title>',
                f'<desc id="d">{escape(self._description)}</desc>',
                f"<style>\n{_STYLE}\n</style>",
                f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _add(self, tag: str, inside: str, kind: str, **attributes: float | str) -> None:
        written = [f'class="{kind}"'] if kind else []
        written += [
            f'{name}="{value:g}"' if isinstance(value, int | float) else f'{name}="{value}"'
            for name, value in attributes.items()
        ]
        self._parts.append(
            f"<{tag} {' '.join(written)}>{inside}</{tag}>" if inside else f"<{tag} {' '.join(written)}/>"
        )
