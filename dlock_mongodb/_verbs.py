"""Every verb as one exchange: which commands it sends, and what their answers mean. The same for threads and for asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError, WriteError

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import BatchResults, is_urgent, pages
from dlock_core.store import Reply
from dlock_mongodb import _wire
from dlock_mongodb._errors import CLASSES, check_concern, error_of, kind_of
from dlock_mongodb._wire import Command
from dlock_mongodb.provision import inspection, provisioning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dlock_core.kit import Call, Exchange
    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, Release, Replace
    from dlock_mongodb._wire import Document, Step
    from dlock_mongodb.options import MongoDBStoreOptions
    from dlock_mongodb.provision import Conversation, Facts

_TROUBLE: tuple[type[BaseException], ...] = (StoreError, *CLASSES)


class MongoDBVerbs:
    """Everything that the stores know of MongoDB. *learned* is called with the facts of each inspection."""

    name = "MongoDB"

    def __init__(self, names: MongoDBStoreOptions, learned: Callable[[Facts], None]) -> None:
        self._names = names
        self._learned = learned
        self._facts: Facts | None = None

    def claim(self, request: Claim) -> Exchange[Reply]:
        """One request; two where another claim made the document in the same instant."""
        return self._step(request, _wire.claim(self._names.collection, request))

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """One request."""
        return self._step(request, _wire.change(self._names.collection, request), urgent=is_urgent(request))

    release = replace

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Linearizable, but on a standalone server."""
        return _wire.found((yield from self._find([key])))

    def read_age(self, key: str) -> Exchange[tuple[LockRecord, int] | None]:
        """By the server's clock."""
        level = (yield from self._known()).read_level
        return _wire.found_aged((yield from self._send(_wire.find_aged(self._names.collection, key, level))))

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """In the order of keys."""

        def page(after: str | None) -> Exchange[Any]:
            return _wire.paged((yield from self._send(_wire.page(self._names.collection, prefix, after))), prefix)

        return pages(page)

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[Sequence[Reply | StoreError]]:
        """One request where all are applied, one more to see what stands where some are not."""
        if not requests:
            return []
        try:
            answer = yield from self._send(_wire.changes(self._names.collection, requests), urgent=True)
        except (NotPrimaryError, OperationFailure) as error:
            # The refusal of a single command comes before it runs. Nobody promises that for a later statement of a batch.
            if len(requests) > 1 and kind_of(error) is StoreUnavailableError:
                raise OutcomeUnknownError(
                    f"MongoDB ended a batch with {error_of(error, None, writes=False)}"
                ) from error
            raise
        check_concern(answer, None)
        failed = {error["index"]: error for error in answer.get("writeErrors", ())}
        applied, sound = answer.get("nModified"), [place for place in range(len(requests)) if place not in failed]
        results = BatchResults(requests)
        looked = list(range(len(requests)))
        if applied == len(sound):
            # The payload in a reply that keeps it is the request's: a holder of the version of a record knows its payload.
            for place in sound:
                results.settle(place, partial(Reply, applied=True, record=requests[place].record))
            looked = list(failed)
        if looked:
            yield from self._look(requests, looked, failed, results)
        return results.as_list()

    def guarantees(self) -> Exchange[Guarantees]:
        """The first call looks at the server, and may find that it can notify."""
        return (yield from self._known()).guarantees

    def provision(self) -> Exchange[None]:
        """Make the collection."""
        yield from self._learn(provisioning(self._names))

    def moved_on(self, key: str, seen: LockRecord) -> Exchange[bool]:
        """Whether *key* is free, or held in another version than *seen*. If not, it is marked: its next write is news to the stream."""
        try:
            answer = yield from self._send(_wire.mark(self._names.collection, seen))
            if answer.get("value") is not None:
                return False
            record = _wire.found((yield from self._send(_wire.find(self._names.collection, [key], "local"))))
        except (PyMongoError, OSError) as error:
            # The wait goes on without the mark.
            if kind_of(error) is StoreSetupError:
                raise
            return False
        return record is None or record.version != seen.version or not record.held

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return dlock's error for one of pymongo's."""
        return error_of(error, call.key, writes=call.writes)

    def _step(self, request: Step, document: Document, *, urgent: bool = False) -> Exchange[Reply]:
        key = request.record.key
        answer = yield from self._send(document, urgent=urgent)
        check_concern(answer, key)
        standing = answer.get("value")
        if standing is None and (_wire.creates(request) or not answer["ok"]):
            # Another claim made the document in the same instant. MongoDB then tries again by itself, but an old or a sharded server says
            # that the key is there already, and some that only speak MongoDB's language answer nothing. Either way the command is over.
            for standing in _wire.documents((yield from self._find([key]))):
                return _wire.judged(request, standing)
            raise OutcomeUnknownError(
                f"MongoDB neither granted nor refused lock {key!r}, and shows no record of it", key=key
            )
        return _wire.judged(request, standing)

    def _look(
        self,
        requests: Sequence[Replace],
        places: Sequence[int],
        failed: dict[int, Document],
        results: BatchResults,
    ) -> Exchange[None]:
        """Settle the requests at *places* by the records that stand after the batch, and by the errors of its statements."""
        try:
            shown = yield from self._find([requests[place].record.key for place in places])
        except _TROUBLE as error:
            for place in places:
                results.settle(place, partial(_unseen, requests[place].record.key, error))
            return
        found = {document["_id"]: document for document in _wire.documents(shown)}
        for place in places:
            request = requests[place]
            if request.record.key in found or shown["cursor"]["id"] == 0:
                results.settle(place, partial(_settled, request, found.get(request.record.key), failed.get(place)))

    def _find(self, keys: Sequence[str]) -> Exchange[Any]:
        level = (yield from self._known()).read_level
        return (yield from self._send(_wire.find(self._names.collection, keys, level)))

    def _send(self, document: Document, *, urgent: bool = False) -> Exchange[Any]:
        yield from self._known()
        answer: Any = yield Command(self._names.database, document, urgent=urgent)
        return answer  # with its type

    def _known(self) -> Exchange[Facts]:
        facts = self._facts
        return facts if facts is not None else (yield from self._learn(inspection(self._names)))

    def _learn(self, conversation: Conversation) -> Exchange[Facts]:
        self._facts = facts = yield from conversation
        self._learned(facts)
        return facts


def _settled(request: Replace, document: Document | None, failure: Document | None) -> Reply:
    """Return the result of one request of a batch, or raise it, by the *document* that stands and the *failure* of its statement."""
    reply = _wire.judged(request, document)
    if failure is None or reply.record is None or reply.record.version != request.expected:
        return reply
    cause = WriteError(f"code {failure.get('code')}", failure.get("code"), failure)
    error = error_of(cause, request.record.key, writes=True)
    assert error is not None
    raise error from cause


def _unseen(key: str, cause: BaseException) -> NoReturn:
    """Raise the result of a renewal after which nobody could look."""
    problem = f"MongoDB may have renewed lock {key!r}; it did not show the record after a batch"
    raise OutcomeUnknownError(problem, key=key) from cause
