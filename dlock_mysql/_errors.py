"""What an error of PyMySQL or of the server says about the request: not applied, unknown, or something to set up. One table. Pure."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, TypeAlias

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import meanings
from dlock_mysql.provision import grants

if TYPE_CHECKING:
    from dlock_mysql.options import MySQLStoreOptions

_Verdict: TypeAlias = "tuple[type[StoreError], str]"

# MySQL's and MariaDB's numbers. A statement that fails is rolled back as a whole; where it stands in a transaction, the connection is
# closed, and the server rolls that back.
_REFUSALS: dict[str, str] = {
    # Deadlock, lock wait time-out; the row was changed meanwhile, with innodb_snapshot_isolation; group replication refused the commit.
    "1213 1020 3101": "another transaction had the row, and the server rolled this one back; nothing was written",
    "1205": "another transaction had the row, or the table, as a backup and ALTER TABLE have it, and the server rolled this one back; "
    "nothing was written",
    "1040 1203": "the server has no connection left for this user; nothing was written",
    "1226": "the user has used up what it may (SHOW CREATE USER): connections, or queries or updates of this hour; nothing was written",
    "1021 1041 1114": "the server has no room left; nothing was written",
    "1153 1301": "the request exceeds the server's max_allowed_packet; nothing was written",
    "1047": "this node is not in its cluster just now; nothing was written",
    "1792 1836": "the server is read-only, as a replica is, or a primary in a failover; nothing was written; name the primary",
    # A server that is read-only, and any other that runs with an option that is in the way, such as MariaDB's --max-session-mem-used.
    "1290": "the server runs with {option}; nothing was written; where it is read-only, as a replica is, or a primary in a failover, "
    "name the primary",
}
_SETUP: dict[str, str] = {
    "1044 1142 1143 1227": "the user lacks a right; to create the table it needs CREATE, to keep locks: {grant}",
    # The last ones: refused by a plug-in, expired, blocked after too many errors, not allowed from here. MariaDB says 1045 of a user, too,
    # that must encrypt.
    "1045 1698 1820 1862 1129 1130": "the server refuses this user, this password or this host, or demands encryption (see ssl_mode)",
    "3118 4151": "this account is locked; ALTER USER … ACCOUNT UNLOCK opens it",
    "3159": "the server demands encryption; leave ssl_mode=disabled out",
    "2059": "PyMySQL does not know how this user signs in; give dlock a user WITH caching_sha2_password (MariaDB: mysql_native_password)",
    "2026": "the server has no encryption, and ssl_mode demands it",
    "1184": "the server ended this user's session as it began, as it does where init_connect fails; its error log says why",
    "1146": "there is no such table; 'dlock init --url URL' creates it",
    "1049": "there is no such database; CREATE DATABASE makes it, and 'dlock init --url URL' the table in it",
    # Columns that are missing, too short, of another type or without a default; a view.
    "1054 1264 1288 1347 1364 1366 1406": "the table is not dlock's; name another one with table=…, and 'dlock init --url URL' creates it",
    "1644": "a trigger of the table refuses writes; remove it, or name another table with table=…",
    # Of a unique index, a foreign key, a check.
    "1062 1452 3819 4025": "the table has a constraint that is not dlock's; drop it, or name another table with table=…",
    # An unknown variable, a syntax error, a feature that is not there; binary logging of statements.
    "1193 1064 1235 1665": "the server does not fit; MySQL 8 or MariaDB 10.6 is needed, and binlog_format = ROW or MIXED",
}
_READ_ONLY = frozenset({1290, 1792, 1836})
# Another transaction had locked a row for too long.
ROW_LOCKED = 1205
# Numbers from here on are errors of the server's, but for those that its library and drivers have for themselves.
_SERVERS_FROM, _DRIVERS = 1000, range(2000, 3000)
# What a constraint, a column or a trigger refuses.
_OF_ONE = frozenset({1062, 1264, 1366, 1406, 1452, 1644, 3819, 4025})
_OPTION = re.compile(r"--[a-z][\w=-]*")
_VERDICTS = meanings({StoreUnavailableError: _REFUSALS, StoreSetupError: _SETUP})
_UNKNOWN: _Verdict = (OutcomeUnknownError, "no answer that can be read; the write may have been applied")
_LATE: _Verdict = (
    OutcomeUnknownError,
    "no answer in time; the write may have been applied; another transaction may have locked the row, or ALTER TABLE or a backup the table",
)
_UNREAD: _Verdict = (StoreUnavailableError, "no answer that can be read")
_UNSENT: _Verdict = (StoreUnavailableError, "nothing was sent; see that the server runs there")


def is_of_one(error: Exception) -> bool:
    """Whether *error*, of a request about many records, may be that of one of them."""
    return _number(error) in _OF_ONE


def is_read_only(error: Exception) -> bool:
    """Whether the server takes no writes, or runs with another option that is in the way of them."""
    return _number(error) in _READ_ONLY


def translate(error: Exception, what: str, options: MySQLStoreOptions, *, key: str | None, writes: bool) -> StoreError:
    """Return the error of dlock for one of the driver, whose message it leaves out: that may hold the user's data."""
    # PyMySQL tells of the socket's error in words alone, but raises while it handles it.
    unknown = _LATE if isinstance(error.__context__, TimeoutError) else _UNKNOWN
    kind, told = _verdict(error, options, unknown if writes else _UNREAD)
    return kind(f"{what}: {_shown(error)}: {told}", key=key)


def unconnected(error: Exception, options: MySQLStoreOptions) -> StoreError:
    """Return the error of dlock for a connection that was not made: no request was sent."""
    what = f"no connection to MySQL at {options.host}:{options.port} as {options.user!r}: {_shown(error)}"
    cause: BaseException = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f"its certificate is refused ({cause.verify_message})"
        return StoreSetupError(
            f"{what}: {why}; see that it is of the authority in ssl_ca, names the host, and has not expired"
        )
    kind, told = _verdict(error, options, _UNSENT)
    reason = f": {cause.strerror or cause}" if isinstance(cause, OSError) else ""
    return kind(f"{what}{reason}: {told}")


def _verdict(error: Exception, options: MySQLStoreOptions, otherwise: _Verdict) -> _Verdict:
    number = _number(error)
    kind, told = _VERDICTS.get(str(number), otherwise)
    if str(number) not in _VERDICTS and number >= _SERVERS_FROM and number not in _DRIVERS:
        applied = "; the write may have been applied" if kind is OutcomeUnknownError else ""
        told = f"the server ended it, and 'perror {number}' says why{applied}"
    option = _OPTION.search(str(error))
    return kind, told.replace("{grant}", grants(options)).replace("{option}", option[0] if option else "an option")


def _number(error: BaseException) -> int:
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def _shown(error: BaseException) -> str:
    number = _number(error)
    return type(error).__name__ + (f" {number}" if number else "")
