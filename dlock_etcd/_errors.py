"""What each error of gRPC, by its code, and each text of etcd means for the request that it answers: one table."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import grpc

from dlock_core.errors import RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import named, unanswered, unfit

misfit = partial(unfit, "etcd")
TROUBLE = (grpc.RpcError, OSError)
_Code = grpc.StatusCode
_NO_LOGIN = "leave user and password out, or enable authentication"
_NO_CONNECTION = "failed to connect to all addresses"
_TOO_MUCH = _MANY, _LARGE = "etcdserver: too many operations", "etcdserver: request is too large"
_NO_LEASE = "etcdserver: requested lease not found"
_FULL = "etcdserver: mvcc: database space exceeded"

# What says that a request was certainly not applied, now or later: the code, and a pattern of the text. What is not here is unknown:
# "etcdserver: request timed out", since etcd may apply the write when a majority is back; and that there is no space, which is also the
# answer to the write that has filled it, and was applied.
_REFUSALS: dict[type[StoreError], dict[grpc.StatusCode, dict[str, str]]] = {
    StoreUnavailableError: {
        _Code.UNAVAILABLE: {
            "Failed parsing HTTP/2|http1.x server": "no gRPC is spoken there; is it etcd's client port?",
            f"{_NO_CONNECTION}.*CERTIFICATE_VERIFY_FAILED": "see that the server's certificate is of the authority in tls_ca, "
            "names the host, and has not expired",
            f"{_NO_CONNECTION}.*Unwrap failed": "the server wants a certificate of the client (tls_cert and tls_key), or refuses this one",
            f"{_NO_CONNECTION}.*security handshaker": "see that tls_ca, tls_cert and tls_key are PEM files, "
            "and that the key is the certificate's",
            _NO_CONNECTION: "check host, port, TLS and http_proxy",
            "DNS resolution failed|errors resolving": "check the host's name",
            "etcdserver: rpc not supported for learner": "name a voting member",
        },
        _Code.RESOURCE_EXHAUSTED: {"etcdserver: too many requests": "etcd is overloaded"},
        _Code.NOT_FOUND: {_NO_LEASE: "the place in the queue was lost"},
        _Code.INVALID_ARGUMENT: {"etcdserver: revision of auth store is old": "users were changed"},
    },
    StoreSetupError: {
        _Code.INVALID_ARGUMENT: {
            _MANY: "leave --max-txn-ops at 128 or more",
            "etcdserver: user name is empty": "etcd asks for a user: etcd://USER:PASSWORD@HOST",
            "etcdserver: authentication failed": "check user and password",
        },
        _Code.FAILED_PRECONDITION: {"etcdserver: authentication is not enabled": _NO_LOGIN},
        _Code.PERMISSION_DENIED: {"": "its user lacks a right; see `dlock doctor --policy --url URL`"},
        _Code.UNAUTHENTICATED: {"": "check user and password"},
        _Code.UNIMPLEMENTED: {"": "what answers there has no API of etcd 3.4 or newer"},
    },
    RecordError: {_Code.INVALID_ARGUMENT: {_LARGE: "raise --max-request-bytes"}},
}
_ROWS = [
    (code, pattern, hint, kind)
    for kind, by_code in _REFUSALS.items()
    for code, hints in by_code.items()
    for pattern, hint in hints.items()
]
_NOT_TAKEN, _BY_TLS = _ROWS[:7], _ROWS[1:4]
_TOKEN_TROUBLE = (
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
)


def _row(error: Exception) -> tuple[grpc.StatusCode, str, str, type[StoreError]] | None:
    code, said = _code(error), _said(error)
    return next((row for row in _ROWS if code is row[0] and re.search(row[1], said)), None)


def was_not_taken(error: Exception) -> bool:
    """Whether there was no connection that a request could have been sent on, or what answers there takes none: another member may."""
    return _row(error) in _NOT_TAKEN


def is_refused_by_tls(error: Exception) -> bool:
    """Whether there was no connection since one side does not take the other's certificate."""
    return _row(error) in _BY_TLS


def is_late(error: Exception) -> bool:
    """Whether there was no answer in time."""
    return isinstance(error, TimeoutError) or _code(error) is _Code.DEADLINE_EXCEEDED


def no_token(error: Exception) -> bool:
    """Whether the request lacks a token, or the one that it had has ended."""
    return _said(error).startswith(_TOKEN_TROUBLE)


def is_denied(error: Exception) -> bool:
    """Whether the user lacks a right."""
    return _code(error) is _Code.PERMISSION_DENIED


def is_too_much(error: Exception) -> bool:
    """Whether etcd refused a transaction as too large, or for its many operations: one with fewer may be taken."""
    return _said(error).startswith(_TOO_MUCH)


def lease_ended(error: Exception) -> bool:
    """Whether the request named a lease of etcd's that there is no more."""
    return _said(error).startswith(_NO_LEASE)


def lease_stands(error: Exception) -> bool:
    """Whether the lease of etcd's that was asked for is there already."""
    return _said(error).startswith("etcdserver: lease already exists")


def error_of(error: Exception, key: str | None, *, writes: bool) -> StoreError | None:
    """Return dlock's error for one of the driver, or None if it is not the driver's. A read that got no answer wrote nothing."""
    if not isinstance(error, TROUBLE):
        return None
    row, said = _row(error), _told(error)
    if _FULL in said:
        said += "; compact and defragment etcd, then 'etcdctl alarm disarm'"
    if row is None:
        return unanswered("etcd", said, key, writes=writes)
    hint, kind = row[2:]
    return kind(f"etcd was not asked, or refused, nothing was written to {named(key)}: {said}; {hint}", key=key)


def _code(error: Exception) -> Any:
    """Return the code of gRPC's errors; others have none."""
    return getattr(error, "code", str)()


def _said(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str((details() if callable(details) else error) or "").strip().partition("\n")[0]


def _told(error: Exception) -> str:
    """Return what the error says, and which members were asked."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return (_said(error) or f"{type(error).__name__}, no answer in time") + (f" ({notes})" if notes else "")
