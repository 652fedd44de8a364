"""What the tests of early takeover share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlock_core.engine.owner_probe import identity
from dlock_core.record import ProcessIdentity
from tests.core.worlds import raw

if TYPE_CHECKING:
    from tests.core.worlds import World


async def dies(world: World, key: str = "k", **options: Any) -> int:
    """Have a client hold *key* that renews nothing any more; return the token."""
    settings: dict[str, Any] = {"auto_renew": False, "lease_duration": 10} | options
    client = world.client(**settings)
    await client.__aenter__()
    lease = await client.acquire(key)
    await vanish(client, lease)
    return int(lease.fencing_token)


async def vanish(client: Any, lease: Any) -> None:
    """End *client* as a kill does: its lease is neither released nor warned of, and no thread of it is left."""
    raw(lease)._closed = True
    getattr(client, "_inner", client)._engine.driver.held.clear()
    await client.close()


def me() -> ProcessIdentity:
    """Return who this process is."""
    found = identity()
    assert found is not None
    return found


def other(**changes: Any) -> ProcessIdentity:
    """Return this process's identity with *changes*."""
    mine = me()
    names = ("boot_id", "pid_namespace", "pid", "started_at", "child_group")
    return ProcessIdentity(**{name: getattr(mine, name) for name in names} | changes)
