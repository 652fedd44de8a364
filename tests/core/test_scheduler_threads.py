"""Locks that come in between two steps of the thread that renews."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from tests.core.worlds import run_scenario

if TYPE_CHECKING:
    from tests.core.worlds import World


def test_short_lock_that_comes_as_a_renewal_is_begun_stays_held() -> None:
    """The thread that renews looks whether the request could hurt another lock, and says that it is busy, in one step."""

    async def scenario(world: World) -> None:
        async with world.client(world.hanging_store("long")) as client:
            blocking: Any = client
            inner, leases = blocking._inner, []
            runtime, now = inner._runtime, inner._runtime.now
            coming = threading.Thread(target=lambda: leases.append(inner.acquire("short", lease_duration=1)))

            def now_with_a_lock_that_comes() -> int:
                frame = sys._getframe(1)
                # After the look: the bound until which the thread is busy is made of the last of these instants.
                if frame.f_code.co_name == "_perform" and "hurts" in frame.f_locals and not coming.ident:
                    coming.start()
                    coming.join()
                return int(now())

            lease = await client.acquire("long", lease_duration=60)
            runtime.now = now_with_a_lock_that_comes
            await world.live(15.25)
            assert world.hung
            if not coming.ident:
                coming.start()
                coming.join()
            await world.live(6, step=0.05)

            assert lease.is_valid
            assert leases[0].is_valid
            leases[0].release()
            await world.live(60)

    run_scenario("sync", scenario)
