"""The table of the DynamoDB store, and the life of a store on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_core.record import State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions
from tests.dynamodb.store_support import OpenStore
from tests.dynamodb.support import TABLE, claimed, record, session, watched


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
        raw.delete_table(TableName="dlock-tests-sorted")

    def test_connect_makes_a_missing_table_where_it_is_told_to(self, open_store: OpenStore) -> None:
        """``client.provision()`` can't be reached without the table; the message says both ways to make it."""
        name = f"dlock-tests-{secrets.token_hex(8)}"
        options = open_store().options
        url = f"dynamodb://{options.region}/{name}?endpoint_url={quote(str(options.endpoint_url), safe='')}"

        with pytest.raises(StoreSetupError, match=rf"'dlock init --url dynamodb://.*{name}.*provision=True") as caught:
            connect(url)
        with connect(url, provision=True) as client, client.lock("k") as lease:
            assert lease.is_valid
        with connect(url) as client:
            assert client.get("k") is not None
        assert "dlock init" in str(caught.value)

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

    def test_a_missing_table_names_the_region_that_was_asked(self, open_store: OpenStore) -> None:
        """Where that is a wrong one, a table that is made there grants what is held by the one that was meant."""
        with pytest.raises(StoreSetupError, match="'dlock-tests-missing' in region 'eu-west-9' is missing"):
            open_store(table="dlock-tests-missing", region="eu-west-9").guarantees()

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
        config = store._link.fit(4.0).meta.config
        store.close()

        assert sent == []
        assert config.retries == {"total_max_attempts": 1, "mode": "legacy"}
        assert (config.connect_timeout, config.read_timeout) == (2.0, 4.0)
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
