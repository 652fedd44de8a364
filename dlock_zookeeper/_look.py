"""What a server of ZooKeeper says of itself, asked by four letters on a connection of their own."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

_SAID_MAX = 4096


class Look(NamedTuple):
    """What the server at *endpoint* has *said*; *trouble* where it said nothing."""

    endpoint: str
    said: str = ""
    trouble: str = ""

    @property
    def version(self) -> str:
        """Its version, as far as it is known."""
        found = re.search(r"version: (\d+(?:\.\d+)*)", self.said)
        return found[1] if found else ""

    @property
    def mode(self) -> str:
        """Whether it leads, follows or stands alone, as far as it is known."""
        found = re.search(r"Mode: (\S+)", self.said)
        return found[1] if found else ""

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.endpoint}: {self.trouble}"
        if "not currently serving" in self.said:
            return f"{self.endpoint}: answers, but has no majority"
        if self.mode:
            return f"{self.endpoint}: answers as {self.mode}"
        return f"{self.endpoint}: answers, but shows no state"


def look_at(endpoint: str, timeout_s: float) -> Look:
    """Ask the server at *endpoint*. One that takes TLS alone shows no state: it answers an alert, or nothing."""
    host, _, port = endpoint.rpartition(":")
    said, trouble = b"", "no answer"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as asked:
            trouble = "no answer, though it takes connections; is it the right port?"
            asked.settimeout(timeout_s)
            asked.sendall(b"srvr")
            while len(said) < _SAID_MAX and (more := asked.recv(_SAID_MAX)):
                said += more
    except TimeoutError:
        return Look(endpoint, trouble=trouble)
    except OSError as error:
        return Look(endpoint, trouble=error.strerror or type(error).__name__)
    return Look(endpoint, said.decode(errors="replace"))
