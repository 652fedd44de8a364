"""Locks in ZooKeeper: ``zookeeper://HOST:2181,HOST:2181/ROOT``. Needs the extra ``zookeeper``."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("kazoo>=2.11", "zookeeper"):
    # An absence must be reported before the modules that use it are loaded; kazoo 2.10 lacks it.
    from kazoo.exceptions import ThrottledOpError as _  # noqa: F401

from dlock_core.kit import Backend
from dlock_zookeeper.options import ZooKeeperStoreOptions
from dlock_zookeeper.provision import policy
from dlock_zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperStore", "ZooKeeperStoreOptions", "backend"]

backend = Backend(
    ZooKeeperStoreOptions,
    open_store=ZooKeeperStore,
    extra="zookeeper",
    policy=lambda options: policy(options.root, options.user),
)
