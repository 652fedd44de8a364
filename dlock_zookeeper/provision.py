"""What ZooKeeper promises, and the rights that its user needs."""

from __future__ import annotations

import re

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder

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


def guarantees(said: str, voting: int | None) -> Guarantees:
    """Return what a server promises that has *said* this to ``srvr``, in an ensemble of so many that are *voting*, if it is known.

    Raises: StoreSetupError: the server does not fit.
    """
    version = re.search(r"version: (\d+)\.(\d+)(\S*?)[,-]", said + ",")
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        problem = f"ZooKeeper cannot keep locks here: the server is ZooKeeper {version[1]}.{version[2]}"
        raise StoreSetupError(f"{problem}; update it to 3.5 or newer")
    mode = re.search(r"Mode: (\S+)", said)
    if mode and mode[1] == "standalone":
        voting = 1
    several = voting is not None and voting >= _SEVERAL
    notes = [
        f"voting servers: {voting or 'not shown to this user'}",
        f"mode of the server: {mode[1] if mode else 'not shown'}",
    ]
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
        version=f"{version[1]}.{version[2]}{version[3]}" if version else "",
        grade=Grade.A if several else Grade.B,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=True,
        failover=failover,
        clock="none: the clients time the leases",
        notes=tuple(notes),
    )
