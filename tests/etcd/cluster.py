"""A cluster of etcd of the tests' own, whose members they may kill, pause and start again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.etcd.support import administer
from tests.scripted import ScriptedServer, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EtcdCluster"]

MEMBERS = 3


class EtcdCluster:
    """Three members, started together: one alone has no majority, and does not answer."""

    def __init__(self, **variables: str) -> None:
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(MEMBERS)]
        members = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        own = [
            f"--name m{number} --initial-cluster {members} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer}"
            for number, peer in enumerate(peers)
        ]
        with ThreadPoolExecutor(MEMBERS) as pool:
            self.members = list(
                pool.map(lambda options: ScriptedServer("etcd.sh", DLOCK_ETCD_ARGS=options, **variables), own)
            )

    @property
    def endpoints(self) -> str:
        """All members, as they stand in a URL."""
        return ",".join(self.address(member) for member in self.members)

    @staticmethod
    def address(member: ScriptedServer) -> str:
        """Where *member* listens."""
        return f"127.0.0.1:{member.port}"

    def leader(self) -> ScriptedServer:
        """Return the member that leads now."""
        for member in self.members:
            told = administer(self.address(member), "maintenance/status")
            if told["leader"] == told["header"]["member_id"]:
                return member
        raise LookupError("no member leads")

    def each(self, action: Callable[[ScriptedServer], object]) -> None:
        """Do *action* with all members at once."""
        with ThreadPoolExecutor(MEMBERS) as pool:
            list(pool.map(action, self.members))

    def pause(self, *members: ScriptedServer) -> None:
        """Let them stand still: to the others they are cut off."""
        for member in members:
            os.kill(member.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all go on."""
        for member in self.members:
            os.kill(member.pid, signal.SIGCONT)

    def close(self) -> None:
        """End all members."""
        self.each(ScriptedServer.stop)
