"""The DynamoDB store: one conditional write for each step, one consistent GetItem for each read, 25 renewals in one request.

What a row looks like is the dialect's business; in those of other clients a claim of a row that stands takes a second request, and a
grant that is to have a fencing token two more: one that draws it, one that writes it into the row.

It is called from threads; asyncio is served by the core's threads over it, since boto3 has no other way.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.store import Capability, Reply
from dlock_dynamodb import provision
from dlock_dynamodb._awslabs import AwslabsRows
from dlock_dynamodb._clients import Clients, given
from dlock_dynamodb._errors import code_of, statement_error, translate
from dlock_dynamodb._node import NodeClosedRows, NodeOpenRows
from dlock_dynamodb._rows import DlockRows
from dlock_dynamodb._tokens import Counts, is_count, lacks_token, least_after, takes
from dlock_dynamodb._wire import Table
from dlock_dynamodb.options import DynamoDBStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, Release, Replace
    from dlock_dynamodb._rows import Rows, Write
    from dlock_dynamodb._wire import Item, Request
    from dlock_dynamodb.options import Dialect

__all__ = ["DynamoDBStore"]

_REFUSED = "ConditionalCheckFailed"
# A batch that may not or can't be done says so before it does anything.
_NO_BATCH = frozenset({"AccessDenied", "UnknownOperation", "Validation", "ValidationError"})
_ADMIN_TIMEOUT_S = 16.0
# A draw is refused at most once by how far the count is, and then only by another's jump.
_DRAWS_MAX = 8


class DynamoDBStore:
    """The store for threads, on a boto3 session or client of the user's.

    It makes clients of its own from the credentials, region, endpoint and configuration of *driver*, since a client's retries and
    time-outs can't be set for one call. Event handlers and ``verify`` of a given client are not taken over: register handlers with a
    session, name a private authority in AWS_CA_BUNDLE. *region* and *endpoint_url* are needed only with a session that has none.
    """

    capabilities = frozenset({Capability.BATCH_RENEW})
    batch_limit = 25

    def __init__(
        self,
        driver: Any,
        *,
        table: str,
        partition_key: str = "key",
        sort_key: str | None = None,
        sort_key_value: str = "dlock",
        dialect: Dialect = "dlock",
        sort_key_separator: str | None = None,
        trust_release_mark: bool = True,
        token_row: bool = False,
        region: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        session, config, its_region, its_endpoint = given(driver)
        self.options = DynamoDBStoreOptions.checked(
            region=region or its_region or "",
            table=table,
            partition_key=partition_key,
            sort_key=sort_key,
            sort_key_value=sort_key_value,
            dialect=dialect,
            sort_key_separator=sort_key_separator,
            trust_release_mark=trust_release_mark,
            token_row=token_row,
            endpoint_url=endpoint_url or its_endpoint,
        )
        self._clients = Clients(self.options, session, config)
        self._table = Table(table, partition_key, sort_key, sort_key_value, sort_key_separator)
        self._rows = rows = _rows_of(self.options, self._table)
        self._counts = Counts(self._table, rows.number) if isinstance(rows, AwslabsRows) and token_row else None
        # Other clients of ours may keep tokens there.
        self._beside_counts = dialect == "awslabs"
        endpoint = self._clients.fit(_ADMIN_TIMEOUT_S).meta.endpoint_url
        # Old emulators leave the item out of a refusal, which then looks as if the key were absent.
        self._shows_refusals = provision.is_aws(urlsplit(endpoint).hostname or "")
        # A batch is given up where it is not allowed, and where it fails before it ever worked.
        self._batches, self._batch_seen = True, self._shows_refusals

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key, and mint its token: one write, or two where the first one shows what to take."""
        give_up_at = time.monotonic() + timeout_s
        key = request.record.key
        if self._counts is not None:
            self._counts.check(request)
        first = self._rows.claim(request)
        if first is None:
            reply = Reply(applied=False, record=self.read(key, timeout_s=timeout_s))
        else:
            reply = self._write("claim", key, first, timeout_s)
        shown = None if reply.applied else reply.record
        if shown is not None and (second := self._rows.claim_after(request, shown)) is not None:
            reply = self._write("claim", key, second, give_up_at - time.monotonic())
        if self._counts is None:
            return reply
        return self._counted(self._counts, reply, least_after(request, shown), give_up_at)

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is the expected one: one write."""
        if self._counts is None:
            return self._write("replace", request.record.key, self._rows.change(request), timeout_s)
        return self._replace_counted(self._counts, request, time.monotonic() + timeout_s)

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version: one write."""
        return self._write("release", request.record.key, self._rows.change(request), timeout_s)

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*: one consistent GetItem."""
        answer = self._call("get_item", "read", key, self._table.read(key), timeout_s)
        if "Item" in answer:
            return self._rows.record(answer["Item"])
        if "RequestId" not in answer.get("ResponseMetadata", {}):
            # A gateway's page says nothing about the key; DynamoDB signs its answers with an id.
            raise StoreUnavailableError(f"{self._what('read', key)}: the answer is not DynamoDB's", key=key)
        return None

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*, in no order; one that cannot be read is raised after the others."""
        request, unreadable = self._table.scan(prefix), None
        while True:
            page = self._call("scan", "scan", None, request, timeout_s)
            for item in page.get("Items", ()):
                if self._beside_counts and is_count(item, self._table.partition_key):
                    continue
                try:
                    record = self._rows.record(item)
                except RecordError as error:
                    unreadable = unreadable or error
                    continue
                yield record
            if not (following := page.get("LastEvaluatedKey")):
                break
            request["ExclusiveStartKey"] = following
        if unreadable is not None:
            raise unreadable

    def replace_many(self, requests: Sequence[Replace], *, timeout_s: float) -> Sequence[Reply | StoreError]:
        """Do each replace: one BatchExecuteStatement, or an UpdateItem each where a batch may not or can't be done."""
        give_up_at = time.monotonic() + timeout_s
        results: list[Reply | StoreError | None] = [None] * len(requests)
        self._clients.fit(timeout_s)  # a store that was closed says so of all of them
        if self._batches:
            statements = [self._rows.statement(request) for request in requests]
            if None not in statements:
                results = self._batch(requests, statements, timeout_s)
        return [
            self._alone(request, give_up_at) if result is None else result
            for request, result in zip(requests, results, strict=True)
        ]

    def guarantees(self) -> Guarantees:
        """Say what the table promises.

        Raises: StoreSetupError: it does not exist, or has other keys.
        """
        return provision.guarantees(self._clients.fit(_ADMIN_TIMEOUT_S), self.options)

    def provision(self) -> None:
        """Create the table and wait until it can be used; do nothing where it exists."""
        provision.create(self._clients.fit(_ADMIN_TIMEOUT_S), self.options)

    def close(self) -> None:
        """Close the clients that the store made."""
        self._clients.close()

    # ---- requests

    def _what(self, verb: str, key: str | None) -> str:
        return (
            f"could not {verb} " + ("" if key is None else f"key {key!r} in ") + f"DynamoDB table {self._table.name!r}"
        )

    def _call(self, operation: str, verb: str, key: str | None, request: Request, timeout_s: float) -> dict[str, Any]:
        client = self._clients.fit(timeout_s, key=key)
        try:
            answer: dict[str, Any] = getattr(client, operation)(**request)
        except Exception as error:
            raise translate(error, self._what(verb, key), key=key, writes=False) from error
        return answer

    def _write(self, verb: str, key: str, write: Write, timeout_s: float) -> Reply:
        started_at = time.monotonic()
        client = self._clients.fit(timeout_s, key=key)
        try:
            answer: dict[str, Any] = getattr(client, write.operation)(**write.request)
        except Exception as error:
            if isinstance(error, ClientError) and code_of(error) == _REFUSED:
                return self._refused(error.response.get("Item"), key, started_at + timeout_s)
            raise translate(error, self._what(verb, key), key=key, writes=True) from error
        if write.written is None:
            return self._applied(answer.get("Attributes"), verb, key)
        if "RequestId" not in answer.get("ResponseMetadata", {}):
            raise OutcomeUnknownError(f"{self._what(verb, key)}: the answer is not DynamoDB's", key=key)
        return Reply(applied=True, record=write.written)

    def _applied(self, item: Item | None, verb: str, key: str) -> Reply:
        if not item:
            raise OutcomeUnknownError(f"{self._what(verb, key)}: the answer shows no item", key=key)
        try:
            return Reply(applied=True, record=self._rows.record(item))
        except RecordError as error:
            # It was applied: an error that says the opposite would leave a held record behind.
            raise OutcomeUnknownError(f"{self._what(verb, key)}: it was written, but {error}", key=key) from error

    def _refused(self, item: Item | None, key: str, give_up_at: float) -> Reply:
        if item:
            self._shows_refusals = True
            return Reply(applied=False, record=self._rows.record(item))
        if self._shows_refusals:
            return Reply(applied=False, record=None)
        return Reply(applied=False, record=self.read(key, timeout_s=give_up_at - time.monotonic()))

    # ---- fencing tokens in rows of their own

    def _replace_counted(self, counts: Counts, request: Replace, give_up_at: float) -> Reply:
        record = request.record
        least = max(record.fencing_token, 1)
        if record.fencing_token > request.expected.fencing_token and not takes(request):
            # A break hands nothing out: its token is drawn first and stands in the row with it.
            token = self._draw(counts, record.key, least, give_up_at)
            request = request._replace(record=dataclasses.replace(record, fencing_token=token))
        reply = self._write("replace", record.key, self._rows.change(request), give_up_at - time.monotonic())
        return self._counted(counts, reply, least, give_up_at)

    def _counted(self, counts: Counts, reply: Reply, least: int, give_up_at: float) -> Reply:
        """Give the grant of *reply* its token, if it is one."""
        granted = reply.record
        if not reply.applied or granted is None or not lacks_token(granted):
            return reply
        try:
            token = self._draw(counts, granted.key, least, give_up_at)
            return self._write("number", granted.key, counts.number(granted, token), give_up_at - time.monotonic())
        except StoreError as error:
            # The row is ours: an error that says the opposite would leave a held record behind.
            raise OutcomeUnknownError(
                f"{self._what('number', granted.key)}: the lock was granted, and has no fencing token yet: {error}",
                key=granted.key,
            ) from error

    def _draw(self, counts: Counts, key: str, least: int, give_up_at: float) -> int:
        """Return a token that was never given, *least* at least."""
        what, request = self._what("count the grants of", key), counts.draw(key, least)
        for _ in range(_DRAWS_MAX):
            client = self._clients.fit(give_up_at - time.monotonic(), key=key)
            try:
                answer = client.update_item(**request)
            except Exception as error:
                if not isinstance(error, ClientError) or code_of(error) != _REFUSED:
                    # Nothing of the lock was changed, whatever became of the count.
                    raise translate(error, what, key=key, writes=False) from error
                request = counts.other(key, least, error.response.get("Item"))
            else:
                return counts.last(key, answer.get("Attributes", {}))
        raise StoreUnavailableError(f"{what}: others were faster {_DRAWS_MAX} times", key=key)

    # ---- batches

    def _batch(
        self, requests: Sequence[Replace], statements: Sequence[Request | None], timeout_s: float
    ) -> list[Reply | StoreError | None]:
        give_up_at = time.monotonic() + timeout_s
        client = self._clients.fit(timeout_s)
        try:
            answers = client.batch_execute_statement(Statements=statements)["Responses"]
        except Exception as error:
            if code_of(error) in _NO_BATCH:
                self._batches = False
                return [None] * len(requests)
            trouble = translate(error, self._what(f"renew {len(requests)} keys in", None), key=None, writes=True)
            if isinstance(error, ClientError) and isinstance(trouble, OutcomeUnknownError):
                self._batches = self._batch_seen
            raise trouble from error
        if len(answers) != len(requests):
            raise OutcomeUnknownError(
                f"{self._what('renew', None)}: {len(answers)} answers to {len(requests)} statements"
            )
        return [
            self._result(answer, request.record.key, give_up_at)
            for answer, request in zip(answers, requests, strict=True)
        ]

    def _result(self, answer: dict[str, Any], key: str, give_up_at: float) -> Reply | StoreError | None:
        try:
            if "Error" not in answer:
                # An emulator that does nothing reports no error either: only the item proves the write.
                self._batch_seen = self._batches = "Item" in answer
                return self._applied(answer.get("Item"), "renew", key)
            code = str(answer["Error"].get("Code", "")).removesuffix("Exception")
            if code == _REFUSED:
                return self._refused(answer["Error"].get("Item"), key, give_up_at)
        except StoreError as error:
            return error
        if code in _NO_BATCH:
            self._batches = False
            return None
        return statement_error(code, self._what("renew", key), key=key)

    def _alone(self, request: Replace, give_up_at: float) -> Reply | StoreError:
        try:
            return self.replace(request, timeout_s=give_up_at - time.monotonic())
        except StoreError as error:
            return error


def _rows_of(options: DynamoDBStoreOptions, table: Table) -> Rows:
    match options.dialect:
        case "dlock":
            return DlockRows(table)
        case "awslabs":
            return AwslabsRows(table, options.trust_release_mark, options.token_row)
        case "node-fail-open":
            return NodeOpenRows(table, _wall_ms)
        case "node-fail-closed":
            return NodeClosedRows(table)
        case _:
            assert_never(options.dialect)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
