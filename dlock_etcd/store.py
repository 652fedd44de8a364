"""The two stores, for threads and for asyncio. The verbs are in ``_verbs``, the way to the cluster in ``_links``."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from dlock_core.errors import StoreError
from dlock_core.kit import AsyncExchangeStore, AsyncWatch, Batches, Call, ExchangeStore, News, Waits, Watch
from dlock_core.store import Capability
from dlock_etcd._errors import TROUBLE
from dlock_etcd._links import AsyncLink, ThreadLink
from dlock_etcd._verbs import EtcdVerbs
from dlock_etcd._watch import AsyncStream, Stream, opened
from dlock_etcd._wire import BATCH_LIMIT, rung
from dlock_etcd.options import EtcdStoreOptions

if TYPE_CHECKING:
    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord

__all__ = ["AsyncEtcdStore", "EtcdStore"]

_UPKEEP = Call("keep", None, 1.0)
_LEAVE_S = 0.25


class _Store(Batches, Waits):
    """What both stores share: how they are made, and the way of a waiter into the queue and out of it."""

    batch_limit = BATCH_LIMIT
    capabilities = frozenset({Capability.BATCH_RENEW, Capability.NOTIFY})
    _channel_class: Any
    _link_class: Any
    _stream_class: Any
    _watch_class: Any
    _link: Any
    _verbs: Any

    def __init__(self: Any, source: Any, *, root: str | None = None, user: str = "", password: str = "") -> None:
        parts = {"root": root, "user": user, "password": password}
        options, channel = EtcdStoreOptions.given(source, self._channel_class, **parts)
        link, verbs = self._link_class(options, channel), EtcdVerbs(options)
        super().__init__(verbs, link)  # type: ignore[call-arg]  # the face that is mixed in

        def open_stream() -> Any:
            verbs.queue.begin_anew()
            return self._perform(opened(self._stream_class(link.stream(verbs.watched()))))

        news = News(open_stream, rung, (StoreError, *TROUBLE), lambda: self._run(verbs.queue.upkeep(), _UPKEEP))
        link.watch = self._watch_class(news)

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came.

        A waiter that is interrupted leaves the queue.
        """
        return self._perform(self._queueing(record, ticket, timeout_s, returns=False))

    def wait_keeping_place(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        """As :meth:`wait`, for who waits again after a look at the key: the place stands for so long."""
        return self._perform(self._queueing(record, ticket, timeout_s, returns=True))

    def close(self: Any) -> Any:
        """Leave the queues, refuse every later call, and close what the store opened itself; may be repeated."""
        return self._perform(self._closing())

    def _closing(self: Any) -> Exchange[None]:
        with suppress(StoreError):  # the places end a little later
            yield self._run(self._verbs.queue.upkeep(ends=True), _UPKEEP)
        yield super().close()  # type: ignore[misc]  # of the face that is mixed in

    def _queueing(self: Any, record: LockRecord, ticket: str, timeout_s: float, *, returns: bool) -> Exchange[None]:
        key = record.key
        queue, until, woken, stays = self._verbs.queue, time.monotonic() + timeout_s, False, False
        bell = queue.attend(key, ticket, until)
        try:
            yield from self._waiting(record, bell, timeout_s)
            woken = time.monotonic() < until
            # Who waits for a shared lock makes no claim, which would take its place away.
            stays = (woken or returns) and record.members is None
        finally:
            if stays:
                queue.keep(bell)
            else:
                with suppress(StoreError):  # the place is given up a little later
                    yield self._run(queue.leave(bell, passes_on=not woken), Call("leave", key, _LEAVE_S))


class EtcdStore(_Store, ExchangeStore):
    """The store for threads.

    *source* is a URL, its options, or a channel of the user's (``grpc.Channel``), who closes it; *root*, *user* and *password* are those of
    the URL.
    """

    _channel_class, _link_class, _stream_class, _watch_class = grpc.Channel, ThreadLink, Stream, Watch


class AsyncEtcdStore(_Store, AsyncExchangeStore):
    """As :class:`EtcdStore`, for the tasks of one event loop, with a ``grpc.aio.Channel``."""

    _channel_class, _link_class, _stream_class, _watch_class = grpc.aio.Channel, AsyncLink, AsyncStream, AsyncWatch
