"""A cluster of etcd of the tests' own, whose members they may kill, pause and start again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlock_conformance.servers import free_port

from tests.cluster import MEMBERS, Cluster
from tests.etcd.support import administer

if TYPE_CHECKING:
    from tests.scripted import ScriptedServer

__all__ = ["EtcdCluster"]


class EtcdCluster(Cluster):
    """Three members, started together: one alone has no majority, and does not answer."""

    def __init__(self, **variables: str) -> None:
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(MEMBERS)]
        members = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        own = [
            f"--name m{number} --initial-cluster {members} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer}"
            for number, peer in enumerate(peers)
        ]
        super().__init__("etcd.sh", [{"DLOCK_ETCD_ARGS": options, **variables} for options in own])

    def leads(self, member: ScriptedServer) -> bool:
        """Whether *member* says that it leads."""
        told = administer(self.address(member), "maintenance/status")
        return bool(told["leader"] == told["header"]["member_id"])
