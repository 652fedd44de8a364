"""Requests, items and errors of the DynamoDB adapter, without a server."""

from __future__ import annotations

import itertools
import re
import ssl
from typing import Any

import botocore.exceptions as raised
import pytest

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import DATA_MAX_BYTES, TOKEN_MAX, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace
from dlock_dynamodb._errors import CODES, statement_error, translate
from dlock_dynamodb._wire import Ask, DlockRows, Table
from dlock_dynamodb.dialects.awslabs import AwslabsRows
from tests.dynamodb.support import record

PLAIN = Table("locks", "key", None, "dlock")
SORTED = Table("locks", "PK", "SK", "lock")
SPLIT = Table("locks", "PK", "SK", "lock", "/")

EXPECTS: tuple[Version | Expect, ...] = (Expect.ANY, Expect.ABSENT, Version("r", 3), Version("r", TOKEN_MAX))
FLAGS = (False, True)
CLAIMS = [
    Claim(record("k", token=token, data=b"x"), expect, must_exist, keep)
    for token, expect, must_exist, keep in itertools.product((1, 9, TOKEN_MAX), EXPECTS, FLAGS, FLAGS)
]
KINDS_OF_CHANGE: tuple[type[Replace | Release], ...] = (Replace, Release)
CHANGES: list[Replace | Release] = [
    kind(record("k", state, token, data=b"x"), Version("r", 3), keep)
    for kind, state, token, keep in itertools.product(KINDS_OF_CHANGE, State, (3, 4), FLAGS)
]


def writes(rows: DlockRows) -> list[Ask | None]:
    """Return all forms of writes on *rows*."""
    taking = [rows.take(claim, Version("seen", 7), 9) for claim in CLAIMS]
    return [*map(rows.claim, CLAIMS), *taking, *map(rows.change, CHANGES)]


REQUESTS = [
    request
    for table in (PLAIN, SORTED)
    for request in (
        *(write.request for write in writes(DlockRows(table)) if write is not None),
        table.scan(""),
        table.scan("a"),
    )
]


def placeholders(request: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return what the expressions of *request* use, and what it defines."""
    text = " ".join(value for name, value in request.items() if name.endswith("Expression"))
    used = set(re.findall(r"[#:][a-zA-Z_]+", text))
    return used, request.get("ExpressionAttributeNames", {}).keys() | request.get(
        "ExpressionAttributeValues", {}
    ).keys()


def test_every_request_defines_what_it_uses_and_nothing_else() -> None:
    """DynamoDB refuses a request with a name too many or too few."""
    assert len(REQUESTS) > 100
    for request in REQUESTS:
        used, defined = placeholders(request)
        assert used == defined, request


def test_bounds_of_a_token_are_never_the_wrong_way_round() -> None:
    """DynamoDB refuses BETWEEN with a lower bound above the upper."""
    seen = 0
    for request in REQUESTS:
        values = request.get("ExpressionAttributeValues", {})
        if ":low" in values:
            seen += 1
            assert int(values[":low"]["N"]) <= int(values[":high"]["N"])
    assert seen > 50


def test_a_read_shows_every_write_before_it() -> None:
    """DynamoDB Local does so whatever is asked for."""
    assert PLAIN.get("k")["ConsistentRead"] is True


@pytest.mark.parametrize(
    ("table", "key", "item"),
    [
        (PLAIN, "a/b", {"key": {"S": "a/b"}}),
        (SORTED, "a/b", {"PK": {"S": "a/b"}, "SK": {"S": "lock"}}),
        (SPLIT, "a/b/c", {"PK": {"S": "a"}, "SK": {"S": "b/c"}}),
    ],
)
def test_a_key_leads_to_its_item_and_back(table: Table, key: str, item: dict[str, Any]) -> None:
    """The sort key is none, one for all locks, or the second part of each lock's key."""
    assert table.key(key) == item
    assert table.key_of(item) == key


@pytest.mark.parametrize("key", ["a", "a/", "/b"])
def test_a_key_without_both_of_its_parts_leads_nowhere(key: str) -> None:
    """DynamoDB has no empty key."""
    with pytest.raises(StoreSetupError, match=f"'{key}' must name a partition key and a sort key, with '/' between"):
        SPLIT.key(key)


def test_an_item_that_no_key_leads_to_is_named() -> None:
    """Its partition key would be cut elsewhere."""
    with pytest.raises(RecordError, match="choose another sort_key_separator") as caught:
        SPLIT.key_of({"PK": {"S": "a/b"}, "SK": {"S": "c"}})

    assert caught.value.key == "a/b/c"


@pytest.mark.parametrize(
    ("table", "prefix", "condition", "values"),
    [
        (PLAIN, "a/b", "begins_with(#k, :prefix)", {":prefix": "a/b"}),
        (SORTED, "", "#sort = :sort", {":sort": "lock"}),
        (SORTED, "a/b", "begins_with(#k, :prefix) AND #sort = :sort", {":prefix": "a/b", ":sort": "lock"}),
        (SPLIT, "a", "begins_with(#k, :prefix)", {":prefix": "a"}),
        (SPLIT, "a/", "#k = :prefix", {":prefix": "a"}),
        (SPLIT, "a/b", "#k = :prefix AND begins_with(#sort, :sort)", {":prefix": "a", ":sort": "b"}),
    ],
)
def test_a_scan_asks_for_the_rows_of_a_prefix(
    table: Table, prefix: str, condition: str, values: dict[str, str]
) -> None:
    """Of these alone in a table that has others; without any condition where every row counts."""
    request = table.scan(prefix)

    assert request["FilterExpression"] == condition
    assert request["ExpressionAttributeValues"] == {name: {"S": value} for name, value in values.items()}
    assert PLAIN.scan("") == SPLIT.scan("") == {"TableName": "locks"}


def test_absence_is_asked_of_the_partition_key_only() -> None:
    """An item of another program has none of our attributes."""
    asked = [request for request in REQUESTS if "attribute_not_exists" in request.get("ConditionExpression", "")]

    assert asked
    for request in asked:
        assert re.findall(r"attribute_not_exists\((.*?)\)", request["ConditionExpression"]) == ["#k"]
        assert request["ExpressionAttributeNames"]["#k"] in request["Key"]


def test_a_claim_says_what_it_takes() -> None:
    """An absent key unless it must exist or has been seen, a deleted record where neither is so; and whose payload stands then."""
    for claim in CLAIMS:
        write, seen = DlockRows(PLAIN).claim(claim), isinstance(claim.expect, tuple)
        if write is None:
            assert claim.expect is Expect.ABSENT
            assert claim.must_exist
            continue
        values = write.request["ExpressionAttributeValues"]
        assert ("attribute_not_exists(#k)" in write.request["ConditionExpression"]) is not (claim.must_exist or seen)
        assert ("if_not_exists(payload, " in write.request["UpdateExpression"]) is claim.keep_payload
        if claim.expect is not Expect.ABSENT:
            assert values[":gone"] == {"S": "free" if claim.must_exist else "gone"}


def test_every_write_is_conditional_and_shows_the_item_either_way() -> None:
    """So that neither a grant nor a refusal costs a second request."""
    for request in REQUESTS:
        if "UpdateExpression" in request:
            assert request["ConditionExpression"]
            assert (request["ReturnValues"], request["ReturnValuesOnConditionCheckFailure"]) == ("ALL_NEW", "ALL_OLD")


def test_a_statement_has_a_parameter_for_each_mark() -> None:
    """Names of key attributes are quoted, values never stand in the text."""
    for table, change in itertools.product((PLAIN, SORTED), CHANGES):
        if isinstance(change, Replace) and change.record.state is State.HELD:
            request = DlockRows(table).statement(change)
            assert request is not None
            assert request["Statement"].count("?") == len(request["Parameters"])
            assert change.record.rvn not in request["Statement"]
            assert request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
            assert request["Statement"].endswith("RETURNING ALL NEW *")


def item(**changes: Any) -> dict[str, Any]:
    """Return the item of a free record, changed; None takes an attribute away."""
    whole: dict[str, Any] = {
        "key": {"S": "k"},
        "v": {"N": "1"},
        "state": {"S": "free"},
        "rvn": {"S": "r"},
        "token": {"N": "7"},
        "owner": {"S": "o"},
        "lease_ms": {"N": "0"},
        "context": {"S": ""},
        "payload": {"B": b""},
    }
    return {name: value for name, value in (whole | changes).items() if value is not None}


def test_an_item_becomes_its_record() -> None:
    """Members that are missing are None; what is not ours is overlooked."""
    assert DlockRows(PLAIN).record(item(note={"S": "theirs"})) == LockRecord("k", State.FREE, "r", 7, "o", None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"v": None}, "no attribute 'v' of type N"),
        ({"v": {"S": "1"}}, "no attribute 'v' of type N"),
        ({"v": {"N": "0"}}, r"what the DynamoDB table has under key 'k' .*format 0"),
        ({"v": {"N": "1.5"}}, "1.5"),
        ({"state": {"S": "sold"}}, "sold"),
        ({"rvn": {"S": ""}}, "record version number"),
        ({"token": {"N": "0"}}, "fencing token"),
        ({"token": {"N": "1.5"}}, "1.5"),
        ({"token": {"N": str(TOKEN_MAX + 1)}}, "fencing token"),
        ({"owner": None}, "'owner'"),
        ({"lease_ms": {"N": "86400001"}}, "lease"),
        ({"lease_ms": {"S": "20000"}}, "no attribute 'lease_ms' of type N"),
        ({"lease_ms": {"N": "-1"}}, "lease"),
        ({"payload": None}, "payload"),
        ({"payload": {"S": ""}}, "no attribute 'payload' of type B"),
        ({"payload": {"B": b"text"}}, "no data mark"),
        ({"payload": {"B": b"[]\n+" + bytes(DATA_MAX_BYTES + 1)}}, "data of 65537 bytes"),
        ({"payload": {"B": b'[["a", []]]\n-'}}, "not str, int, bool or bytes"),
        ({"payload": {"B": b'[["a", 9223372036854775808]]\n-'}}, "64 bits"),
        ({"payload": {"B": b"{\n-"}}, "damaged"),
        ({"context": {"S": '{"stamp": ["1", "r"]}'}}, "are not int, str"),
        ({"context": {"S": '{"stamp": [1]}'}}, "are not int, str"),
        ({"context": {"S": '{"news": []}'}}, "unknown part 'news'"),
    ],
)
def test_an_item_that_is_no_record_is_named(changes: dict[str, Any], told: str) -> None:
    """With its key and the first thing that is wrong with it."""
    with pytest.raises(RecordError, match=told) as caught:
        DlockRows(PLAIN).record(item(**changes))

    assert caught.value.key == "k"


@pytest.mark.parametrize(
    ("attributes", "dialect"),
    [
        ({"recordVersionNumber": {"S": "r"}, "ownerName": {"S": "o"}}, "awslabs"),
        ({"guid": {"B": bytes(64)}, "fencingToken": {"N": "7"}}, "node-fail-open"),
        ({"guid": {"B": bytes(64)}}, "node-fail-closed"),
    ],
)
def test_a_row_of_another_dialect_is_named(attributes: dict[str, Any], dialect: str) -> None:
    """A program that lacks the option is told which one."""
    with pytest.raises(RecordError, match=f"it looks like a row of dialect={dialect}"):
        DlockRows(PLAIN).record({"key": {"S": "k"}} | attributes)


def test_a_damaged_row_is_not_one_of_another_dialect() -> None:
    """It names what is wrong, and advises nothing that the program has done already."""
    java = {"key": {"S": "k"}, "recordVersionNumber": {"S": "r"}, "ownerName": {"S": "o"}, "leaseDuration": {"N": "7"}}
    for rows, row, name in (
        (AwslabsRows(PLAIN), java, "leaseDuration"),
        (AwslabsRows(PLAIN), java | {"leaseDuration": {"S": "7"}, "data": {"S": "text"}}, "data"),
        (DlockRows(PLAIN), item(owner=None), "owner"),
    ):
        with pytest.raises(RecordError, match=rf"no attribute '{name}' of type [BS]\)"):
            rows.record(row)


@pytest.mark.parametrize("changes", [{"v": {"N": "2"}, "rvn": None}, {"v": {"N": "2"}, "token": {"S": "7"}}])
def test_a_newer_format_without_a_version_is_damaged(changes: dict[str, Any]) -> None:
    """RVN and token are what every format has."""
    with pytest.raises(RecordError):
        DlockRows(PLAIN).record(item(**changes))


def answer(code: str, status: int = 400, operation: str = "UpdateItem") -> raised.ClientError:
    """Return what botocore raises for an error of the service."""
    details = {"Error": {"Code": code, "Message": "hunter2"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return raised.ClientError(details, operation)


BY_CODE: list[tuple[str, type[StoreError]]] = [
    ("ProvisionedThroughputExceededException", StoreUnavailableError),
    ("ThrottlingException", StoreUnavailableError),
    ("RequestLimitExceeded", StoreUnavailableError),
    ("TransactionConflictException", StoreUnavailableError),
    ("ReplicatedWriteConflictException", StoreUnavailableError),
    ("ItemCollectionSizeLimitExceededException", StoreSetupError),
    ("LimitExceededException", StoreSetupError),
    ("InternalServerError", OutcomeUnknownError),
    ("ServiceUnavailable", OutcomeUnknownError),
    ("SomethingNewException", OutcomeUnknownError),
    ("", OutcomeUnknownError),
    ("AccessDeniedException", StoreSetupError),
    ("ExpiredTokenException", StoreSetupError),
    ("UnrecognizedClientException", StoreSetupError),
    ("InvalidSignatureException", StoreSetupError),
    ("MissingAuthenticationTokenException", StoreSetupError),
    ("ResourceNotFoundException", StoreSetupError),
    ("ValidationException", StoreSetupError),
    ("UnknownOperationException", StoreSetupError),
    *((code, StoreUnavailableError) for code in ("ThrottlingError", "TransactionInProgress")),
    *((code, StoreSetupError) for code in ("TableNotFound", "ValidationError", "OptInRequired", "RequestExpired")),
    *((code, StoreSetupError) for code in ("IncompleteSignature", "InvalidClientTokenId", "SignatureDoesNotMatch")),
]


@pytest.mark.parametrize(("code", "kind"), BY_CODE)
def test_a_code_has_its_class_and_leaks_no_message(code: str, kind: type[StoreError]) -> None:
    """The server's words may hold secrets: a wrong signature is answered with the headers of the request."""
    error = translate(answer(code), "could not claim key 'k'", key="k", writes=True)

    assert type(error) is kind
    assert error.key == "k"
    assert "could not claim key 'k'" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_batch_reads_the_same_table(code: str) -> None:
    """There the ending is left out."""
    error = statement_error(code, "could not renew key 'k'", key="k")

    assert type(error) is type(translate(answer(code + "Exception"), "", key="k", writes=True)) is CODES[code][0]
    assert (error.key, str(error)) == ("k", f"could not renew key 'k': {code}: {CODES[code][1]}")


def test_a_statement_that_fails_otherwise_may_be_applied() -> None:
    """As a request of its own may."""
    assert type(statement_error("SomethingNew", "", key="k")) is OutcomeUnknownError


@pytest.mark.parametrize(("code", "told"), [("ThrottlingException", "Throttling"), ("", "an error")])
def test_the_code_and_the_status_are_told(code: str, told: str) -> None:
    """By these AWS's pages find what has happened."""
    assert f"could not read: {told} (HTTP 400): " in str(
        translate(answer(code), "could not read", key=None, writes=False)
    )


@pytest.mark.parametrize("code", sorted(CODES))
def test_what_has_to_be_set_up_names_a_command(code: str) -> None:
    """A person reads it."""
    error = statement_error(code, "could not renew key 'k'", key="k")

    if isinstance(error, StoreSetupError):
        assert re.search(r"'(dlock|aws) [a-z ]+.*'", str(error))


URL = "https://dynamodb.eu-west-1.amazonaws.com/"
UNTRUSTED = ssl.SSLCertVerificationError(1, "certificate verify failed")
BY_CLASS: list[tuple[Exception, type[StoreError]]] = [
    (raised.EndpointConnectionError(endpoint_url=URL, error="refused"), StoreUnavailableError),
    (raised.ConnectTimeoutError(endpoint_url=URL), StoreUnavailableError),
    (raised.ProxyConnectionError(proxy_url="http://u:hunter2@proxy"), StoreUnavailableError),
    (raised.CredentialRetrievalError(provider="x", error_msg="hunter2"), StoreUnavailableError),
    (raised.MetadataRetrievalError(error_msg="x"), StoreUnavailableError),
    (raised.NoCredentialsError(), StoreSetupError),
    (raised.PartialCredentialsError(provider="env", cred_var="x"), StoreSetupError),
    (raised.UnauthorizedSSOTokenError(), StoreSetupError),
    (
        raised.EndpointResolutionError(msg="AccountIdEndpointMode is required but no AccountID was provided"),
        StoreSetupError,
    ),
    (raised.UnsupportedSignatureVersionError(signature_version="v4a"), StoreSetupError),
    (raised.SSLError(endpoint_url=URL, error=UNTRUSTED), StoreSetupError),
    (raised.SSLError(endpoint_url=URL, error=OSError(UNTRUSTED)), StoreSetupError),
    (raised.SSLError(endpoint_url=URL, error=ssl.SSLError(1, "bad record mac")), OutcomeUnknownError),
    (raised.ReadTimeoutError(endpoint_url=URL), OutcomeUnknownError),
    (raised.ConnectionClosedError(endpoint_url=URL), OutcomeUnknownError),
    (raised.HTTPClientError(error="x"), OutcomeUnknownError),
    (raised.ChecksumError(checksum_type="crc32", expected_checksum=1, actual_checksum=2), OutcomeUnknownError),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), OutcomeUnknownError),
]


@pytest.mark.parametrize(("error", "kind"), BY_CLASS, ids=lambda value: type(value).__name__)
def test_an_exception_of_the_driver_has_its_class(error: Exception, kind: type[StoreError]) -> None:
    """What was not sent, what may have been applied, what must be set up."""
    ours = translate(error, "could not claim key 'k'", key="k", writes=True)

    assert type(ours) is kind
    assert "hunter2" not in str(ours)


def test_endpoint_that_cannot_be_reached_is_named_by_its_host_alone() -> None:
    """Whoever wrote the port or the region wrong sees it, and nobody sees a password."""
    error = raised.EndpointConnectionError(endpoint_url="http://u:hunter2@ddb.example:8001/path", error="refused")

    message = str(translate(error, "could not read", key="k", writes=False))

    told = "EndpointConnectionError at ddb.example:8001: no connection; nothing was sent"
    assert message == f"could not read: {told}; check the region, endpoint_url and the network"


@pytest.mark.parametrize(("error", "kind"), BY_CLASS, ids=lambda value: type(value).__name__)
def test_a_read_is_never_of_unknown_outcome(error: Exception, kind: type[StoreError]) -> None:
    """It writes nothing, so nothing was written."""
    ours = translate(error, "could not read key 'k'", key="k", writes=False)

    assert (type(ours), ours.key) == (StoreUnavailableError if kind is OutcomeUnknownError else kind, "k")
