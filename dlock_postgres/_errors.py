"""What each error of the server, by its SQLSTATE, and each exception of psycopg means for the statement that it answers: one table."""

from __future__ import annotations

import re
from functools import partial

import psycopg

from dlock_core.errors import RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import meanings, named, unanswered, unfit
from dlock_postgres.options import settings_of

misfit = partial(unfit, "PostgreSQL")
# The server took writes when the connection was made: it is no primary any more, or another one is to be.
READ_ONLY = "25006"
CREATE_IT = "'dlock init --url URL' creates it"

# An error that the server answers to a statement has rolled the statement back, but for those that end the session: they may come after
# the commit. The longest prefix of a code decides. What is not here is unknown.
CODES = meanings(
    {
        RecordError: {"22": "PostgreSQL has no form for a value of the record"},
        StoreSetupError: {
            "09 38 39 P0": "a trigger of the table refuses writes; remove it, or name another table",
            "0A": "the server lacks a feature; dlock needs PostgreSQL 12 or newer",
            "23": "the table has a constraint that is not dlock's; drop it, or name another table",
            "26": "a pooler in between mixes up sessions",
            "28": "check user, password and pg_hba.conf",
            "3D": "create the database, or name another",
            "3F 42P01": CREATE_IT,
            "42": "see `dlock doctor --url URL`",
            "42501": "the user lacks a right; to create the table it needs CREATE, to keep locks: {grant}",
            "42703": "the table has other columns than dlock's; name another table",
        },
        StoreUnavailableError: {
            "25006": "the session is read-only: this is a standby, or default_transaction_read_only is on",
            "40001": "rolled back for another transaction",
            "40P01": "rolled back to end a deadlock",
            "53": "the server is out of connections, memory or disk",
            "54": "a limit of the server is reached",
            "55": "something else is in the way",
            "57014": "it was cancelled, and rolled back; it may have waited for a transaction that has locked the row, or the table, "
            "as VACUUM FULL and ALTER TABLE do, also while they wait themselves",
            "57P03": "the server is starting or stopping",
        },
    }
)
# What the server says when it refuses a connection has no code in libpq, but for its text. These are known in English alone: in another
# language of the server's (lc_messages) the refusal is one that may pass.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "does not exist",
    "is not permitted to log in",
    "is not currently accepting connections",  # a database without ALLOW_CONNECTIONS
    "permission denied ",  # for the database, or to set what the URL has in its options
    "unrecognized configuration parameter",
    "server does not support SSL",
    "certificate",
    "private key",
    # What the server says of TLS: it does not trust the client's certificate, or has no version in common.
    "alert unknown ca",
    "alert protocol version",
    # What the URL demands, and the server, or this host, has not.
    "channel binding required",
    "authentication method requirement",
    "GSSAPI encryption required",
    "requirepeer",
    "weak sslmode",
    "service file",
    "definition of service",
    # PgBouncer's, of a database that it does not know, a rule for its users, and an option that it was not told to take or to ignore.
    "no such database",
    "login rejected",
    "bouncer config error",
    "unsupported startup parameter",
    "invalid ",  # a value of the URL, or an answer to the wish for TLS that is none of PostgreSQL's
)
# PgBouncer's answers, without a code, to a statement for which it has no session of the server's.
_UNSENT = ("server_login_retry", "query_wait_timeout", "cannot connect to server")
_STANDBY = "session is read-only"
# So libpq shows what a server says, in every language: its severity, a colon and two spaces come before it.
_SERVERS = re.compile(r"\w:  \S")

# Of a value, a constraint, a trigger, a damaged row.
_OF_ONE = frozenset({"09", "22", "23", "38", "39", "P0", "XX"})

TROUBLE = (psycopg.Error, OSError)


def error_of(error: Exception, key: str | None, *, writes: bool, grant: str) -> StoreError | None:
    """Return dlock's error for one of the driver, or None if it is not the driver's. A read that got no answer wrote nothing.

    *grant* gives the user all rights that it needs.
    """
    if not isinstance(error, TROUBLE):
        return None
    code = getattr(error, "sqlstate", None) or ""
    known = next((CODES[each] for each in (code, code[:2]) if each in CODES), None)
    if known is not None:
        kind, hint = known[0], known[1].replace("{grant}", grant)
        return kind(f"PostgreSQL refused a statement about {named(key)}: {_said(error)}; {hint}", key=key)
    said = _said(error) or f"{type(error).__name__}, no answer in time"
    if any(words in said for words in _UNSENT):
        return StoreUnavailableError(f"the pooler sent nothing to PostgreSQL about {named(key)}: {said}", key=key)
    return unanswered("PostgreSQL", said, key, writes=writes)


def is_of_one(error: Exception) -> bool:
    """Whether *error*, of a statement about many records, may be that of one of them."""
    return (getattr(error, "sqlstate", None) or "")[:2] in _OF_ONE


def not_connected(error: Exception, conninfo: str | None) -> StoreError:
    """Return the error of a statement that was not sent, since there is no connection by *conninfo*, which None says is not known yet."""
    said = " ".join(str(error).split())
    if conninfo is None:
        said = "the pool's conninfo or kwargs, which are functions, did not answer in time"
    elif isinstance(error, (TimeoutError, psycopg.errors.ConnectionTimeout)):
        known = settings_of(conninfo)
        named_by = f"the host of service {known['service']!r}" if "service" in known else "the default host"
        said = f"no connection to {known.get('host') or named_by}, port {known.get('port') or 5432}, in time"
    if any(refusal in said for refusal in _REFUSALS):
        return StoreSetupError(f"PostgreSQL refuses the connection: {said}; check the URL, user, password and TLS")
    hint = "; this is a standby: name the primary; or default_transaction_read_only is on" if _STANDBY in said else ""
    fault = "refuses the connection" if _SERVERS.search(str(error)) else "cannot be reached"
    return StoreUnavailableError(f"PostgreSQL {fault}, nothing was written: {said}{hint}")


def _said(error: Exception) -> str:
    """Return the first line that *error* says: later ones may quote a row."""
    return str(error).strip().partition("\n")[0]
