"""The rows of other clients: each transition of ours byte for byte, each row of theirs read, and nothing foreign touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dlock_core import LockClient
from dlock_core.errors import ConfigurationError, RecordError, StoreSetupError, UnsupportedError
from dlock_core.record import NO_TOKEN, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, TokenOrder
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions
from dlock_dynamodb._wire import Table
from dlock_dynamodb.dialects.awslabs import AwslabsRows, from_text, to_text
from dlock_dynamodb.dialects.node import NodeClosedRows, NodeOpenRows, from_guid, to_guid
from dlock_dynamodb.options import Dialect
from tests.dynamodb.golden_rows import (
    CLOCK_MS,
    DIALECTS,
    KEY,
    Row,
    Transition,
    content,
    readings,
    strangers,
    transitions,
)
from tests.dynamodb.support import bare_table, raised, session, watched

TABLE = "dlock-tests-dialects"
PLAIN = Table(TABLE, "key", None, "dlock")
ROWS: dict[str, Any] = {
    "awslabs": AwslabsRows(PLAIN),
    "node-fail-open": NodeOpenRows(PLAIN, lambda: CLOCK_MS),
    "node-fail-closed": NodeClosedRows(PLAIN),
}
TRANSITIONS = [case for dialect in DIALECTS for case in transitions(dialect)]
READINGS = [(dialect, *case) for dialect in DIALECTS for case in readings(dialect)]
STRANGERS = [(dialect, *case) for dialect in DIALECTS for case in strangers(dialect)]
FRESH = "feedfacefeedfacefeedfacefeedface"


class Place:
    """One row of the table of these tests, without any dialect."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def put(self, row: Row | None) -> None:
        """Leave exactly this under the key."""
        if row is None:
            self.client.delete_item(TableName=TABLE, Key={"key": {"S": KEY}})
        else:
            self.client.put_item(TableName=TABLE, Item=row)

    @property
    def row(self) -> Row | None:
        """What stands under the key."""
        found: Row | None = self.client.get_item(TableName=TABLE, Key={"key": {"S": KEY}}, ConsistentRead=True).get(
            "Item"
        )
        return found


@pytest.fixture(scope="module")
def place(endpoint: str) -> Iterator[Place]:
    """Make the table."""
    with bare_table(endpoint, TABLE) as client:
        yield Place(client)


@pytest.fixture(scope="module")
def stores(endpoint: str, place: Place) -> Iterator[dict[str, DynamoDBStore]]:
    """Open a store for each dialect; they write the time of the tests."""
    opened = {name: DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint, dialect=name) for name in DIALECTS}  # type: ignore[arg-type]  # names of dialects
    for name, store in opened.items():
        store._verbs.rows = ROWS[name]
    yield opened
    for store in opened.values():
        store.close()


def send(store: DynamoDBStore, verb: Claim | Replace | Release) -> Any:
    """Send *verb* as what it is."""
    match verb:
        case Claim():
            return store.claim(verb, timeout_s=10)
        case Replace():
            return store.replace(verb, timeout_s=10)
        case Release():
            return store.release(verb, timeout_s=10)


def named(case: Transition) -> str:
    """Return the id of a test."""
    return f"{case.dialect}-{case.name}"


@pytest.mark.parametrize("case", TRANSITIONS, ids=named)
def test_a_transition_leaves_the_row_of_the_file(
    place: Place, stores: dict[str, DynamoDBStore], case: Transition
) -> None:
    """Byte for byte, type for type; and the answer is the record that a read then shows."""
    place.put(case.before)

    reply = send(stores[case.dialect], case.asked)

    assert reply.applied
    assert place.row == case.after
    if case.after is not None:
        assert reply.record == ROWS[case.dialect].record(case.after)
        assert reply.record == stores[case.dialect].read(KEY, timeout_s=10)
    assert (reply.record.rvn, reply.record.state) == (case.asked.record.rvn, case.asked.record.state)


@pytest.mark.parametrize("case", [case for case in TRANSITIONS if case.before], ids=named)
def test_a_transition_is_refused_where_the_number_has_changed(
    place: Place, stores: dict[str, DynamoDBStore], case: Transition
) -> None:
    """By any other client, at any moment before; and then nothing is changed."""
    before = dict(case.before or {})
    if "guid" in before:
        before["guid"] = {"B": bytes(range(1, 65))}
    else:
        before["recordVersionNumber"] = {"S": "another number"}
    if isinstance(case.asked, Claim) and case.asked.expect is Expect.ANY:
        before |= {"isReleased": {"S": "1"}} if case.dialect == "awslabs" else {}
        shown = ROWS[case.dialect].record(case.before)
        write = ROWS[case.dialect].take(case.asked, shown.version, shown.fencing_token + 1)
        place.put(before)
        with pytest.raises(place.client.exceptions.ConditionalCheckFailedException):
            getattr(place.client, write.operation)(**write.request)
    else:
        place.put(before)
        reply = send(stores[case.dialect], case.asked)
        assert not reply.applied
        assert reply.record == ROWS[case.dialect].record(before)
    assert place.row == before


@pytest.mark.parametrize(
    ("dialect", "name", "row", "record"), READINGS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_row_of_theirs_is_read(dialect: str, name: str, row: Row, record: LockRecord) -> None:
    """As the record that it is."""
    assert ROWS[dialect].record(row) == record


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_row_of_nobody_is_named_and_never_touched(
    place: Place, stores: dict[str, DynamoDBStore], stranger: tuple[str, str, Row, str]
) -> None:
    """Damaged or another program's: every verb says which key and what is wrong, and none takes it for free."""
    dialect, _, row, says = stranger
    place.put(row)
    store = stores[dialect]
    seen = Version(number_of(row), NO_TOKEN if dialect != "node-fail-open" else 7)
    lease_ms = None if dialect == "node-fail-closed" else 20_000
    held = LockRecord(KEY, State.HELD, FRESH, 1, "o", lease_ms)
    renewed = dataclasses.replace(held, fencing_token=seen.fencing_token)
    free = LockRecord(KEY, State.FREE, FRESH, 7, "", None)
    verbs: list[Callable[[], object]] = [
        lambda: store.read(KEY, timeout_s=10),
        lambda: store.claim(Claim(held, Expect.ANY), timeout_s=10),
        lambda: store.claim(Claim(held, Expect.ANY, must_exist=True), timeout_s=10),
        lambda: store.claim(Claim(held, Expect.ABSENT), timeout_s=10),
        lambda: store.claim(Claim(held, seen), timeout_s=10),
        lambda: store.replace(Replace(held, seen, keep_payload=True), timeout_s=10),
        lambda: store.replace(Replace(held, seen), timeout_s=10),
        lambda: store.release(Release(free, seen, keep_payload=True), timeout_s=10),
        lambda: list(store.scan(KEY, timeout_s=10)),
        lambda: raised(store.replace_many([Replace(renewed, seen, keep_payload=True)], timeout_s=10)),
    ]

    for verb in verbs:
        with pytest.raises(RecordError, match=KEY) as caught:
            verb()
        assert says in str(caught.value)
    assert place.row == row


def number_of(row: Row) -> str:
    """Return the version number of *row* as the dialect would read it, so that only what is wrong can refuse."""
    if "recordVersionNumber" in row:
        return from_text(str(row["recordVersionNumber"].get("S", "x")))
    guid = row.get("guid", {}).get("B", b"")
    return guid.decode("latin-1") if len(guid) == 64 else FRESH


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_files_have_every_transition(dialect: str) -> None:
    """So that a case that is lost from a file is missed."""
    least = {"awslabs": (24, 7, 20), "node-fail-open": (12, 3, 14), "node-fail-closed": (6, 2, 5)}[dialect]

    assert tuple(len(part) for part in content(dialect).values()) == least


@pytest.mark.parametrize("rvn", [FRESH, FRESH.upper(), "r", "f" * 31, "0123456789abcdef" * 4])
def test_a_number_comes_back_from_a_row_of_java(rvn: str) -> None:
    """Ours are written as UUIDs."""
    assert from_text(to_text(rvn)) == rvn


@pytest.mark.parametrize("text", [FRESH, to_text(FRESH), to_text(FRESH).upper(), "r", "=r", "=" + FRESH, "x" * 63])
def test_a_number_of_theirs_is_compared_as_it_is(text: str) -> None:
    """Whatever they write, what we expect is exactly that again."""
    assert to_text(from_text(text)) == text


def test_a_number_of_ours_looks_like_one_of_java() -> None:
    """36 characters, as a UUID is written."""
    assert to_text(FRESH) == "feedface-feed-face-feed-facefeedface"


@pytest.mark.parametrize("guid", [bytes(64), bytes(range(64)), b"\xff" * 64, b"x" * 16 + bytes(48)])
def test_a_guid_comes_back(guid: bytes) -> None:
    """Any 64 bytes are a number of at most 64 characters, and are written as they were."""
    assert to_guid(from_guid(guid)) == guid
    assert len(from_guid(guid)) <= 64


def test_a_heartbeat_never_revives_a_row_that_java_released(place: Place, stores: dict[str, DynamoDBStore]) -> None:
    """Java marks the row without changing its number; our renewal of that number is refused and shows a free row."""
    made = {"ownerName": {"S": "o"}, "leaseDuration": {"S": "20000"}, "recordVersionNumber": {"S": to_text(FRESH)}}
    place.put({"key": {"S": KEY}, **made, "isReleased": {"S": "1"}})
    before = place.row

    renewal = Replace(LockRecord(KEY, State.HELD, "0" * 32, NO_TOKEN, "o", 20_000), Version(FRESH, NO_TOKEN), True)
    reply = stores["awslabs"].replace(renewal, timeout_s=10)

    assert reply.record is not None
    assert (reply.applied, reply.record.state) == (False, State.FREE)
    assert stores["awslabs"].replace_many([renewal], timeout_s=10) == [reply]
    assert place.row == before


def test_an_untrusted_mark_is_held_until_its_lease_has_passed(place: Place, endpoint: str) -> None:
    """A claim is refused; a takeover of that number is applied and clears the mark; a renewal is not."""
    store = DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint, dialect="awslabs", trust_release_mark=False)
    made = {"ownerName": {"S": "o"}, "leaseDuration": {"S": "20000"}, "recordVersionNumber": {"S": to_text(FRESH)}}
    place.put({"key": {"S": KEY}, **made, "isReleased": {"S": "1"}})
    held = LockRecord(KEY, State.HELD, "0" * 32, 1, "us", 20_000)
    seen = Version(FRESH, NO_TOKEN)

    claims = [store.claim(Claim(held, expect), timeout_s=10) for expect in (Expect.ANY, Expect.ABSENT, seen)]
    renewal = store.replace(Replace(dataclasses.replace(held, fencing_token=NO_TOKEN), seen), timeout_s=10)
    taken = store.replace(Replace(held, seen, keep_payload=True), timeout_s=10)

    assert [(reply.applied, reply.record.state) for reply in (*claims, renewal)] == [(False, State.HELD)] * 4  # type: ignore[union-attr]
    assert taken.applied
    row = place.row
    assert row is not None
    assert "isReleased" not in row
    store.close()


def test_what_a_claim_costs(place: Place, endpoint: str) -> None:
    """One request where no row stands, two where a released one does; a renewal and a release are one."""
    seen: list[str] = []
    store = DynamoDBStore(watched(seen), table=TABLE, endpoint_url=endpoint, dialect="awslabs")
    place.put(None)
    held = LockRecord(KEY, State.HELD, FRESH, 1, "us", 20_000)

    first = store.claim(Claim(held, Expect.ANY), timeout_s=10).record
    assert first is not None
    store.release(Release(LockRecord(KEY, State.FREE, "0" * 32, NO_TOKEN, "", None), first.version, True), timeout_s=10)
    store.claim(Claim(dataclasses.replace(held, rvn="1" * 32), Expect.ANY), timeout_s=10)

    assert seen == ["PutItem", "UpdateItem", "PutItem", "PutItem"]
    store.close()


SORTED: dict[str, Any] = {"partition_key": "pk", "sort_key": "sk", "sort_key_separator": "/"}


def test_a_key_may_name_both_parts(endpoint: str) -> None:
    """Split at the first separator; a scan with a prefix finds partitions by their beginning and one partition's rows by theirs."""
    store = DynamoDBStore(session(), table="dlock-tests-both", endpoint_url=endpoint, dialect="awslabs", **SORTED)
    store.provision()
    for key in ("a/1", "a/2/x", "ab/1"):
        assert store.claim(Claim(LockRecord(key, State.HELD, FRESH, 1, "us", 20_000), Expect.ANY), timeout_s=10).applied
    client = session().client("dynamodb", endpoint_url=endpoint)
    stored = client.get_item(TableName="dlock-tests-both", Key={"pk": {"S": "a"}, "sk": {"S": "2/x"}})["Item"]

    found = {
        prefix: sorted(record.key for record in store.scan(prefix, timeout_s=10)) for prefix in ("", "a", "a/", "a/2")
    }

    assert stored["recordVersionNumber"] == {"S": to_text(FRESH)}
    assert found == {
        "": ["a/1", "a/2/x", "ab/1"],
        "a": ["a/1", "a/2/x", "ab/1"],
        "a/": ["a/1", "a/2/x"],
        "a/2": ["a/2/x"],
    }
    with pytest.raises(StoreSetupError, match="must name a partition key and a sort key"):
        store.read("a", timeout_s=10)
    client.put_item(TableName="dlock-tests-both", Item={"pk": {"S": "a/b"}, "sk": {"S": "c"}})
    with pytest.raises(RecordError, match="separator"):
        list(store.scan("a", timeout_s=10))
    client.delete_table(TableName="dlock-tests-both")
    client.close()
    store.close()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("dialect=java", "dialect"),
        ("sort_key=sk&sort_key_separator=/", "for the dialects of other clients"),
        ("dialect=awslabs&sort_key_separator=/", "needs the name of the sort key"),
        ("dialect=node-fail-open&trust_release_mark=false", "dialect=awslabs"),
        ("dialect=node-fail-closed&sort_key=sk", "no sort key"),
        ("dialect=awslabs&partition_key=ownerName", "attribute of the record"),
        ("dialect=node-fail-open&partition_key=guid", "attribute of the record"),
    ],
)
def test_options_that_a_dialect_has_not_are_refused(query: str, told: str) -> None:
    """When the URL is read."""
    with pytest.raises(ConfigurationError, match=told):
        DynamoDBStoreOptions.from_url(f"dynamodb://eu-west-1/locks?{query}")


def test_key_attributes_are_free_where_the_dialect_has_no_such_attribute() -> None:
    """``owner`` is an attribute of our rows, and none of Java's."""
    assert (
        DynamoDBStoreOptions.from_url("dynamodb://r/locks?dialect=awslabs&partition_key=owner").partition_key == "owner"
    )


@pytest.mark.parametrize(
    ("dialect", "asked", "name"),
    [
        ("awslabs", {"fail_closed": True}, "fail_closed"),
        ("awslabs", {"attributes": {"isReleased": "1"}}, "attributes.isReleased"),
        ("awslabs", {"token_floor": 7}, "token_floor"),
        ("awslabs", {"clock_skew": 2}, "clock_skew"),
        ("awslabs", {"owner_probe": "same-host"}, "owner_probe"),
        ("node-fail-open", {"fail_closed": True}, "fail_closed"),
        ("node-fail-open", {"data": b""}, "data"),
        ("node-fail-open", {"attributes": {"a": 1}}, "attributes"),
        ("node-fail-open", {"delete_on_release": True}, "delete_on_release"),
        ("awslabs", {"clock_skew": 1}, "clock_skew"),
        ("node-fail-open", {"owner_probe": "same-host"}, "owner_probe"),
        ("node-fail-closed", {}, "lease_duration"),
        ("node-fail-closed", {"fail_closed": True, "data": b"x"}, "data"),
        ("node-fail-closed", {"fail_closed": True, "only_if_exists": True}, "only_if_exists"),
    ],
)
def test_an_option_that_the_rows_have_no_place_for_is_refused_when_the_client_is_built(
    stores: dict[str, DynamoDBStore], dialect: str, asked: dict[str, Any], name: str
) -> None:
    """Not in the middle of a call; and the reason is told."""
    with pytest.raises(UnsupportedError, match=rf"^{name} cannot be had from this store: "):
        LockClient(stores[dialect], **asked)


@pytest.mark.parametrize("dialect", ["dlock", "awslabs", "node-fail-open"])
def test_the_servers_clock_is_refused_with_the_reason(endpoint: str, place: Place, dialect: Dialect) -> None:
    """No row of DynamoDB can tell when the server wrote it; the message says so, and what there is instead."""
    store = DynamoDBStore(session(), table=TABLE, endpoint_url=endpoint, dialect=dialect)
    with closing(store), pytest.raises(UnsupportedError, match="expressions know no time of the server; use clock_sk"):
        LockClient(store, server_clock=True)


def test_data_is_refused_in_a_call_before_anything_is_sent(stores: dict[str, DynamoDBStore], place: Place) -> None:
    """Of a lock, of a renewal and of a release."""
    place.put(None)
    with LockClient(stores["node-fail-open"]) as client:
        with pytest.raises(UnsupportedError, match=r"^data"):
            client.acquire(KEY, data=b"x")
        assert place.row is None
        with client.lock(KEY) as lease:
            before = place.row
            for change in (lease.renew, lease.release):
                with pytest.raises(UnsupportedError, match=r"^data"):
                    change(data=b"x")
            assert place.row == before


def test_each_dialect_says_what_it_cannot_promise(stores: dict[str, DynamoDBStore]) -> None:
    """Tokens that are none are not of grade A; deletions only where no token is lost by them."""
    said = {name: store.guarantees() for name, store in stores.items()}

    assert {name: (found.token, found.grade.value, found.deletes) for name, found in said.items()} == {
        "awslabs": (TokenOrder.NONE, "B", True),
        "node-fail-open": (TokenOrder.ORDERED, "A", False),
        "node-fail-closed": (TokenOrder.NONE, "B", True),
    }
    assert all(name in found.version for name, found in said.items())


def test_no_token_stays_itself_through_pickle_and_copy() -> None:
    """A zero that was read from somewhere is damage, and this one is not."""
    import copy
    import pickle

    record = LockRecord(KEY, State.HELD, FRESH, NO_TOKEN, "o", 1)

    assert pickle.loads(pickle.dumps(record)) == record  # noqa: S301  # our own bytes
    assert copy.deepcopy(record).fencing_token is NO_TOKEN
    with pytest.raises(RecordError, match="fencing token 0"):
        LockRecord(KEY, State.HELD, FRESH, 0, "o", 1)
