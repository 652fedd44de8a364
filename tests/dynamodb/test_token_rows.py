"""Fencing tokens in a row of their own beside each lock that is shared with Java clients: drawn after the grant, greater each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from dlock_core import LockClient
from dlock_core.errors import (
    AcquireTimeoutError,
    ConfigurationError,
    LockLostError,
    OutcomeUnknownError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.record import NO_TOKEN, TOKEN_MAX, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, TokenOrder
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions
from dlock_dynamodb.dialects.awslabs import AwslabsRows
from tests.dynamodb.golden_rows import KEY, Counted, Row, counted
from tests.dynamodb.support import STEPS, bare_table, comes_true, disturbed, session, watched

TABLE = "dlock-tests-token-rows"
COUNT_KEY = f"dlock-token:{KEY}"
RVN = "feedfacefeedfacefeedfacefeedface"


class Rows:
    """The two rows of one lock, without any dialect."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def put(self, row: Row | None, key: str = KEY) -> None:
        """Leave exactly this under *key*."""
        if row is None:
            self.client.delete_item(TableName=TABLE, Key={"key": {"S": key}})
        else:
            self.client.put_item(TableName=TABLE, Item=row)

    def get(self, key: str = KEY) -> Row | None:
        """Return what stands under *key*."""
        found: Row | None = self.client.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True).get(
            "Item"
        )
        return found

    @property
    def count(self) -> int:
        """The last token that was given."""
        row = self.get(COUNT_KEY)
        return 0 if row is None else int(row["dlockToken"]["N"])


@pytest.fixture(scope="module")
def table(endpoint: str) -> Iterator[Rows]:
    """Make the table."""
    with bare_table(endpoint, TABLE) as client:
        yield Rows(client)


@pytest.fixture
def rows(table: Rows) -> Rows:
    """Return the rows, both absent."""
    table.put(None)
    table.put(None, COUNT_KEY)
    return table


@pytest.fixture(scope="module")
def store(endpoint: str, table: Rows) -> Iterator[DynamoDBStore]:
    """Open a store with token rows."""
    opened = DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint, dialect="awslabs", token_row=True)
    yield opened
    opened.close()


@pytest.fixture
def opened(endpoint: str) -> Iterator[Callable[..., DynamoDBStore]]:
    """Open stores with token rows, on a session of one's own."""
    stores: list[DynamoDBStore] = []

    def one(driver: Any = None, *, token_row: bool = True) -> DynamoDBStore:
        stores.append(
            DynamoDBStore(
                driver or session(), table=TABLE, endpoint_url=endpoint, dialect="awslabs", token_row=token_row
            )
        )
        return stores[-1]

    yield one
    for store in stores:
        store.close()


def held(rvn: str = RVN, token: int = 1) -> LockRecord:
    """Return a record of ours."""
    return LockRecord(KEY, State.HELD, rvn, token, "us", 20_000)


def expects_token(case: Counted) -> bool:
    """Whether the write of *case* is for one version with a token."""
    expected = case.asked.expect if isinstance(case.asked, Claim) else case.asked.expected
    return isinstance(expected, tuple) and expected.fencing_token is not NO_TOKEN


def send(store: DynamoDBStore, verb: Claim | Replace | Release) -> Any:
    """Send *verb* as what it is."""
    name = {Claim: "claim", Replace: "replace", Release: "release"}[type(verb)]
    return getattr(store, name)(verb, timeout_s=10)


@pytest.mark.parametrize("case", counted(), ids=lambda case: case.name)
def test_a_transition_leaves_both_rows_of_the_file(rows: Rows, store: DynamoDBStore, case: Counted) -> None:
    """Byte for byte; and the answer is the record that a read then shows."""
    rows.put(case.before)
    if case.count_before is not None:
        rows.put(case.count_before)

    reply = send(store, case.asked)

    assert reply.applied
    assert (rows.get(), rows.get(COUNT_KEY)) == (case.after, case.count_after)
    if case.after is not None:
        assert (
            reply.record
            == AwslabsRows(store._verbs.table, counted=True).record(case.after)
            == store.read(KEY, timeout_s=10)
        )


def test_the_file_has_every_transition() -> None:
    """So that a case that is lost from the file is missed."""
    assert len(counted()) == 22


@pytest.mark.parametrize("case", [case for case in counted() if expects_token(case)], ids=lambda case: case.name)
def test_a_transition_is_refused_where_the_token_is_another(rows: Rows, store: DynamoDBStore, case: Counted) -> None:
    """The number alone is not the version: a late duplicate of the claim would bring it back without the token."""
    before = {name: value for name, value in (case.before or {}).items() if name != "dlockToken"}
    rows.put(before)

    reply = send(store, case.asked)

    assert not reply.applied
    assert reply.record.fencing_token is NO_TOKEN
    assert rows.get() == before


def test_what_it_costs(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """Two requests more for a lease; none for a refusal, a renewal, a read or a release."""
    seen: list[str] = []
    store = opened(watched(seen))

    with LockClient(store, timeout=0) as client:
        del seen[:]
        lease = client.acquire(KEY)
        acquired, seen[:] = list(seen), []
        assert client.try_acquire(KEY) is None
        refused, seen[:] = list(seen), []
        lease.renew()
        client.get(KEY)
        lease.release()
        rest, seen[:] = list(seen), []
        client.acquire(KEY).release()

    assert acquired == list(STEPS)
    assert refused == ["PutItem"]
    assert rest == ["UpdateItem", "GetItem", "UpdateItem"]
    assert seen == ["PutItem", *STEPS, "UpdateItem"]


def test_tokens_rise_whatever_java_does_with_the_row(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """Deleted, replaced, marked under the old number, or updated so that our token stays in it."""
    theirs = {"ownerName": {"S": "java"}, "leaseDuration": {"S": "1"}, "recordVersionNumber": {"S": "theirs"}}
    tokens = []
    with LockClient(opened()) as client:
        for left in (None, {"isReleased": {"S": "1"}}, {"isReleased": {"S": "1"}, "dlockToken": {"S": "9 before"}}):
            with client.lock(KEY) as lease:
                tokens.append(lease.fencing_token)
            rows.put(None if left is None else {"key": {"S": KEY}, **theirs, **left})
        with client.lock(KEY) as lease:
            tokens.append(lease.fencing_token)

    assert tokens == [1, 2, 3, 4]


def test_a_row_of_java_has_no_token(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """Not even where it has updated a row of ours, and what it does not know still stands there."""
    store = opened()
    granted = store.claim(Claim(held(), Expect.ANY), timeout_s=10).record
    assert granted is not None
    row = rows.get() or {}
    rows.put({**row, "ownerName": {"S": "java"}, "recordVersionNumber": {"S": "theirs"}})

    shown = store.read(KEY, timeout_s=10)

    assert granted.version == Version(RVN, 1)
    assert shown is not None
    assert shown.version == Version("theirs", NO_TOKEN)
    assert shown.attributes == ()


def lost_reply() -> None:
    """Raise what a connection raises on which no answer came."""
    raise ReadTimeoutError(endpoint_url="http://the.server")


def not_sent() -> None:
    """Raise what is raised where nothing was sent."""
    raise EndpointConnectionError(endpoint_url="http://the.server")


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("trouble", ["lost_reply", "not_sent"])
def test_an_acquire_that_a_fault_interrupts_ends_with_a_token(
    rows: Rows, opened: Callable[..., DynamoDBStore], step: int, trouble: str
) -> None:
    """Whichever of its requests: the lease that is handed out has a token, greater than all before, and its row has it too."""
    before, after = (None, lost_reply) if trouble == "lost_reply" else (not_sent, None)
    store = opened(disturbed(step, before, after))

    with LockClient(opened()) as other, LockClient(store, lease_duration=20) as client:
        first = other.acquire(KEY)
        first.release()
        rows.put(None)
        with client.lock(KEY, timeout=30) as lease:
            record = other.get(KEY)
            token = lease.fencing_token
            lease.renew()
        with other.lock(KEY) as lease:
            last = lease.fencing_token

    assert record is not None
    assert record.fencing_token == token
    assert first.fencing_token < token < last


@pytest.mark.parametrize("step", [1, 2])
def test_a_grant_that_is_lost_before_its_token_is_there_is_not_handed_out(
    rows: Rows, opened: Callable[..., DynamoDBStore], step: int
) -> None:
    """A client that pauses within its acquire finds another's lease and token: its own comes to nothing."""
    other = opened()
    grants: list[LockRecord | None] = []

    def overtaken() -> None:
        taken = other.replace(Replace(held("0" * 32), Version(RVN, NO_TOKEN)), timeout_s=10)
        grants.append(taken.record)

    reply = opened(disturbed(step, overtaken, None)).claim(Claim(held(), Expect.ANY), timeout_s=10)

    assert not reply.applied
    assert reply.record == grants[0]
    assert grants[0] is not None
    assert grants[0].fencing_token == step
    assert rows.count == 2


def test_a_claim_whose_token_cannot_be_drawn_is_unknown(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """The row stands, so the error must not say that nothing was written."""
    with pytest.raises(OutcomeUnknownError, match="no fencing token yet"):
        opened(disturbed(1, not_sent, None)).claim(Claim(held(), Expect.ANY), timeout_s=10)

    assert rows.get() is not None


def test_a_renewal_whose_draw_got_no_answer_has_changed_nothing(
    rows: Rows, opened: Callable[..., DynamoDBStore]
) -> None:
    """The grant has no token yet: its renewal draws first, so that one lost reply costs one try, and the next try ends it."""
    with pytest.raises(OutcomeUnknownError, match="no fencing token yet"):
        opened(disturbed(2, not_sent, None)).claim(Claim(held(), Expect.ANY), timeout_s=10)
    before, seen = rows.get(), list[str]()
    renewal = Replace(held("0" * 32, NO_TOKEN), Version(RVN, NO_TOKEN), keep_payload=True)

    with pytest.raises(StoreUnavailableError):
        opened(disturbed(0, None, lost_reply)).replace(renewal, timeout_s=10)
    untouched = rows.get()
    reply = opened(watched(seen)).replace(renewal, timeout_s=10)

    assert untouched == before
    assert reply.applied
    assert reply.record is not None
    assert reply.record.fencing_token == 3
    assert seen == ["UpdateItem", "UpdateItem"]


def test_what_stands_in_the_place_of_a_count_is_never_written_over(
    rows: Rows, opened: Callable[..., DynamoDBStore]
) -> None:
    """No lease is handed out without a token; what was claimed is given back, and the cause is told."""
    foreign = {"key": {"S": COUNT_KEY}, "name": {"S": "theirs"}}
    rows.put(foreign)

    with LockClient(opened()) as client:
        with pytest.raises((AcquireTimeoutError, OutcomeUnknownError)):
            client.acquire(KEY, timeout=0.5)

        comes_true(lambda: "isReleased" in (rows.get() or {}), "that the row is given back")
    assert rows.get(COUNT_KEY) == foreign


@pytest.mark.parametrize("token_row", [True, False])
def test_the_rows_of_tokens_are_no_locks(rows: Rows, opened: Callable[..., DynamoDBStore], *, token_row: bool) -> None:
    """Not listed, whether the client that lists keeps tokens or not; and no lock of ours has such a key."""
    with LockClient(opened()) as client, client.lock(KEY):
        listed = [record.key for record in opened(token_row=token_row).scan("", timeout_s=10)]
        with pytest.raises(StoreSetupError, match="rows with the tokens"):
            client.acquire(COUNT_KEY)

    assert listed == [KEY]
    assert rows.get(COUNT_KEY) is not None


def test_a_client_without_token_rows_shares_the_locks(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """It excludes as any other; its leases have no token, and those after it have greater ones."""
    with LockClient(opened(), timeout=0) as counting, LockClient(opened(token_row=False), timeout=0) as plain:
        with counting.lock(KEY) as lease:
            first = lease.fencing_token
            assert plain.try_acquire(KEY) is None
        with plain.lock(KEY) as lease:
            assert lease.fencing_token == NO_TOKEN
            assert counting.try_acquire(KEY) is None
        with counting.lock(KEY) as lease:
            assert lease.fencing_token > first


def test_a_takeover_by_java_is_told_at_once(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """Its row has no token, which is no sign that it is older than ours."""
    theirs = {"ownerName": {"S": "java"}, "leaseDuration": {"S": "20000"}, "recordVersionNumber": {"S": "theirs"}}
    with LockClient(opened()) as client:
        lease = client.acquire(KEY)
        rows.put({"key": {"S": KEY}, **theirs})

        with pytest.raises(LockLostError, match="another holder took it over"):
            lease.renew()


def test_the_least_token_can_be_asked_for(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """As when a fenced resource has seen those of another store."""
    tokens = []
    with LockClient(opened(), token_floor=1000) as client:
        for _ in range(2):
            with client.lock(KEY) as lease:
                tokens.append(lease.fencing_token)
            rows.put(None)

    assert tokens == [1000, 1001]


def test_a_count_that_is_gone_goes_on_after_the_token_that_is_seen(rows: Rows, store: DynamoDBStore) -> None:
    """That of the version which a claim expects."""
    tomb = LockRecord(KEY, State.FREE, "0" * 32, 7, "", None)
    store.claim(Claim(held(token=7), Expect.ANY), timeout_s=10)
    store.release(Release(tomb, Version(RVN, 7)), timeout_s=10)
    rows.put(None, COUNT_KEY)

    store.claim(Claim(held("1" * 32), tomb.version), timeout_s=10)

    assert rows.count == 8


def test_the_last_token_is_not_passed(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """The count stops, and nothing is granted any more."""
    store = opened()
    granted = store.claim(Claim(held(token=TOKEN_MAX), Expect.ANY), timeout_s=10).record
    assert granted is not None
    tomb = LockRecord(KEY, State.FREE, "0" * 32, TOKEN_MAX, "", None)
    store.release(Release(tomb, granted.version), timeout_s=10)

    for expect in (Expect.ANY, tomb.version):
        with pytest.raises(StoreUnavailableError, match="reached its end"):
            store.claim(Claim(held("1" * 32), expect), timeout_s=10)
    rows.put(None)
    with pytest.raises(OutcomeUnknownError, match="reached its end"):
        store.claim(Claim(held("1" * 32), Expect.ANY), timeout_s=10)

    assert rows.count == TOKEN_MAX


def test_what_is_promised_is_said(rows: Rows, opened: Callable[..., DynamoDBStore]) -> None:
    """Timed, of grade B; and what that means."""
    said = opened().guarantees()

    assert (said.token, said.grade.value, said.deletes) == (TokenOrder.TIMED, "B", True)
    assert "token_floor" not in dict(said.refuses)
    assert any(note.startswith("token = timed: a Java holder has no token") for note in said.notes)
    assert rows.get() is None


@pytest.mark.parametrize("dialect", ["dlock", "node-fail-open", "node-fail-closed"])
def test_token_rows_are_refused_where_they_make_no_sense(dialect: str) -> None:
    """When the URL is read: two dialects have tokens of their own, and a lock without a lease can't have them so."""
    with pytest.raises(ConfigurationError, match="token_row is for the rows of the Java client"):
        DynamoDBStoreOptions.from_url(f"dynamodb://eu-west-1/locks?dialect={dialect}&token_row=true")
