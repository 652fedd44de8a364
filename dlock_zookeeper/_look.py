"""What a server of ZooKeeper says of itself, asked by four letters on a connection of their own."""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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

    @property
    def zxid(self) -> int | None:
        """The last transaction that it has, as far as it is known."""
        found = re.search(r"Zxid: 0x([0-9a-f]+)", self.said)
        return int(found[1], 16) if found else None

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.endpoint}: {self.trouble}"
        if "not currently serving" in self.said:
            return f"{self.endpoint}: answers, but has no majority, or leads with leaderServes=no"
        if self.mode:
            return f"{self.endpoint}: answers as {self.mode}"
        return f"{self.endpoint}: answers, but shows no state"


def look_at(endpoint: str, timeout_s: float, client: Any = None) -> Look:
    """Ask the server at *endpoint*, by TLS where the *client* of kazoo uses that."""
    if client is None or not client.use_ssl:
        return _look(endpoint, timeout_s, socket.create_connection)
    share_s = timeout_s / 2
    found = _look(endpoint, share_s, partial(_encrypted, client))
    if found.trouble and _look(endpoint, share_s, socket.create_connection).mode:
        return Look(endpoint, trouble="answers without TLS, which was asked for")
    return found


def _look(endpoint: str, timeout_s: float, connect: Callable[[tuple[str, int], float], socket.socket]) -> Look:
    host, _, port = endpoint.rpartition(":")
    said, trouble = b"", "no answer"
    try:
        # Whether it closes the connection as that is made, before it is asked, or after that, is chance.
        closed = suppress(BrokenPipeError, ConnectionResetError)
        with closed, connect((host.strip("[]"), int(port)), timeout_s) as asked:
            trouble = "no answer, though it takes connections; is it the right port?"
            asked.settimeout(timeout_s)
            asked.sendall(b"srvr\n")  # a server that expects TLS waits for a fifth byte before it refuses
            while len(said) < _SAID_MAX and (more := asked.recv(_SAID_MAX)):
                said += more
    except TimeoutError:
        return Look(endpoint, trouble=trouble)
    except ssl.SSLError as error:
        return Look(endpoint, trouble=_trouble_of_tls(error))
    except OSError as error:
        return Look(endpoint, trouble=error.strerror or type(error).__name__)
    if not said:
        return Look(
            endpoint,
            trouble="closes the connection; is it the right port, is tls=true missing, "
            "or has this host as many connections as maxClientCnxns allows?",
        )
    return Look(endpoint, said.decode(errors="replace"))


def _encrypted(client: Any, address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Connect as kazoo does."""
    connected: socket.socket = client.handler.create_connection(
        address,
        hostname=address[0],
        timeout=timeout_s,
        use_ssl=True,
        ca=client.ca,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
    )
    return connected


def _trouble_of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is refused ({error.verify_message}); "
            "see that it is of the authority in tls_ca, names the host, and has not expired"
        )
    if "ALERT" in (error.reason or ""):
        return "it wants a certificate of the client (tls_cert and tls_key), or refuses this one"
    return f"TLS fails ({error.reason}); see that tls_ca, tls_cert and tls_key are PEM files, and that the key is the certificate's"
