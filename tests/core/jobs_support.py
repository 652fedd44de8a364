"""How the tests of jobs enter one without a block."""

from __future__ import annotations

from typing import Any

__all__ = ["enter"]


async def enter(client: Any, **options: Any) -> Any:
    """Look whether the slot of the job "k" is due, and take it if it is."""
    return await client.once("k", **options).__aenter__()
