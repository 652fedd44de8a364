"""Locks in a table of PostgreSQL, through psycopg: ``postgresql://USER@HOST/DATABASE?table=SCHEMA.TABLE``. Needs the extra ``postgres``."""

from __future__ import annotations

from dlock_core.backend import importing

with importing("psycopg>=3.2.13", "postgres"):
    import psycopg.pq  # noqa: F401  # fails where there is no libpq

from dlock_core.kit import Backend
from dlock_postgres.options import PostgresStoreOptions
from dlock_postgres.provision import policy
from dlock_postgres.store import AsyncPostgresStore, PostgresStore

__all__ = ["AsyncPostgresStore", "PostgresStore", "PostgresStoreOptions", "backend"]

backend = Backend(
    PostgresStoreOptions,
    open_store=lambda options: PostgresStore(options.conninfo.get_secret_value(), table=options.table),
    aopen_store=lambda options: AsyncPostgresStore(options.conninfo.get_secret_value(), table=options.table),
    learns=True,
    extra="postgres",
    remedies={
        "postgres-async-replica": "have a standby confirm each commit: synchronous_standby_names = 'ANY 1 (*)' with "
        "synchronous_commit = on, and promote no other"
    },
    policy=lambda options: policy(options.table),
)
