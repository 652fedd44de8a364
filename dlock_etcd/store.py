"""The two stores, for threads and for asyncio. The verbs are in ``_verbs``, the way to the cluster in ``_links``."""

from __future__ import annotations

from typing import Any

import grpc

from dlock_core.errors import ConfigurationError
from dlock_core.kit import AsyncExchangeStore, AsyncWatch, Batches, Call, ExchangeStore, Watch
from dlock_core.store import Capability
from dlock_etcd._links import AsyncLink, ThreadLink
from dlock_etcd._verbs import EtcdVerbs
from dlock_etcd._waiting import Queues
from dlock_etcd._watch import anews_of, news_of
from dlock_etcd._wire import BATCH_LIMIT
from dlock_etcd.options import EtcdStoreOptions, credentials_of

__all__ = ["AsyncEtcdStore", "EtcdStore"]

_UPKEEP = Call("keep", None, 1.0)


class _Store(Batches, Queues):
    """What both stores share: how they are made."""

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
