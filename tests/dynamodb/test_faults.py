"""Trouble between the store and its server: lost replies, servers that hang, refuse, throttle, or are not what they seem."""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Grade, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import SELF_SIGNED, CuttingProxy, Stub, claimed, record, session, stubbed
from tests.scripted import ScriptedServer, free_port
from tests.stopping import stop

OpenStore = Callable[..., DynamoDBStore]
# What a busy machine may add.
SLACK_S = 1.0


@pytest.fixture
def proxy(endpoint: str) -> Iterator[CuttingProxy]:
    """Put a proxy before the server."""
    between = CuttingProxy(endpoint)
    yield between
    between.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Run a server that says what it is told."""
    with stubbed() as said:
        yield said


@pytest.fixture
def told(stub: Stub) -> Iterator[DynamoDBStore]:
    """Open a store on the stub."""
    store = DynamoDBStore(session("AKIAHUNTER", "hunter2"), table="locks", endpoint_url=stub.endpoint)
    yield store
    store.close()


def ask(store: DynamoDBStore, verb: str, key: str, held: Version) -> Callable[[float], object]:
    """Return the call of *verb*."""
    calls: dict[str, Callable[[float], object]] = {
        "claim": lambda timeout_s: store.claim(Claim(record(key), Expect.ANY), timeout_s=timeout_s),
        "replace": lambda timeout_s: store.replace(Replace(record(key), held), timeout_s=timeout_s),
        "release": lambda timeout_s: store.release(Release(record(key, State.FREE), held), timeout_s=timeout_s),
        "replace_many": lambda timeout_s: store.replace_many([Replace(record(key), held)], timeout_s=timeout_s),
        "read": lambda timeout_s: store.read(key, timeout_s=timeout_s),
        "scan": lambda timeout_s: list(store.scan(key, timeout_s=timeout_s)),
    }
    return calls[verb]


WRITES = ["claim", "replace", "release", "replace_many"]
VERBS = [*WRITES, "read", "scan"]


class TestLostReplies:
    """The server has applied it, and the connection ends before the answer is there."""

    @pytest.mark.parametrize("verb", WRITES)
    def test_a_lost_reply_is_unknown_and_was_sent_once(
        self, store: DynamoDBStore, open_store: OpenStore, proxy: CuttingProxy, key: str, verb: str
    ) -> None:
        """Neither a grant nor a refusal, and no second send behind the core's back."""
        cut = open_store(endpoint_url=proxy.endpoint)
        before = claimed(cut, key)
        if verb == "claim":
            store.release(Release(record(key, State.FREE), before.version), timeout_s=10)
        sent = proxy.requests

        proxy.cutting = True
        with pytest.raises(OutcomeUnknownError) as caught:
            ask(cut, verb, key, before.version)(10)
        proxy.cutting = False

        assert caught.value.__cause__ is not None
        assert proxy.requests - sent == 1
        after = store.read(key, timeout_s=10)
        assert after is not None
        assert after.rvn != before.rvn
        assert cut.read(key, timeout_s=10) == after

    def test_the_refusal_of_the_next_step_shows_what_became_of_it(
        self, store: DynamoDBStore, open_store: OpenStore, proxy: CuttingProxy, key: str
    ) -> None:
        """A renewal whose reply was lost is found by its RVN in the refusal of the next."""
        cut = open_store(endpoint_url=proxy.endpoint)
        held = claimed(cut, key)
        lost, following = record(key), record(key)

        proxy.cutting = True
        [result] = _results(cut, [Replace(lost, held.version)])
        proxy.cutting = False
        reply = cut.replace(Replace(following, held.version), timeout_s=10)

        assert isinstance(result, OutcomeUnknownError)
        assert reply == Reply(applied=False, record=lost)


def _results(store: DynamoDBStore, requests: list[Replace]) -> list[Reply | StoreError]:
    try:
        return list(store.replace_many(requests, timeout_s=10))
    except StoreError as error:
        return [error]


class TestTimeouts:
    """A verb ends when it was told to."""

    @pytest.mark.parametrize("timeout_s", [0.3, 1.0])
    def test_a_server_that_hangs_holds_nobody(self, server: ScriptedServer, key: str, timeout_s: float) -> None:
        """Each call of one store has its own time-out, with warm connections and with new ones."""
        store = DynamoDBStore(session(), table="dlock-tests-hang", endpoint_url=server.told)
        store.provision()
        held = claimed(store, key)
        store.read(key, timeout_s=timeout_s)
        pid = server.pid
        took = {}

        stop(pid)
        try:
            for verb in VERBS:
                began = time.monotonic()
                with pytest.raises(OutcomeUnknownError if verb in WRITES else StoreUnavailableError):
                    ask(store, verb, key, held.version)(timeout_s)
                took[verb] = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        store.close()

        assert max(took.values()) <= timeout_s + SLACK_S, took

    def test_a_refused_connection_is_not_applied(self, open_store: OpenStore, key: str) -> None:
        """At once, and certainly."""
        store = open_store(endpoint_url=f"http://127.0.0.1:{free_port()}")

        for verb in VERBS:
            with pytest.raises(StoreUnavailableError) as caught:
                ask(store, verb, key, Version("r", 1))(10)
            assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.001])
    def test_no_time_left_means_not_sent(self, told: DynamoDBStore, stub: Stub, key: str, timeout_s: float) -> None:
        """A call that can't end in time does not begin."""
        for verb in WRITES:
            with pytest.raises(StoreUnavailableError, match="too short"):
                ask(told, verb, key, Version("r", 1))(timeout_s)
        assert stub.requests == []

    def test_a_few_clients_serve_all_time_outs(self, store: DynamoDBStore) -> None:
        """They are kept by powers of two, and no time-out exceeds what the call was given."""
        for thousandths in range(16, 40_000, 7):
            timeout_s = thousandths / 1000
            config = store._clients.fit(timeout_s).meta.config
            assert 2 * config.connect_timeout + config.read_timeout <= timeout_s
            assert config.retries["total_max_attempts"] == 1
        assert len(store._clients._clients) == 11


class TestTransport:
    """TLS, and the settings of the environment."""

    def test_a_certificate_that_is_not_trusted_is_told(self, tmp_path: Path, key: str) -> None:
        """Nothing is sent to who can't show who it is."""
        pem = tmp_path / "self-signed.pem"
        pem.write_text(SELF_SIGNED)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        with stubbed(context) as stub:
            stub.says((200, {}))
            store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

            for verb in VERBS:
                with pytest.raises(StoreSetupError, match="not trusted"):
                    ask(store, verb, key, Version("r", 1))(10)
            store.close()

            assert stub.requests == []

    def test_a_server_without_tls_gets_nothing(self, told: DynamoDBStore, stub: Stub, key: str) -> None:
        """The handshake fails before there is anything to read."""
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint.replace("http:", "https:"))

        with pytest.raises(StoreUnavailableError):
            store.guarantees()
        with pytest.raises(OutcomeUnknownError):
            store.claim(Claim(record(key), Expect.ANY), timeout_s=1)
        store.close()

        assert stub.requests == []

    def test_the_environment_can_not_weaken_it(self, monkeypatch: pytest.MonkeyPatch, stub: Stub, key: str) -> None:
        """Ten attempts that adapt to throttling are right for others."""
        monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "10")
        monkeypatch.setenv("AWS_ENABLE_ENDPOINT_DISCOVERY", "true")
        stub.fails("ThrottlingException")
        store = DynamoDBStore(session(), table="locks", endpoint_url=stub.endpoint)

        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(StoreUnavailableError):
                store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        took = time.monotonic() - began
        store.close()

        assert [name for name, _ in stub.requests] == ["UpdateItem"] * 20
        assert took < 5


class TestErrors:
    """What the service may answer and DynamoDB Local never does."""

    @pytest.mark.parametrize(
        ("code", "status", "kind"),
        [
            ("ProvisionedThroughputExceededException", 400, StoreUnavailableError),
            ("ThrottlingException", 400, StoreUnavailableError),
            ("RequestLimitExceeded", 400, StoreUnavailableError),
            ("TransactionConflictException", 400, StoreUnavailableError),
            ("InternalServerError", 500, OutcomeUnknownError),
            ("ServiceUnavailable", 503, OutcomeUnknownError),
            ("ExpiredTokenException", 400, StoreSetupError),
            ("UnrecognizedClientException", 400, StoreSetupError),
            ("InvalidSignatureException", 403, StoreSetupError),
            ("ResourceNotFoundException", 400, StoreSetupError),
        ],
    )
    @pytest.mark.parametrize("verb", WRITES)
    def test_an_error_of_the_service_has_its_class_and_is_sent_once(  # noqa: PLR0917  # pytest passes names
        self, told: DynamoDBStore, stub: Stub, key: str, verb: str, code: str, status: int, kind: type[StoreError]
    ) -> None:
        """As botocore really raises it, from the bytes of the answer."""
        stub.fails(code, status, message="AKIAHUNTER hunter2")

        with pytest.raises(kind) as caught:
            ask(told, verb, key, Version("r", 1))(10)

        assert type(caught.value) is kind
        assert "hunter" not in str(caught.value).lower()
        assert len(stub.requests) == 1

    @pytest.mark.parametrize("body", [b"<html>sign in</html>", b"\xff\xfe", b"{}", b'{"Attributes": 7}', b""])
    @pytest.mark.parametrize("verb", [*WRITES, "read"])
    def test_an_answer_that_is_none_is_no_grant_and_no_absence(
        self, told: DynamoDBStore, stub: Stub, key: str, verb: str, body: bytes
    ) -> None:
        """A gateway's page with status 200 proves nothing."""
        stub.says((200, body))

        if verb == "read":
            if body.startswith(b"{"):
                assert told.read(key, timeout_s=10) is None
                return
            with pytest.raises(StoreUnavailableError):
                told.read(key, timeout_s=10)
        else:
            with pytest.raises(OutcomeUnknownError):
                ask(told, verb, key, Version("r", 1))(10)

    def test_an_applied_write_that_shows_a_damaged_item_is_unknown(
        self, told: DynamoDBStore, stub: Stub, key: str
    ) -> None:
        """RecordError would say that nothing was written, and leave a held record behind."""
        stub.says((200, {"Attributes": {"key": {"S": key}, "v": {"N": "1"}}}))

        with pytest.raises(OutcomeUnknownError, match="it was written"):
            told.claim(Claim(record(key), Expect.ANY), timeout_s=10)


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
        "lease_ms": {"N": str(standing.lease_ms)} if standing.lease_ms else {"NULL": True},
        "payload": {"M": {}},
        "context": {"M": {}},
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

        stub.says((200, {"Table": TABLE}), (400, {"__type": "x#ThrottlingException"}))
        with pytest.raises(StoreUnavailableError):
            told.guarantees()

    @pytest.mark.parametrize("status", ["CREATING", "DELETING"])
    def test_a_table_that_is_not_ready_is_told(self, told: DynamoDBStore, stub: Stub, status: str) -> None:
        """With the state that it is in."""
        stub.says((200, {"Table": TABLE | {"TableStatus": status}}))

        with pytest.raises(StoreSetupError, match=status):
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
