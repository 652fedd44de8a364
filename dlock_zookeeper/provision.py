"""What ZooKeeper promises, and the rights that its user needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_zookeeper._look import Look

__all__ = ["guarantees", "participants", "policy"]

_OLDEST = (3, 5)
_SEVERAL = 3


def policy(root: str, user: str) -> str:
    """Return the commands that give the user of the locks its rights: to create, delete, read and write nodes, not to administer them."""
    if not user:
        return f"setAcl -R /{root} world:anyone:cdrw"
    return f"addauth digest {user}:PASSWORD; setAcl -R /{root} auth:{user}:cdrw"


def participants(config: bytes) -> int:
    """Return how many servers of the ensemble vote, as its node ``/zookeeper/config`` says."""
    return len(re.findall(rb"^server\.\d+=.*:participant", config, re.MULTILINE))


def guarantees(looks: Sequence[Look], voting: int | None) -> Guarantees:
    """Return what the servers promise that *looks* are of, in an ensemble of so many that are *voting*, if it is known.

    Raises: StoreSetupError: a server does not fit.
    """
    for look in looks:
        if look.version and tuple(map(int, look.version.split(".")[:2])) < _OLDEST:
            problem = f"ZooKeeper cannot keep locks here: {look.endpoint} is ZooKeeper {look.version}"
            raise StoreSetupError(f"{problem}; update it to 3.5 or newer")
    if "standalone" in {look.mode for look in looks}:
        voting = 1
    several = voting is not None and voting >= _SEVERAL
    notes = [f"voting servers: {'not known' if voting is None else voting}", *map(str, looks)]
    notes.append("waiters are told by watches; there is no clock, so ages are observed by the clients")
    notes.append(
        "a read follows a sync: a leader that was cut off may answer for syncLimit ticks as things were before"
    )
    if several:
        failover = "a write counts when a majority has it on disk; while there is no majority nobody gets a lock"
    elif voting == 1:
        failover = "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
    else:
        failover = "a write counts when a majority has it on disk; with fewer than three servers nobody gets a lock while one is down"
    return Guarantees(
        store="zookeeper",
        version=next((look.version for look in looks if look.version), ""),
        grade=Grade.A if several else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=True,
        failover=failover,
        clock="none: the clients time the leases",
        notes=tuple(notes),
    )
