"""What both elections are, colourless: the options of a candidate, one campaign at a time, and the reads of an observer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from dlock_core.election import Observed, look, observe
from dlock_core.engine.client_context import EXCLUSIVE, check_bytes
from dlock_core.engine.driver import jitter
from dlock_core.engine.process import generation
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import (
    ConfigurationError,
    LeaseStateError,
    LockLostError,
    RecordError,
    StoreError,
    StoreSetupError,
)
from dlock_core.timings import NANOS, NEVER, slow_poll_ns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dlock_core.election import Leader
    from dlock_core.engine.client_context import CallOptions, ClientContext
    from dlock_core.engine.engine import Engine
    from dlock_core.engine.lease_view import LeaseView

_log = guarded_logger("dlock.client")
_Term = TypeVar("_Term", bound="LeaseView")

BLOCK = "the block that leads"
_GRACE = 4
_NOT_FOR_ELECTIONS = {
    "data": "the leader's value is the record's data; give value=",
    "reentrant": "one election leads once at a time",
    **dict.fromkeys(("mode", "permits", "weight"), "an election has one leader"),
    "renewal": "observers tell by the record of an election whether its leader lives",
}


class _Campaign:
    """A campaign under way; gone with whoever was at it, also where an interrupt has kept them from saying so."""

    def __init__(self) -> None:
        self.generation = generation()


class Candidate:
    """What an election object knows in either colour: its options, and whether it campaigns or leads at present."""

    def __init__(self, context: ClientContext, key: str, value: bytes | None, options: Mapping[str, Any]) -> None:
        self.key = key
        self.full_key = context.full_key(key)
        self._context = context
        check_bytes(value, "value")
        self._options = {**options, "value": value}
        self._campaign: weakref.ref[_Campaign] | None = None
        self._term: weakref.ref[LeaseView] | None = None
        self.resolve({})

    def resolve(self, changes: Mapping[str, Any]) -> CallOptions:
        """Return the options of one campaign, checked.

        Raises: ConfigurationError: an option is unknown or not for elections, or the stop grace does not fit the lease.
        """
        given = {**self._options, **changes}
        for name, advice in _NOT_FOR_ELECTIONS.items():
            if name in given:
                raise ConfigurationError(f"{name} is not an option of election {self.key!r}: {advice}")
        given |= {"data": given.pop("value"), **EXCLUSIVE}
        call = self._context.resolve(given)
        timings = call.timings
        hold_ns = min(timings.own_lease_ns, timings.max_hold_ns or NEVER, timings.stall_ns or NEVER)
        if call.options.stop_grace is not None or hold_ns == NEVER:
            return call
        return self._context.resolve({**given, "stop_grace": hold_ns / _GRACE / NANOS})

    async def campaign(self, engine: Engine, obtain: Callable[[], Awaitable[_Term]], body: str) -> _Term:
        """Await *obtain*, and return the term that it brings, under which *body* will run.

        Raises: LeaseStateError: this election campaigns already, or leads, or the body of its last term has not ended.
        """
        mine, term = _Campaign(), None
        self._begin(engine, mine)
        try:
            try:
                term = await obtain()
            finally:
                self._end(engine, term, body)
        except BaseException:
            if term is not None:  # interrupted: nobody will have it
                term._leave_to_scheduler()
            raise
        return term

    def _begin(self, engine: Engine, mine: _Campaign) -> None:
        with engine.runtime.mutex:
            campaign = None if self._campaign is None else self._campaign()
            term = None if self._term is None else self._term()
            # Of a shared client, in a forked child: what the parent does is the parent's.
            campaigns = campaign is not None and campaign.generation == generation()
            if campaigns or (term is not None and not term._closed and term._context.generation == generation()):
                doing = "campaigns already" if campaigns else f"has not resigned from its {term!r}"
                raise LeaseStateError(
                    f"election {self.key!r} {doing}; one election object leads once at a time: resign first, or make another one"
                )
            self._campaign = weakref.ref(mine)

    def _end(self, engine: Engine, term: LeaseView | None, body: str) -> None:
        with engine.runtime.mutex:
            self._campaign = None
            self._term = None if term is None else weakref.ref(term)
            if term is not None and term.loss is None:
                term._handle.signal_loss(_OverdueBody(term, body))

    async def run(
        self,
        engine: Engine,
        campaign: Callable[[], Awaitable[_Term]],
        lead: Callable[[_Term], Awaitable[object]],
        *,
        rejoin: bool,
    ) -> None:
        """Await *campaign*, then *lead* with the term, which returns when the body has ended and the term was given back; and again."""
        while not engine.closed:
            try:
                term = await self._next_term(engine, campaign, rejoin=rejoin)
                try:
                    await self._lead(term, lead, rejoin=rejoin)
                finally:
                    term._leave_to_scheduler()  # where the block was interrupted before it began
            except LeaseStateError:
                if not engine.closed:
                    raise
            if not rejoin:
                return

    async def _next_term(self, engine: Engine, campaign: Callable[[], Awaitable[_Term]], *, rejoin: bool) -> _Term:
        while True:
            try:
                return await campaign()
            except StoreError as error:
                if not rejoin or isinstance(error, (RecordError, StoreSetupError)):
                    raise
                _log.warning("election %r: the campaign failed, and is tried again: %s", self.full_key, error)
                await engine.runtime.sleep(_pause_s(self.resolve({}).timings.lease_ns, None))

    async def _lead(self, term: _Term, lead: Callable[[_Term], Awaitable[object]], *, rejoin: bool) -> None:
        try:
            await lead(term)
        except LockLostError as error:
            loss = error.loss
            is_of_term = (loss.key, loss.fencing_token) == (self.full_key, term.fencing_token)
            if not rejoin or not is_of_term:
                raise
            _log.info("election %r: term %d has ended, campaigning again: %s", self.full_key, term.fencing_token, error)


class _OverdueBody:
    """Logs a warning if a term is lost while its body still runs."""

    def __init__(self, term: LeaseView, body: str) -> None:
        # Weak: a term that its user drops must end.
        self._term = weakref.ref(term)
        self._body = body

    def set(self) -> None:
        """Log it, unless the body has ended."""
        term = self._term()
        if term is None or term._closed or term.loss is None:
            return
        grace_s = term._handle.options.stop_grace
        told = (
            "nothing foretold it" if term._handle.stop_reason is None else f"it was told to stop {grace_s:g} s before"
        )
        _log.warning(
            "term %d of election %r is over (%s) and %s still runs; %s. Another leader may begin beside it; this election campaigns "
            "again only after it has ended",
            term.fencing_token,
            term._handle.name,
            term.loss.reason.value,
            self._body,
            told,
        )


class Observer:
    """Reads the record of an election again and again, and returns each change. It never claims, and never waits in a queue."""

    def __init__(self, context: ClientContext, engine: Engine, candidate: Candidate, poll_period: Any) -> None:
        self._context, self._engine, self._full_key = context, engine, candidate.full_key
        timings = candidate.resolve({} if poll_period is None else {"poll_period": poll_period}).timings
        self._poll_ns = None if poll_period is None else timings.fallback_ns
        self._lease_ns = timings.lease_ns
        self._seen = Observed(candidate.key)
        self._has_read = False
        self._trouble = False

    async def next_change(self) -> Leader | None:
        """Return the next report; None once the client is closed.

        Raises: RecordError: something else is stored under the key. StoreSetupError: the store cannot be used.
        """
        before = self._seen.told
        while not self._engine.closed:
            if self._has_read:
                await self._engine.runtime.sleep(self._pause_s())
                if self._engine.closed:
                    break
            self._has_read = True
            await self._read()
            if self._seen.told != before:
                return self._seen.told
        return None

    def _pause_s(self) -> float:
        lease_ns = self._lease_ns if self._seen.lease_ns == NEVER else self._seen.lease_ns  # nobody leads by a lease
        return _pause_s(lease_ns, self._poll_ns)

    async def _read(self) -> None:
        self._context.check_process()
        try:
            # Hidden records count, too: they keep the term.
            record = await self._engine.store.read(self._full_key, timeout_s=self._context.store_timeout_s())
        except (RecordError, StoreSetupError):
            raise
        except StoreError as error:
            level = _log.debug if self._trouble else _log.warning
            self._trouble = not self._engine.closed
            level("election %r cannot be observed at present: %s", self._full_key, error)
            self._seen = look(self._seen, self._engine.runtime.now())
            return
        self._trouble = False
        before = self._seen
        may_fall = self._context.may_lose_grants
        self._seen = observe(before, record, self._engine.runtime.now(), terms_may_fall=may_fall)
        if self._seen.term < before.term:
            _log.warning(
                "election %r: the store shows term %d after term %d; it has lost the later one in a failover",
                self._full_key,
                self._seen.term,
                before.term,
            )


def body_name(body: object) -> str:
    """Name the body of a term for messages."""
    return f"the body {getattr(body, '__qualname__', repr(body))}"


def _pause_s(lease_ns: int, poll_ns: int | None) -> float:
    """Return how many seconds to wait before the next look, at random, so that a herd spreads."""
    longest = slow_poll_ns(lease_ns) if poll_ns is None else poll_ns
    return (longest - jitter() * longest / 2) / NANOS
