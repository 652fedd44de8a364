"""The options that random users ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

__all__ = ["PERMITS", "drawn"]

PERMITS = 3
# An option, how often it is given, and its values.
_OPTIONS: tuple[tuple[str, float, tuple[Any, ...]], ...] = (
    ("lease_duration", 0.3, (2, 5, 12)),
    ("max_hold", 0.1, (1, 6)),
    ("stop_grace", 0.1, (0.5,)),
    ("stall_timeout", 0.1, (1, 2.5, 3)),
    ("lock_delay", 0.1, (2,)),
    ("cancel_on_loss", 0.1, (True,)),
    ("handover", 0.1, (True,)),
    ("retries", 0.1, (0, 2)),
    ("poll_period", 0.1, (0.2, 3)),
    ("server_wait", 0.1, (False,)),
    ("clock_skew", 0.1, (1,)),
)
_OF_MUTEX: tuple[tuple[str, float, tuple[Any, ...]], ...] = (
    ("auto_renew", 0.1, (False,)),
    ("delete_on_release", 0.1, (True,)),
    ("data", 0.3, (b"", b"some")),
    ("only_if_exists", 0.1, (True,)),
    ("reentrant", 0.1, (True,)),
)


def drawn(chance: random.Random, kind: str) -> dict[str, Any]:
    """Return options for what is of that *kind*. Who waits without end waits for what ends."""
    options: dict[str, Any] = {"timeout": chance.choice([0, 0.3, 3, 15, 30, None])}
    if kind == "closed":
        return {"timeout": options["timeout"] or 1, "fail_closed": True, "renewal": "lock"}
    given = (*_OPTIONS, *_OF_MUTEX) if kind in ("mutex", "several") else _OPTIONS
    options |= {name: chance.choice(values) for name, often, values in given if chance.random() < often}
    if "only_if_exists" in options:
        options["timeout"] = options["timeout"] or 1
    if kind == "shared":
        options["mode"] = chance.choice(["read", "read", "write"])
    elif kind == "permits":
        options |= {"permits": PERMITS, "weight": chance.randint(1, PERMITS)}
    return options
