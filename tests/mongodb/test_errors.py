"""The table of errors: complete over pymongo's classes, and never kinder than the truth."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any

import bson.errors
import pytest
from pymongo import AsyncMongoClient, MongoClient, errors

from dlock_core import aconnect, connect
from dlock_core.errors import (
    OutcomeUnknownError,
    RecordError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore
from dlock_mongodb._errors import CLASSES, CODES, check_concern, error_of, kind_of

SECRET = "hunter2"
PUBLIC = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]


# After these errors a write may or may not be applied, unless a code of the server says more.
UNDECIDED = {
    errors.PyMongoError,
    errors.ProtocolError,
    errors.ConnectionFailure,
    errors.AutoReconnect,
    errors.NetworkTimeout,
    errors.NotPrimaryError,
    errors.OperationFailure,
    errors.CursorNotFound,
    errors.ExecutionTimeout,
    errors.WriteConcernError,
    errors.WTimeoutError,
    errors.WriteError,
    errors.DuplicateKeyError,
    errors.BulkWriteError,
    errors.ClientBulkWriteException,
    errors.CollectionInvalid,
}


@pytest.mark.parametrize(
    "kind", [each for each in PUBLIC if not each.__name__.startswith("_")], ids=lambda kind: kind.__name__
)
def test_every_error_class_of_pymongo_is_decided(kind: type[BaseException]) -> None:
    """A class that a later pymongo adds fails here, and is of unknown outcome until somebody has thought about it or its base."""
    decided = any(each in CLASSES for each in kind.__mro__ if each is not errors.PyMongoError)
    assert decided is not (kind in UNDECIDED)
    if kind in UNDECIDED:
        assert kind_of(kind.__new__(kind)) is OutcomeUnknownError


def test_every_error_class_of_bson_means_a_record_without_a_form() -> None:
    """Nothing was sent, or what came is not a record that we wrote."""
    found = [
        each
        for each in vars(bson.errors).values()
        if isinstance(each, type) and issubclass(each, bson.errors.BSONError)
    ]

    assert len(found) >= 4
    for kind in found:
        error = error_of(kind("wrong"), "k", writes=True)
        assert isinstance(error, RecordError)
        assert error.key == "k"


def test_a_class_that_nobody_knows_is_of_unknown_outcome() -> None:
    """By inheritance."""

    class NewError(errors.PyMongoError):
        pass

    assert kind_of(NewError()) is OutcomeUnknownError


def test_what_is_not_the_drivers_is_nobodys() -> None:
    """Neither our own errors nor a mistake in our code are translated, though StoreUnavailableError is an OSError.

    The code of another library's error is none of the server's.
    """

    class OthersError(Exception):
        code = 13

    assert error_of(OthersError(), "k", writes=True) is None
    assert error_of(ZeroDivisionError(), "k", writes=True) is None
    assert error_of(StoreUnavailableError("closed"), "k", writes=True) is None
    assert error_of(RecordError("damaged"), "k", writes=True) is None


NOT_APPLIED = [
    errors.ServerSelectionTimeoutError("No servers found yet, Timeout: 1s, Topology Description: <...>"),
    errors.WaitQueueTimeoutError("Timed out while checking out a connection"),
    errors.InvalidOperation("Cannot use MongoClient after close"),
    errors.NotPrimaryError("not primary", {"code": 10107, "codeName": "NotWritablePrimary"}),
    errors.NotPrimaryError("not primary", {"code": 13435}),
    errors.OperationFailure("conflict", 112, {"code": 112, "codeName": "WriteConflict"}),
]
UNKNOWN = [
    errors.AutoReconnect("connection closed"),
    errors.NetworkTimeout("timed out"),
    errors.ConnectionFailure("gone"),
    errors.ExecutionTimeout("exceeded", 50, {"code": 50}),
    errors.WTimeoutError("waiting", 64, {"code": 64}),
    errors.WriteConcernError("waiting", 100, {"code": 100}),
    errors.NotPrimaryError("stepped down", {"code": 189}),
    errors.NotPrimaryError("shutdown", {"code": 91}),
    errors.NotPrimaryError("interrupted", {"code": 11600}),
    errors.NotPrimaryError("interrupted", {"code": 11602}),
    errors.NotPrimaryError("recovering", {"code": 13436}),
    errors.NotPrimaryError("no code"),
    errors.OperationFailure("exceeded", 262, {"code": 262}),
    errors.OperationFailure("a new one", 987_654, {"code": 987_654}),
    errors.OperationFailure("no code"),
    errors.DuplicateKeyError("E11000", 11000, {"code": 11000}),
    errors.ProtocolError("nonsense"),
    errors._OperationCancelled("cancelled"),
    RuntimeError("Cannot use AsyncMongoClient in different event loop"),
    ConnectionResetError(104, "reset"),
]
SETUP = [
    errors.OperationFailure("not authorized", 13, {"code": 13, "codeName": "Unauthorized"}),
    errors.OperationFailure("Authentication failed.", 18, {"code": 18}),
    errors.OperationFailure("bad auth", 8000, {"code": 8000}),
    errors.OperationFailure("ns not found", 26, {"code": 26}),
    *(errors.OperationFailure("", code, {"code": code}) for code in (2, 9, 14, 59, 61, 72, 73, 123, 166, 238, 323)),
    errors.WriteError("validator", 121, {"code": 121}),
    errors.ConfigurationError("wire version"),
    errors.EncryptionError(ValueError("no key")),
]


@pytest.mark.parametrize("error", NOT_APPLIED, ids=repr)
def test_what_was_certainly_not_applied_says_so(error: Exception) -> None:
    """Whatever the request was."""
    assert all(type(error_of(error, "k", writes=writes)) is StoreUnavailableError for writes in (True, False))


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("No servers found yet", "No servers found yet (asked: db.example:27017); see that MongoDB runs there"),
        ("db.example:27017: [Errno 111] Connection refused", "db.example:27017: [Errno 111] Connection refused"),
    ],
)
def test_server_that_was_asked_in_vain_is_named_once(reason: str, told: str) -> None:
    """Whoever wrote the port wrong sees it."""
    picture = (
        "<TopologyDescription servers: [<ServerDescription ('db.example', 27017) server_type: Unknown, rtt: None>]>"
    )
    error = errors.ServerSelectionTimeoutError(f"{reason}, Timeout: 1s, Topology Description: {picture}")

    message = str(error_of(error, "k", writes=True))

    assert told in message
    assert message.count("db.example") == 1


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_anything_less_certain_is_unknown_for_a_write(error: Exception) -> None:
    """A read that got no answer wrote nothing."""
    found = error_of(error, "k", writes=True)

    assert type(found) is OutcomeUnknownError
    assert found.key == "k"
    assert str(found).startswith("MongoDB did not confirm a write to lock 'k', ")
    assert type(error_of(error, "k", writes=False)) is StoreUnavailableError


def test_a_connection_that_broke_under_a_write_leaves_it_unknown() -> None:
    """The driver raises its error while it handles that of the socket, and a host may have DNS in its name."""
    broken = errors.AutoReconnect("DNS-HOST:27017: connection closed")
    broken.__context__ = ConnectionResetError(104, "reset")

    error = error_of(broken, "k", writes=True)

    assert type(error) is OutcomeUnknownError
    assert str(error).endswith("AutoReconnect: DNS-HOST:27017: connection closed")


@pytest.mark.parametrize("error", SETUP, ids=repr)
def test_what_an_operator_must_mend_names_the_remedy(error: Exception) -> None:
    """It is not applied, and the message ends with what to do."""
    found = error_of(error, "k", writes=True)

    assert type(found) is StoreSetupError
    assert found.key == "k"
    assert "; " in str(found)


def test_no_code_is_certain_but_those_of_a_refusal() -> None:
    """Whoever adds a code to the certain ones has to say so here."""
    certain = {code for code, kind in CODES.items() if kind is StoreUnavailableError}

    assert certain == {112, 10107, 13435}


@pytest.mark.parametrize("error", [*NOT_APPLIED, *UNKNOWN, *SETUP], ids=repr)
def test_a_message_of_the_server_is_not_repeated(error: Exception) -> None:
    """It may hold the command, and that the user's data."""
    connects = isinstance(error, errors.ConnectionFailure) and not isinstance(error, errors.NotPrimaryError)
    if connects or isinstance(error, errors.ConfigurationError | RuntimeError):
        return  # of the driver's own making: host, port and reason; what it lacks; the event loop
    kind = type(error)
    details = {"code": getattr(error, "code", 0), "errmsg": SECRET}
    leaky: Any = kind(SECRET, details["code"], details) if isinstance(error, errors.OperationFailure) else kind(SECRET)

    assert SECRET not in str(error_of(leaky, "k", writes=True))


def test_host_that_is_not_found_is_named() -> None:
    """What the driver says of a ``mongodb+srv`` host holds nothing but names; 'ConfigurationError' alone helps nobody."""
    error = error_of(
        errors.ConfigurationError("The DNS query name does not exist: _mongodb._tcp.h.invalid."), None, writes=False
    )

    assert type(error) is StoreSetupError
    assert "_mongodb._tcp.h.invalid" in str(error)
    assert "resolve names" in str(error)
    assert "resolve names" not in str(error_of(errors.ConfigurationError("wire version"), None, writes=False))


def test_what_the_driver_finds_wrong_with_the_set_up_is_said(url: str) -> None:
    """'ConfigurationError' alone, and the advice to ask dlock doctor, which said the same, help nobody."""
    host = url.partition("://")[2].partition("/")[0]

    with pytest.raises(StoreSetupError, match="load balancing mode, but the server does not support"):
        connect(f"mongodb://{host}/app?loadBalanced=true")


async def _opened(url: str) -> None:
    await aconnect(url)


@pytest.mark.parametrize("opening", [connect, lambda url: asyncio.run(_opened(url))], ids=["threads", "asyncio"])
def test_wrong_password_is_told_at_once_and_as_that(url: str, opening: Callable[[str], object]) -> None:
    """The driver takes the server for lost after a refused login; the next look waited 10 s, and ended in advice about the network."""
    host = url.partition("://")[2].partition("/")[0]
    wrong = f"mongodb://somebody:{SECRET}@{host}/app"

    with pytest.raises(StoreSetupError, match="check user, password and authSource") as caught:
        opening(wrong)

    assert isinstance(caught.value.__cause__, errors.OperationFailure)
    assert SECRET not in str(caught.value)


def test_login_that_gets_no_token_is_an_error_of_the_store() -> None:
    """With MONGODB-OIDC the driver raises ValueError: it was told as a mistake of the adapter, at a renewal, too."""
    error = error_of(ValueError("Failed to acquire IMDS access token: HTTP Error 403: Forbidden"), "k", writes=True)

    assert type(error) is OutcomeUnknownError
    assert "HTTP Error 403: Forbidden; see that this machine has an identity" in str(error)
    assert error_of(ValueError("another's"), "k", writes=True) is None


def test_search_that_ends_with_a_refused_login_is_told_as_that() -> None:
    """A password that was changed under a program is no matter of the network; the driver repeats the whole answer."""
    answer = {"ok": 0.0, "errmsg": SECRET, "code": 18, "codeName": "AuthenticationFailed"}
    picture = "<TopologyDescription servers: [<ServerDescription ('h', 27017) server_type: Unknown, rtt: None>]>"
    search = errors.ServerSelectionTimeoutError(
        f"{SECRET}, full error: {answer}, Timeout: 1s, Topology Description: {picture}"
    )

    error = error_of(search, "k", writes=True)

    assert type(error) is StoreSetupError
    assert "(code 18, AuthenticationFailed); check user, password" in str(error)
    assert SECRET not in str(error)


def test_cluster_of_atlas_that_is_full_is_among_what_is_to_be_checked() -> None:
    """It has one code for all that it refuses, and which it is stands in words that are not shown."""
    full = errors.OperationFailure("you are over your space quota, using 512 MB of 512 MB", 8000, {"code": 8000})

    assert "space quota of the cluster" in str(error_of(full, "k", writes=True))


def test_client_of_another_event_loop_is_told_so() -> None:
    """Two calls of asyncio.run() are enough, and 'RuntimeError' alone helps nobody."""
    client = AsyncMongoClient[Any]("mongodb://127.0.0.1:1", serverSelectionTimeoutMS=100)

    async def inspected() -> None:
        with pytest.raises(StoreUnavailableError) as caught:
            await AsyncMongoDBStore(client).guarantees()
        told.append(str(caught.value))

    told = list[str]()
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(inspected())
        second.run(inspected())
        first.run(client.close())

    assert "different event loop" not in told[0]
    assert "different event loop" in told[1]


@pytest.mark.parametrize("error", [errors.InvalidName(), errors.OperationFailure("", 26)], ids=repr)
def test_a_command_that_is_recommended_can_be_run(error: Exception) -> None:
    """``dlock init`` and ``dlock doctor`` take the URL as an option, and no argument."""
    assert re.search(r"[`']dlock (init|doctor) --url URL[`']", str(error_of(error, None, writes=False)))


@pytest.mark.parametrize("code", [64, 79, 91, 100, 10107, 11600, 11602, 189])
def test_a_write_concern_error_is_unknown_whatever_its_code(code: int) -> None:
    """The write was made, and may be rolled back: also by a code that is harmless when the whole command failed."""
    answer = {"ok": 1, "value": {"_id": "k"}, "writeConcernError": {"code": code, "codeName": "X", "errmsg": SECRET}}

    with pytest.raises(OutcomeUnknownError, match=f"code {code}") as caught:
        check_concern(answer, "k")

    assert SECRET not in str(caught.value)
    assert caught.value.key == "k"
    assert isinstance(caught.value.__cause__, errors.WriteConcernError)


def test_client_that_its_owner_has_closed_is_told_so() -> None:
    """Only the owner closes it, so the words have to say what happened."""
    client = MongoClient[Any]("mongodb://127.0.0.1:1", serverSelectionTimeoutMS=100)
    client.close()

    with pytest.raises(StoreUnavailableError, match="the client was closed"):
        MongoDBStore(client).guarantees()
    assert "closed" not in str(error_of(errors.InvalidOperation("not in a transaction"), None, writes=False))


def test_client_whose_connections_others_have_is_told_so() -> None:
    """The server answers all the same, so who is called would look at it in vain."""
    cause = errors.WaitQueueTimeoutError("Timed out while checking out a connection")

    told = error_of(cause, "k", writes=True)

    assert isinstance(told, StoreUnavailableError)
    assert "nothing was written" in str(told)
    assert "make one for the locks alone" in str(told)
