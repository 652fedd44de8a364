"""How a connection begins.

The names of servers are searched for in Python: while libpq searches, which has no bound, psycopg stops all threads of the process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from ipaddress import ip_address
from typing import TypeAlias, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from dlock_postgres._errors import not_connected

__all__ = ["CONNECT_S", "Steps", "opening", "with_addresses"]

CONNECT_S = 3
_T = TypeVar("_T")
# Yields what to wait for: the socket, and whether also until it can be written.
Steps: TypeAlias = Generator[tuple[int, bool], None, _T]


def with_addresses(conninfo: str) -> str:
    """Return *conninfo* with an address for each host that is named; libpq compares certificates with the names, as before.

    Raises: StoreUnavailableError: no host has an address.
    """
    params = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    service = params.get("service") or os.environ.get("PGSERVICE")
    hosts, addresses, ports = (
        params.get(name) or ("" if service else os.environ.get(f"PG{name.upper()}", ""))
        for name in ("host", "hostaddr", "port")
    )
    names = hosts.split(",")
    of_each = ports.split(",") if "," in ports else [ports] * len(names)
    if addresses or len(of_each) != len(names) or not any(map(_is_name, names)):
        return conninfo
    places, trouble = list[tuple[str, str, str]](), None
    for host, port in zip(names, of_each, strict=True):
        try:
            places += [(host, address, port) for address in _addresses(host)]
        except OSError as error:
            trouble = error
    if not places:
        raise not_connected(f"could not translate host name {hosts!r} to address: {trouble}") from trouble
    host, hostaddr, port = (",".join(column) for column in zip(*places, strict=True))
    return make_conninfo(**{**params, "host": host, "hostaddr": hostaddr, "port": port})


def _is_name(host: str) -> bool:
    """Whether *host* must be searched for: it is neither an address nor the path of a socket."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return host[:1] not in ("", "/", "@")
    return False


def _addresses(host: str) -> list[str]:
    if not _is_name(host):
        return [host if host[:1] not in ("", "/", "@") else ""]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def opening(conninfo: Callable[[], str]) -> Steps[PGconn]:
    """Connect to a server that can be written to."""
    # A name of the application that the user gives, also in the environment, stands.
    settings = {"client_encoding": "UTF8", "fallback_application_name": "dlock", "target_session_attrs": "read-write"}
    pg: PGconn = pq.PGconn.connect_start(
        make_conninfo(with_addresses(conninfo()), **settings, connect_timeout=CONNECT_S).encode()
    )
    done = False
    try:
        while pg.status != ConnStatus.BAD:
            state = pg.connect_poll()
            if state == PollingStatus.OK:
                pg.nonblocking = 1
                done = True
                return pg
            if state == PollingStatus.FAILED:
                break
            yield pg.socket, state == PollingStatus.WRITING
        said = pg.get_error_message()
        raise not_connected(said) from psycopg.OperationalError(said)
    finally:
        if not done:
            pg.finish()
