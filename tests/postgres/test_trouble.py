"""What goes wrong is told by a typed error that says what to do; nothing is half written."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import psycopg_pool
import pytest
from pydantic import SecretStr

from dlock_core import ClientOptions, LockClient, connect
from dlock_core.command.doctor import policy
from dlock_core.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    RecordError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.record import LockRecord, State
from dlock_core.store import Capability, Claim, Expect, Reply
from dlock_postgres import AsyncPostgresStore, PostgresStore, PostgresStoreOptions
from dlock_postgres._session import THREADS, Session
from tests.postgres.conftest import TABLE
from tests.postgres.support import TIMEOUT_S, any_claim, held, refused_by_a_trigger, released, renewed, with_parts

PASSWORD = "in-no-message"


@pytest.fixture
def user(admin: psycopg.Connection[Any]) -> Iterator[str]:
    """Make a user without any right."""
    name = f"user_{secrets.token_hex(4)}"
    admin.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    admin.execute(f"DROP OWNED BY {name}")
    admin.execute(f"DROP ROLE {name}")


@pytest.mark.usefixtures("url")
def test_the_printed_grant_is_all_that_a_user_needs(
    server_url: str,
    user: str,
    admin: psycopg.Connection[Any],
    open_store: Callable[[str], PostgresStore],
    key: str,
) -> None:
    """Without it the error names it; with it every verb works, and waiters listen."""
    own = with_parts(server_url, user=user)
    store = open_store(own)
    grant = str(policy(ClientOptions(url=SecretStr(own))))
    with pytest.raises(StoreSetupError, match=re.escape(grant)):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)

    for statement in grant.replace("TO NAME", f"TO {user}").split(";"):
        admin.execute(statement)

    with connect(own) as client, client.lock(key) as lease:
        assert lease.is_valid
        assert client.get(key) is not None
        assert [record.key for record in store.scan(key, timeout_s=TIMEOUT_S)] == [key]
        assert Capability.NOTIFY in store.capabilities


@pytest.mark.parametrize(
    ("parts", "kind", "told"),
    [
        ({"database": "/nowhere"}, StoreSetupError, "does not exist"),
        ({"user": "nobody_at_all"}, StoreSetupError, "does not exist"),
        ({"query": "sslmode=require"}, StoreSetupError, "does not support SSL"),
        ({"query": "sslmode=perhaps"}, StoreSetupError, 'invalid sslmode value: "perhaps"'),
        ({"query": "nonsense=1"}, ConfigurationError, "'nonsense'"),
        ({"query": "options=-c%20geqo=off"}, ConfigurationError, "malformed .an = in a value is written %3D"),
        ({"query": "table=a.b.c"}, ConfigurationError, "table"),
    ],
)
def test_a_wrong_url_is_told(server_url: str, parts: dict[str, str], kind: type[Exception], told: str) -> None:
    """By what is wrong with it."""
    with pytest.raises(kind, match=told):
        connect(with_parts(server_url, **parts))


def test_a_database_of_another_encoding_is_refused(server_url: str, admin: psycopg.Connection[Any]) -> None:
    """Keys are UTF-8."""
    admin.execute("DROP DATABASE IF EXISTS dlock_latin")
    admin.execute("CREATE DATABASE dlock_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")

    with pytest.raises(StoreSetupError, match="encoded in LATIN1"):
        connect(with_parts(server_url, database="/dlock_latin"))


def test_a_role_with_another_isolation_is_refused(server_url: str, user: str, admin: psycopg.Connection[Any]) -> None:
    """The conditions rest on READ COMMITTED."""
    admin.execute(f"ALTER ROLE {user} SET default_transaction_isolation = 'serializable'")

    with pytest.raises(StoreSetupError, match="ALTER ROLE"):
        connect(with_parts(server_url, user=user))


def test_a_read_only_session_is_refused(server_url: str, user: str, admin: psycopg.Connection[Any]) -> None:
    """As that of a standby is."""
    admin.execute(f"ALTER ROLE {user} SET default_transaction_read_only = on")

    with pytest.raises(StoreUnavailableError, match="read-only"):
        connect(with_parts(server_url, user=user))


def test_a_server_without_free_connections_is_told_as_not_applied(
    server_url: str, user: str, admin: psycopg.Connection[Any]
) -> None:
    """It can be tried again."""
    admin.execute(f"ALTER ROLE {user} CONNECTION LIMIT 0")

    with pytest.raises(StoreUnavailableError, match="too many connections"):
        connect(with_parts(server_url, user=user))


def test_sessions_that_are_ended_between_calls_are_opened_again(
    store: PostgresStore, admin: psycopg.Connection[Any], key: str
) -> None:
    """The store sees it before it sends."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    store.release(released(record), timeout_s=TIMEOUT_S)
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlock'")
    while admin.execute("SELECT FROM pg_stat_activity WHERE application_name = 'dlock'").fetchone() is not None:
        admin.execute("SELECT pg_sleep(0.01)")

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


def test_a_session_that_is_ended_during_a_write_leaves_an_unknown_outcome(
    store: PostgresStore, admin: psycopg.Connection[Any], server_url: str, key: str
) -> None:
    """The server may end it after the commit, so nobody can tell; why it ended it is told."""
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'dlock'"

    with psycopg.connect(server_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"SELECT FROM {TABLE} WHERE key = %s FOR UPDATE", (key,))  # a constant
        renewal = pool.submit(store.replace, renewed(record), timeout_s=TIMEOUT_S)
        while admin.execute(f"SELECT pg_terminate_backend(pid) {waiting}").fetchone() is None:  # a constant
            admin.execute("SELECT pg_sleep(0.01)")
        with pytest.raises(
            OutcomeUnknownError, match=r"did not confirm a write.*: FATAL: +terminating connection due to adm"
        ):
            renewal.result()

    assert store.read(key, timeout_s=TIMEOUT_S) == record


def test_a_damaged_payload_that_was_kept_does_not_hide_the_write(
    store: PostgresStore, admin: psycopg.Connection[Any], key: str
) -> None:
    """An error that says that nothing was written would leave a held record behind; in a batch it is that of its own key only."""
    bad, good = (store.claim(any_claim(each), timeout_s=TIMEOUT_S).record for each in (key, f"{key}/good"))
    assert bad is not None
    assert good is not None
    admin.execute(f"UPDATE {TABLE} SET payload = 'x' WHERE key = %s", (key,))  # noqa: S608  # a constant

    first, second = store.replace_many([renewed(bad), renewed(good)], timeout_s=TIMEOUT_S)

    assert isinstance(first, OutcomeUnknownError)
    assert isinstance(second, Reply)
    assert second.applied


def test_a_record_that_has_no_form_in_the_database_is_told(store: PostgresStore, key: str) -> None:
    """A text with a zero byte is refused whole, and not cut."""
    record = LockRecord(key, State.HELD, "rvn", 1, "own\0er", 1000)

    with pytest.raises(RecordError):
        store.claim(Claim(record, Expect.ANY), timeout_s=TIMEOUT_S)

    assert store.read(key, timeout_s=TIMEOUT_S) is None


def test_a_table_that_drops_writes_is_told(
    open_store: Callable[[str], PostgresStore], server_url: str, admin: psycopg.Connection[Any], key: str
) -> None:
    """By a trigger: a record that fits, and was not written, is no refusal, at which a waiter would try again at once, for ever."""
    store = open_store(f"{server_url}?table=dlock_tests.dropping")
    store.provision()
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    admin.execute(
        "CREATE OR REPLACE FUNCTION dlock_tests.drop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER dropping BEFORE UPDATE ON dlock_tests.dropping FOR EACH ROW EXECUTE FUNCTION dlock_tests.drop()"
    )
    try:
        with pytest.raises(StoreSetupError, match="a trigger or a rule of its table drops writes"):
            store.replace(renewed(record), timeout_s=TIMEOUT_S)
        with pytest.raises(StoreSetupError, match="drops writes"):
            store.release(released(record), timeout_s=TIMEOUT_S)
        [told] = store.replace_many([renewed(record)], timeout_s=TIMEOUT_S)
        assert type(told) is StoreSetupError
        assert told.key == key
        marks = store.requests["read"]
        store.wait(record, ticket="", timeout_s=0.5)
        assert store.requests["read"] <= marks + 8
    finally:
        admin.execute("DROP TABLE dlock_tests.dropping")


def test_a_trigger_that_raises_is_told(store: PostgresStore, admin: psycopg.Connection[Any], key: str) -> None:
    """The server has rolled the write back: who took that for no answer would ask again for ever."""
    with (
        refused_by_a_trigger(admin, TABLE, "INSERT", key),
        pytest.raises(StoreSetupError, match="not so; a trigger of the table refuses writes"),
    ):
        store.claim(any_claim(key), timeout_s=TIMEOUT_S)


def test_the_encoding_of_the_environment_changes_no_key(
    open_store: Callable[[str], PostgresStore], url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other programs of one host want of libpq is theirs: it shares its locks with other hosts."""
    there = open_store(url)
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    here = open_store(url)

    record = here.claim(any_claim(f"{key}/☃"), timeout_s=TIMEOUT_S).record

    assert record is not None
    assert there.read(record.key, timeout_s=TIMEOUT_S) == record


@pytest.mark.parametrize("way", ["url", "dsn", "sqlalchemy", "pool"])
def test_a_store_is_brought_on_what_the_user_has(url: str, server_url: str, key: str, way: str) -> None:
    """A URL, a DSN, SQLAlchemy's URL, or a pool, which is never closed."""
    parts = urlsplit(server_url)
    dsn = f"host={parts.hostname} port={parts.port} user=postgres dbname=postgres application_name=mine"
    pool = psycopg_pool.ConnectionPool(dsn, kwargs={"autocommit": True, "dbname": "postgres"}, open=True, min_size=1)
    sources = {
        "url": server_url,
        "dsn": dsn,
        "sqlalchemy": server_url.replace("postgresql://", "postgresql+psycopg://"),
        "pool": pool,
    }
    with pool:
        with (
            closing(PostgresStore(sources[way], table=TABLE)) as store,
            LockClient(store) as client,
            client.lock(key) as lease,
        ):
            assert lease.is_valid
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("kind", [PostgresStore, AsyncPostgresStore])
def test_the_table_of_a_url_is_that_of_the_store(kind: type[PostgresStore | AsyncPostgresStore], url: str) -> None:
    """Another program that opens the URL itself has its locks there; who names a table besides means that."""
    tables = [kind(url), kind(url, table="mine"), kind(url.partition("?")[0])]

    assert [store._verbs._named for store in tables] == [TABLE, "public.mine", "public.dlock"]  # type: ignore[attr-defined]


def test_the_users_name_for_the_application_is_kept(url: str, admin: psycopg.Connection[Any]) -> None:
    """In the list of the server's sessions; without one it is *dlock*."""
    name = f"app_{secrets.token_hex(4)}"

    with connect(f"{url}&application_name={name}"):
        found = admin.execute(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = %s", (name,)
        ).fetchone()

    assert found == (True,)


def test_asyncio_works_on_a_pool_as_well(url: str, server_url: str, key: str) -> None:
    """``psycopg_pool.AsyncConnectionPool``."""

    async def claim() -> bool:
        async with psycopg_pool.AsyncConnectionPool(server_url, open=False) as pool:
            store = AsyncPostgresStore(pool, table=TABLE)
            reply = await store.claim(Claim(held(key), Expect.ANY), timeout_s=TIMEOUT_S)
            await store.close()
            return reply.applied

    assert asyncio.run(claim())


@pytest.mark.parametrize("source", ["nonsense=1", "host=x nonsense=1 password=" + PASSWORD, 5])
def test_a_source_that_is_none_is_told(source: Any) -> None:
    """Without its password."""
    with pytest.raises(ConfigurationError) as caught:
        PostgresStore(source)

    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "told"),
    [(f"u:half@{PASSWORD}", "write %40"), (f"u:half/{PASSWORD}", "write %2F"), (f"u:12/{PASSWORD}", "write %2F")],
)
def test_a_password_with_an_at_sign_or_a_slash_is_told_and_not_shown(user: str, told: str) -> None:
    """Libpq would look for a host with the rest of the password, or the user, as its name, and say that there is none."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        PostgresStoreOptions.from_url(f"postgresql+psycopg://{user}@h/d")

    assert PASSWORD not in str(caught.value)


def test_no_option_is_shown_with_its_password() -> None:
    """Neither in messages nor in the representation of the options."""
    options = PostgresStoreOptions.from_url(f"postgresql://u:{PASSWORD}@h/d")

    assert PASSWORD not in repr(options)


@pytest.fixture
def roomless(url: str, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """Return the URL of a server that has no room for notifications, as where somebody listens and hears nothing for days."""
    admin.execute("CREATE SCHEMA roomless")
    admin.execute(
        "CREATE FUNCTION roomless.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$"
    )
    yield f"{url}&options=-csearch_path%3Droomless,pg_catalog"
    admin.execute("DROP SCHEMA roomless CASCADE")


def test_where_nobody_can_be_told_locks_are_renewed_and_given_back(
    roomless: str, open_store: Callable[[str], PostgresStore], admin: psycopg.Connection[Any], key: str
) -> None:
    """The mark of who waits stays, for the next write that has room. A waiter looks for itself meanwhile."""
    store = open_store(roomless)
    record = store.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert record is not None
    admin.execute(f"UPDATE {TABLE} SET sought = true WHERE key = %s", (key,))  # noqa: S608  # a name of ours

    [renewal] = store.replace_many([renewed(record)], timeout_s=TIMEOUT_S)
    assert renewal.record is not None
    again = store.replace(renewed(renewal.record), timeout_s=TIMEOUT_S)
    assert again.record is not None
    freed = store.release(released(again.record), timeout_s=TIMEOUT_S)

    assert [renewal.applied, again.applied, freed.applied] == [True] * 3
    assert admin.execute(f"SELECT sought FROM {TABLE} WHERE key = %s", (key,)).fetchone() == (True,)  # noqa: S608  # a name of ours


def test_a_table_is_known_where_the_server_quotes_all_names(
    url: str, open_store: Callable[[str], PostgresStore], key: str
) -> None:
    """As the settings of a role, or PGOPTIONS, may have it for dumps: ``quote_all_identifiers``."""
    store = open_store(f"{url}&options=-cquote_all_identifiers%3Don")

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied


@pytest.mark.parametrize(
    ("query", "patience"), [("", ("3", "30")), ("connect_timeout=7&keepalives_idle=99", ("7", "99"))]
)
def test_what_the_url_says_of_connections_stands(server_url: str, query: str, patience: tuple[str, str]) -> None:
    """The store's own are for who says nothing: a listener whose way is gone without a word finds out within a minute."""
    conninfo = PostgresStoreOptions.from_url(f"{server_url}?{query}").conninfo.get_secret_value()
    with closing(Session(conninfo, THREADS)) as session:
        options = {option.keyword: option.val for option in session.pg.info}

    assert (options[b"connect_timeout"], options[b"keepalives_idle"]) == tuple(each.encode() for each in patience)
