"""What the DynamoDB store says of emulators, and what it promises by the settings of its table."""

from __future__ import annotations

from typing import Any

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Grade, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import Stub, record

REFUSED = (400, {"__type": "x#ConditionalCheckFailedException", "message": "The conditional request failed"})


def shown(standing: LockRecord) -> dict[str, Any]:
    """Return the item of a plain record as a server shows it."""
    return {
        "key": {"S": standing.key},
        "v": {"N": "1"},
        "state": {"S": standing.state.value},
        "rvn": {"S": standing.rvn},
        "token": {"N": str(standing.fencing_token)},
        "owner": {"S": standing.owner},
        "lease_ms": {"N": str(standing.lease_ms or 0)},
        "context": {"S": ""},
        "payload": {"B": ""},
    }


class TestEmulators:
    """Servers that know less than DynamoDB, and servers that lie."""

    def test_a_refusal_without_an_item_is_read_until_the_server_has_shown_one(
        self, told: DynamoDBStore, stub: Stub, key: str
    ) -> None:
        """An old emulator leaves it out, and then the key is not absent."""
        standing = record(key)
        stub.says(REFUSED, (200, {"Item": shown(standing)}), (400, REFUSED[1] | {"Item": shown(standing)}), REFUSED)

        first = told.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        second = told.replace(Replace(record(key), Version("r", 1)), timeout_s=10)
        third = told.replace(Replace(record(key), Version("r", 1)), timeout_s=10)

        assert first == second == Reply(applied=False, record=standing)
        assert third == Reply(applied=False, record=None)
        assert [name for name, _ in stub.requests] == ["UpdateItem", "GetItem", "UpdateItem", "UpdateItem"]

    def test_a_free_record_that_is_read_after_a_refusal_is_only_shown(
        self, told: DynamoDBStore, stub: Stub, key: str
    ) -> None:
        """It was freed in between: whether to try again is the core's business."""
        freed = record(key, State.FREE)
        stub.says(REFUSED, (200, {"Item": shown(freed)}))

        reply = told.claim(Claim(record(key), Expect.ANY), timeout_s=10)

        assert reply == Reply(applied=False, record=freed)
        assert len(stub.requests) == 2

    def test_one_of_a_batch_that_fails_alone_is_its_own_result(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """Clause B2, where each is sent by itself."""
        asked = record(key)
        slow = (400, {"__type": "x#ThrottlingException"})
        stub.says((400, {"__type": "x#AccessDeniedException"}), slow, (200, {"Attributes": shown(asked)}))

        first, second = told.replace_many([Replace(asked, Version("r", 1))] * 2, timeout_s=10)

        assert isinstance(first, StoreUnavailableError)
        assert second == Reply(applied=True, record=asked)

    @pytest.mark.parametrize("code", ["AccessDeniedException", "UnknownOperationException", "ValidationException"])
    def test_a_batch_that_is_not_allowed_is_done_one_by_one(
        self, told: DynamoDBStore, stub: Stub, key: str, code: str
    ) -> None:
        """And is not tried again."""
        asked = [record(f"{key}/{number}") for number in range(3)]
        answers = [(200, {"Attributes": shown(each)}) for each in asked]
        stub.says(
            (400, {"__type": f"x#{code}", "message": "not authorized to perform: dynamodb:PartiQLUpdate"}),
            *answers,
            *answers,
        )
        requests = [Replace(each, Version("r", 1)) for each in asked]

        first, second = told.replace_many(requests, timeout_s=10), told.replace_many(requests, timeout_s=10)

        assert first == second == [Reply(applied=True, record=each) for each in asked]
        assert [name for name, _ in stub.requests] == ["BatchExecuteStatement"] + ["UpdateItem"] * 6

    def test_a_statement_that_is_not_allowed_is_done_by_itself(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """The others have their results."""
        asked = [record(f"{key}/{number}") for number in range(3)]
        stub.says(
            (
                200,
                {
                    "Responses": [
                        {"Item": shown(asked[0])},
                        {"Error": {"Code": "AccessDenied", "Message": "no"}},
                        {"Error": {"Code": "ThrottlingError", "Message": "slow"}},
                    ]
                },
            ),
            (200, {"Attributes": shown(asked[1])}),
        )

        results = told.replace_many([Replace(each, Version("r", 1)) for each in asked], timeout_s=10)

        assert results[:2] == [Reply(applied=True, record=each) for each in asked[:2]]
        assert isinstance(results[2], StoreUnavailableError)
        assert [name for name, _ in stub.requests] == ["BatchExecuteStatement", "UpdateItem"]

    def test_a_missing_error_without_an_item_is_no_success(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """An emulator that ignores the statement answers so; from then on there are single requests."""
        asked = record(key)
        stub.says((200, {"Responses": [{"TableName": "locks"}]}), (200, {"Attributes": shown(asked)}))

        [first] = told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10)
        [second] = told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10)

        assert isinstance(first, OutcomeUnknownError)
        assert second == Reply(applied=True, record=asked)

    def test_a_batch_that_fails_before_it_ever_worked_is_not_tried_again(
        self, told: DynamoDBStore, stub: Stub, key: str
    ) -> None:
        """An emulator that can't do it answers 500 for ever."""
        asked = record(key)
        stub.says((500, b"oops"), (200, {"Attributes": shown(asked)}))

        with pytest.raises(OutcomeUnknownError):
            told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10)
        [second] = told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10)

        assert second == Reply(applied=True, record=asked)

    def test_a_batch_that_throttles_is_tried_again(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """Being slow is not being unable."""
        asked = record(key)
        stub.says((400, {"__type": "x#ThrottlingException"}), (200, {"Responses": [{"Item": shown(asked)}]}))

        with pytest.raises(StoreUnavailableError):
            told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10)

        assert told.replace_many([Replace(asked, Version("r", 1))], timeout_s=10) == [Reply(applied=True, record=asked)]

    def test_too_few_results_are_unknown_for_all(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """Whose they are can't be told."""
        asked = record(key)
        stub.says((200, {"Responses": [{"Item": shown(asked)}]}))

        with pytest.raises(OutcomeUnknownError, match="1 answers to 2"):
            told.replace_many(
                [Replace(asked, Version("r", 1)), Replace(record(key + "x"), Version("r", 1))], timeout_s=10
            )


TABLE = {
    "TableName": "locks",
    "TableStatus": "ACTIVE",
    "TableArn": "arn:aws:dynamodb:eu-west-1:1:table/locks",
    "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
}


NO_TTL = (200, {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}})


class TestGuarantees:
    """Topologies that DynamoDB Local does not have."""

    @pytest.mark.parametrize(
        "replicated",
        [
            {
                "Replicas": [{"RegionName": "eu-west-1"}, {"RegionName": "us-east-1"}],
                "GlobalTableVersion": "2019.11.21",
            },
            {"Replicas": [{"RegionName": "us-east-1"}], "MultiRegionConsistency": "EVENTUAL"},
            {"GlobalTableVersion": "2017.11.29"},
        ],
    )
    def test_a_global_table_is_unsafe(self, told: DynamoDBStore, stub: Stub, replicated: dict[str, Any]) -> None:
        """The last writer wins, and both regions have granted."""
        stub.says((200, {"Table": TABLE | replicated}), NO_TTL)

        [(name, reason)] = told.guarantees().unsafe

        assert name == "dynamodb-global-table"
        assert "two regions can both grant" in reason

    def test_a_strongly_consistent_global_table_is_noted(self, told: DynamoDBStore, stub: Stub) -> None:
        """It is said to be safe, and was never tested."""
        strong = {"Replicas": [{"RegionName": "us-east-1"}], "MultiRegionConsistency": "STRONG"}
        stub.says((200, {"Table": TABLE | strong}), NO_TTL)

        promised = told.guarantees()

        assert promised.unsafe == ()
        assert any("not tested" in note for note in promised.notes)

    def test_what_is_not_aws_promises_little(self, told: DynamoDBStore, stub: Stub) -> None:
        """Behind an unknown endpoint may be an emulator that grants twice."""
        stub.says((200, {"Table": TABLE}), NO_TTL)

        promised = told.guarantees()

        assert (promised.grade, promised.durable) == (Grade.C, False)
        assert any("not an endpoint of AWS" in note for note in promised.notes)

    def test_time_to_live_that_can_not_be_seen_is_noted(self, told: DynamoDBStore, stub: Stub) -> None:
        """A right that is missing does not stop the client."""
        stub.says((200, {"Table": TABLE}), (400, {"__type": "x#AccessDeniedException"}))

        assert any("can't be seen" in note for note in told.guarantees().notes)

    def test_what_can_not_be_described_is_told(self, told: DynamoDBStore, stub: Stub) -> None:
        """Without the description, an unsafe table would go unseen."""
        stub.fails("AccessDeniedException")
        with pytest.raises(StoreSetupError, match="dlock doctor --policy"):
            told.guarantees()

        stub.says((200, {"Table": TABLE}), (500, {"__type": "x#InternalServerError"}))
        with pytest.raises(StoreUnavailableError):
            told.guarantees()

    def test_a_look_that_is_throttled_is_repeated_in_its_time(self, told: DynamoDBStore, stub: Stub) -> None:
        """As where many clients open at once: DynamoDB grants an account few looks in a second."""
        slow = (400, {"__type": "x#ThrottlingException"})
        stub.says(slow, (200, {"Table": TABLE}), slow, NO_TTL)

        assert told.guarantees().grade is Grade.C
        assert [name for name, _ in stub.requests] == ["DescribeTable"] * 2 + ["DescribeTimeToLive"] * 2

        stub.says(slow)
        told.inspect_timeout_s = 0.3
        with pytest.raises(StoreUnavailableError, match="throttled"):
            told.guarantees()

    @pytest.mark.parametrize(
        ("status", "mend"),
        [
            ("CREATING", "dlock init"),
            ("DELETING", "dlock init"),
            ("ARCHIVED", "aws dynamodb describe-table"),
            ("INACCESSIBLE_ENCRYPTION_CREDENTIALS", "aws dynamodb describe-table"),
        ],
    )
    def test_a_table_that_is_not_ready_is_told(self, told: DynamoDBStore, stub: Stub, status: str, mend: str) -> None:
        """With the state that it is in, and what mends it."""
        stub.says((200, {"Table": TABLE | {"TableStatus": status}}))

        with pytest.raises(StoreSetupError, match=f"{status}; .*{mend}"):
            told.guarantees()

    def test_provisioning_waits_until_the_table_is_active(self, told: DynamoDBStore, stub: Stub) -> None:
        """Also for a table that somebody else is making."""
        missing, exists = (
            (400, {"__type": "x#ResourceNotFoundException"}),
            (400, {"__type": "x#ResourceInUseException"}),
        )
        stub.says(
            missing, exists, missing, (200, {"Table": TABLE | {"TableStatus": "CREATING"}}), (200, {"Table": TABLE})
        )

        told.provision()

        assert [name for name, _ in stub.requests] == ["DescribeTable", "CreateTable", *["DescribeTable"] * 3]

    def test_provisioning_needs_no_right_to_create_what_exists(self, told: DynamoDBStore, stub: Stub) -> None:
        """An operator has made it."""
        stub.says((200, {"Table": TABLE}))

        told.provision()

        assert {name for name, _ in stub.requests} == {"DescribeTable"}

    def test_a_missing_right_to_create_is_told(self, told: DynamoDBStore, stub: Stub) -> None:
        """As every other right."""
        stub.says((400, {"__type": "x#ResourceNotFoundException"}), (400, {"__type": "x#AccessDeniedException"}))

        with pytest.raises(StoreSetupError, match=r"create DynamoDB table 'locks'.*lack a right"):
            told.provision()
