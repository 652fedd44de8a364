"""The MySQL store: one request for each step, granted or refused, for each read, and for each batch of renewals.

It is called from threads; asyncio is served by the core's threads over it. ``docs/stores.md`` says why there is no asyncio driver below it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.kit import Batches, BatchResults, Call, Exchange, ExchangeStore, ReadsAge, in_parts, outcome, pages
from dlock_core.record import State
from dlock_core.store import Capability, Reply
from dlock_mysql import provision
from dlock_mysql._errors import ROW_LOCKED, is_of_one, translate
from dlock_mysql._link import link_of
from dlock_mysql._wire import PAGE_ROWS, Arm, Table, age_ms_of, decode, identifier
from dlock_mysql.options import MySQLStoreOptions, fence_sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Claim, Guarantees, Release, Replace
    from dlock_mysql._wire import Request

__all__ = ["MySQLStore"]

# A request has at most so much of its renewals, and their keys once more: below a max_allowed_packet of 1 MiB, which is a small one.
_BATCH_CHARACTERS = 400_000


class MySQLVerbs:
    """The verbs, as exchanges with the server."""

    name = "MySQL"

    def __init__(self, options: MySQLStoreOptions) -> None:
        self.options = options
        self.table = Table(options)
        self._passes_over = False

    def claim(self, request: Claim) -> Exchange[Reply]:
        """Create the record if nobody holds the key."""
        reply = yield from self._step(self.table.claim(request), request)
        standing = reply.record
        if not reply.applied and standing is not None and standing.state is not State.HELD:
            outcome(standing, request)  # raises where no greater token can be stored
        return reply

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """Write the record if the one that stands is held in the expected version."""
        return self._step(self.table.change(request), request)

    release = replace

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Return the record under *key*: a consistent read sees every commit that was answered."""
        rows = yield self.table.read([key])
        return decode(key, rows[0][0]) if rows else None

    def read_age(self, key: str) -> Exchange[tuple[LockRecord, int] | None]:
        """Return the record and the ms since its last write, by the server's clock."""
        rows = yield self.table.read_age(key)
        return (decode(key, rows[0][0]), age_ms_of(rows[0])) if rows else None

    def scan(self, prefix: str) -> Iterator[Exchange[list[LockRecord]]]:
        """In the order of the keys."""

        def page(after: str | None) -> Exchange[Any]:
            rows = yield self.table.page(prefix, after)
            found = [(raw.decode(errors="surrogateescape"), row) for row, raw in rows]
            ours = [(key, row) for key, row in found if key.startswith(prefix)]
            return [partial(decode, *each) for each in ours], ours[-1][0] if len(ours) == PAGE_ROWS else None

        return pages(page)

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[list[Reply | StoreError]]:
        """Do each replace, all in one transaction, or in several where they are large: a server refuses long requests."""
        results, arms = BatchResults(requests), [*map(Arm.of, requests)]
        parts = [*in_parts({number: len(arm.sql) for number, arm in enumerate(arms)}, _BATCH_CHARACTERS)]
        for numbers in parts:
            try:
                yield from self._renew(results, requests, arms, numbers)
            except (StoreError, pymysql.Error, TimeoutError) as error:
                self._passes_over = True
                if len(parts) == 1:
                    raise
                results.fail_by(numbers, error, partial(self._problem, error))
        return results.as_list()

    def _renew(
        self, results: BatchResults, requests: Sequence[Replace], arms: Sequence[Arm], numbers: Sequence[int]
    ) -> Exchange[None]:
        """Do the replaces of *numbers*. After one that has failed, those of rows that other transactions have locked are passed over.

        So a transaction of the user's that checks the fence of one lock, and takes its time, costs no other.
        """
        if not self._passes_over:
            try:
                yield from self._batch(results, requests, arms, numbers)
            except pymysql.Error as error:
                if error.args[:1] != (ROW_LOCKED,):
                    raise
            else:
                return
        keys = {number: requests[number].record.key for number in numbers}
        shown = Counter(key.decode() for (key,) in (yield self.table.unlocked([*keys.values()])))
        locked = [number for number in numbers if shown[keys[number]] == 1]
        self._passes_over = bool(locked)
        taken = pymysql.OperationalError(ROW_LOCKED)
        if len(locked) == len(numbers):
            raise taken
        results.fail_by(locked, taken, partial(self._problem, taken))
        yield from self._batch(results, requests, arms, [number for number in numbers if number not in locked])

    def _batch(
        self, results: BatchResults, requests: Sequence[Replace], arms: Sequence[Arm], numbers: Sequence[int]
    ) -> Exchange[None]:
        def send(numbers: Sequence[int]) -> Exchange[None]:
            batch = self.table.changes([arms[number] for number in numbers])
            found = {key: (row, key) for row, key in (yield batch)}
            for number in numbers:
                key = requests[number].record.key.encode()
                results.settle(number, partial(batch.reply, [found[key]] if key in found else [], requests[number]))

        return results.apart(send, numbers, is_of_one, self._problem)

    def guarantees(self) -> Exchange[Guarantees]:
        """Say what the server promises."""
        return provision.guarantees(self.options)

    def provision(self) -> Exchange[None]:
        """Make the table unless it is there."""
        return provision.create(self.options)

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return the error of dlock for one of PyMySQL."""
        where = identifier(self.options) if call.key is None else f"key {call.key!r} in {identifier(self.options)}"
        what = f"could not {call.verb} {where}"
        if isinstance(error, pymysql.Error):
            return translate(error, what, self.options, key=call.key, writes=call.writes)
        if isinstance(error, TimeoutError):  # before a request: one that was sent ends with an error of the driver
            return StoreUnavailableError(f"{what}: its time-out is too short; nothing more was sent", key=call.key)
        return None

    def _problem(self, error: Exception, key: str) -> StoreError | None:
        return self.trouble(error, Call("replace", key, 0))

    @staticmethod
    def _step(step: Request, request: Claim | Replace | Release) -> Exchange[Reply]:
        return step.reply((yield step), request)


class MySQLStore(Batches, ReadsAge, ExchangeStore):
    """The store for threads. Nothing is opened before the first call; the keywords are those of :class:`MySQLStoreOptions`."""

    capabilities = frozenset({Capability.BATCH_RENEW, Capability.SERVER_CLOCK})
    batch_limit = 500
    fence_sql = staticmethod(fence_sql)

    def __init__(self, **options: Any) -> None:
        self.options = MySQLStoreOptions(**options)
        super().__init__(MySQLVerbs(self.options), link_of(self.options))
