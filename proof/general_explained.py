"""Changes of the machine that nothing notices, and why each makes no difference that matters."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

EXPLAINED: dict[str, str] = {}
