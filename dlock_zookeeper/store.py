"""The store for threads; asyncio uses it through threads. The verbs are in ``_verbs``, the way to the ensemble in ``_links``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from dlock_core.errors import ConfigurationError, StoreError
from dlock_core.kit import Batches, ExchangeStore, News, Waits, Watch
from dlock_core.store import Capability
from dlock_zookeeper._errors import TROUBLE
from dlock_zookeeper._links import ThreadLink
from dlock_zookeeper._verbs import ZooKeeperVerbs
from dlock_zookeeper._wire import key_of, path_of
from dlock_zookeeper.options import ZooKeeperStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ZooKeeperStore"]


class ZooKeeperStore(Batches, Waits, ExchangeStore):
    """The store for threads. Nothing is opened before the first call.

    *source* is a URL, its options, or a client of the user's (``kazoo.client.KazooClient``), who starts and stops it; *root* is that of the
    URL.
    """

    batch_limit = 128

    def __init__(self, source: Any, *, root: str | None = None) -> None:
        self.capabilities = frozenset({Capability.BATCH_RENEW})
        if isinstance(source, str):
            source = ZooKeeperStoreOptions.from_url(source)
        if isinstance(source, ZooKeeperStoreOptions):
            link = ThreadLink(source, None)
            self._root = ZooKeeperStoreOptions.checked_root(root or source.root)
        elif isinstance(source, KazooClient):
            link = ThreadLink(None, source)
            self._root = ZooKeeperStoreOptions.checked_root(root or "dlock")
        else:
            raise ConfigurationError(
                f"ZooKeeperStore works with a URL or a kazoo.client.KazooClient, not with {type(source).__name__}"
            )
        self._news_link = link
        super().__init__(ZooKeeperVerbs(self._root, link), link)
        watch = self._watch = Watch(News(link.open_news, self._changed, (StoreError, *TROUBLE)))
        self._notify(watch)

    def _changed(self, path: str) -> Iterable[str]:
        """Return the key that news are about. Its watch is gone: those who wait behind the one who is woken need another."""
        key = key_of(path.rpartition("/")[2])
        if key in self._watch.queues:
            self._news_link.rearm(path_of(self._root, key))
        return [key]
