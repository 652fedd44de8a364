"""Both colours of a store from one description of its exchanges.

An adapter writes each verb once, as a generator, its *exchange* with the server: it yields a request, is sent the answer, may yield further
requests, and returns the verb's result. An error of the driver is raised inside the exchange, at the ``yield``. How a request travels is
written in both colours, in the adapter's links: :class:`Link` for threads, :class:`AsyncLink` for asyncio. The faces below join the two::

    def read(self, key: str) -> Exchange[LockRecord | None]:
        row = yield Select(key)
        return None if row is None else record_of(key, Plain(*row))

The time-out of a verb is one deadline for all requests of its exchange.

What needs more than one exchange, or other calls that asyncio awaits, is written once as well: as a generator of *steps*, which yields the
result of each such call and is sent it back, awaited where that is needed. :func:`perform` and :func:`aperform` perform it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from dlock_core.errors import StoreError, StoreUnavailableError
from dlock_core.store import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence

    from dlock_core.record import LockRecord
    from dlock_core.store import Capability, Claim, Guarantees, Release, Replace, Reply

_T = TypeVar("_T")
Exchange: TypeAlias = Generator[Any, Any, _T]
# Calls that are given no time-out of their own.
ADMIN_TIMEOUT_S = 10.0
_READING = frozenset({"read", "scan", "inspect"})


class Call(NamedTuple):
    """A verb that was called: for error messages, and for what an error means."""

    verb: str
    key: str | None
    timeout_s: float

    @property
    def writes(self) -> bool:
        """Whether the call may have changed something: if not, no outcome of it is unknown."""
        return self.verb not in _READING


class Verbs(Protocol):
    """Everything that an adapter knows of its server, in no colour. ``wait`` is the links' business, since it blocks."""

    name: str
    """The server's name in messages: ``Redis``."""

    def claim(self, request: Claim) -> Exchange[Reply]:
        """Clauses S2 to S4."""

    def replace(self, request: Replace) -> Exchange[Reply]:
        """Clauses S4 and S5."""

    def release(self, request: Release) -> Exchange[Reply]:
        """Clauses S4 and S6."""

    def read(self, key: str) -> Exchange[LockRecord | None]:
        """Clause S9."""

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """Clause S10: one exchange for each page, each with a time-out of its own."""

    def guarantees(self) -> Exchange[Guarantees]:
        """Clause S20."""

    def provision(self) -> Exchange[None]:
        """Clause S21."""

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return the error of dlock for one of the driver, or None for one that is not the driver's (clauses S14, S15, S17)."""


class Link(Protocol):
    """How a request reaches the server and its answer comes back, for threads."""

    def send(self, request: Any, timeout_s: float) -> Any:
        """Send *request* once; return the answer within *timeout_s* or raise the driver's error."""

    def close(self) -> None:
        """Close what the link opened itself. May be repeated; a call after one that was interrupted closes the rest."""


class AsyncLink(Protocol):
    """The async twin of :class:`Link`."""

    async def send(self, request: Any, timeout_s: float) -> Any:
        """As :meth:`Link.send`."""

    async def close(self) -> None:
        """As :meth:`Link.close`."""


class _Face:
    """What both colours share: being open, the count of requests (but for those that are ``is_local``), and what errors become."""

    capabilities: frozenset[Capability]
    _verbs: Verbs
    _link: Any
    _open = True
    _link_closed = False
    inspect_timeout_s = ADMIN_TIMEOUT_S
    """How long ``guarantees`` may take. Whoever opens the store for a client with a ``request_timeout`` lowers it."""

    def __init__(self, verbs: Verbs, link: Any) -> None:
        self._verbs = verbs
        self._link = link
        self.requests: defaultdict[str, int] = defaultdict(int)

    @property
    def connections(self) -> Connections | None:
        """Those of the pools of the link together, if it names its ``pools``: else the driver has connections of its own."""
        pools = getattr(self._link, "pools", None)
        if pools is None:
            return None
        return Connections(*map(sum, zip((0, 0, 0), *(pool.connections for pool in pools), strict=True)))

    def _begin(self, call: Call) -> float:
        """Return the deadline of *call* on the monotonic clock.

        Raises: StoreUnavailableError: the store was closed.
        """
        if not self._open:
            raise StoreUnavailableError(f"the {self._verbs.name} store was closed; open a new one", key=call.key)
        return time.monotonic() + call.timeout_s

    def _running(self, exchange: Exchange[_T], call: Call) -> Exchange[_T]:
        """Return the result of *exchange*, whose requests go over the link; the steps of one verb."""
        deadline = self._begin(call)
        step: Callable[[Any], Any] = exchange.send
        answer: Any = None
        try:
            while True:
                request = step(answer)
                self.requests[call.verb] += not getattr(request, "is_local", False)
                try:
                    answer, step = (yield self._link.send(request, _left_s(deadline))), exchange.send
                except Exception as failure:  # noqa: BLE001  # the exchange decides what it means
                    answer, step = failure, exchange.throw
        except StopIteration as end:
            result: _T = end.value
            return result
        except Exception as failure:  # noqa: BLE001  # it is raised again
            self._raise(failure, call)
        finally:
            del answer  # as in perform
            exchange.close()

    def _raise(self, error: Exception, call: Call) -> NoReturn:
        """Raise *error*, or the error of dlock for it, from the verb."""
        trouble = None if isinstance(error, StoreError) else self._verbs.trouble(error, call)
        try:
            if isinstance(error, StoreError) and error.__cause__ is not None:
                raise error.with_traceback(None)  # the traceback of its cause shows where the driver failed
            if trouble is None:
                raise error
            raise trouble from error
        finally:
            del trouble, error  # as in perform


def perform(steps: Generator[Any, Any, _T]) -> _T:
    """Return the result of *steps*, whose calls return what they yield. An interrupt in here is raised in *steps*."""
    step: Callable[[Any], Any] = steps.send
    came: Any = None
    try:
        while True:
            try:
                came, step = step(came), steps.send
            except StopIteration as end:
                result: _T = end.value
                return result
            except BaseException as error:
                if getattr(steps, "gi_frame", None) is None:  # it is the error of a step
                    raise
                came, step = error, steps.throw
    finally:
        del came  # an error whose traceback names this frame would keep alive what its callers have


async def aperform(steps: Generator[Any, Any, _T]) -> _T:
    """As :func:`perform`, where what *steps* yield is awaited."""
    step: Callable[[Any], Any] = steps.send
    came: Any = None
    try:
        while True:
            try:
                awaited = step(came)
            except StopIteration as end:
                result: _T = end.value
                return result
            try:
                came, step = await awaited, steps.send
            except BaseException as error:  # noqa: BLE001  # also a cancellation is for the steps to handle
                came, step = error, steps.throw
    finally:
        del came  # as in perform


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time-out of the call was over before its next request was sent")
    return left_s


class ExchangeStore(_Face):
    """A store for threads made of *verbs* and a *link*. Optional capabilities are mixed in: :class:`Batches`, :class:`ReadsAge`."""

    _link: Link
    _perform = staticmethod(perform)

    def __init__(self, verbs: Verbs, link: Link) -> None:
        super().__init__(verbs, link)

    def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """Create the record if nobody holds the key."""
        return self._run(self._verbs.claim(request), Call("claim", request.record.key, timeout_s))

    def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """Replace the held record if its version is still the expected one."""
        return self._run(self._verbs.replace(request), Call("replace", request.record.key, timeout_s))

    def release(self, request: Release, *, timeout_s: float) -> Reply:
        """Put the tombstone if the record is held in the expected version, and wake one waiter."""
        return self._run(self._verbs.release(request), Call("release", request.record.key, timeout_s))

    def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """Return the record under *key*, or None where the key is absent."""
        return self._run(self._verbs.read(key), Call("read", key, timeout_s))

    def scan(self, prefix: str, *, timeout_s: float) -> Iterator[LockRecord]:
        """Yield the records whose key starts with *prefix*; *timeout_s* bounds each page."""
        for page in self._verbs.scan(prefix):
            yield from self._run(page, Call("scan", None, timeout_s))

    def guarantees(self) -> Guarantees:
        """Ask the server what it promises."""
        return self._run(self._verbs.guarantees(), Call("inspect", None, self.inspect_timeout_s))

    def provision(self) -> None:
        """Create what the store needs; may be repeated."""
        self._run(self._verbs.provision(), Call("provision", None, ADMIN_TIMEOUT_S))

    def close(self) -> None:
        """Refuse every later call, and close what the store opened itself; may be repeated."""
        self._open = False
        if not self._link_closed:
            self._link.close()
            self._link_closed = True

    def _run(self, exchange: Exchange[_T], call: Call) -> _T:
        return perform(self._running(exchange, call))


class AsyncExchangeStore(_Face):
    """The async twin of :class:`ExchangeStore`. A cancelled verb may or may not be applied."""

    _link: AsyncLink
    _perform = staticmethod(aperform)

    def __init__(self, verbs: Verbs, link: AsyncLink) -> None:
        super().__init__(verbs, link)

    async def claim(self, request: Claim, *, timeout_s: float) -> Reply:
        """As :meth:`ExchangeStore.claim`."""
        return await self._run(self._verbs.claim(request), Call("claim", request.record.key, timeout_s))

    async def replace(self, request: Replace, *, timeout_s: float) -> Reply:
        """As :meth:`ExchangeStore.replace`."""
        return await self._run(self._verbs.replace(request), Call("replace", request.record.key, timeout_s))

    async def release(self, request: Release, *, timeout_s: float) -> Reply:
        """As :meth:`ExchangeStore.release`."""
        return await self._run(self._verbs.release(request), Call("release", request.record.key, timeout_s))

    async def read(self, key: str, *, timeout_s: float) -> LockRecord | None:
        """As :meth:`ExchangeStore.read`."""
        return await self._run(self._verbs.read(key), Call("read", key, timeout_s))

    async def scan(self, prefix: str, *, timeout_s: float) -> AsyncIterator[LockRecord]:
        """As :meth:`ExchangeStore.scan`."""
        for page in self._verbs.scan(prefix):
            for record in await self._run(page, Call("scan", None, timeout_s)):
                yield record

    async def guarantees(self) -> Guarantees:
        """As :meth:`ExchangeStore.guarantees`."""
        return await self._run(self._verbs.guarantees(), Call("inspect", None, self.inspect_timeout_s))

    async def provision(self) -> None:
        """As :meth:`ExchangeStore.provision`."""
        await self._run(self._verbs.provision(), Call("provision", None, ADMIN_TIMEOUT_S))

    async def close(self) -> None:
        """As :meth:`ExchangeStore.close`."""
        self._open = False
        if not self._link_closed:
            await self._link.close()
            self._link_closed = True

    def _run(self, exchange: Exchange[_T], call: Call) -> Coroutine[Any, Any, _T]:
        return aperform(self._running(exchange, call))


# ---- optional capabilities of a store of either colour. Each asks the verbs for an exchange of the same name; asyncio awaits the result.


class Batches:
    """Mix into a store whose verbs have ``replace_many`` (clauses B1 to B3)."""

    batch_limit: int

    def replace_many(self: Any, requests: Sequence[Replace], *, timeout_s: float) -> Any:
        """Do each replace; the results come in the order of the requests."""
        return self._run(self._verbs.replace_many(requests), Call("replace", None, timeout_s))


class ClaimsMany:
    """Mix into a store whose verbs have ``claim_many`` (clauses M1 to M4)."""

    def claim_many(self: Any, requests: Sequence[Claim], *, timeout_s: float) -> Any:
        """Apply all claims or none; a reply for each, in order."""
        return self._run(self._verbs.claim_many(requests), Call("claim", None, timeout_s))


class ReadsAge:
    """Mix into a store whose verbs have ``read_age`` (clauses C1 and C2)."""

    def read_age(self: Any, key: str, *, timeout_s: float) -> Any:
        """Return the record under *key* and the ms since its last write, by the server's clock."""
        return self._run(self._verbs.read_age(key), Call("read", key, timeout_s))


class Prunes:
    """Mix into a store whose verbs have ``prune`` (clauses P1 to P3)."""

    def prune(self: Any, records: Sequence[LockRecord], *, older_than_ms: int, dry_run: bool, timeout_s: float) -> Any:
        """Remove those of *records* that are free, unchanged and old enough; return how many they are."""
        exchange = self._verbs.prune(records, older_than_ms=older_than_ms, dry_run=dry_run)
        return self._run(exchange, Call("prune", None, timeout_s))
