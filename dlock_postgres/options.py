"""The options of the PostgreSQL store, and how they stand in a URL: libpq's own, with *table* among its query keys."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from inspect import iscoroutinefunction
from typing import Annotated, Any, LiteralString, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from pydantic import AfterValidator, SecretStr

from dlock_core.backend import StoreOptions, redact, split_url
from dlock_core.errors import ConfigurationError, StoreUnavailableError

__all__ = [
    "PostgresStoreOptions",
    "checked_table",
    "conninfo_of",
    "fence_sql",
    "quoted",
    "service_of",
    "settings_of",
    "table_of",
]

_LIBPQ = frozenset(option.keyword.decode() for option in Conninfo.get_defaults())
_NAME = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"
_TABLE = "public.dlock"
_FORM = "write postgresql://USER@HOST/DATABASE?table=SCHEMA.TABLE"


def settings_of(conninfo: str) -> dict[str, Any]:
    """Return what libpq connects with: the parts of *conninfo*, and of its service and the environment where it leaves them out."""
    defaults = {option.keyword.decode(): option.val.decode() for option in Conninfo.get_defaults() if option.val}
    return {**defaults, **service_of(conninfo), **conninfo_to_dict(conninfo)}


def service_of(conninfo: str) -> dict[str, str]:
    """Return what the service file says of the service in *conninfo*, or in the environment; nothing where that is left to libpq."""
    given = conninfo_to_dict(conninfo)
    name = str(given.get("service") or os.environ.get("PGSERVICE", ""))
    own = str(given.get("servicefile") or os.environ.get("PGSERVICEFILE", "~/.pg_service.conf"))
    common = f"{os.environ.get('PGSYSCONFDIR', '')}/pg_service.conf"
    for path in (own, common) if name else ():
        file = ConfigParser(interpolation=None, strict=False, allow_no_value=True, delimiters="=", comment_prefixes="#")
        try:
            file.read(os.path.expanduser(path), encoding="utf-8")  # noqa: PTH111  # a Path raises where there is no home
        except (OSError, ValueError, ConfigParserError):  # libpq says what is wrong with it
            return {}
        if file.has_section(name):
            return {option: value for option, value in file.items(name) if option in _LIBPQ and value}
    return {}


def checked_table(table: str) -> str:
    """Return *table* as SCHEMA.TABLE.

    Raises: ConfigurationError: it is no such name.
    """
    if not re.fullmatch(rf"(?:{_NAME}\.)?{_NAME}", table):
        raise ConfigurationError(f"{table!r} is no table name; write SCHEMA.TABLE in letters, digits and underscores")
    return table if "." in table else f"public.{table}"


def quoted(table: str) -> str:
    """Return SCHEMA.TABLE as it stands in statements."""
    return ".".join(f'"{name}"' for name in table.split("."))


def fence_sql(table: str = _TABLE) -> LiteralString:
    """Return the statement with which a transaction makes sure that its caller holds the lock, and keeps it until the commit.

    Its parameters are *key*, with the client's prefix, and the lease's *token* and *owner*: where a failover has lost a grant, the next one
    may have the same token. It gives one row; without a row the lock was lost: roll back.
    """
    holder = "key = %(key)s AND state = 'held' AND token = %(token)s AND owner = %(owner)s"
    return f"SELECT token FROM {quoted(checked_table(table))} WHERE {holder} FOR SHARE"  # noqa: S608


def conninfo_of(source: Any) -> tuple[Callable[[], str], Callable[[], str | None]]:
    """Return what gives the connection string of *source*: a URL, a DSN, or a pool of psycopg_pool, of either colour.

    And what says the one that was given last, without a call of the pool's functions; None while one of these is under way.

    Raises: ConfigurationError: it is none of these, libpq does not understand it, or a function of the pool has to be awaited.
    """
    if isinstance(source, str):
        conninfo = source if "://" not in source else PostgresStoreOptions.from_url(source).conninfo.get_secret_value()
        try:
            conninfo_to_dict(conninfo)
        except (psycopg.Error, UnicodeError):
            raise ConfigurationError(
                f"the DSN is malformed, or has an option that libpq does not know; {_FORM}"
            ) from None
        return lambda: conninfo, lambda: conninfo
    if not hasattr(source, "conninfo") or not hasattr(source, "kwargs"):
        raise ConfigurationError(
            f"a PostgreSQL store works with a URL, a DSN or a pool of psycopg_pool, not {type(source).__name__}"
        )
    if iscoroutinefunction(source.conninfo) or iscoroutinefunction(source.kwargs):
        raise ConfigurationError(
            "the pool's conninfo or kwargs has to be awaited, which the store cannot do on its threads; "
            "give it a pool whose functions are plain ones"
        )
    last: str | None = None

    def asked() -> str:
        nonlocal last
        last = None
        try:
            # Those may be functions, for passwords that change.
            said, options = (given() if callable(given) else given for given in (source.conninfo, source.kwargs))
            known = {name: value for name, value in (options or {}).items() if name in _LIBPQ}
            last = conninfo = make_conninfo(said, **known)
        except Exception as error:  # what it says may be a secret
            why = f"the pool's conninfo or kwargs cannot be used ({type(error).__name__})"
            raise StoreUnavailableError(f"PostgreSQL cannot be reached, nothing was written: {why}") from error
        return conninfo

    return asked, lambda: last


def table_of(source: Any, table: str | None) -> str:
    """Return *table* as SCHEMA.TABLE; where it is None, the one that *source* names, if that is a URL.

    Raises: ConfigurationError: it is no such name.
    """
    if table is None and isinstance(source, str) and "://" in source:
        return PostgresStoreOptions.from_url(source).table
    return checked_table(_TABLE if table is None else table)


class PostgresStoreOptions(StoreOptions):
    """Where the records are: *conninfo* is libpq's connection string, *table* is ``SCHEMA.TABLE`` (by default ``public.dlock``)."""

    conninfo: SecretStr
    table: Annotated[str, AfterValidator(checked_table)] = _TABLE

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take *table* from the query; all else is libpq's, as are *settings*, which yield to the URL.

        Raises: ConfigurationError: the URL is malformed, or has an option that neither dlock nor libpq knows.
        """
        rest, ours = split_url(url, {"table"})
        ours = {"table": settings.pop("table")} | ours if "table" in settings else ours
        if re.match(r"[^/]+//[^/?#]*@[^/?#]*@", rest):
            # libpq takes what follows the first @ for the host, and repeats it in its errors.
            raise ConfigurationError(
                f"{redact(url)!r} cannot be used: more than one @ stands before its path; in a user name or a password write %40; {_FORM}"
            )
        if re.match(r"[^/]+//[^/?#@]*:[^/?#@]*/[^?#]*@", rest):
            # libpq takes the user for the host, and the begin of the password for the port.
            raise ConfigurationError(
                f"{redact(url)!r} cannot be used: an @ stands in its path; in a password write %2F for /; {_FORM}"
            )
        try:
            # SQLAlchemy's URLs differ in the scheme only.
            given = conninfo_to_dict("postgresql://" + rest.partition("://")[2])
            conninfo = make_conninfo(**{**settings, **given})
        except (psycopg.Error, TypeError, AttributeError, UnicodeError) as error:
            # Without its cause: the driver repeats values, and one of them may be a secret.
            unknown = re.search(r'(?:invalid URI query parameter: |connection option )"(\w+)"', str(error))
            fault = (
                f"neither dlock nor libpq knows its option {unknown[1]!r}"
                if unknown
                else "it is malformed (an = in a value is written %3D)"
            )
            raise ConfigurationError(f"{redact(url)!r} cannot be used: {fault}; {_FORM}") from None
        return cls(conninfo=SecretStr(conninfo), **ours)
