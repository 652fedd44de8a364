"""Every verb as one exchange: which transactions it sends, and what their answers mean. The same for threads and for asyncio."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError
from dlock_core.kit import BatchResults, in_parts, outcome, pages, wakes
from dlock_core.record import LockRecord, State
from dlock_core.store import Replace, Reply
from dlock_etcd import _schema, _wire
from dlock_etcd._errors import TROUBLE, error_of, is_too_much
from dlock_etcd._queue import Queue
from dlock_etcd._schema import TXN, Request
from dlock_etcd._wire import BATCH_LIMIT
from dlock_etcd.provision import inspection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dlock_core.kit import Call, Exchange
    from dlock_core.store import Claim, Guarantees, Release
    from dlock_etcd._wire import Place
    from dlock_etcd.options import EtcdStoreOptions

# The server's own limit for a request is 1.5 MiB.
_BATCH_BYTES = 1 << 20


class EtcdVerbs:
    """Everything that the stores know of etcd."""

    name = "etcd"

    def __init__(self, options: EtcdStoreOptions) -> None:
        self.keys = _wire.Keys(options.root)
        self._endpoints = options.endpoints
        self.queue = Queue(self)
        # What the cluster has reached, as its last answer said.
        self.revision = 0

    def claim(self, request: Claim) -> Exchange[Reply]:
        """One transaction; one more where a token above the cluster's revision stands, or was asked for."""
        key, record = request.record.key, None
        own = self.queue.own(key, request.ticket)
        txn = _wire.claim(self.keys, request, self.revision, own)
        while True:
            answer = yield from self.transacted(txn)
            # Not self.revision: another thread's answer may have come meanwhile.
            token = answer.header.revision if record is None else record.fencing_token
            came = _wire.judged(request._replace(record=record or request.record), answer, token)
            if isinstance(came, Reply):
                self.queue.served(key, request.ticket, own, answer)
                return came
            if kept := came.kept(key):
                return Reply(applied=False, record=kept)
            decided = outcome(came.record(key), request, floor=self.revision + 1)
            record = decided.record
            if not decided.applied or record is None:
                return decided
            txn = _wire.exact(self.keys, record, self.revision, came.revision, own)

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """One transaction."""
        following = self.queue.next(request.record.key) if wakes(request) else None
        answer = yield from self.transacted(_wire.step(self.keys, request, self.revision, following))
        reply = self._settled(request, answer)
        yield from self._woken(request, answer, following)
        return reply

    release = replace

    def _settled(self, request: Replace | Release, answer: Any) -> Reply:
        key = request.record.key
        came = _wire.judged(request, answer, request.record.fencing_token)
        if not isinstance(came, Reply):
            return Reply(applied=False, record=came.record(key))
        return came if wakes(request) else came._replace(wanted=self.queue.note(key, answer))

    def _woken(self, request: Replace | Release, answer: Any, told: Place | None = None) -> Exchange[None]:
        """Wake who comes next, if the step has made room and not *told* that one itself."""
        if wakes(request):
            yield from self.queue.ring(_wire.following(self.keys, request.record.key, answer, told))

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[Sequence[Reply | StoreError]]:
        """One transaction, with one inside of it for each request; more where they are large, or etcd takes less than by default."""
        results = BatchResults(requests)
        steps = [_wire.step(self.keys, request, self.revision) for request in requests]

        def send(numbers: Sequence[int]) -> Exchange[None]:
            answer = yield from self.transacted(_wire.batch([steps[number] for number in numbers]))
            for number, each in zip(numbers, _wire.batch_answers(answer), strict=True):
                results.settle(number, partial(self._settled, requests[number], each))
                yield from self._woken(requests[number], each)

        told = partial(error_of, writes=True)
        for numbers in in_parts({number: txn.ByteSize() for number, txn in enumerate(steps)}, _BATCH_BYTES):
            try:
                yield from results.apart(send, numbers, is_too_much, told)
            except TROUBLE as error:
                results.fail_by(numbers, error, partial(told, error))
        return results.as_list()

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Linearizable, as each transaction is."""
        answer = yield from self.transacted(_wire.read(self.keys, key))
        return _wire.shown(answer.responses).record(key)

    def moved_on(self, bell: str, seen: LockRecord) -> Exchange[bool]:
        """Whether the record *seen* stands no more, for the one who waits for *bell*; else it has its place now."""
        return self.queue.enter(bell, seen)

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """In the order of keys."""

        def page(after: str | None) -> Exchange[Any]:
            return _wire.readings(self.keys, (yield from self.transacted(_wire.page(self.keys, prefix, after))))

        return pages(page)

    def guarantees(self) -> Exchange[Guarantees]:
        """Ask each endpoint for itself, and one for its cluster."""
        return (yield from inspection(self._endpoints))

    def provision(self) -> Exchange[None]:
        """Make nothing: there is nothing to make. A batch that changes nothing shows whether etcd lets its user in, and takes so much."""
        records = [
            LockRecord(f"init/{number}", State.HELD, token_hex(16), 1, "init", 1) for number in range(BATCH_LIMIT)
        ]
        steps = [_wire.step(self.keys, Replace(record, record.version), 0) for record in records]
        yield from self.transacted(_wire.batch(steps))

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return dlock's error for one of gRPC's."""
        return error_of(error, call.key, writes=call.writes)

    def watched(self) -> Request:
        """Return the request for the bells of this client."""
        start = self.queue.bells
        return _schema.watch(start, _wire.behind(start))

    def transacted(self, txn: Any) -> Exchange[Any]:
        """Send a transaction."""
        answer = yield Request(TXN, txn)
        self.revision = answer.header.revision
        return answer
