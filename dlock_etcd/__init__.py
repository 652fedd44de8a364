"""Locks in etcd, through gRPC: ``etcd://HOST:2379/ROOT``. Needs the extra ``etcd``."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("grpcio>=1.80 and protobuf>=4.25", "etcd"):
    import google.protobuf.descriptor_pool  # noqa: F401
    import grpc.aio  # noqa: F401

from dlock_core.kit import Backend
from dlock_etcd.options import EtcdStoreOptions
from dlock_etcd.provision import policy
from dlock_etcd.store import AsyncEtcdStore, EtcdStore

__all__ = ["AsyncEtcdStore", "EtcdStore", "EtcdStoreOptions", "backend"]

backend = Backend(
    EtcdStoreOptions,
    open_store=EtcdStore,
    aopen_store=AsyncEtcdStore,
    extra="etcd",
    policy=lambda options: policy(options.root),
)
