"""The clauses of the port, read from the docstring of :mod:`dlock_core.store`: the one place where they are written."""

from __future__ import annotations

import re
from functools import cache

from dlock_core import store

__all__ = ["clause_of", "clauses"]

_CLAUSE = re.compile(r"^([SBNWMCP]\d+) +(.+?)(?=^[SBNWMCP]\d+ |^\s*$|\Z)", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"test_([sbnwmcp]\d+)_")


@cache
def clauses() -> dict[str, str]:
    """Return each clause by its number, its text on one line; empty under ``python -OO``, which drops docstrings."""
    return {number: " ".join(text.split()) for number, text in _CLAUSE.findall(store.__doc__ or "")}


def clause_of(test: str) -> str:
    """Return the number of the clause that the test of this name checks (``test_s5_…``: S5), or nothing."""
    found = _TEST.match(test)
    return found.group(1).upper() if found else ""
