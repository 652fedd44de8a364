"""What the verbs ask of DynamoDB, and what they make of the answers: the exchanges by hand, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError, UnsupportedError
from dlock_core.kit import Call
from dlock_core.record import NO_TOKEN, Broken, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from dlock_dynamodb._errors import StrangeAnswerError
from dlock_dynamodb._wire import Ask, _row
from dlock_dynamodb.dialects.awslabs import to_text
from dlock_dynamodb.options import Dialect, DynamoDBStoreOptions
from dlock_dynamodb.store import DynamoDBVerbs
from tests.dynamodb.support import record, session

AWS, ELSEWHERE = "https://dynamodb.eu-west-1.amazonaws.com", "http://127.0.0.1:8000"
COUNT = {"key": {"S": "dlock-token:k"}, "ownerName": {"S": "dlock fencing tokens"}}


def verbs(endpoint: str = ELSEWHERE, **options: Any) -> DynamoDBVerbs:
    """Return verbs on a table."""
    return DynamoDBVerbs(DynamoDBStoreOptions(region="eu-west-1", table="locks", **options), endpoint)


def counting() -> DynamoDBVerbs:
    """Return those whose tokens are counted in rows beside those of the Java client."""
    return verbs(dialect="awslabs", token_row=True)


def refusal(item: dict[str, Any] | None = None) -> ClientError:
    """Return what a condition refuses a write with."""
    shown = {} if item is None else {"Item": item}
    return ClientError({"Error": {"Code": "ConditionalCheckFailedException"}, **shown}, "UpdateItem")


def end_of(exchange: Any, answer: Any) -> Any:
    """Return what *exchange* returns after its last *answer*."""
    with pytest.raises(StopIteration) as ended:
        exchange.throw(answer) if isinstance(answer, Exception) else exchange.send(answer)
    return ended.value.value


def renewal(token: Any = 3, new: Any = 3) -> Replace:
    """Return a replace of *token* by *new*."""
    return Replace(record("k", token=new), Version("r", token), keep_payload=True)


def test_what_keeps_or_frees_a_lock_takes_a_thread_that_no_waiter_can_have() -> None:
    """Alone, in a batch, and with a token that is drawn for it."""
    tomb = record("k", State.FREE, token=3)
    requests: list[Ask] = [
        next(verbs().replace(renewal())),
        next(verbs().release(Release(tomb, Version("r", 3)))),
        next(verbs().replace_many([renewal()])),
        next(counting().replace(renewal())),
        next(counting().replace(renewal(NO_TOKEN, NO_TOKEN))),
    ]

    assert [each.urgent for each in requests] == [True] * 5
    assert not next(verbs().claim(Claim(record("k"), Expect.ANY))).urgent
    assert not next(verbs().read("k")).urgent


def test_a_refusal_that_shows_no_item_is_of_an_absent_key_on_aws() -> None:
    """An old emulator leaves the item out: there it is read."""
    at_aws, elsewhere = (verbs(endpoint).replace(renewal()) for endpoint in (AWS, ELSEWHERE))
    next(at_aws)
    next(elsewhere)

    assert end_of(at_aws, refusal()) == Reply(applied=False, record=None)
    assert elsewhere.throw(refusal()).operation == "get_item"


def test_a_takeover_asks_for_a_token_that_is_above_the_one_before() -> None:
    """Also where the row of tokens is gone, and would begin anew."""
    taking = renewal(3, 4)
    exchange = counting().replace(taking)
    next(exchange)
    row = {
        "key": {"S": "k"},
        "ownerName": {"S": "us"},
        "leaseDuration": {"S": "20000"},
        "recordVersionNumber": {"S": to_text(taking.record.rvn)},
    }

    drawn = exchange.send({"Attributes": row})

    assert drawn.request["ExpressionAttributeValues"][":low"] == {"N": "3"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (renewal(NO_TOKEN, NO_TOKEN), StoreUnavailableError),
        (Replace(record("k", token=4, broken=Broken("operator", 1)), Version("r", 3), keep_payload=True), RecordError),
    ],
    ids=["renewal", "break"],
)
def test_a_count_that_cannot_be_read_fails_what_needs_a_token(change: Replace, kind: type[StoreError]) -> None:
    """A renewal is tried again, since it has changed nothing; who breaks a lock is told what is damaged."""
    exchange = counting().replace(change)
    next(exchange)

    with pytest.raises(kind) as caught:
        exchange.throw(refusal(COUNT))

    assert (type(caught.value), caught.value.key) == (kind, "k")


@pytest.mark.parametrize("dialect", ["dlock", "awslabs", "node-fail-open"])
def test_a_claim_of_a_version_takes_no_absent_row(dialect: Dialect) -> None:
    """It is one request, which only that version lets pass."""
    asked = next(verbs(dialect=dialect).claim(Claim(record("k"), Version("0" * 32, 7))))

    condition = asked.request["ConditionExpression"]
    assert " = :seen" in condition
    assert "attribute_not_exists(#k)" not in condition


FREES = Replace(record("k", State.FREE, token=3), Version("r", 3), keep_payload=True)
REPLACES_DATA = Replace(record("k", token=3), Version("r", 3))


@pytest.mark.parametrize(
    ("dialect", "change", "operation"),
    [
        ("dlock", REPLACES_DATA, "batch_execute_statement"),
        ("dlock", FREES, "update_item"),
        ("awslabs", renewal(), "batch_execute_statement"),
        ("awslabs", REPLACES_DATA, "put_item"),
        ("awslabs", renewal(3, 4), "update_item"),
        ("awslabs", FREES, "update_item"),
        ("node-fail-open", renewal(), "batch_execute_statement"),
        ("node-fail-open", FREES, "update_item"),
    ],
)
def test_what_goes_in_a_batch(dialect: Dialect, change: Replace, operation: str) -> None:
    """The mere renewal; other changes of other clients' rows are more than a statement can do."""
    assert next(verbs(dialect=dialect).replace_many([change])).operation == operation


def test_a_statement_of_a_counted_row_compares_and_writes_its_token() -> None:
    """Beside the number that it belongs to."""
    change = renewal()
    [statement] = next(counting().replace_many([change])).request["Statements"]

    number, sets = to_text(change.record.rvn), ["ownerName", "leaseDuration", "recordVersionNumber", "dlockToken"]
    written = " ".join(f'SET "{name}"=?' for name in sets)
    removed = 'REMOVE "lastTouchedAt" REMOVE "lookupTime"'
    wanted = '"recordVersionNumber"=? AND "dlockToken"=? AND "key"=?'
    assert statement["Statement"].startswith(f'UPDATE "locks" {written} {removed} WHERE {wanted} AND ')
    assert [each["S"] for each in statement["Parameters"]] == [
        *("tester", "20000", number, f"3 {number}"),
        *("r", "3 r", "k"),
    ]


@pytest.mark.parametrize(
    ("dialect", "lease_ms", "told"),
    [
        ("awslabs", None, "always has a lease"),
        ("node-fail-open", None, "a lease of 2 ms at least"),
        ("node-fail-open", 1, "a lease of 2 ms at least"),
        ("node-fail-closed", 20_000, "has no lease"),
    ],
)
def test_a_lease_that_a_row_has_no_place_for_is_refused(dialect: Dialect, lease_ms: int | None, told: str) -> None:
    """Before anything is sent."""
    with pytest.raises(UnsupportedError, match=f"lock 'k': .*{told}"):
        next(verbs(dialect=dialect).claim(Claim(record("k", lease_ms=lease_ms), Expect.ANY)))


@pytest.mark.parametrize("name", ["isReleased", "dlockToken", "key"])
def test_an_attribute_of_the_row_itself_is_refused(name: str) -> None:
    """Also the table's key, whose name is the user's."""
    with pytest.raises(UnsupportedError, match=f"attribute '{name}' of lock 'k' is one of the row itself"):
        next(verbs(dialect="awslabs").claim(Claim(record("k", attributes=((name, "1"),)), Expect.ANY)))


@pytest.mark.parametrize(("number", "shown"), [(2**63 - 1, True), (1 - 2**63, True), (2**63, False), (10**19, False)])
def test_a_number_of_others_is_shown_where_a_record_has_a_place_for_it(number: int, shown: bool) -> None:
    """Where not, the lock can still be read."""
    row = {"key": {"S": "k"}, "ownerName": {"S": "o"}, "leaseDuration": {"S": "1"}, "recordVersionNumber": {"S": "r"}}

    read = verbs(dialect="awslabs").rows.record(row | {"theirs": {"N": str(number)}})

    assert read.attributes == ((("theirs", number),) if shown else ())


def test_a_grant_without_its_token_is_renewed_alone() -> None:
    """The token is drawn with it."""
    counts, plain = (row.replace_many([renewal(NO_TOKEN, NO_TOKEN)]) for row in (counting(), verbs(dialect="awslabs")))

    assert [next(each).operation for each in (counts, plain)] == ["update_item", "batch_execute_statement"]


@pytest.mark.parametrize(("token_row", "token"), [(True, 3), (False, NO_TOKEN)])
def test_a_row_of_java_that_is_deleted_had_its_token(*, token_row: bool, token: int) -> None:
    """Where its tokens are counted."""
    tomb = record("k", State.GONE, token=3)
    exchange = verbs(dialect="awslabs", token_row=token_row).release(Release(tomb, Version("r", 3)))
    next(exchange)

    reply = end_of(exchange, {"ResponseMetadata": {"RequestId": "r"}})

    assert (reply.applied, reply.record.state, reply.record.fencing_token) == (True, State.GONE, token)


def test_a_batch_that_is_not_allowed_is_given_up() -> None:
    """Its renewals go one by one, then and ever after."""
    asking = verbs()
    exchange = asking.replace_many([renewal()])
    next(exchange)

    alone = exchange.send({"Responses": [{"Error": {"Code": "AccessDenied"}}]})

    assert alone.operation == "update_item"
    assert next(asking.replace_many([renewal()])).operation == "update_item"


@pytest.mark.parametrize(
    "denied",
    [
        {"Responses": [{"Error": {"Code": "AccessDenied"}}]},
        ClientError({"Error": {"Code": "AccessDeniedException"}}, "BatchExecuteStatement"),
    ],
    ids=["one", "all"],
)
@pytest.mark.parametrize("endpoint", [AWS, ELSEWHERE])
def test_batches_that_have_worked_are_not_given_up(endpoint: str, denied: Any) -> None:
    """A right that lacks for a moment lacks for all requests: one by one, thousands of locks could never again be renewed in time."""
    asking = verbs(endpoint)
    exchange = asking.replace_many([renewal()])
    next(exchange)
    [applied] = end_of(exchange, {"Responses": [{"Item": {"key": {"S": "k"}, **_row(record("k", token=3))}}]})
    assert applied.applied

    exchange = asking.replace_many([renewal()])
    next(exchange)
    alone = exchange.throw(denied) if isinstance(denied, Exception) else exchange.send(denied)
    assert alone.operation == "update_item"
    assert next(asking.replace_many([renewal()])).operation == "batch_execute_statement"


def test_the_error_of_one_of_a_batch_is_its_result() -> None:
    """With its key, and the driver's error as its cause; a mistake is not hidden."""
    exchange = verbs().replace_many([renewal()])
    next(exchange)
    [busy] = end_of(exchange, {"Responses": [{"Error": {"Code": "TransactionConflict"}}]})
    assert (type(busy), busy.key) == (StoreUnavailableError, "k")
    assert str(busy).startswith("could not renew key 'k' in DynamoDB table 'locks': TransactionConflict: ")

    for error in (ReadTimeoutError(endpoint_url=ELSEWHERE), ZeroDivisionError()):
        alone = verbs(dialect="awslabs").replace_many([renewal(3, 4)])
        next(alone)
        if isinstance(error, ZeroDivisionError):
            with pytest.raises(ZeroDivisionError):
                alone.throw(error)
        else:
            [unknown] = end_of(alone, error)
            assert (type(unknown), unknown.key, unknown.__cause__) == (OutcomeUnknownError, "k", error)


def test_every_option_of_the_store_is_taken() -> None:
    """As a URL would give them."""
    names: dict[str, Any] = {"table": "other", "partition_key": "pk", "sort_key": "sk", "sort_key_value": "one"}
    options = names | {"dialect": "awslabs", "sort_key_separator": "/", "endpoint_url": ELSEWHERE}
    options |= {"trust_release_mark": False, "token_row": True, "region": "eu-central-1"}

    store = DynamoDBStore(session(), **options)
    store.close()

    assert store.options == DynamoDBStoreOptions(**options)


def test_a_grant_of_a_counted_row_is_numbered_by_two_requests_more() -> None:
    """Each of them is as urgent as a renewal: the lock is held."""
    request = Claim(record("k"), Expect.ANY)
    exchange = counting().claim(request)
    written = next(exchange)

    drawn = exchange.send({"ResponseMetadata": {"RequestId": "r"}})
    numbered = exchange.send({"Attributes": COUNT | {"dlockToken": {"N": "7"}}})

    assert [each.operation for each in (written, drawn, numbered)] == ["put_item", "update_item", "update_item"]
    assert (written.urgent, drawn.urgent, numbered.urgent) == (False, True, True)
    assert numbered.request["ExpressionAttributeValues"][":token"] == {"S": f"7 {to_text(request.record.rvn)}"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ReadTimeoutError(endpoint_url=ELSEWHERE), "ReadTimeoutError at 127.0.0.1:8000: no usable answer"),
        (
            ClientError({"Error": {"Code": "ThrottlingException"}}, "UpdateItem"),
            "Throttling (HTTP None): DynamoDB throttled",
        ),
        (StrangeAnswerError("it is strange"), "StrangeAnswerError: no usable answer"),
    ],
)
def test_a_grant_whose_token_cannot_be_drawn_is_unknown(error: Exception, told: str) -> None:
    """It is held; an error that says the opposite would leave it behind."""
    exchange = counting().claim(Claim(record("k"), Expect.ANY))
    next(exchange)
    exchange.send({"ResponseMetadata": {"RequestId": "r"}})

    with pytest.raises(OutcomeUnknownError) as caught:
        exchange.throw(error)

    where = "key 'k' in DynamoDB table 'locks': "
    begin = f"could not number {where}the lock was granted, and has no fencing token yet: "
    assert str(caught.value).startswith(f"{begin}could not count the grants of {where}{told}")
    assert caught.value.key == "k"


def test_a_count_that_others_change_each_time_is_given_up() -> None:
    """Nothing of the lock has changed."""
    exchange = counting().replace(renewal(NO_TOKEN, NO_TOKEN))
    next(exchange)
    others = refusal(COUNT | {"dlockToken": {"N": "5"}})
    for _ in range(7):
        exchange.throw(others)

    with pytest.raises(StoreUnavailableError, match="others were faster 8 times") as caught:
        exchange.throw(others)

    assert caught.value.key == "k"


READS, WRITES = Call("read", "k", 1.0), Call("claim", "k", 1.0)


@pytest.mark.parametrize(
    ("error", "call", "kind"),
    [
        (TimeoutError(), WRITES, StoreUnavailableError),
        (StrangeAnswerError("it is strange"), WRITES, OutcomeUnknownError),
        (StrangeAnswerError("it is strange"), READS, StoreUnavailableError),
        (ReadTimeoutError(endpoint_url=ELSEWHERE), WRITES, OutcomeUnknownError),
        (ConnectionResetError("x"), WRITES, OutcomeUnknownError),
        (refusal(), READS, StoreUnavailableError),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_error_is_that_of_its_call(error: Exception, call: Call, kind: type[StoreError]) -> None:
    """It names the verb, the key and the table."""
    told = verbs().trouble(error, call)

    assert told is not None
    assert (type(told), told.key) == (kind, "k")
    assert str(told).startswith(f"could not {call.verb} key 'k' in DynamoDB table 'locks': ")


def test_what_is_none_of_boto3_is_not_translated() -> None:
    """Nor what is an error of dlock already."""
    assert verbs().trouble(ZeroDivisionError(), WRITES) is None
    assert verbs().trouble(StoreUnavailableError("x", key="k"), WRITES) is None
    assert str(verbs().trouble(TimeoutError(), Call("inspect", None, 1.0))).startswith(
        "could not describe DynamoDB table 'locks': "
    )
