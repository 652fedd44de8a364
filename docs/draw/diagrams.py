"""How the parts fit together, and the states of an attempt: the names come from the packages and from the machine's table."""

from __future__ import annotations

import textwrap
from importlib.metadata import entry_points
from typing import get_args

from dlock_core.lease import TRANSITIONS
from dlock_core.states import LeaseState
from docs.draw._svg import Picture

__all__ = ["architecture", "edges", "states"]

_HALF_WIDTH, _HALF_HEIGHT = 46, 18
# Where each state stands, and by what point an arrow goes that would cross a third state or lie on the arrow back.
_PLACES = {
    "New": (56, 230),
    "Seeking": (210, 230),
    "Confirming": (390, 70),
    "Held": (560, 230),
    "Releasing": (930, 70),
    "Cleaning": (390, 400),
    "Lost": (790, 230),
    "Ended": (930, 400),
}
_BENDS = {
    ("Seeking", "Confirming"): (270, 110),
    ("Confirming", "Seeking"): (350, 190),
    ("Confirming", "Ended"): (440, 330),
    ("Seeking", "Ended"): (470, 360),
}


def edges() -> dict[tuple[str, str], list[str]]:
    """Return the events that lead from one state to another."""
    found: dict[tuple[str, str], list[str]] = {}
    for (before, event), to in TRANSITIONS.items():
        for after in to.leads_to:
            if after is not before:
                found.setdefault((before.__name__, after.__name__), []).append(event.__name__)
    return found


def states() -> Picture:
    """The machine: its states, and which events lead from one to the other."""
    told = "; ".join(f"{before} to {after}: {', '.join(events)}" for (before, after), events in edges().items())
    picture = Picture(
        990, 440, title="The states of an attempt", description=f"It begins in New and ends in Ended. {told}."
    )
    labels = []
    for (before, after), events in edges().items():
        control = _BENDS.get((before, after))
        (x1, y1), (x2, y2) = _PLACES[before], _PLACES[after]
        cx, cy = control or ((x1 + x2) / 2, (y1 + y2) / 2)
        picture.arrow(*_border(x1, y1, cx, cy), *_border(x2, y2, cx, cy), control=(cx, cy))
        lines = textwrap.wrap(", ".join(events), 22)
        # On the middle of the arrow; above it where it is level.
        top = (y1 + 2 * cy + y2) / 4 + 4 - (len(lines) - 1) * 7 - (y1 == y2) * (6 + len(lines) * 7)
        labels += [((x1 + 2 * cx + x2) / 4, top + row * 14, line) for row, line in enumerate(lines)]
    for x, y, text in labels:
        picture.text(x, y, text, "label middle")
    for state in get_args(LeaseState):
        x, y = _PLACES[state.__name__]
        picture.box(
            x - _HALF_WIDTH,
            y - _HALF_HEIGHT,
            2 * _HALF_WIDTH,
            2 * _HALF_HEIGHT,
            "room" if state.__name__ == "Held" else "box",
        )
        picture.text(x, y + 5, state.__name__, "middle")
    return picture


def _border(x: float, y: float, towards_x: float, towards_y: float) -> tuple[float, float]:
    """Return where the line from the middle of a state leaves its box."""
    dx, dy = towards_x - x, towards_y - y
    scale = min(_HALF_WIDTH / abs(dx) if dx else 9e9, _HALF_HEIGHT / abs(dy) if dy else 9e9)
    return x + dx * scale, y + dy * scale


def _packages() -> list[str]:
    """Return the packages of the stores: memory first, then those that are installed with it."""
    modules = {
        each.value.partition(":")[0]
        for each in entry_points(group="dlock.stores")
        if each.dist and each.dist.name == "dlock-core"
    }
    return ["memory", *sorted(modules - {"dlock_core.memory"})]


def architecture() -> Picture:
    """The rooms of the project, and who calls whom."""
    packages = _packages()
    picture = Picture(
        760,
        470,
        title="The architecture",
        description="Your program, the frameworks' modules and the command call the clients of dlock_core. "
        "The engine performs what the machine, a pure function, "
        f"asks for, and calls the store, one of {', '.join(packages)}, or your own. Arrows are calls; imports "
        "go the same way.",
    )
    for x, name in ((60, "your program"), (300, "dlock_contrib"), (540, "the command dlock")):
        picture.box(x, 14, 160, 36, "box")
        picture.text(x + 80, 37, name, "middle")
        picture.arrow(x + 80, 50, x + 80, 84)
    picture.box(20, 84, 720, 270, "box")
    picture.text(34, 106, "dlock_core")
    rooms = [
        (130, 96, "client, aio", "the door: locks, leases, elections, jobs"),
        (130, 166, "engine/", "performs effects, feeds back events; threads or asyncio"),
        (130, 236, "lease, states", "the machine, pure: state + event → state + effects"),
        (130, 306, "store, kit/", "the port: claim, replace, release, read, scan"),
    ]
    for x, y, name, what in rooms:
        picture.box(x, y, 500, 40, "room")
        picture.text(x + 14, y + 25, name)
        picture.text(x + 486, y + 25, what, "small end")
    picture.arrow(380, 136, 380, 166)
    picture.arrow(360, 206, 360, 236)
    picture.arrow(400, 236, 400, 206)
    picture.path("M130 186H90V326", "edge")
    picture.arrow(90, 326, 130, 326)
    picture.arrow(380, 346, 380, 378)
    for place, name in enumerate([*packages, "your own"]):
        x, y = 20 + place % 5 * 146, 378 + place // 5 * 42
        picture.box(x, y, 136, 34, "box")
        picture.text(x + 68, y + 22, name, "middle")
    return picture
