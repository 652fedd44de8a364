"""The two stores, for threads and for asyncio. The verbs are in ``_verbs``, the way to the cluster in ``_links``."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from dlock_core.errors import ConfigurationError, StoreError
from dlock_core.kit import AsyncExchangeStore, AsyncWatch, Batches, Call, ExchangeStore, Waits, Watch
from dlock_core.store import Capability
from dlock_etcd._links import AsyncLink, ThreadLink
from dlock_etcd._verbs import EtcdVerbs
from dlock_etcd._watch import anews_of, news_of
from dlock_etcd._wire import BATCH_LIMIT
from dlock_etcd.options import EtcdStoreOptions, credentials_of

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
    _watch: Any
    _link: Any
    _verbs: Any

    def __init__(self: Any, source: Any, *, root: str | None = None, user: str = "", password: str = "") -> None:
        if isinstance(source, str):
            source = EtcdStoreOptions.from_url(source)
        if isinstance(source, EtcdStoreOptions):
            link = self._link_class(source.endpoints, credentials_of(source), None)
            verbs = EtcdVerbs(
                EtcdStoreOptions.checked_root(root or source.root),
                user or source.user,
                password or source.password.get_secret_value(),
                source.endpoints,
            )
        elif isinstance(source, self._channel_class):
            link = self._link_class((), None, source)
            verbs = EtcdVerbs(EtcdStoreOptions.checked_root(root or "dlock"), user, password)
        else:
            kind = f"{self._channel_class.__module__}.{self._channel_class.__name__}"
            raise ConfigurationError(
                f"{type(self).__name__} works with a URL or a {kind}, not with {type(source).__name__}"
            )
        super().__init__(verbs, link)  # type: ignore[call-arg]  # the face that is mixed in
        link.watch = self._watch(lambda: link.stream(verbs.watched()), lambda: self._run(verbs.queue.upkeep(), _UPKEEP))

    def wait(self: Any, record: LockRecord, *, ticket: str, timeout_s: float) -> Any:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came.

        A waiter that is interrupted leaves the queue.
        """
        return self._perform(self._queueing(record, ticket, timeout_s))

    def _queueing(self: Any, record: LockRecord, ticket: str, timeout_s: float) -> Exchange[None]:
        key = record.key
        queue, until, woken = self._verbs.queue, time.monotonic() + timeout_s, False
        bell = queue.attend(key, ticket, until)
        try:
            yield from self._waiting(record, bell, timeout_s)
            woken = time.monotonic() < until
        finally:
            # Who waits for a shared lock makes no claim, which would take its place away.
            if woken and record.members is None:
                queue.keep(bell)
            else:
                with suppress(StoreError):  # the place is given up a little later
                    yield self._run(queue.leave(bell, passes_on=not woken), Call("leave", key, _LEAVE_S))


class EtcdStore(_Store, ExchangeStore):
    """The store for threads.

    *source* is a URL, its options, or a channel of the user's (``grpc.Channel``), who closes it; *root*, *user* and *password* are those of
    the URL.
    """

    _channel_class, _link_class = grpc.Channel, ThreadLink
    _watch = staticmethod(lambda *calls: Watch(news_of(*calls)))


class AsyncEtcdStore(_Store, AsyncExchangeStore):
    """As :class:`EtcdStore`, for the tasks of one event loop, with a ``grpc.aio.Channel``."""

    _channel_class, _link_class = grpc.aio.Channel, AsyncLink
    _watch = staticmethod(lambda *calls: AsyncWatch(anews_of(*calls)))
