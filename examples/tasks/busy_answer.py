"""A web handler, of any framework, that answers 409 where another request works on the same order. One client serves the whole process."""

from __future__ import annotations

import asyncio

from dlock_core import AcquireTimeoutError, AsyncLockClient, aconnect


async def pay(client: AsyncLockClient, order: str) -> tuple[int, str]:
    """Answer a request."""
    try:
        lease = await client.acquire(f"orders/{order}", timeout=0.2)
    except AcquireTimeoutError:
        return 409, "the order is being paid already"
    async with lease:  # outside of the try: what the payment raises is no refusal of this lock
        await asyncio.sleep(1)  # the payment
    return 200, "paid"


async def main() -> None:
    """Serve two requests at once."""
    async with aconnect() as client:
        for status, text in sorted(await asyncio.gather(pay(client, "17"), pay(client, "17"))):
            print(status, text)


asyncio.run(main())
