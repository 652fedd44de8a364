"""Locks in ZooKeeper: ``zookeeper://HOST:2181,HOST:2181/ROOT``. Needs the extra ``zookeeper``."""

from __future__ import annotations

from dlock_core.backend import missing_driver

try:
    import kazoo.client as _kazoo  # noqa: F401  # its absence must be reported before the modules that use it are loaded
except ImportError as error:
    raise missing_driver("zookeeper", "kazoo>=2.10", error) from error

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
