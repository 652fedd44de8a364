"""What an error of redis-py, or an error that the server answers, means for the request: one table for each, and what is done with them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis.exceptions
from redis.exceptions import ResponseError

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import meanings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ACL_RULES = (
    "&dlock:* "  # the channels on which waiters are woken; Redis 6.0 has no rule for channels
    "+eval +evalsha +get +hmget +hset +hdel +exists +time +publish +subscribe +del "  # the verbs; +del is for dlock prune alone
    "+blpop +rpush +pexpire "  # claims that wait in the server
    "+auth +select +client|setname +scan +info +config|get"  # connecting, listing, guarantees
)

# What an error code of the server means. Scripts fail before they write, so what is refused was not applied.
CODES = meanings(
    {
        RecordError: {"WRONGTYPE": "the key holds something else than a record of dlock"},
        StoreUnavailableError: {
            "ASK TRYAGAIN": "the slot is being moved",
            "BUSY UNKILLABLE": "another script has been running for too long",
            "CLUSTERDOWN": "a slot of the Cluster has no primary",
            "DLOCKEND": "use another key",
            "LOADING": "the server is still reading its data",
            "MASTERDOWN": "a replica without its primary",
            "MISCONF": "the server cannot write its data to disk and refuses writes",
            "MOVED": "the slot has moved; on a Cluster bring a RedisCluster client",
            "NOREPLICAS": "fewer replicas than min-replicas-to-write",
            "OOM": "the server is at its maxmemory",
            "READONLY": "this is a replica, or was made one; name the primary",
            "UNBLOCKED": "the server was made a replica meanwhile",
        },
        StoreSetupError: {
            "CROSSSLOT": "a proxy or Cluster spreads one lock over slots",
            "DENIED": "the server is in protected mode; set a password or its `bind`, or turn off protected-mode",
            "DLOCKCLOCK": "set the clock of the server right; fencing tokens are made of it",
            # NOPASS is none of Redis: its words for this have no code. The last is said of a long request by who has not signed in.
            "NOAUTH NOPASS WRONGPASS unauthenticated": "",
            "NOPERM": f"see that the URL names a user with the key pattern ~prefix* and the rights {ACL_RULES}",
            "NOPROTO": "the server is older than Redis 6",
        },
    }
)
# What is said without a code.
WORDS: dict[str, tuple[type[StoreError], str]] = {
    "unknown command": (
        StoreSetupError,
        "the server, or a proxy before it, lacks this command, as a Sentinel does; dlock needs Redis 6 or newer, with scripts",
    ),
    # In a script, whose errors come before it writes.
    "command called from": (StoreSetupError, "dlock needs this command, which the server has renamed or disabled"),
    "No master found": (
        StoreUnavailableError,
        "nothing was applied; see the name, and how the Sentinels are reached: their password and TLS go into sentinel_kwargs",
    ),
    "no TLS connection": (StoreUnavailableError, "nothing was applied; a server that speaks no TLS wants redis://"),
    "max number of clients": (StoreUnavailableError, "nothing was applied; the server is at its maxclients"),
    "DB index": (
        StoreSetupError,
        "the last number of the URL is that of a database; the server has `databases` of them, from 0",
    ),
}
# What to look at where no connection comes about. A file of TLS that is missing is not named by the driver; a socket of unix:// is.
_CONNECTING = {
    "reset by peer|closed (by server|the connection)": "a server that speaks TLS wants rediss://, and, unless its tls-auth-clients is "
    "no, a certificate of yours in ssl_certfile and ssl_keyfile; a proxy, such as twemproxy, closes at a command that it does not know",
    "certificate is not valid for": "the URL has to name the server as its certificate does",
    "certificate (has expired|is not yet valid)": "see the dates of the server's certificate, and the clock of this host",
    r"_ssl\.c": "see ssl_ca_certs for the certificate of the server, and ssl_certfile and ssl_keyfile for yours, if it wants one",
    r"^[^/]*No such file": "see the paths in ssl_ca_certs, ssl_certfile and ssl_keyfile",
}
# What a person has to know first, in the place of a hint.
_FIRST: dict[str | None, str] = {
    "NOAUTH": "Redis wants a password; write it into the URL: redis://:PASSWORD@HOST:6379/0, or redis://USER:PASSWORD@HOST:6379/0. ",
    "NOPASS": "Redis knows no password; take it out of the URL. ",
    "WRONGPASS": "Redis refuses this user or password; see the URL, where special characters of a password are percent-encoded. ",
}
_FIRST["unauthenticated"] = _FIRST["NOAUTH"]
# The values of other programs' locks.
_FOREIGN_LOCKS = {
    "redis-py": re.compile(r"[0-9a-f]{32}"),
    "python-redis-lock": re.compile(r"[A-Za-z0-9+/]{24}"),
}
_CODE = re.compile(rf"(?:^|[\s:-])({'|'.join(CODES)})\b")
# How redis-py names a Sentinel that was asked: with all settings of its client, of which this is what a person can use.
_CLIENT = re.compile(r"<redis[\w.]*\.Redis\(.*?host=([^,)]*),port=(\d+).*?\)>\)>\)>")
_MISPLACED = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS", "READONLY"}

# What an exception class of redis-py means. The driver itself only connects, signs in, and asks Sentinels and Clusters where the servers
# are, so it never raises a class for what a server says of a key, of a write or of a script. A class that stands for a code is that code.
# Any other class counts as its nearest base in the table, or as an unknown outcome once the request may have left.
CLASSES: dict[str, str] = {
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "AuthorizationError": "NOPERM",
    "BusyLoadingError": "LOADING",
    "ExternalAuthProviderError": "NOAUTH",
    "NoPermissionError": "NOPERM",
    "SlotNotCoveredError": "CLUSTERDOWN",
}


def foreign(row: Sequence[Any]) -> str | None:
    """Say what stands under a key that holds no hash; None if *row* is one. The row of a string is its first letters, in the last place."""
    if not row:
        return "it is of another type than a hash"
    *hash_fields, text = row[:6]
    if text is None or any(hash_fields):
        return None
    maker = next((name for name, form in _FOREIGN_LOCKS.items() if form.fullmatch(text.decode(errors="replace"))), None)
    if maker is None:
        return "it is a string of another program"
    return (
        f"it is a lock of {maker}, which may hold it now: dlock and {maker} cannot share a key. Give dlock another prefix "
        "(the option prefix; by default it is dlock:), and see docs/coming-from-other-clients.md for moving from one to the other"
    )


def is_unknown_script(answer: Any) -> bool:
    """Whether the server does not know the script that it was to run."""
    return type(answer) is ResponseError and str(answer).startswith("NOSCRIPT")


def is_elsewhere(answer: Any) -> bool:
    """Whether a Cluster's node has not run the request, since its slot has moved, or moves now."""
    return type(answer) is ResponseError and str(answer).startswith(("MOVED", "ASK ", "TRYAGAIN"))


def is_misplaced(answer: Any) -> bool:
    """Whether another server may serve what this one does not; the connection is then of no more use.

    One that was cut off from the others, or starts again, knows no successor that it could name.
    """
    code = _CODE.search(str(answer)) if type(answer) is ResponseError else None
    return code is not None and code.group(1) in _MISPLACED


def check(answers: list[Any], key: str | None) -> list[Any]:
    """Return *answers* if no error is among them."""
    for answer in answers:
        if type(answer) is ResponseError:
            raise trouble(answer, key, sent=True) from answer
    return answers


# All that the driver lets through: its errors have several roots, not all in each version, and a broken stream is an OSError or EOFError.
_DRIVERS = [each for each in vars(redis.exceptions).values() if isinstance(each, type) and issubclass(each, Exception)]
TROUBLE: tuple[type[Exception], ...] = (*_DRIVERS, OSError, EOFError)
FAILURES: tuple[type[Exception], ...] = (StoreError, *TROUBLE)


@contextmanager
def unsent(key: str | None) -> Iterator[None]:
    """Translate the driver's errors where no request has been made yet."""
    try:
        yield
    except TROUBLE as error:
        raise trouble(error, key, sent=False) from error


@contextmanager
def connecting() -> Iterator[None]:
    """As :func:`unsent`, where code of the user's own may run, such as a credential provider, and raise what it likes."""
    with unsent(None):
        try:
            yield
        except TROUBLE:
            raise
        except Exception as error:
            named = not isinstance(error, UnicodeError)  # for a name that no name server can be asked about
            why = "code of the client that was given failed" if named else "the name of the server cannot be looked up"
            raise ConnectionError(f"{why}: {error!r}") from error


def trouble(error: Exception, key: str | None, *, sent: bool) -> StoreError:
    """Return what *error* of the driver means for a request about *key*; *sent*: some of it may have reached the server."""
    # Of an unknown command the server repeats the arguments: the payload of a lock, or the password of the user.
    said, repeats, _ = str(error).partition(", with args beginning with")
    if repeats:
        error.args = (said,)  # it is shown as the cause
    known = next((CLASSES[base.__name__] for base in type(error).__mro__ if base.__name__ in CLASSES), None)
    if (code := _CODE.search(said)) is not None:
        known = code.group(1)
    elif re.search("user executing the script|acl failure in script", said, re.IGNORECASE):
        known = "NOPERM"
    if known == "NOAUTH":  # redis-py has one class for all three
        known = "WRONGPASS" if "invalid" in said else "NOPASS" if "without any password" in said else known
    if known is not None:
        kind, hint = CODES[known]
    elif (meaning := next((WORDS[words] for words in WORDS if words in said), None)) is not None:
        kind, hint = meaning
    elif sent:
        kind, hint = OutcomeUnknownError, "it may have been applied"
    else:
        kind, hint = StoreUnavailableError, "nothing was applied"
        hint += next((f"; {more}" for words, more in _CONNECTING.items() if re.search(words, said, re.IGNORECASE)), "")
    where = "" if key is None else f" for key {key!r}"
    first = _FIRST.get(known, "")
    said = _CLIENT.sub(r"\1:\2", said) or f"{type(error).__name__}, no answer"
    return kind(f"{first}the request{where} failed at Redis: {said}" + (f" ({hint})" if hint else ""), key=key)
