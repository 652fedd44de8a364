"""Elections for threads: campaign, lead, observe. The twin for asyncio is :mod:`dlock_core.aio_election`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from dlock_core.client import Lease
from dlock_core.election import leader_of
from dlock_core.engine.blocking_runtime import run_blocking
from dlock_core.engine.elections import BLOCK, Candidate, Observer, body_name
from dlock_core.engine.user_calls import check_colour, check_ended
from dlock_core.errors import AcquireTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlock_core.client import LockClient
    from dlock_core.election import Leader
    from dlock_core.keywords import LockKeywords, Seconds

__all__ = ["Election", "Term"]


class Term(Lease):
    """One leadership: a lease of the election's key. Leaving its ``with`` block resigns.

    End the work when ``stopping`` is set: the stop grace, by default a quarter of the lease, is left then.
    """

    __slots__ = ()

    @property
    def term(self) -> int:
        """The number of this term, greater than that of every earlier one: the fencing token."""
        return self.fencing_token

    @property
    def value(self) -> bytes | None:
        """The value that observers see."""
        return self.data

    def __enter__(self) -> Self:
        """Return the term. From now on closing the client gives it back only after the block.

        Raises: LockLostError: the term was lost before the block began.
        """
        self._begin_body()
        return super().__enter__()

    def proclaim(self, value: bytes | None) -> None:
        """Let observers see *value* from now on.

        Raises: as :meth:`Lease.renew`.
        """
        self.renew(data=value)

    def resign(self) -> None:
        """Give the leadership up; end the work before. A second call does nothing.

        Raises: as :meth:`Lease.release`.
        """
        self.release()


class Election:
    """One candidate for the leadership of a key, and an observer of it. It leads once at a time; any thread may use it."""

    def __init__(self, client: LockClient, key: str, value: bytes | None, options: LockKeywords) -> None:
        self._client = client
        self._candidate = Candidate(client._context, key, value, options)

    @property
    def key(self) -> str:
        """The key."""
        return self._candidate.key

    def campaign(self, **options: Unpack[LockKeywords]) -> Term:
        """Wait until this candidate leads, at most ``timeout`` seconds, and return the term.

        Raises: as :meth:`LockClient.acquire`; LeaseStateError also while this election campaigns or leads.
        """
        return self._campaign(BLOCK, options)

    def try_campaign(self) -> Term | None:
        """Return the term, or None if another leads; never waits. Raises: as :meth:`campaign`, but no AcquireTimeoutError."""
        try:
            return self._campaign(BLOCK, {"timeout": 0.0})
        except AcquireTimeoutError:
            return None

    def run(self, body: Callable[[Term], object], *, rejoin: bool = True) -> None:
        """Campaign, call *body* with the term, resign when it has returned, and campaign again; until the client is closed.

        *body* should return soon after ``term.stopping`` was set. It never runs twice at a time. While the store cannot be reached, it
        tries again, without end. Without *rejoin* it leads one term, and raises its loss and the errors of the store.

        Raises: what *body* raises, after the resignation. AcquireTimeoutError, where a ``timeout`` was given. ConfigurationError: a call of
            *body* would not run it: it is a coroutine function, or a generator function.
        """
        check_colour(body, asynchronous=False)

        async def campaign() -> Term:
            return self._campaign(body_name(body), {})

        async def lead(term: Term) -> None:
            with term:
                check_ended(body, body(term))

        run_blocking(self._candidate.run(self._client._open_engine, campaign, lead, rejoin=rejoin))

    def leader(self) -> Leader | None:
        """Return the leader that the record names, by one read; None if nobody leads.

        A leader that has died is named until another one leads: :meth:`observe` finds it *silent*.

        Raises: RecordError: a semaphore or a read/write lock is held under the key.
        """
        timeout_s = self._client._context.store_timeout_s()
        record = run_blocking(self._client._open_engine.read(self._candidate.full_key, timeout_s))
        return leader_of(self.key, record)

    def observe(self, *, poll_period: Seconds | None = None) -> Iterator[Leader]:
        """Yield who leads now, and then each change of the term, the value or the state; ends when the client is closed.

        Reads every *poll_period* seconds at most, by default a quarter of the lease and no more than 2. It may skip terms, and yields no
        lower term than before. It waits through an outage of the store.

        Raises: RecordError, StoreSetupError.
        """
        observer = Observer(self._client._context, self._client._open_engine, self._candidate, poll_period)
        while (leader := run_blocking(observer.next_change())) is not None:
            yield leader

    def _campaign(self, body: str, options: LockKeywords) -> Term:
        client, candidate = self._client, self._candidate
        call = candidate.resolve(options)

        async def obtain() -> Term:
            return client._obtain(Term, self.key, candidate.full_key, call)

        return run_blocking(candidate.campaign(client._open_engine, obtain, body))
