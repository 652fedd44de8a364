"""The DynamoDB store: one conditional write for each step, one consistent GetItem for each read, 25 renewals in one request.

The form of a row is the dialect's business; in those of other clients a claim of a row that stands takes a second request, and a grant that
is to have a fencing token two more: one that draws it, one that writes it into the row.

It is called from threads; asyncio is served by the core's threads over it, since boto3 has no other way.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, assert_never
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from dlock_core.clock import wall_ms
from dlock_core.errors import DLockError, OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.kit import Batches, Call, Exchange, ExchangeStore, is_urgent, outcome, pages
from dlock_core.record import TOKEN_MAX
from dlock_core.store import Capability, Reply
from dlock_dynamodb import provision
from dlock_dynamodb._credentials import given
from dlock_dynamodb._direct import has_handlers
from dlock_dynamodb._errors import (
    NOT_DYNAMODBS,
    TROUBLE,
    StrangeAnswerError,
    code_of,
    statement_error,
    strange,
    translate,
)
from dlock_dynamodb._link import DynamoDBLink
from dlock_dynamodb._wire import Ask, DlockRows, Table
from dlock_dynamodb.dialects.awslabs import AwslabsRows
from dlock_dynamodb.dialects.node import NodeClosedRows, NodeOpenRows
from dlock_dynamodb.dialects.token_rows import Counts, is_count, lacks_token, takes
from dlock_dynamodb.options import DynamoDBStoreOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, Release, Replace
    from dlock_dynamodb._wire import Item, Request, Rows
    from dlock_dynamodb.options import Dialect

__all__ = ["DynamoDBStore"]

_REFUSED = "ConditionalCheckFailed"
# A batch that is not allowed or not known is refused before anything is done.
_NO_BATCH = frozenset({"AccessDenied", "UnknownOperation", "Validation", "ValidationError"})
# A draw is refused at most once by how far the count is, and then only by another's jump.
_DRAWS_MAX = 8
_READY_WITHIN_S, _READY_POLL_S = 180.0, 0.5

_T = TypeVar("_T")


class DynamoDBVerbs:
    """The verbs, as exchanges with the server."""

    name = "DynamoDB"

    def __init__(self, options: DynamoDBStoreOptions, endpoint: str) -> None:
        self.options = options
        self.table = Table(
            options.table, options.partition_key, options.sort_key, options.sort_key_value, options.sort_key_separator
        )
        self.rows = rows = _rows_of(options, self.table)
        self.counts = Counts(self.table, rows) if isinstance(rows, AwslabsRows) and options.token_row else None
        self._endpoint = urlsplit(endpoint).hostname or ""
        # Old emulators leave the item out of a refusal, which then looks as if the key were absent.
        self._shows_refusals = provision.is_aws(self._endpoint)
        # Batches are given up where they are not allowed, or, but for AWS, fail, before they ever worked.
        self._batches, self._batch_worked, self._is_aws = True, False, self._shows_refusals

    def claim(self, request: Claim) -> Exchange[Reply]:
        """Create the record if nobody holds the key: one write, or a second one where the first shows which row to take."""
        key, expect, counts = request.record.key, request.expect, self.counts
        least = request.record.fencing_token
        if counts is not None:
            counts.check(key)
        exhausted = isinstance(expect, tuple) and expect.fencing_token >= TOKEN_MAX
        first = None if exhausted else self.rows.claim(request)
        if first is None:
            reply = Reply(applied=False, record=(yield from self.read(key)))
        else:
            reply = yield from self._write(first, key)
        if isinstance(expect, tuple):
            least = max(least, expect.fencing_token + 1)
        standing = reply.record
        if standing is not None and not reply.applied and outcome(standing, request).applied:
            least = max(least, standing.fencing_token + 1)
            if (second := self.rows.take(request, standing.version, least)) is not None:
                reply = yield from self._write(second, key)
        return reply if counts is None else (yield from self._counted(counts, reply, least))

    def replace(self, request: Replace) -> Exchange[Reply]:
        """Replace the held record if its version is the expected one: one write."""
        record, counts = request.record, self.counts
        least, write = max(record.fencing_token, 1), self.rows.change(request)
        raised = record.fencing_token > request.expected.fencing_token
        if counts is not None and not takes(request) and (raised or lacks_token(record)):
            # A break, or the renewal of a grant whose token was never written: the token is drawn after that grant all the same, and
            # stands in the row with this write. A draw that fails has changed nothing, and the next try is as short.
            try:
                token = yield from self._draw(counts, record.key, least)
            except RecordError as error:
                if not lacks_token(record):
                    raise
                raise StoreUnavailableError(
                    f"the renewal of a grant without its token: {error}", key=record.key
                ) from error
            write = counts.rows.change(request, token)
        reply = yield from self._write(write, record.key, urgent=is_urgent(request))
        return reply if counts is None else (yield from self._counted(counts, reply, least))

    def release(self, request: Release) -> Exchange[Reply]:
        """Put the tombstone if the record is held in the expected version: one write."""
        return self._write(self.rows.change(request), request.record.key, urgent=True)

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Return the record under *key*: one consistent GetItem."""
        answer = yield Ask("get_item", self.table.get(key))
        if "Item" in answer:
            return self.rows.record(answer["Item"])
        _check_origin(answer)
        return None

    def scan(self, prefix: str) -> Iterator[Exchange[list[LockRecord]]]:
        """In DynamoDB's order."""
        request = self.table.scan(prefix)

        def page(after: Item | None) -> Exchange[Any]:
            answer = yield Ask("scan", request if after is None else request | {"ExclusiveStartKey": after})
            if "Items" not in answer:
                raise StrangeAnswerError(NOT_DYNAMODBS)
            return map(self._reading, answer["Items"]), answer.get("LastEvaluatedKey")

        return pages(page)

    def _reading(self, item: Item) -> Callable[[], LockRecord | None]:
        # Other clients of ours may keep tokens in the table, whether this one does or not.
        counts = self.options.dialect == "awslabs" and is_count(item, self.table.partition_key)
        return partial(self.rows.record, item) if not counts else lambda: None

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[list[Reply | StoreError]]:
        """Do each replace: one BatchExecuteStatement, or an UpdateItem each where a batch is not allowed or not known."""
        statements = [self.rows.statement(request) for request in requests] if self._batches else [None]
        results: list[Reply | StoreError | None] = [None] * len(requests)
        if None not in statements:
            results = yield from self._batch(requests, statements)
        settled = []
        for request, result in zip(requests, results, strict=True):
            settled.append(result or (yield from self._apart(self.replace(request), request.record.key)))
        return settled

    def guarantees(self) -> Exchange[Guarantees]:
        """Say what the table promises."""
        return provision.guarantees(self.options, self._endpoint)

    def provision(self) -> Exchange[None]:
        """Ask for the table unless it is there."""
        return provision.create(self.options)

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return the error of dlock for one of boto3."""
        if isinstance(error, DLockError):
            return None
        what = self._doing(call.verb, call.key)
        if type(error) is TimeoutError:
            return StoreUnavailableError(f"{what}: its time-out is too short; nothing more was sent", key=call.key)
        if isinstance(error, StrangeAnswerError):
            return strange(f"{what}: {error}", key=call.key, writes=call.writes)
        return translate(error, what, key=call.key, writes=call.writes) if isinstance(error, TROUBLE) else None

    # ---- requests and answers

    def _doing(self, verb: str, key: str | None) -> str:
        verb = {"inspect": "describe", "provision": "create"}.get(verb, verb)
        return (
            f"could not {verb} " + ("" if key is None else f"key {key!r} in ") + f"DynamoDB table {self.table.name!r}"
        )

    def _write(self, write: Ask, key: str, *, urgent: bool = False) -> Exchange[Reply]:
        try:
            answer = yield write._replace(urgent=urgent)
        except ClientError as error:
            if code_of(error) != _REFUSED:
                raise
            refusing = error.response.get("Item")
        else:
            if write.written is None:
                return self._applied(answer.get("Attributes"))
            _check_origin(answer)
            return Reply(applied=True, record=write.written)
        return (yield from self._refused(refusing, key))

    def _applied(self, item: Item | None) -> Reply:
        if not item:
            raise StrangeAnswerError("the answer shows no item")
        try:
            return Reply(applied=True, record=self.rows.record(item))
        except RecordError as error:
            # It was applied: an error that says the opposite would leave a held record behind.
            raise StrangeAnswerError(f"it was written, but {error}") from error

    def _refused(self, item: Item | None, key: str) -> Exchange[Reply]:
        if item:
            self._shows_refusals = True
            return Reply(applied=False, record=self.rows.record(item))
        return Reply(applied=False, record=None if self._shows_refusals else (yield from self.read(key)))

    # ---- fencing tokens in rows of their own

    def _counted(self, counts: Counts, reply: Reply, least: int) -> Exchange[Reply]:
        """Give the grant of *reply* its token, if it is one."""
        granted = reply.record
        if not reply.applied or granted is None or not lacks_token(granted):
            return reply
        key = granted.key
        try:
            token = yield from self._draw(counts, key, least)
            return (yield from self._write(counts.rows.number(granted, token), key, urgent=True))
        except Exception as error:
            told = self.trouble(error, Call("number", key, 0)) or error
            # The row is ours: an error that says the opposite would leave a held record behind.
            raise OutcomeUnknownError(
                f"{self._doing('number', key)}: the lock was granted, and has no fencing token yet: {told}", key=key
            ) from error

    def _draw(self, counts: Counts, key: str, least: int) -> Exchange[int]:
        """Return a token that was never given, *least* at least."""
        what, draw = self._doing("count the grants of", key), counts.draw(key, least)
        for _ in range(_DRAWS_MAX):
            try:
                answer = yield draw._replace(urgent=True)
            except (*TROUBLE, StrangeAnswerError) as error:
                if not isinstance(error, ClientError) or code_of(error) != _REFUSED:
                    # Nothing of the lock was changed, whatever became of the count.
                    raise translate(error, what, key=key, writes=False) from error
                draw = counts.after(key, least, error.response.get("Item"))
            else:
                return counts.last(key, answer.get("Attributes", {}))
        raise StoreUnavailableError(f"{what}: others were faster {_DRAWS_MAX} times", key=key)

    # ---- batches

    def _batch(
        self, requests: Sequence[Replace], statements: Sequence[Request | None]
    ) -> Exchange[list[Reply | StoreError | None]]:
        """Return the result of each statement; None for one that must be done by itself."""
        try:
            answer = yield Ask("batch_execute_statement", {"Statements": statements}, urgent=True)
        except ClientError as error:
            if code_of(error) not in _NO_BATCH:
                if isinstance(translate(error, "", key=None, writes=True), OutcomeUnknownError):
                    self._batches = self._batch_worked or self._is_aws
                raise
            self._batches = self._batch_worked
            return [None] * len(requests)
        answers = answer.get("Responses", ())
        if len(answers) != len(requests):
            raise StrangeAnswerError(f"{len(answers)} answers to {len(requests)} statements")
        results = []
        for each, request in zip(answers, requests, strict=True):
            results.append((yield from self._apart(self._result(each, request.record.key), request.record.key)))
        return results

    def _result(self, answer: dict[str, Any], key: str) -> Exchange[Reply | StoreError | None]:
        if "Error" not in answer:
            # An emulator that does nothing reports no error either: only the item proves the write.
            self._batch_worked = self._batches = "Item" in answer
            return self._applied(answer.get("Item"))
        code = str(answer["Error"].get("Code", "")).removesuffix("Exception")
        if code == _REFUSED:
            return (yield from self._refused(answer["Error"].get("Item"), key))
        if code in _NO_BATCH:
            self._batches = self._batch_worked
            return None
        return statement_error(code, self._doing("renew", key), key=key)

    def _apart(self, exchange: Exchange[_T], key: str) -> Exchange[_T | StoreError]:
        """Return the result of *exchange*, or its error, which is of one key only."""
        try:
            return (yield from exchange)
        except StoreError as error:
            return error
        except Exception as error:
            told = self.trouble(error, Call("replace", key, 0))
            if told is None:
                raise
            told.__cause__ = error
            return told


class DynamoDBStore(Batches, ExchangeStore):
    """The store for threads, on the user's boto3 session or client.

    It makes connections and clients of its own from the credentials, region, endpoint and configuration of *driver*, since a
    client's retries and time-outs can't be set for one call. Event handlers and ``verify`` of a given client are not taken over:
    register handlers with a session, name a private authority in AWS_CA_BUNDLE. *region* and *endpoint_url* are needed only with a
    session that has none.
    """

    capabilities = frozenset({Capability.BATCH_RENEW})
    batch_limit = 25
    _verbs: DynamoDBVerbs
    _link: DynamoDBLink

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
        boto3_only = config is not None and has_handlers(driver)
        self.options = DynamoDBStoreOptions(
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
        link = DynamoDBLink(self.options, session, config, boto3_only=boto3_only)
        super().__init__(DynamoDBVerbs(self.options, link.endpoint_url), link)

    @property
    def units(self) -> dict[str, dict[str, float]]:
        """The capacity units that were consumed, by verb, and for each by kind: ``read`` and ``write``."""
        return self._link.units.billed

    def provision(self) -> None:
        """Create the table unless it is there, and return when it can be used."""
        super().provision()
        give_up_at = time.monotonic() + _READY_WITHIN_S
        while not self._run(provision.ready(self.options), Call("inspect", None, self.inspect_timeout_s)):
            if time.monotonic() > give_up_at:
                raise StoreUnavailableError(
                    f"DynamoDB table {self.options.table!r} is not ready after {_READY_WITHIN_S:.0f} s; try later"
                )
            time.sleep(_READY_POLL_S)

    def _run(self, exchange: Exchange[_T], call: Call) -> _T:
        self._link.count_for(call.verb)
        return super()._run(exchange, call)


def _check_origin(answer: dict[str, Any]) -> None:
    """Raise for the page of a gateway, which says nothing about the key: DynamoDB signs its answers with an id."""
    if "RequestId" not in answer.get("ResponseMetadata", {}):
        raise StrangeAnswerError(NOT_DYNAMODBS)


def _rows_of(options: DynamoDBStoreOptions, table: Table) -> Rows:
    match options.dialect:
        case "dlock":
            return DlockRows(table)
        case "awslabs":
            return AwslabsRows(table, options.trust_release_mark, options.token_row)
        case "node-fail-open":
            return NodeOpenRows(table, wall_ms)
        case "node-fail-closed":
            return NodeClosedRows(table)
        case _:
            assert_never(options.dialect)
