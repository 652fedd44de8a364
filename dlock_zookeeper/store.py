"""The store for threads; asyncio uses it through threads. The verbs are in ``_verbs``, the way to the ensemble in ``_links``."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from dlock_core.errors import StoreError
from dlock_core.kit import Batches, Call, ExchangeStore, News, Waits, Watch
from dlock_core.store import Capability
from dlock_zookeeper._errors import TROUBLE
from dlock_zookeeper._links import ThreadLink
from dlock_zookeeper._queue import Queue
from dlock_zookeeper._verbs import ZooKeeperVerbs
from dlock_zookeeper._wire import key_of, path_of
from dlock_zookeeper.options import ZooKeeperStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlock_core.kit import Exchange
    from dlock_core.record import LockRecord

__all__ = ["ZooKeeperStore"]

_UPKEEP = Call("keep", None, 1.0)
_LEAVE_S = 0.25


class ZooKeeperStore(Batches, Waits, ExchangeStore):
    """The store for threads. Nothing is opened before the first call.

    *source* is a URL, its options, or a client of the user's (``kazoo.client.KazooClient``), who starts and stops it; *root* is that of the
    URL.
    """

    batch_limit = 128
    capabilities = frozenset({Capability.BATCH_RENEW, Capability.NOTIFY})

    def __init__(self, source: Any, *, root: str | None = None) -> None:
        options, client = ZooKeeperStoreOptions.given(source, KazooClient, root=root)
        self._root, link = options.root, ThreadLink(options, client)
        self._news_link, self._queue = link, Queue(self._root, link)
        super().__init__(ZooKeeperVerbs(self._root, link, self._queue), link)
        link.watch = Watch(News(lambda: link.news, self._changed, (StoreError, *TROUBLE), self._upkeep))

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """Return when the key is this waiter's to claim, or after *timeout_s*; those who wait are woken in the order in which they came."""
        self._perform(self._queueing(record, ticket, timeout_s, returns=False))

    def wait_keeping_place(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As :meth:`wait`, for who waits again after a look at the key: the place stands for so long."""
        self._perform(self._queueing(record, ticket, timeout_s, returns=True))

    def _queueing(self, record: LockRecord, ticket: str, timeout_s: float, *, returns: bool) -> Exchange[None]:
        if record.members is not None:  # it may have room for several who wait: each sees every change
            yield from self._waiting(record, record.key, timeout_s)
            return
        queue, until, woken, stays = self._queue, time.monotonic() + timeout_s, False, False
        place = queue.attend(record.key, ticket, until)
        try:
            while not woken and (left_s := until - time.monotonic()) > 0:
                yield from self._waiting(record, place, left_s)
                woken = time.monotonic() < until and not queue.is_behind(place)
            stays = woken or returns
        finally:
            if stays:
                queue.keep(place)
            else:
                with suppress(StoreError):  # the place is given up a little later
                    self._run(queue.leave(place), Call("leave", record.key, _LEAVE_S))

    def close(self) -> None:
        """Leave the queues, refuse every later call, and close what the store opened itself; may be repeated."""
        with suppress(StoreError):  # the places end with the session
            self._upkeep(ends=True)
        super().close()

    def _upkeep(self, *, ends: bool = False) -> None:
        self._run(self._queue.upkeep(ends=ends), _UPKEEP)

    def _changed(self, event: Any) -> Iterable[str]:
        """Return the places and the key that news are about. A watch is gone: those who wait behind the one who is woken need another.

        A connection that was lost has ended all watches. Everybody asks again, and places that could not be left meanwhile are left.
        """
        path = event.path
        if path is None:
            self._queue.cut_off()
            self._news_link.watch.queues.wake_all()
            return ()
        key = key_of(path.rpartition("/")[2])
        if key in self._news_link.watch.queues:
            self._news_link.rearm(path_of(self._root, key))
        return [*self._queue.woken_by(path), key]
