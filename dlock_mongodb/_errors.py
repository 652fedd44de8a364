"""The one table of what each error of pymongo, and each error code of the server, means for a write."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from bson.errors import BSONError
from pymongo import errors

from dlock_core.errors import (
    DLockError,
    OutcomeUnknownError,
    RecordError,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.kit import named, unanswered, unfit

# What an error says about the write that it answers is the error that dlock raises. StoreUnavailableError: certainly not applied, now or
# later; OutcomeUnknownError: anything less certain; StoreSetupError: not applied, and an operator must mend something; RecordError: not
# applied, since a document cannot be written or read.

# The class, or its nearest base, decides where there is no code of the server in CODES.
CLASSES: dict[type[BaseException], type[StoreError]] = {
    # Also a broken connection, which cannot be told from one that was never made: both are AutoReconnect.
    errors.PyMongoError: OutcomeUnknownError,
    errors.WaitQueueTimeoutError: StoreUnavailableError,
    errors.ServerSelectionTimeoutError: StoreUnavailableError,
    errors.ConfigurationError: StoreSetupError,
    # The client was closed.
    errors.InvalidOperation: StoreUnavailableError,
    errors.InvalidName: StoreSetupError,
    errors.EncryptionError: StoreSetupError,
    BSONError: RecordError,
    # An AsyncMongoClient in another event loop, or an interpreter that is going down.
    RuntimeError: OutcomeUnknownError,
    OSError: OutcomeUnknownError,
}

# Codes of a command that failed as a whole; after any other its outcome is unknown. In a writeConcernError every code means that the write
# may stand or be rolled back.
CODES: dict[int, type[StoreError]] = {
    # WriteConflict: rolled back. NotWritablePrimary, NotPrimaryNoSecondaryOk: refused at the door.
    **dict.fromkeys((112, 10107, 13435), StoreUnavailableError),
    # BadValue, FailedToParse, Unauthorized, TypeMismatch, AuthenticationFailed, NamespaceNotFound, CommandNotFound, ShardKeyNotFound,
    # InvalidOptions, InvalidNamespace, DocumentValidationFailure, NotAReplicaSet, CommandNotSupportedOnView, NotImplemented,
    # APIStrictError, AtlasError.
    **dict.fromkeys((2, 9, 13, 14, 18, 26, 59, 61, 72, 73, 121, 123, 166, 238, 323, 8000), StoreSetupError),
}

misfit = partial(unfit, "MongoDB")
CREATE_IT = "'dlock init --url URL' creates it"
_MENDS = {
    13: "give the user the role readWrite on the database",
    18: "check user, password and authSource",
    26: CREATE_IT,
    61: "shard the collection by _id or hashed _id, or not at all",
    121: "drop the validator of the collection",
    123: "reads need a replica set; start mongod with --replSet",
    8000: "check user, password, access list and space quota of the cluster in Atlas",
}
# A server in the driver's picture of the topology.
_SERVER = re.compile(r"<ServerDescription \('([^']+)', (\d+)\)")
# The answer of a server that refused to open a connection, for a wrong password perhaps: until the driver looks at that server again, its
# searches end with this.
_REFUSAL = re.compile(r"full error: \{.*?'code': (\d+)(?:, 'codeName': '(\w+)')?")
# What dnspython raises where a name server has answered that there is nothing; all else may pass.
_NO_SUCH_NAME = ("NXDOMAIN", "NoAnswer", "NoneType")
# What the driver says in a ValueError where Azure or Google gives it no token to log in with (MONGODB-OIDC).
_TOKENLESS = "Failed to acquire IMDS"
_DNS_MEND = "see that the host of a mongodb+srv URL is right, and that this machine can resolve names"
_MEND = "see `dlock doctor --url URL`"
# How much of what the driver says is shown.
_SAID_MAX = 300


def kind_of(error: BaseException) -> type[StoreError] | None:
    """Return what *error* says about the command that raised it, or None if it is not the driver's."""
    if isinstance(error, errors.NotPrimaryError | errors.OperationFailure | errors.ServerSelectionTimeoutError):
        kind = CODES.get(_code(error))
        if kind is not None:
            return kind
    if _unresolved(error) and type(error.__context__).__name__ not in _NO_SUCH_NAME:
        return StoreUnavailableError
    if _is_tokenless(error):
        return OutcomeUnknownError
    return next((CLASSES[each] for each in type(error).__mro__ if each in CLASSES), None)


def error_of(error: BaseException, key: str | None, *, writes: bool) -> StoreError | None:
    """Return dlock's error for *error*, or None if it is not the driver's. A read that got no answer wrote nothing."""
    kind = kind_of(error)
    if kind is None or isinstance(error, DLockError):
        return None
    if kind is StoreSetupError:
        mend = _DNS_MEND if _unresolved(error) else _MENDS.get(_code(error), _MEND)
        return misfit(_said(error), mend, key=key)
    if kind is RecordError:
        return RecordError(f"the record of {named(key)} has no form in BSON: {type(error).__name__}", key=key)
    return unanswered("MongoDB", _said(error), key, writes=writes and kind is OutcomeUnknownError)


def check_concern(answer: Any, key: str | None) -> None:
    """Refuse an answer whose write may yet be rolled back: its record must never be adopted."""
    trouble = answer.get("writeConcernError")
    if trouble:
        cause = errors.WriteConcernError(f"code {trouble.get('code')}", trouble.get("code"), trouble)
        raise OutcomeUnknownError(
            f"a write to {named(key)} was made and not confirmed by a majority: {_said(cause)}", key=key
        ) from cause


def _code(error: BaseException) -> int:
    details = _details(error)
    code = getattr(error, "code", None) or (details.get("code") if isinstance(details, dict) else None)
    return code if isinstance(code, int) else 0


def _details(error: BaseException) -> Any:
    refusal = _REFUSAL.search(str(error)) if isinstance(error, errors.ServerSelectionTimeoutError) else None
    if refusal is None:
        return getattr(error, "details", None)
    return {"code": int(refusal[1]), "codeName": refusal[2]}


def _said(error: BaseException) -> str:
    """Return what *error* says that may be shown: a server's message repeats the command, and that holds the user's data."""
    name, code = type(error).__name__, _code(error)
    if code:
        details = _details(error)
        named = details.get("codeName") if isinstance(details, dict) else None
        return f"{name} (code {code}{f', {named}' if isinstance(named, str) else ''})"
    if isinstance(error, errors.WaitQueueTimeoutError):
        return f"{name}: others have all connections of this client; make one for the locks alone, or raise its maxPoolSize"
    if isinstance(error, errors.ConnectionFailure) and not isinstance(error, errors.NotPrimaryError):
        # Host, port and reason; what follows is the driver's picture of the topology.
        reason = str(error).partition(", Timeout: ")[0].partition(" (configured timeouts")[0][:_SAID_MAX]
        return f"{name}: {reason}{_asked(error, reason)}"
    if isinstance(error, errors.InvalidOperation) and "after close" in str(error):
        return f"{name}: the client was closed"
    if _is_tokenless(error):
        return f"{name}: {str(error)[:_SAID_MAX]}; see that this machine has an identity"
    # What is wrong with the event loop, the interpreter, or between driver and server at a request, holds nothing of the user's.
    return f"{name}: {str(error)[:_SAID_MAX]}" if isinstance(error, errors.ConfigurationError | RuntimeError) else name


def _asked(error: errors.ConnectionFailure, reason: str) -> str:
    """Return which servers were asked in vain, where the driver's *reason* names none of them."""
    servers = [f"{host}:{port}" for host, port in _SERVER.findall(str(error))]
    if not servers or any(server in reason for server in servers):
        return ""
    return f" (asked: {', '.join(servers)}); see that MongoDB runs there, and whether it speaks TLS"


def _is_tokenless(error: BaseException) -> bool:
    return str(error).startswith(_TOKENLESS)


def _unresolved(error: BaseException) -> bool:
    """Whether the names behind a ``mongodb+srv`` URL were not found; then the message holds those names, and nothing else."""
    told = type(error.__context__).__module__.startswith("dns.") or "DNS" in str(error)
    return isinstance(error, errors.ConfigurationError) and told
