"""The table: what it must be, what it promises, which rights its users need, and how it is made. No verb makes it.

A table of ours has string keys, on-demand capacity and no time to live: an item that vanishes takes its fencing token with it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dlock_core.errors import StoreSetupError, StoreUnavailableError
from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_dynamodb._errors import code_of, translate
from dlock_dynamodb._promises import limited
from dlock_dynamodb.options import RECORD_ATTRIBUTES

if TYPE_CHECKING:
    from dlock_dynamodb._wire import DynamoDBClient
from dlock_dynamodb.options import DynamoDBStoreOptions

_READY = ("ACTIVE", "UPDATING")
_WAIT_S, _POLL_S = 180.0, 0.5
_VERBS = ("GetItem", "UpdateItem", "PartiQLUpdate", "Scan", "DescribeTable", "DescribeTimeToLive")
_VERBS_OF_DIALECTS = ("PutItem", "DeleteItem")
_LOCAL_ARN = "arn:aws:dynamodb:ddblocal:"


def policy(options: DynamoDBStoreOptions, *, account: str = "*", provision: bool = False) -> dict[str, Any]:
    """Return the IAM policy that lets a program lock, renew and list, and nothing else; with *provision*, also create the table."""
    actions = [*_VERBS, *(_VERBS_OF_DIALECTS if options.dialect != "dlock" else ())]
    if provision:
        actions.append("CreateTable")
    area = options.region.rsplit("-", 2)[0]
    partition = {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(area, "aws")
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "dlock",
                "Effect": "Allow",
                "Action": [f"dynamodb:{action}" for action in actions],
                "Resource": f"arn:{partition}:dynamodb:{options.region}:{account}:table/{options.table}",
            }
        ],
    }


def find(client: DynamoDBClient, options: DynamoDBStoreOptions) -> dict[str, Any] | None:
    """Return DynamoDB's description of the table, or None where there is none.

    Raises: StoreSetupError: a right is missing, or the table has other keys.
    """
    try:
        table: dict[str, Any] = client.describe_table(TableName=options.table)["Table"]
    except Exception as error:
        if code_of(error) == "ResourceNotFound":
            return None
        raise translate(error, _what("describe", options), key=None, writes=False) from error
    wanted = {kind: (name, "S") for kind, name in _keys(options).items()}
    types = {attribute["AttributeName"]: attribute["AttributeType"] for attribute in table["AttributeDefinitions"]}
    found = {key["KeyType"]: (key["AttributeName"], types[key["AttributeName"]]) for key in table["KeySchema"]}
    if found != wanted:
        raise StoreSetupError(
            f"DynamoDB table {options.table!r} has the keys {_in_words(found)}, but the options say {_in_words(wanted)}; "
            "set partition_key and sort_key to what the table has, or make a table of its own with 'dlock init'"
        )
    return table


def create(client: DynamoDBClient, options: DynamoDBStoreOptions) -> None:
    """Create the table unless it is there, and return when it can be used.

    Raises: StoreSetupError: a right is missing, or a table of that name has other keys.
    """
    give_up_at = time.monotonic() + _WAIT_S
    if find(client, options) is None:
        _ask_for(client, options)
    # Just after it was asked for, a table may not be seen yet.
    while (table := find(client, options)) is None or table["TableStatus"] not in _READY:
        if time.monotonic() > give_up_at:
            raise StoreUnavailableError(
                f"DynamoDB table {options.table!r} is not ready after {_WAIT_S:.0f} s; try later"
            )
        time.sleep(_POLL_S)


def guarantees(client: DynamoDBClient, options: DynamoDBStoreOptions) -> Guarantees:
    """Say what the table promises, from its description.

    Raises: StoreSetupError: it does not exist, is not ready, or has other keys.
    """
    table = find(client, options)
    status = "missing" if table is None else table["TableStatus"]
    if table is None or status not in _READY:
        raise StoreSetupError(f"DynamoDB table {options.table!r} is {status}; 'dlock init' makes it ready")
    version, grade, durable, failover = (
        "DynamoDB",
        Grade.A,
        True,
        "within the region: a write is in two zones when acknowledged",
    )
    notes: list[str] = []
    unsafe: list[tuple[str, str]] = []
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if str(table.get("TableArn", "")).startswith(_LOCAL_ARN):
        version, durable, failover = "DynamoDB Local", False, "none: one process"
        notes.append("DynamoDB Local, for tests: its records end with the process unless it was started with -dbPath")
    elif not is_aws(host):
        version, grade, durable, failover = f"DynamoDB API at {host}", Grade.C, False, "unknown"
        notes.append(f"{host} is not an endpoint of AWS: what stands behind it decides what is promised")
    _see_replicas(table, unsafe, notes)
    _see_time_to_live(client, options, unsafe, notes)
    promises = Guarantees(
        store="dynamodb",
        version=version,
        grade=grade,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=True,
        durable=durable,
        failover=failover,
        clock="none",
        notes=tuple(notes),
        unsafe=tuple(unsafe),
    )
    return limited(promises, options)


def is_aws(host: str) -> bool:
    """Whether *host* is an endpoint of AWS itself."""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".amazonwebservices.com.cn", ".api.aws"))


def _see_replicas(table: dict[str, Any], unsafe: list[tuple[str, str]], notes: list[str]) -> None:
    regions = sorted(replica.get("RegionName", "?") for replica in table.get("Replicas", ()))
    if table.get("MultiRegionConsistency") == "STRONG":
        notes.append("a global table with strong consistency: safe by AWS's documentation, not tested by this project")
    elif regions or "GlobalTableVersion" in table:
        where = ", ".join(regions) or "other regions"
        reason = f"the table is replicated to {where} and the last writer wins: two regions can both grant a lock"
        unsafe.append(("dynamodb-global-table", reason))


def _see_time_to_live(
    client: DynamoDBClient, options: DynamoDBStoreOptions, unsafe: list[tuple[str, str]], notes: list[str]
) -> None:
    try:
        found = client.describe_time_to_live(TableName=options.table)["TimeToLiveDescription"]
    except Exception as error:
        if code_of(error) not in {"AccessDenied", "UnknownOperation"}:
            raise translate(error, _what("describe", options), key=None, writes=False) from error
        notes.append(f"whether time to live is on can't be seen ({code_of(error)}): it would delete fencing tokens")
        return
    name = found.get("AttributeName")
    if found.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        return
    if options.dialect != "dlock" or name in RECORD_ATTRIBUTES["dlock"]:
        unsafe.append(("dynamodb-ttl", f"time to live is on for {name!r}: DynamoDB deletes records, and their tokens"))
    else:
        notes.append(f"time to live is on for {name!r}: whoever adds that to a record resets its fencing token")


def _ask_for(client: DynamoDBClient, options: DynamoDBStoreOptions) -> None:
    keys = _keys(options)
    try:
        client.create_table(
            TableName=options.table,
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys.values()],
            KeySchema=[{"AttributeName": name, "KeyType": kind} for kind, name in keys.items()],
            BillingMode="PAY_PER_REQUEST",
        )
    except Exception as error:
        if code_of(error) != "ResourceInUse":  # somebody else was faster
            raise translate(error, _what("create", options), key=None, writes=True) from error


def _what(verb: str, options: DynamoDBStoreOptions) -> str:
    return f"could not {verb} DynamoDB table {options.table!r}"


def _keys(options: DynamoDBStoreOptions) -> dict[str, str]:
    return {"HASH": options.partition_key} | ({"RANGE": options.sort_key} if options.sort_key else {})


def _in_words(schema: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind}, {letter})" for kind, (name, letter) in sorted(schema.items()))
