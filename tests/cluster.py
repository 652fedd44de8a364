"""Servers of one cluster, of the tests' own, which they may kill, pause and start again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.scripted import ScriptedServer, stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MEMBERS", "Cluster"]

MEMBERS = 3


class Cluster:
    """Three members, started together by *script*, each with variables of its own: one alone has no majority, and may not answer."""

    def __init__(self, script: str, variables: Sequence[Mapping[str, str]]) -> None:
        with ThreadPoolExecutor(MEMBERS) as pool:
            self.members = list(pool.map(lambda each: ScriptedServer(script, **each), variables))

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
            if self.leads(member):
                return member
        raise LookupError("no member leads")

    def leads(self, member: ScriptedServer) -> bool:
        """Whether *member* says that it leads."""
        raise NotImplementedError

    def each(self, action: Callable[[ScriptedServer], object]) -> None:
        """Do *action* with all members at once."""
        with ThreadPoolExecutor(MEMBERS) as pool:
            list(pool.map(action, self.members))

    def pause(self, *members: ScriptedServer) -> None:
        """Let them stand still: to the others they are cut off."""
        for member in members:
            stop(member.pid)

    def go_on(self) -> None:
        """Let all go on."""
        for member in self.members:
            os.kill(member.pid, signal.SIGCONT)

    def close(self) -> None:
        """End all members."""
        self.each(ScriptedServer.stop)
