"""The options of the ZooKeeper store, and how they are written as a URL: ``zookeeper://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?tls=true``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, SecretStr, model_validator

from dlock_core.backend import StoreOptions, redact, split_url
from dlock_core.errors import ConfigurationError

__all__ = ["ZooKeeperStoreOptions", "checked_root"]

_QUERY = ("tls", "tls_ca", "tls_cert", "tls_key")
_FORM = f"write zookeeper://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT, with no other query keys than {', '.join(_QUERY)}"
_PORT, _PORT_MAX = 2181, 65535


def _root(value: str) -> str:
    parts = value.split("/")
    if not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]{1,200}", value) or {"", ".", ".."} & {*parts}:
        raise ValueError("not a path of 1 to 200 characters, without '.', '..', and a '/' at either end")
    if parts[0] == "zookeeper":
        raise ValueError("ZooKeeper keeps the node 'zookeeper' to itself")
    return value


def checked_root(root: str) -> str:
    """Return *root*.

    Raises: ConfigurationError: no node can have this path.
    """
    try:
        return _root(root)
    except ValueError as error:
        raise ConfigurationError(f"the root {root!r} cannot be used: {error}") from None


def _endpoints(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        if (
            not re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}", each)
            or int(each.rpartition(":")[2]) > _PORT_MAX
        ):
            raise ValueError(f"{each!r} is not HOST:PORT")
    return value


class ZooKeeperStoreOptions(StoreOptions):
    """Where the records are: each is a child of the node *root*. The *endpoints* are servers of one ensemble.

    *user* and *password* log in by digest; only that user may then use the nodes that it makes. *tls* encrypts, and verifies the server
    against the system's authorities or those in the file *tls_ca*; *tls_cert* and *tls_key* are the client's own.
    """

    endpoints: Annotated[tuple[str, ...], AfterValidator(_endpoints)]
    root: Annotated[str, AfterValidator(_root)] = "dlock"
    user: str = ""
    password: SecretStr = SecretStr("")
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if not self.tls and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ValueError("tls_ca, tls_cert and tls_key need tls=true")
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("tls_cert and tls_key need each other")
        return self

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take user, password, endpoints and root from their places in *url*, the rest from the query; *settings* yield to them.

        Raises: ConfigurationError: a part is missing, doubled, unknown or malformed.
        """
        rest, pairs = split_url(url, _QUERY)
        try:
            parts = urlsplit(rest)
        except ValueError:
            raise ConfigurationError(f"{redact(url)!r} is malformed; {_FORM}") from None
        if parts.query or parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path:
            raise ConfigurationError(f"{redact(rest)!r} has a part that is not known; {_FORM}")
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        endpoints = tuple(each if re.search(r":\d+$", each) else f"{each}:{_PORT}" for each in hosts.split(",") if each)
        places = {"user": unquote(user), "password": unquote(password), "root": unquote(parts.path).strip("/")}
        given: dict[str, Any] = {name: value for name, value in places.items() if value}
        # The port's own default yields to the settings, and they to the URL.
        hosts_given = {"endpoints": endpoints} if endpoints else {}
        return cls(**{"endpoints": (f"localhost:{_PORT}",)} | settings | hosts_given | given | pairs)
