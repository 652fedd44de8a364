"""The options of the ZooKeeper store, and how they are written as a URL: ``zookeeper://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?tls=true``."""

from __future__ import annotations

import re

from dlock_core.kit import EndpointOptions

__all__ = ["ZooKeeperStoreOptions"]


class ZooKeeperStoreOptions(EndpointOptions):
    """Where the records are: each is a child of the node *root*. The *endpoints* are servers of one ensemble.

    *user* and *password* log in by digest; only that user may then use the nodes that it makes. *tls* encrypts, and verifies the server
    against the system's authorities or those in the file *tls_ca*; *tls_cert* and *tls_key* are the client's own.
    """

    scheme = "zookeeper"
    port = 2181

    @classmethod
    def root_of(cls, value: str) -> str:
        """Return *value*, a path that a node can have."""
        names = {*value.split("/")}
        if (
            not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]{1,200}", value)
            or {"", ".", ".."} & names
        ):
            raise ValueError("not a path of 1 to 200 characters, without '.', '..', and a '/' at either end")
        if value.partition("/")[0] == "zookeeper":
            raise ValueError("ZooKeeper keeps the node 'zookeeper' to itself")
        return value
