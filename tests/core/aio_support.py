"""Helpers of the tests beside this module."""

from __future__ import annotations

import asyncio


async def forever() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()
