"""The store on a real DynamoDB Local: exact records, tokens, and rows of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlock_core.errors import RecordError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, Broken, ProcessIdentity, Stamp, State, Version, newer_format
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import TABLE, claimed, record

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
