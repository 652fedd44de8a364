"""The table: what it must be, what it promises, which rights its users need, and how it is made. No verb makes it.

A table of ours has string keys, on-demand capacity and no time to live: an item that vanishes takes its fencing token with it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from botocore.session import Session

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_dynamodb._errors import NOT_DYNAMODBS, StrangeAnswerError, code_of
from dlock_dynamodb._wire import Ask
from dlock_dynamodb.dialects.limits import limited
from dlock_dynamodb.options import RECORD_ATTRIBUTES, DynamoDBStoreOptions

if TYPE_CHECKING:
    from dlock_core.kit import Exchange

_READY = ("ACTIVE", "UPDATING")
# In place of which provisioning makes a table. Others, as of one that is archived, or whose key of KMS is gone, need more.
_COMES = ("missing", "CREATING", "DELETING")
_VERBS = ("GetItem", "UpdateItem", "PartiQLUpdate", "Scan", "DescribeTable", "DescribeTimeToLive")
_VERBS_OF_DIALECTS = ("PutItem", "DeleteItem")
_LOCAL_ARN = "arn:aws:dynamodb:ddblocal:"


def policy(options: DynamoDBStoreOptions, *, account: str = "*", provision: bool = False) -> dict[str, Any]:
    """Return the IAM policy that lets a program lock, renew and list, and nothing else; with *provision*, also create the table."""
    actions = [*_VERBS, *(_VERBS_OF_DIALECTS if options.dialect != "dlock" else ())]
    if provision:
        actions.append("CreateTable")
    partition = next((each["id"] for each in _partitions() if re.match(each["regionRegex"], options.region)), "aws")
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


def create(options: DynamoDBStoreOptions) -> Exchange[None]:
    """Ask for the table unless it is there.

    Raises: StoreSetupError: a table of that name has other keys.
    """
    if (yield from _described(options)) is not None:
        return
    keys = _keys(options)
    request = {
        "TableName": options.table,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in keys.values()],
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for kind, name in keys.items()],
        "BillingMode": "PAY_PER_REQUEST",
    }
    try:
        yield Ask("create_table", request)
    except ClientError as error:
        if code_of(error) != "ResourceInUse":  # somebody else was faster
            raise


def ready(options: DynamoDBStoreOptions) -> Exchange[bool]:
    """Return whether the table can be used. Just after it was asked for, it may not be seen yet."""
    table = yield from _described(options)
    return table is not None and table["TableStatus"] in _READY


def guarantees(options: DynamoDBStoreOptions, host: str) -> Exchange[Guarantees]:
    """Say what the table promises, from its description; *host* is the endpoint.

    Raises: StoreSetupError: it does not exist, is not ready, or has other keys.
    """
    table = yield from _described(options)
    status = "missing" if table is None else table["TableStatus"]
    if table is None or status not in _READY:
        mend = "'dlock init --url URL' makes it ready" if status in _COMES else "see 'aws dynamodb describe-table'"
        # The region, too: a table that is made in a wrong one grants each lock once more.
        raise StoreSetupError(f"DynamoDB table {options.table!r} in region {options.region!r} is {status}; {mend}")
    version, grade, durable = "DynamoDB", Grade.A, True
    failover = "within the region: a write is in two zones when acknowledged"
    notes: list[str] = []
    unsafe: list[tuple[str, str]] = []
    if str(table.get("TableArn", "")).startswith(_LOCAL_ARN):
        version, durable, failover = "DynamoDB Local", False, "none: one process"
        notes.append("DynamoDB Local, for tests: its records end with the process unless it was started with -dbPath")
    elif not is_aws(host):
        version, grade, durable, failover = f"DynamoDB API at {host}", Grade.C, False, "unknown"
        notes.append(f"{host} is not an endpoint of AWS: what stands behind it decides what is promised")
    _see_replicas(table, unsafe, notes)
    yield from _see_time_to_live(options, unsafe, notes)
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


def _described(options: DynamoDBStoreOptions) -> Exchange[dict[str, Any] | None]:
    """Return DynamoDB's description of the table, or None where there is none.

    Raises: StoreSetupError: the table has other keys.
    """
    try:
        answer = yield Ask("describe_table", {"TableName": options.table})
    except ClientError as error:
        if code_of(error) != "ResourceNotFound":
            raise
        return None
    wanted = {kind: (name, "S") for kind, name in _keys(options).items()}
    try:
        table: dict[str, Any] = answer["Table"]
        types = {attribute["AttributeName"]: attribute["AttributeType"] for attribute in table["AttributeDefinitions"]}
        found = {key["KeyType"]: (key["AttributeName"], types[key["AttributeName"]]) for key in table["KeySchema"]}
    except LookupError as error:
        raise StrangeAnswerError(NOT_DYNAMODBS) from error
    if found != wanted:
        raise StoreSetupError(
            f"DynamoDB table {options.table!r} has the keys {_in_words(found)}, but the options say {_in_words(wanted)}; "
            "set partition_key and sort_key to those of the table, or make a table of its own with 'dlock init --url URL'"
        )
    return table


def is_aws(host: str) -> bool:
    """Whether *host* is an endpoint of AWS itself."""
    suffixes = (each["outputs"][name] for each in _partitions() for name in ("dnsSuffix", "dualStackDnsSuffix"))
    return host.endswith(tuple([f".{suffix}" for suffix in suffixes]))


@cache
def _partitions() -> list[dict[str, Any]]:
    """Return what botocore knows of the parts of AWS: that of most regions, China, the sovereign cloud of Europe."""
    found: list[dict[str, Any]] = Session().get_component("data_loader").load_data("partitions")["partitions"]
    return found


def _see_replicas(table: dict[str, Any], unsafe: list[tuple[str, str]], notes: list[str]) -> None:
    regions = sorted(replica.get("RegionName", "?") for replica in table.get("Replicas", ()))
    if table.get("MultiRegionConsistency") == "STRONG":
        notes.append("a global table with strong consistency: safe by AWS's documentation, not tested by this project")
    elif regions or "GlobalTableVersion" in table:
        where = ", ".join(regions) or "other regions"
        reason = f"the table is replicated to {where} and the last writer wins: two regions can both grant a lock"
        unsafe.append(("dynamodb-global-table", reason))


def _see_time_to_live(options: DynamoDBStoreOptions, unsafe: list[tuple[str, str]], notes: list[str]) -> Exchange[None]:
    try:
        answer = yield Ask("describe_time_to_live", {"TableName": options.table})
    except ClientError as error:
        if code_of(error) not in {"AccessDenied", "UnknownOperation"}:
            raise
        notes.append(f"whether time to live is on can't be seen ({code_of(error)}): it would delete fencing tokens")
        return
    if "TimeToLiveDescription" not in answer:
        raise StrangeAnswerError(NOT_DYNAMODBS)
    found = answer["TimeToLiveDescription"]
    name = found.get("AttributeName")
    if found.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        return
    if options.dialect != "dlock" or name in RECORD_ATTRIBUTES["dlock"]:
        unsafe.append(("dynamodb-ttl", f"time to live is on for {name!r}: DynamoDB deletes records, and their tokens"))
    else:
        notes.append(f"time to live is on for {name!r}: whoever adds that to a record resets its fencing token")


def _keys(options: DynamoDBStoreOptions) -> dict[str, str]:
    return {"HASH": options.partition_key} | ({"RANGE": options.sort_key} if options.sort_key else {})


def _in_words(schema: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind}, {letter})" for kind, (name, letter) in sorted(schema.items()))
