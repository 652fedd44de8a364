"""The stores by name, on real servers: a URL for each, through any address, with table and collection made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from dlock_conformance.servers import Server, resolve

from dlock_core.backend import backend_for

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EMBEDDED", "SERVED", "address_of", "embedded_url", "is_request", "provision", "served_url", "url_for"]

EMBEDDED = ("memory", "sqlite")
SERVED = ("redis", "dynamodb", "mongodb", "mysql", "postgres")
_NAME = "dlock-tests"
_COMMANDS = (b"findAndModify\0", b"find\0", b"update\0")
# It makes a quiet Redis look whether a wait is over.
_NUDGE = b"*1\r\n$4\r\nTIME\r\n"
# Statements of MySQL that make a connection ready.
_SETTINGS = b"\x03SET "


def embedded_url(name: str, folder: Path) -> str:
    """Return the URL of a store that needs no server."""
    return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/locks.db"}[name]


def served_url(server: Server, address: str | None = None) -> str:
    """Return the URL of the store on *server*, reached at *address* instead where one is given."""
    address = address or address_of(server)
    if server.name == "dynamodb":
        # DynamoDB Local takes any credentials, and boto3 insists on some.
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")
        return f"dynamodb://eu-west-1/{_NAME}?endpoint_url={quote(f'http://{address}', safe='')}"
    if server.name in ("etcd", "zookeeper"):
        return f"{server.name}://{address}/{_NAME}"
    if server.name in ("redis", "postgres"):
        return server.url.replace(address_of(server), address)
    if server.name == "mysql":
        # Without encryption, so that a proxy can tell requests.
        return f"{server.url.replace(address_of(server), address)}?table={_NAME}&ssl_mode=disabled"
    user = urlsplit(server.url).netloc.rpartition("@")[0]
    return f"mongodb://{user and user + '@'}{address}/{_NAME}?directConnection=true"


def address_of(server: Server) -> str:
    """Return host and port as they stand in URLs."""
    return "{}:{}".format(*server.address)


def is_request(store: str, said: bytes) -> bool:
    """Whether what a driver *said* is a request of the store, and not how a session begins, or what pymongo asks in the background."""
    if store == "mysql":
        return said[3:5] == b"\0\x03" and not said[4:].startswith(_SETTINGS)
    if store == "redis":
        return bool(said.replace(_NUDGE, b""))  # a busy machine reads several at once
    if store == "postgres":
        return said[:1] in (b"B", b"P", b"Q")
    return store != "mongodb" or any(command in said[:200] for command in _COMMANDS)


def provision(url: str) -> None:
    """Make what the store needs, as ``dlock init`` does."""
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    store.close()


def url_for(name: str, folder: Path) -> str:
    """Return the URL of the store *name*, ready for use.

    Raises: ServerMissingError: it needs a server that can't be had.
    """
    url = embedded_url(name, folder) if name in EMBEDDED else served_url(resolve(name))
    provision(url)
    return url
