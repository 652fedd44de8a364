"""An ensemble of ZooKeeper of the tests' own, whose servers they may kill, pause and start again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_conformance.servers import free_port

from dlock_zookeeper._look import look_at
from tests.cluster import MEMBERS, Cluster
from tests.core.worlds import eventually

if TYPE_CHECKING:
    from tests.scripted import ScriptedServer

__all__ = ["ZooKeeperCluster"]

# Short ticks: a server that stands still is given up after so many of them.
_CONFIG = ("tickTime=500", "initLimit=40", "syncLimit=12")
_LOOK_S = 5.0


class ZooKeeperCluster(Cluster):
    """Three servers, started together, with a leader."""

    def __init__(self, **variables: str) -> None:
        numbers = range(1, MEMBERS + 1)
        peers = [f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in numbers]
        config = "\n".join([*_CONFIG, *peers])
        own = [{"DLOCK_ZOOKEEPER_ID": str(number), "DLOCK_ZOOKEEPER_CONFIG": config} for number in numbers]
        super().__init__("zookeeper.sh", [each | variables for each in own])
        eventually(lambda: any(map(self.leads, self.members)), "a leader")

    def leads(self, member: ScriptedServer) -> bool:
        """Whether *member* says that it leads."""
        return look_at(self.address(member), _LOOK_S).mode == "leader"
