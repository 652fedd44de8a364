"""``dlock doctor`` on a table that ``connect`` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cli.operator_support import Command

if TYPE_CHECKING:
    import pytest

    from tests.dynamodb.store_support import OpenStore
    from tests.dynamodb.support import Stub

TABLE = "dlock-tests-doctor"


def test_doctor_examines_a_table_whose_records_end(
    endpoint: str, open_store: OpenStore, raw: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason, the remedy, and the name that accepts it; the exit code tells."""
    open_store(table=TABLE).provision()
    raw.update_time_to_live(TableName=TABLE, TimeToLiveSpecification={"Enabled": True, "AttributeName": "token"})

    Command(capsys).refused(f"dynamodb://eu-west-1/{TABLE}?endpoint_url={endpoint}", "dynamodb-ttl")
    raw.delete_table(TableName=TABLE)


def test_doctor_examines_a_global_table(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    """DynamoDB Local has none, so the stub describes one, each of the four times that it is looked at; then the doctor reads."""
    table = {
        "TableStatus": "ACTIVE",
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "Replicas": [{"RegionName": "us-east-1"}],
    }
    described = ((200, {"Table": table}), (200, {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}))
    stub.says(*described * 4, (200, {}))

    out = Command(capsys).refused(f"dynamodb://eu-west-1/locks?endpoint_url={stub.endpoint}", "dynamodb-global-table")

    for words in ("replicated to us-east-1", "remedy: keep locks in a table of one region"):
        assert words in out
