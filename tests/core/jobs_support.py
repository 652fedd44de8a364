"""How the tests of jobs enter one without a block."""

from __future__ import annotations

from typing import Any

__all__ = ["enter"]


async def enter(client: Any, key: str = "k", /, **options: Any) -> Any:
    """Look whether the slot of the job *key* is due, and take it if it is."""
    return await client.once(key, **options).__aenter__()
