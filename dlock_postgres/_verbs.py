"""Every verb as one exchange: which statements it sends, and what their answers mean. The same for threads and for asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dlock_core.errors import StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import BatchResults, outcome, pages
from dlock_core.store import Claim, Reply
from dlock_postgres import _wire
from dlock_postgres._errors import READ_ONLY, TROUBLE, error_of, is_of_one, misfit
from dlock_postgres.options import quoted
from dlock_postgres.provision import inspection, policy, provisioning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dlock_core.kit import Call, Exchange
    from dlock_core.record import LockRecord
    from dlock_core.store import Guarantees, Release, Replace
    from dlock_postgres._wire import Statement
    from dlock_postgres.provision import Facts

# A waiter who was overtaken looks again; where something drops each mark, it goes without.
_MARKS_MAX = 8


class PostgresVerbs:
    """Everything that the stores know of PostgreSQL.

    *learned* is called with the facts of each inspection; *is_awaited* says whether somebody waits for a key by this store.
    """

    name = "PostgreSQL"

    def __init__(self, table: str, learned: Callable[[Facts], None], is_awaited: Callable[[str], bool]) -> None:
        self._named = table
        self._table = quoted(table)
        self._grant = policy(table)
        # Tables whose names are long may share a channel: their waiters are then told too much, which does no harm.
        self.channel = f"dlock:{table}"[:63]
        self._learned, self._is_awaited = learned, is_awaited
        self._cancels = self._is_direct = False
        # How many statements met a server that takes no writes any more.
        self.demotions = 0

    def claim(self, request: Claim) -> Exchange[Reply]:
        """One statement; a read follows where another client's write came in between."""
        # The write that woke the waiter that claims now has dropped the mark, and those behind it in the queue still wait.
        sought = self._is_awaited(request.record.key)
        [row] = (yield self._adapted(_wire.claim(self._table, request, sought=sought))).rows
        return (yield from self._judged(request, row))

    def claim_many(self, requests: Sequence[Claim]) -> Exchange[Sequence[Reply]]:
        """One statement; reads follow where another client's write came in between."""
        sought = [self._is_awaited(request.record.key) for request in requests]
        try:
            rows = (yield self._adapted(_wire.claims(self._table, requests, sought))).rows
        except TROUBLE as error:
            if getattr(error, "sqlstate", None) != _wire.OVERTAKEN:
                raise
            rows = []
        replies: list[Reply] = []
        for number, request in enumerate(requests):
            reply = _wire.judged(request, rows[number][1:]) if rows else None
            if reply is None:
                key = request.record.key
                standing = _wire.standing_in(key, rows[number][1:]) if rows else (yield from self.read(key))
                reply = Reply(applied=False, record=standing)
            replies.append(reply)
        return replies

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """One statement."""
        [row] = (yield from self._telling(_wire.change(self._table, self.channel, request))).rows
        return (yield from self._judged(request, row))

    release = replace

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Linearizable, since it goes to the primary."""
        found = yield from self.read_age(key)
        return None if found is None else found[0]

    def read_age(self, key: str) -> Exchange[tuple[LockRecord, int] | None]:
        """By the server's clock."""
        [(_, age_ms, *row)] = (yield _wire.read(self._table, key)).rows
        return None if age_ms is None else (_wire.found(key, row), max(0, age_ms))

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """In the order of keys."""

        def page(after: str | None) -> Exchange[Any]:
            rows = (yield _wire.page(self._table, prefix, after)).rows
            ours = [row for row in rows if row[0].startswith(prefix)]
            more = len(ours) == _wire.PAGE_SIZE
            return [partial(_wire.found, row[0], row[1:]) for row in ours], ours[-1][0] if more else None

        return pages(page)

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[Sequence[Reply | StoreError]]:
        """One statement, with a result for each request; one more for those whose rows other transactions had locked.

        So a transaction of the user's that checks the fence of one lock holds up the renewal of no other.
        """
        results, left = BatchResults(requests), list[int]()
        yield from self._batch(results, requests, range(len(requests)), left, waits=False)
        try:
            if left:
                yield from self._batch(results, requests, left, [], waits=True)
        except (StoreError, *TROUBLE) as error:
            results.fail_by(left, error, partial(self._problem, error, writes=True))
        return results.as_list()

    def _batch(
        self,
        results: BatchResults,
        requests: Sequence[Replace],
        numbers: Sequence[int],
        left: list[int],
        *,
        waits: bool,
    ) -> Exchange[None]:
        """Send the requests of *numbers* and note their results; those that were passed over go to *left*."""

        def send(numbers: Sequence[int]) -> Exchange[None]:
            asked = [(number, requests[number]) for number in numbers]
            answer = yield from self._telling(_wire.changes_of(self._table, self.channel, asked, waits=waits))
            for number, passed_over, *row in answer.rows:
                if passed_over:
                    left.append(number)
                else:
                    results.settle(number, partial(_settled, requests[number], row))

        return results.apart(send, numbers, is_of_one, partial(self._problem, writes=True))

    def guarantees(self) -> Exchange[Guarantees]:
        """Look at server and table."""
        facts = self._noted((yield from inspection(self._named)))
        return facts.guarantees

    def provision(self) -> Exchange[None]:
        """Make the table."""
        self._noted((yield from provisioning(self._named)))

    def moved_on(self, key: str, record: LockRecord) -> Exchange[bool]:
        """Whether *key* is free, or held in another version than *record*. If not, its row is marked: the next write of it notifies."""
        told: bool | None = None
        try:
            for _ in range(_MARKS_MAX):
                [(told,)] = (yield self._adapted(_wire.mark(self._table, record))).rows
                if told is not None:
                    break
        except (StoreUnavailableError, *TROUBLE) as error:
            problem = self._problem(error, key, writes=False)
            if isinstance(problem, StoreSetupError):
                raise problem from error
        return bool(told)  # where nothing was told the wait goes on without the mark

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return dlock's error for one of psycopg's."""
        return self._problem(error, call.key, writes=call.writes)

    def _problem(self, error: Exception, key: str | None, *, writes: bool) -> StoreError | None:
        self.demotions += getattr(error, "sqlstate", None) == READ_ONLY
        return error_of(error, key, writes=writes, grant=self._grant)

    def _noted(self, facts: Facts) -> Facts:
        # A commit that waits for a synchronous standby is not rolled back where it is cancelled: the server answers as if the standby had
        # confirmed it, and shows it to everybody. Left alone, nobody sees it before it is confirmed.
        self._cancels = not facts.confirmed
        self._is_direct = facts.notifies
        self._learned(facts)
        return facts

    def _adapted(self, statement: Statement) -> Statement:
        # Behind a pooler each statement may reach another session, which has prepared nothing.
        return statement._replace(cancels=self._cancels, prepared=self._is_direct)

    def _telling(self, change: Statement) -> Exchange[Any]:
        """Send *change*, and once more where nobody can be told of it: no lock is lost for want of a notification."""
        try:
            return (yield self._adapted(change))
        except TROUBLE as error:
            if getattr(error, "sqlstate", None) != _wire.QUEUE_FULL:
                raise
        return (yield self._adapted(_wire.untold(change)))

    def _judged(self, request: Claim | Replace | Release, row: Sequence[Any]) -> Exchange[Reply]:
        reply = _wire.judged(request, row)
        if reply is None:
            reply = Reply(applied=False, record=(yield from self.read(request.record.key)))
            if type(request) is not Claim and outcome(reply.record, request).applied:
                raise _dropped(request.record.key)
        return reply


def _settled(request: Replace, row: Sequence[Any]) -> Reply:
    reply = _wire.judged(request, row)
    if reply is None:  # a row that is locked refuses, or was written
        raise _dropped(request.record.key)
    return reply


def _dropped(key: str) -> StoreSetupError:
    """Return the error of a write that fits the row, and was not applied."""
    return misfit("a trigger or a rule of its table drops writes", "remove it, or name another table", key=key)
