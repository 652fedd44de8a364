"""Tasks of one program that take turns."""

from __future__ import annotations

import asyncio

from dlock_core import AsyncLockClient, aconnect

turns: list[str] = []


async def take_turn(client: AsyncLockClient, name: str) -> None:
    """Do what only one may do at a time."""
    async with client.lock("the-printer", timeout=30):
        turns.append(f"{name} begins")
        await asyncio.sleep(0.05)
        turns.append(f"{name} ends")


async def main() -> None:
    """Have three of them."""
    async with aconnect() as client, asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(take_turn(client, name))


asyncio.run(main())
print("one at a time:", all(turns[i].split()[0] == turns[i + 1].split()[0] for i in range(0, 6, 2)))
