"""The options of the MySQL store, and how they are written as a URL: ``mysql://USER:PASSWORD@HOST:PORT/DATABASE?table=…``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from dlock_core.backend import StoreOptions, redact, split_url
from dlock_core.errors import ConfigurationError

__all__ = ["MySQLStoreOptions", "fence_sql"]

_FORM = (
    "write mysql://USER:PASSWORD@HOST/DATABASE, special characters of a password percent-encoded, "
    "with no other query keys than table, ssl_mode and ssl_ca"
)


def _checked_name(value: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z_$-]{1,64}", value) or value.isdecimal():
        raise ValueError("not a name (1 to 64 letters, digits, '_', '$', '-', and not digits alone)")
    return value


_Name = Annotated[str, AfterValidator(_checked_name)]


def fence_sql(table: str = "dlock") -> str:
    """Return the statement with which a transaction makes sure that its caller holds the lock, and keeps it until the commit.

    *table* is TABLE, or DATABASE.TABLE. Its parameters are *key*, with the client's prefix, and the lease's *token* and *owner*: where a
    failover has lost a grant, the next one may have the same token. It gives one row; without a row the lock was lost: roll back.

    Raises: ConfigurationError: *table* is no such name.
    """
    try:
        name = ".".join(f"`{_checked_name(part)}`" for part in table.split(".", 1))
    except ValueError as error:
        raise ConfigurationError(f"{table!r} is no table: {error}") from None
    holder = "k = %(key)s AND state = 'held' AND token = %(token)s AND owner = %(owner)s"
    return f"SELECT token FROM {name} WHERE {holder} LOCK IN SHARE MODE"  # noqa: S608


class MySQLStoreOptions(StoreOptions):
    """Which table holds the records, and how its server is reached.

    *ssl_mode* is MySQL's own setting: ``preferred`` encrypts where the server can and verifies nothing, ``verify_identity`` verifies the
    server's certificate and its name, against the authority in the file *ssl_ca* or those of the system.
    """

    host: str = "localhost"
    port: Annotated[int, Field(gt=0, lt=65536)] = 3306
    user: str = "root"
    password: SecretStr = SecretStr("")
    database: _Name
    table: _Name = "dlock"
    ssl_mode: Literal["disabled", "preferred", "required", "verify_identity"] = "preferred"
    ssl_ca: str | None = None

    @model_validator(mode="after")
    def _check_authority(self) -> Self:
        if self.ssl_ca is not None and self.ssl_mode != "verify_identity":
            raise ValueError(f"ssl_ca needs ssl_mode=verify_identity; {self.ssl_mode} verifies nothing")
        return self

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take user, password, host, port and database from their places in *url*, the rest from the query; *settings* yield to them.

        Raises: ConfigurationError: a part is missing, doubled, unknown or malformed.
        """
        rest, pairs = split_url(url, ("table", "ssl_mode", "ssl_ca"))
        try:
            parts = urlsplit(rest)
            places = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        except ValueError:
            raise ConfigurationError(f"{redact(url)!r} is malformed; {_FORM}") from None
        if parts.query or parts.fragment:
            raise ConfigurationError(f"{redact(rest)!r} has a query key or fragment that is not known; {_FORM}")
        places["database"] = parts.path.strip("/") or None
        if places["database"] is None and "database" not in settings:
            raise ConfigurationError(f"{redact(url)!r} names no database; {_FORM}")
        given = {name: unquote(str(value)) for name, value in places.items() if value is not None}
        return cls(**settings | given | pairs)
