"""The options of a store on a cluster of servers, written ``SCHEME://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT?tls=true``."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import unquote

from pydantic import AfterValidator, SecretStr, field_validator, model_validator

from dlock_core.backend import StoreOptions, redact, split_url, url_parts
from dlock_core.errors import ConfigurationError

_QUERY = ("tls", "tls_ca", "tls_cert", "tls_key")
_PORT_MAX = 65535


def _endpoints(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        host, _, port = each.rpartition(":")
        fits = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}", each) and int(port) <= _PORT_MAX
        try:
            host.encode("idna")  # as Python does when it looks the host up
        except UnicodeError:
            fits = False
        if not fits:
            raise ValueError(f"{each!r} is not HOST:PORT")
    return value


class EndpointOptions(StoreOptions):
    """Base of an adapter's options, which says its *scheme*, the servers' usual *port*, and by :meth:`root_of` what a root may be.

    *user* and *password* log in. *tls* encrypts, and verifies the server against the system's authorities or those in the file *tls_ca*;
    *tls_cert* and *tls_key* are the client's own.
    """

    scheme: ClassVar[str]
    port: ClassVar[int]

    endpoints: Annotated[tuple[str, ...], AfterValidator(_endpoints)]
    root: str = "dlock"
    user: str = ""
    password: SecretStr = SecretStr("")
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @classmethod
    def root_of(cls, value: str) -> str:
        """Return *value*.

        Raises: ValueError: the server has no place of that name; the message says what one is.
        """
        raise NotImplementedError(f"{cls.__name__} has no root_of")

    @classmethod
    def given(cls, source: Any, kind: type, **parts: Any) -> tuple[Self, Any]:
        """Return the options of a store on *source*, which is a URL, or options, or a client of *kind*; and that client, or None.

        The *parts* that are not empty go before those of *source*. A client knows its endpoints itself.

        Raises: ConfigurationError: *source* is none of these, or a part is malformed.
        """
        named = {name: value for name, value in parts.items() if value}
        if isinstance(source, kind):
            return cls(endpoints=(), **named), source
        if isinstance(source, str):
            source = cls.from_url(source)
        if isinstance(source, cls):
            return cls(**dict(source) | named), None
        wanted = f"a URL or a {kind.__module__}.{kind.__name__}"
        raise ConfigurationError(f"the {cls.scheme} store works with {wanted}, not with {type(source).__name__}")

    @field_validator("root")
    @classmethod
    def _check_root(cls, value: str) -> str:
        return cls.root_of(value)

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
        form = (
            f"write {cls.scheme}://USER:PASSWORD@HOST:PORT,HOST:PORT/ROOT, special characters of a password percent-encoded, "
            f"with no other query keys than {', '.join(_QUERY)}"
        )
        rest, pairs = split_url(url, _QUERY)
        parts = url_parts(rest, form)
        if not rest.startswith(f"{cls.scheme}://"):
            raise ConfigurationError(f"{redact(rest)!r} is no URL of this store; {form}")
        if parts.query or parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path:
            raise ConfigurationError(f"{redact(rest)!r} has a part that is not known; {form}")
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        endpoints = tuple(
            each if re.search(r":\d+$", each) else f"{each}:{cls.port}" for each in hosts.split(",") if each
        )
        places = {"user": unquote(user), "password": unquote(password), "root": unquote(parts.path).strip("/")}
        given: dict[str, Any] = {name: value for name, value in places.items() if value}
        # The port's own default yields to the settings, and they to the URL.
        hosts_given = {"endpoints": endpoints} if endpoints else {}
        return cls(**{"endpoints": (f"localhost:{cls.port}",)} | settings | hosts_given | given | pairs)
