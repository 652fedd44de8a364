"""How thoroughly the suites try our own stores: DLOCK_THOROUGH=1 tries all that applies, which takes minutes for each store."""

from __future__ import annotations

import os

__all__ = ["THOROUGH", "rounds"]

THOROUGH = bool(os.environ.get("DLOCK_THOROUGH"))
_ROUNDS_THOROUGH = 2000


def rounds(usual: int) -> int:
    """Return how often each race is run: *usual*, which is more than every broken store needs to be found (test_suite_has_teeth.py)."""
    return _ROUNDS_THOROUGH if THOROUGH else usual
