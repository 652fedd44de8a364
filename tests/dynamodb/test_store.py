"""The store on a real DynamoDB Local: each verb one request, and what is written is what is read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dlock_core.errors import RecordError, StoreSetupError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, Version, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions
from dlock_dynamodb.provision import policy
from tests.dynamodb.support import TABLE, claimed, record, session, watched

OpenStore = Callable[..., DynamoDBStore]

ATTRIBUTES = (
    ("biggest", 2**63 - 1),
    ("empty bytes", b""),
    ("empty text", ""),
    ("false", False),
    ("least", -(2**63) + 1),
    ("one", 1),
    ("true", True),
    ("zero", 0),
    ("Ünïcødé 🔒\u0000", "a\u0000ß🔒"),
)
FULL: dict[str, Any] = {
    "stamp": Stamp(1_700_000_000_000, "some rvn"),
    "process": ProcessIdentity("boot", 4026531836, 17, 2**62, 18),
    "broken": Broken("operator", 3),
}


class TestExactness:
    """What is read is what was written."""

    @pytest.mark.parametrize("data", [None, b"", b"\x00\xff", bytes(64 * 1024)], ids=["none", "empty", "binary", "64k"])
    def test_data_of_every_kind_comes_back(self, store: DynamoDBStore, key: str, data: bytes | None) -> None:
        """None is not empty, and 64 KiB fit."""
        written = claimed(store, key, data=data)

        assert written.data == data
        assert store.read(key, timeout_s=10) == written

    def test_every_field_comes_back(self, store: DynamoDBStore, key: str) -> None:
        """Booleans stay booleans, integers keep all 64 bits, optional parts keep their members."""
        asked = record(key, attributes=ATTRIBUTES, data=b"x", token=2**52, **FULL)

        reply = store.claim(Claim(asked, Expect.ANY), timeout_s=10)

        assert reply == Reply(applied=True, record=asked)
        assert store.read(key, timeout_s=10) == asked
        assert [type(value) for _, value in asked.attributes] == [
            type(value)
            for _, value in reply.record.attributes  # type: ignore[union-attr]
        ]

    def test_a_part_without_its_optional_member_comes_back(self, store: DynamoDBStore, key: str) -> None:
        """A process without a child group, a fail-closed lease."""
        asked = record(key, lease_ms=None, process=ProcessIdentity("boot", 1, 2, 3))

        assert store.claim(Claim(asked, Expect.ANY), timeout_s=10).record == asked
        assert store.read(key, timeout_s=10) == asked

    @pytest.mark.parametrize("suffix", ["é", "e\u0301", "🔒", " ", "'\"#:?*%", "x" * 1000])
    def test_keys_are_opaque(self, store: DynamoDBStore, key: str, suffix: str) -> None:
        """Composed and decomposed letters are two keys; quotation marks and wildcards are letters."""
        written = claimed(store, key + suffix)

        assert store.read(key + suffix, timeout_s=10) == written
        assert store.read(key, timeout_s=10) is None
        assert list(store.scan(key + suffix, timeout_s=10)) == [written]

    def test_attributes_of_others_on_our_item_stay(self, store: DynamoDBStore, raw: Any, key: str) -> None:
        """A column that somebody adds to our item is neither read nor lost."""
        held = claimed(store, key)
        names = {"#n": "note"}
        raw.update_item(
            TableName=TABLE,
            Key={"key": {"S": key}},
            UpdateExpression="SET #n = :n",
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={":n": {"S": "theirs"}},
        )

        freed = store.release(Release(record(key, State.FREE), held.version), timeout_s=10)
        again = claimed(store, key)

        assert freed.applied
        assert again.fencing_token == 2
        assert raw.get_item(TableName=TABLE, Key={"key": {"S": key}})["Item"]["note"] == {"S": "theirs"}


class TestPayload:
    """Clause S4, through the one expression that decides it in the server."""

    @pytest.mark.parametrize("old", [None, b"old"], ids=["none", "old"])
    def test_a_claim_that_keeps_has_the_data_of_the_free_record(
        self, store: DynamoDBStore, key: str, old: bytes | None
    ) -> None:
        """Also when that had none: it is not filled up with the new."""
        held = claimed(store, key, data=old)
        store.release(Release(record(key, State.FREE), held.version, keep_payload=True), timeout_s=10)

        reply = store.claim(Claim(record(key, data=b"new"), Expect.ANY, keep_payload=True), timeout_s=10)

        assert reply.record is not None
        assert reply.record.data == old

    def test_a_claim_that_keeps_has_nothing_of_a_gone_record(self, store: DynamoDBStore, key: str) -> None:
        """What is gone is shown with its payload, and does not hand it on."""
        held = claimed(store, key, data=b"old")
        gone = store.release(Release(record(key, State.GONE), held.version, keep_payload=True), timeout_s=10)

        reply = store.claim(Claim(record(key, data=b"new"), Expect.ANY, keep_payload=True), timeout_s=10)
        freed = store.release(Release(record(key, State.FREE, 2), reply.record.version), timeout_s=10)  # type: ignore[union-attr]
        last = store.claim(Claim(record(key, data=b"last"), Expect.ANY, keep_payload=True), timeout_s=10)

        assert gone.record is not None
        assert gone.record.data == b"old"
        assert reply.record is not None
        assert reply.record.data == b"new"
        assert freed.applied
        assert last.record is not None
        assert last.record.data is None


class TestToken:
    """Clause S3: max(previous + 1, asked), although expressions have no maximum."""

    @pytest.mark.parametrize(("before", "asked", "minted"), [(7, 1, 8), (7, 7, 8), (7, 8, 8), (7, 9, 9), (7, 3, 8)])
    @pytest.mark.parametrize("named", [False, True], ids=["any", "version"])
    def test_the_token_is_the_greater_of_next_and_asked(  # noqa: PLR0917  # pytest passes names
        self, store: DynamoDBStore, key: str, before: int, asked: int, minted: int, named: bool
    ) -> None:
        """Whether the claim names the version that it expects or takes any."""
        held = claimed(store, key, token=before)
        freed = store.release(Release(record(key, State.FREE, before), held.version), timeout_s=10).record
        assert freed is not None

        reply = store.claim(Claim(record(key, token=asked), freed.version if named else Expect.ANY), timeout_s=10)

        assert reply.record is not None
        assert reply.record.fencing_token == minted

    @pytest.mark.parametrize("asked", [1, 5])
    def test_a_new_key_has_the_token_asked_for(self, store: DynamoDBStore, key: str, asked: int) -> None:
        """There is nothing to count on from."""
        reply = store.claim(Claim(record(key, token=asked), Expect.ABSENT), timeout_s=10)

        assert reply.record is not None
        assert reply.record.fencing_token == asked

    @pytest.mark.parametrize("asked", [1, 9, TOKEN_MAX])
    @pytest.mark.parametrize("named", [False, True], ids=["any", "version"])
    def test_a_spent_token_is_an_error(self, store: DynamoDBStore, key: str, asked: int, named: bool) -> None:
        """There is no number above the last; nothing is written."""
        held = claimed(store, key, token=TOKEN_MAX)
        freed = store.release(Release(record(key, State.FREE, TOKEN_MAX), held.version), timeout_s=10).record
        assert freed is not None

        with pytest.raises(StoreUnavailableError, match="reached its end"):
            store.claim(Claim(record(key, token=asked), freed.version if named else Expect.ANY), timeout_s=10)

        assert store.read(key, timeout_s=10) == freed


class TestForeign:
    """What is not ours is neither absent nor free, and stays as it is."""

    @pytest.mark.parametrize(
        "damage",
        [
            "REMOVE v",
            "SET v = :zero",
            "SET v = :text",
            "REMOVE rvn",
            "SET rvn = :zero",
            "SET #s = :text",
            "REMOVE #t",
            "SET #t = :text",
            "SET #t = :zero",
            "REMOVE #o",
            "SET #o = :zero",
            "SET lease_ms = :text",
            "REMOVE lease_ms",
            "SET payload = :text",
            "REMOVE payload",
            "SET context = :zero",
            "REMOVE context",
        ],
    )
    @pytest.mark.parametrize("state", [State.FREE, State.HELD])
    def test_a_damaged_record_raises_and_stays(
        self, store: DynamoDBStore, raw: Any, key: str, damage: str, state: State
    ) -> None:
        """Every attribute that is missing or of another type is met by the conditions of all writes."""
        held = claimed(store, key)
        if state is State.FREE:
            store.release(Release(record(key, State.FREE), held.version), timeout_s=10)
        values = {":zero": {"N": "0"}, ":text": {"S": "hello"}}
        names = {"#s": "state", "#t": "token", "#o": "owner"}
        raw.update_item(
            TableName=TABLE,
            Key={"key": {"S": key}},
            UpdateExpression=damage,
            **({"ExpressionAttributeNames": used} if (used := {n: v for n, v in names.items() if n in damage}) else {}),
            **(
                {"ExpressionAttributeValues": given}
                if (given := {n: v for n, v in values.items() if n in damage})
                else {}
            ),
        )
        before = raw.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True)["Item"]

        calls: list[Callable[[], object]] = [
            lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10),
            lambda: store.claim(Claim(record(key, token=9), Expect.ANY), timeout_s=10),
            lambda: store.claim(Claim(record(key), Version("other", 1)), timeout_s=10),
            lambda: store.replace(Replace(record(key), held.version), timeout_s=10),
            lambda: store.replace(Replace(record(key), held.version, keep_payload=True), timeout_s=10),
            lambda: store.release(Release(record(key, State.FREE), held.version), timeout_s=10),
            lambda: store.read(key, timeout_s=10),
            lambda: list(store.scan(key, timeout_s=10)),
        ]
        for call in calls:
            with pytest.raises(RecordError, match=key):
                call()
        [result] = store.replace_many([Replace(record(key), held.version)], timeout_s=10)

        assert isinstance(result, RecordError)
        assert raw.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True)["Item"] == before

    def test_an_item_of_another_client_raises_and_stays(self, store: DynamoDBStore, raw: Any, key: str) -> None:
        """The Java client's row has none of our attributes: by ours alone it would look absent."""
        theirs = {
            "key": {"S": key},
            "ownerName": {"S": "host"},
            "leaseDuration": {"S": "20000"},
            "recordVersionNumber": {"S": "x"},
        }
        raw.put_item(TableName=TABLE, Item=theirs)

        for expect in (Expect.ANY, Expect.ABSENT, Version("x", 1)):
            with pytest.raises(RecordError, match="another program's"):
                store.claim(Claim(record(key), expect), timeout_s=10)

        assert raw.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True)["Item"] == theirs

    def test_a_record_of_a_newer_format_is_held_and_stays(self, store: DynamoDBStore, raw: Any, key: str) -> None:
        """Whatever else it says: it may have no owner and no lease any more."""
        theirs = {"key": {"S": key}, "v": {"N": "2"}, "rvn": {"S": "r"}, "token": {"N": "7"}, "state": {"S": "free"}}
        raw.put_item(TableName=TABLE, Item=theirs)
        shown = newer_format(key, 2, "r", 7)

        assert store.read(key, timeout_s=10) == shown
        assert store.claim(Claim(record(key), Expect.ANY), timeout_s=10) == Reply(applied=False, record=shown)
        assert store.replace(Replace(record(key), shown.version), timeout_s=10) == Reply(applied=False, record=shown)
        assert store.replace_many([Replace(record(key), shown.version)], timeout_s=10) == [
            Reply(applied=False, record=shown)
        ]
        assert list(store.scan(key, timeout_s=10)) == [shown]
        assert raw.get_item(TableName=TABLE, Key={"key": {"S": key}}, ConsistentRead=True)["Item"] == theirs

    def test_a_scan_shows_the_others_before_it_complains(self, store: DynamoDBStore, raw: Any, key: str) -> None:
        """One bad row hides no lock."""
        ours = {claimed(store, f"{key}/{number}").rvn for number in range(3)}
        raw.put_item(TableName=TABLE, Item={"key": {"S": f"{key}/0bad"}})
        seen: set[str] = set()

        with pytest.raises(RecordError, match="0bad"):
            seen.update(found.rvn for found in _noting(store, key, seen))

        assert seen == ours


def _noting(store: DynamoDBStore, prefix: str, seen: set[str]) -> Any:
    for found in store.scan(prefix, timeout_s=10):
        seen.add(found.rvn)
        yield found


class TestRequests:
    """Each verb is one request, and nothing else is ever sent."""

    def test_each_verb_is_one_request_granted_or_refused(self, open_store: OpenStore, key: str) -> None:
        """The refusal carries the record, so nobody asks again."""
        seen: list[str] = []
        store = open_store(watched(seen))
        held = claimed(store, key)
        stale = Version("stale", 1)

        steps: list[tuple[str, Callable[[], object]]] = [
            ("UpdateItem", lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10)),
            ("UpdateItem", lambda: store.claim(Claim(record(key), Expect.ABSENT), timeout_s=10)),
            ("UpdateItem", lambda: store.claim(Claim(record(key + "x"), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.replace(Replace(record(key), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.replace(Replace(record(key + "x"), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.release(Release(record(key, State.FREE), stale), timeout_s=10)),
            ("GetItem", lambda: store.read(key, timeout_s=10)),
            ("GetItem", lambda: store.read(key + "x", timeout_s=10)),
            ("BatchExecuteStatement", lambda: store.replace_many([Replace(record(key), stale)], timeout_s=10)),
            ("Scan", lambda: list(store.scan(key, timeout_s=10))),
            ("UpdateItem", lambda: store.release(Release(record(key, State.FREE), held.version), timeout_s=10)),
        ]
        for operation, step in steps:
            seen.clear()
            step()
            assert seen == [operation]

    def test_the_policy_allows_what_is_called_and_nothing_else(self, open_store: OpenStore, raw: Any, key: str) -> None:
        """Every operation of the store is in the policy, and every action of the policy is used."""
        seen: list[str] = []
        store = open_store(watched(seen))
        held = claimed(store, key)
        store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        held = store.replace(Replace(record(key), held.version), timeout_s=10).record or held
        store.replace_many([Replace(record(key), Version("stale", 1))], timeout_s=10)
        store.read(key, timeout_s=10)
        list(store.scan(key, timeout_s=10))
        store.release(Release(record(key, State.GONE), held.version), timeout_s=10)
        store.guarantees()
        used = {f"dynamodb:{'PartiQLUpdate' if name == 'BatchExecuteStatement' else name}" for name in seen}
        seen.clear()
        made = open_store(watched(seen), table="dlock-tests-policy")
        made.provision()
        raw.delete_table(TableName="dlock-tests-policy")

        locking, making = policy(store.options, account="1"), policy(store.options, account="1", provision=True)

        assert set(locking["Statement"][0]["Action"]) == used
        assert set(making["Statement"][0]["Action"]) == used | {f"dynamodb:{name}" for name in seen}
        assert locking["Statement"][0]["Resource"] == f"arn:aws:dynamodb:eu-west-1:1:table/{TABLE}"

    @pytest.mark.parametrize("limit", [1, 3])
    def test_a_scan_goes_through_all_pages(self, open_store: OpenStore, key: str, limit: int) -> None:
        """Pages that the filter left empty do not end it."""
        pages: list[str] = []
        paging = watched(pages)
        paging.events.register("provide-client-params.dynamodb.Scan", lambda params, **_: params | {"Limit": limit})
        store = open_store(paging)
        ours = {claimed(store, f"{key}/{number}").rvn for number in range(7)}
        pages.clear()

        assert {found.rvn for found in store.scan(f"{key}/", timeout_s=10)} == ours
        assert len(pages) > 7 // limit


class TestRaces:
    """Clause S1 on the real server."""

    def test_eight_threads_claim_and_one_wins_each_round(self, store: DynamoDBStore, key: str) -> None:
        """A hundred rounds, released in between: tokens count on without a gap."""
        tokens = []
        for _ in range(100):
            replies = _at_once([lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10)] * 8)
            [winner] = [reply.record for reply in replies if reply.applied]
            assert winner is not None
            assert all(reply.record == winner for reply in replies)
            tokens.append(winner.fencing_token)
            store.release(Release(record(key, State.FREE, winner.fencing_token), winner.version), timeout_s=10)

        assert tokens == list(range(1, 101))

    def test_eight_threads_take_over_and_one_wins_each_round(self, store: DynamoDBStore, key: str) -> None:
        """By UpdateItem and by batch in the same race."""
        held = claimed(store, key)
        for _ in range(100):
            standing = held

            def alone(standing: LockRecord = standing) -> Reply:
                asked = record(key, token=standing.fencing_token + 1)
                return store.replace(Replace(asked, standing.version), timeout_s=10)

            def batch(standing: LockRecord = standing) -> Reply:
                asked = record(key, token=standing.fencing_token + 1)
                [result] = store.replace_many([Replace(asked, standing.version)], timeout_s=10)
                assert isinstance(result, Reply)
                return result

            replies = _at_once([alone, batch] * 4)
            [winner] = [reply.record for reply in replies if reply.applied]
            assert winner is not None
            held = winner

        assert held.fencing_token == 101


def _at_once(calls: list[Callable[[], Reply]]) -> list[Reply]:
    barrier, replies = threading.Barrier(len(calls)), []

    def contend(call: Callable[[], Reply]) -> None:
        barrier.wait(30)
        replies.append(call())

    threads = [threading.Thread(target=contend, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(replies) == len(calls)
    return replies


class TestBatch:
    """Clauses B1 to B3."""

    def test_a_full_batch_has_a_result_for_each(self, store: DynamoDBStore, key: str) -> None:
        """Granted, stolen, released, absent and foreign ones in one request touch each other not."""
        held = [claimed(store, f"{key}/{number}", data=b"x") for number in range(24)]
        store.release(Release(record(held[3].key, State.FREE), held[3].version), timeout_s=10)
        thief = store.replace(Replace(record(held[5].key, token=2), held[5].version), timeout_s=10).record
        requests = [
            Replace(record(old.key, data=b"y", token=1 + (number == 7)), old.version, keep_payload=number % 2 == 0)
            for number, old in enumerate(held)
        ]

        results = store.replace_many([*requests, Replace(record(f"{key}/absent"), Version("r", 1))], timeout_s=10)

        replies = [result for result in results if isinstance(result, Reply)]
        assert len(replies) == 25
        assert [number for number, reply in enumerate(replies) if not reply.applied] == [3, 5, 24]
        assert replies[5].record == thief
        assert replies[24].record is None
        for number in set(range(24)) - {3, 5}:
            reply = replies[number]
            assert reply.record is not None
            assert reply.record.rvn == requests[number].record.rvn
            assert reply.record.data == (b"x" if number % 2 == 0 else b"y")
            assert reply.record == store.read(reply.record.key, timeout_s=10)
        assert replies[7].record is not None
        assert replies[7].record.fencing_token == 2

    def test_a_batch_with_a_release_in_it_is_done_one_by_one(self, open_store: OpenStore, key: str) -> None:
        """A statement can't move a payload; a break that frees is rare."""
        seen: list[str] = []
        store = open_store(watched(seen))
        first, second = claimed(store, f"{key}/1", data=b"x"), claimed(store, f"{key}/2")
        seen.clear()

        results = store.replace_many(
            [
                Replace(record(first.key, State.GONE, 2), first.version, keep_payload=True),
                Replace(record(second.key), second.version),
            ],
            timeout_s=10,
        )

        assert all(isinstance(result, Reply) and result.applied for result in results)
        assert seen == ["UpdateItem"] * 2


class TestTables:
    """Other key attributes, and what is told when the table does not fit."""

    def test_a_table_with_a_sort_key_holds_other_items_beside_ours(
        self, open_store: OpenStore, raw: Any, key: str
    ) -> None:
        """An item of another kind under the same partition key is not in the way, and not seen."""
        store = open_store(table="dlock-tests-sorted", partition_key="PK", sort_key="SK", sort_key_value="lock")
        store.provision()
        raw.put_item(TableName="dlock-tests-sorted", Item={"PK": {"S": key}, "SK": {"S": "profile"}})

        held = claimed(store, key)
        [renewed] = store.replace_many([Replace(record(key), held.version)], timeout_s=10)

        assert isinstance(renewed, Reply)
        assert renewed.applied
        assert renewed.record is not None
        assert store.read(key, timeout_s=10) == renewed.record
        assert list(store.scan(key, timeout_s=10)) == list(store.scan("", timeout_s=10)) == [renewed.record]
        freed = store.release(Release(record(key, State.FREE), renewed.record.version), timeout_s=10)
        assert freed.applied
        assert store.guarantees().unsafe == ()

    def test_a_missing_table_names_the_command(self, open_store: OpenStore, key: str) -> None:
        """No verb makes it."""
        store = open_store(table="dlock-tests-missing")
        calls: list[Callable[[], object]] = [
            lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10),
            lambda: store.replace(Replace(record(key), Version("r", 1)), timeout_s=10),
            lambda: store.release(Release(record(key, State.FREE), Version("r", 1)), timeout_s=10),
            lambda: store.read(key, timeout_s=10),
            lambda: list(store.scan("", timeout_s=10)),
            store.guarantees,
        ]

        for call in calls:
            with pytest.raises(StoreSetupError, match="dlock init"):
                call()
        [result] = store.replace_many([Replace(record(key), Version("r", 1))], timeout_s=10)
        assert isinstance(result, StoreSetupError)

    def test_a_table_with_other_keys_is_told_at_once_and_by_every_verb(
        self, open_store: OpenStore, raw: Any, key: str
    ) -> None:
        """Both schemas are named; nothing is written."""
        store = open_store(partition_key="id")

        for call in (store.guarantees, store.provision):
            with pytest.raises(StoreSetupError, match=r"key \(HASH, S\).*id \(HASH, S\)"):
                call()
        with pytest.raises(StoreSetupError, match="partition_key"):
            store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        with pytest.raises(StoreSetupError, match="partition_key"):
            store.read(key, timeout_s=10)
        assert "Item" not in raw.get_item(TableName=TABLE, Key={"key": {"S": key}})

    def test_provisioning_makes_an_on_demand_table_without_time_to_live(self, open_store: OpenStore, raw: Any) -> None:
        """And a second time changes nothing."""
        store = open_store(table="dlock-tests-made")
        store.provision()
        store.provision()

        made = raw.describe_table(TableName="dlock-tests-made")["Table"]
        kept = raw.describe_time_to_live(TableName="dlock-tests-made")["TimeToLiveDescription"]
        raw.delete_table(TableName="dlock-tests-made")

        assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert made["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]
        assert kept["TimeToLiveStatus"] == "DISABLED"

    @pytest.mark.parametrize(("attribute", "unsafe"), [("expires", []), ("token", ["dynamodb-ttl"])])
    def test_time_to_live_is_told(self, open_store: OpenStore, raw: Any, attribute: str, unsafe: list[str]) -> None:
        """A note where it is on for an attribute of others, unsafe where it is ours."""
        store = open_store(table=f"dlock-tests-ttl-{attribute}")
        store.provision()
        specification = {"Enabled": True, "AttributeName": attribute}
        raw.update_time_to_live(TableName=store.options.table, TimeToLiveSpecification=specification)

        told = store.guarantees()
        raw.delete_table(TableName=store.options.table)

        assert [name for name, _ in told.unsafe] == unsafe
        assert any(attribute in text for text in (*told.notes, *(reason for _, reason in told.unsafe)))

    def test_dynamodb_local_does_not_call_itself_durable(self, store: DynamoDBStore) -> None:
        """It is told apart by the region of its resource names."""
        told = store.guarantees()

        assert (told.store, told.version, told.durable, told.deletes) == ("dynamodb", "DynamoDB Local", False, False)
        assert any("-dbPath" in note for note in told.notes)


class TestLife:
    """Clients and sessions of the user's, and the end."""

    def test_a_given_client_is_neither_used_nor_closed_nor_able_to_weaken(
        self, endpoint: str, table: str, key: str
    ) -> None:
        """Ten attempts and a minute of patience are right for others."""
        from botocore.config import Config

        patient = Config(retries={"total_max_attempts": 10, "mode": "adaptive"}, read_timeout=60, connect_timeout=60)
        client = session().client("dynamodb", endpoint_url=endpoint, config=patient)
        sent: list[object] = []
        client.meta.events.register("before-send.dynamodb", lambda request, **_: sent.append(request))
        store = DynamoDBStore(client, table=table)

        claimed(store, key)
        config = store._clients.fit(4.0).meta.config
        store.close()

        assert sent == []
        assert config.retries == {"total_max_attempts": 1, "mode": "legacy"}
        assert (config.connect_timeout, config.read_timeout) == (1.0, 2.0)
        assert "Item" in client.get_item(TableName=table, Key={"key": {"S": key}})
        assert len(sent) == 1
        client.close()

    def test_a_given_botocore_session_serves_as_well(self, endpoint: str, table: str, key: str) -> None:
        """Whoever has no boto3 session has one of botocore."""
        import botocore.session

        core = botocore.session.Session()
        core.set_credentials("testing", "testing")
        store = DynamoDBStore(core, table=table, region="eu-west-1", endpoint_url=endpoint)

        assert claimed(store, key).fencing_token == 1
        store.close()

    def test_a_closed_store_refuses_and_may_be_closed_again(self, open_store: OpenStore, key: str) -> None:
        """Nothing is sent any more."""
        seen: list[str] = []
        store = open_store(watched(seen))
        held = claimed(store, key)
        store.close()
        store.close()
        seen.clear()

        for call in (
            lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10),
            lambda: store.read(key, timeout_s=10),
            lambda: list(store.scan("", timeout_s=10)),
            lambda: store.replace_many([Replace(record(key), held.version)], timeout_s=10),
            store.guarantees,
        ):
            with pytest.raises(StoreUnavailableError, match="closed"):
                call()
        assert seen == []

    def test_options_are_kept_for_who_asks(self, store: DynamoDBStore) -> None:
        """The command prints the policy of an open store."""
        assert isinstance(store.options, DynamoDBStoreOptions)
        assert store.options.table == TABLE
