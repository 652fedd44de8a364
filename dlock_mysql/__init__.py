"""Locks in a table of MySQL or MariaDB: ``mysql://USER:PASSWORD@HOST/DATABASE``, or :class:`MySQLStore` with the same as keywords."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("PyMySQL", "mysql"):
    import pymysql as _pymysql  # noqa: F401  # its absence must be reported before the modules that use it are loaded

from dlock_core.kit import Backend
from dlock_mysql.options import MySQLStoreOptions
from dlock_mysql.provision import grants
from dlock_mysql.store import MySQLStore

__all__ = ["MySQLStore", "MySQLStoreOptions", "backend"]

backend = Backend(
    MySQLStoreOptions,
    open_store=lambda options: MySQLStore(**dict(options)),
    extra="mysql",
    remedies={
        "mysql-cluster": "keep locks on a server that is in no cluster, with innodb_flush_log_at_trx_commit = 1",
        "mysql-replica": "keep locks on a server that has no replica, with innodb_flush_log_at_trx_commit = 1",
    },
    policy=grants,
)
