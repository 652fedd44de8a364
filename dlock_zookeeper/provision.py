"""What ZooKeeper promises, and the rights that its user needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dlock_core.kit import quorum_guarantees, unfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.store import Guarantees
    from dlock_zookeeper._look import Look

_OLDEST = (3, 5)


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
            raise unfit("ZooKeeper", f"{look.endpoint} is ZooKeeper {look.version}", "update it to 3.5 or newer")
    alone = next((look.endpoint for look in looks if look.mode == "standalone"), "")
    if alone:
        voting = 1
        if others := ", ".join(look.endpoint for look in looks if look.mode and look.endpoint != alone):
            raise unfit(
                "ZooKeeper",
                f"{alone} stands alone, and would grant the same lock as {others}",
                "name servers of one ensemble, which know each other by 'server.N' in their configuration, or one that stands alone once",
            )
    version = next((look.version for look in looks if look.version), "")
    notes = [
        *map(str, looks),
        "waiters are told by watches, in the order in which they came; there is no clock, so ages are observed by the clients",
        "a read follows a sync: a leader that was cut off may answer for syncLimit ticks as things were before",
    ]
    return quorum_guarantees("zookeeper", version, voting, notes)
