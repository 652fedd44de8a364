"""The store on a real server: rights, bounds of time, forks, and hostile text."""

from __future__ import annotations

import re
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from dlock_core import LockClient
from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import Call, DeadlineSocket, PooledLink, Seats
from dlock_core.record import DATA_MAX_BYTES, Members, SessionRef
from dlock_core.store import Replace, Reply
from dlock_mysql import MySQLStore
from dlock_mysql._wire import Arm, Table, literal
from dlock_mysql.provision import grants
from tests.mysql.support import (
    TABLE,
    TIMEOUT_S,
    claim,
    held,
    opened,
    options_of,
    plain,
    release,
    renewal,
    taken,
)

# What a busy machine may add.
SLACK_S = 2.0


def test_a_refused_claim_carries_the_age_of_the_record(each_store: MySQLStore, key: str) -> None:
    """By the server's clock, in the same request: who tries once learns of a dead holder without a second one."""
    record = taken(each_store, key)

    reply = each_store.claim(claim(key), timeout_s=TIMEOUT_S)

    assert reply.record == record
    assert reply.age_ms is not None
    assert 0 <= reply.age_ms < TIMEOUT_S * 1000


def test_a_server_without_returning_is_asked_for_none() -> None:
    """MySQL would refuse the whole request; MariaDB, on which these tests run, takes both forms."""
    step = Table(options_of("mysql://h/app")).claim(claim("k"))

    assert step.text(returning=True) == f"{step.sql} RETURNING {step.shown}"
    assert "RETURNING" not in step.text(returning=False)


def test_mariadb_is_known_by_its_version(store: MySQLStore, key: str) -> None:
    """It answers a step with one statement, outside of a transaction."""
    taken(store, key)

    link: Any = store._link
    assert link.pools[False].shelf.take().has_returning


def test_connections_are_counted(each_store: MySQLStore, key: str) -> None:
    """Those that are open, and those that there may be."""
    taken(each_store, key)

    connections = each_store.connections

    assert connections is not None
    assert (connections.busy, connections.idle) == (0, 1)
    assert connections.limit > 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("completion_type", "'CHAIN'"),  # each COMMIT begins a transaction
        ("completion_type", "'RELEASE'"),  # each COMMIT ends the session
        ("autocommit", "OFF"),
        ("tx_read_only", "ON"),
        ("sql_safe_updates", "ON"),
        ("sql_select_limit", "3"),
        ("max_join_size", "3"),
        ("sql_mode", "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'"),
    ],
)
def test_no_default_of_the_server_weakens_a_step(
    url: str, each_store: MySQLStore, key: str, setting: str, value: str
) -> None:
    """A batch renews all of its records, and a claim after it is committed, so that others see it."""
    with plain(url) as cursor:
        cursor.execute(f"SET GLOBAL {setting} = {value}")
        try:
            records = [taken(each_store, f"{key}/{number}") for number in range(10)]
            replies = each_store.replace_many([renewal(record) for record in records], timeout_s=TIMEOUT_S)
            taken(each_store, key)
        finally:
            cursor.execute(f"SET GLOBAL {setting} = DEFAULT")

    with plain(url) as cursor:  # no store's
        cursor.execute(f"SELECT COUNT(*) FROM {TABLE} WHERE k = %s", (key,))  # noqa: S608  # a name of ours
        assert cursor.fetchone() == (1,)
    assert all(isinstance(reply, Reply) and reply.applied for reply in replies)


@pytest.mark.parametrize("size", [8_000, 32_000, 65_534, DATA_MAX_BYTES])
def test_a_batch_writes_what_is_longer_than_the_short_types_of_the_server(
    each_store: MySQLStore, key: str, size: int
) -> None:
    """MariaDB takes the types of a union from its literals, and empties what is longer than those can be."""
    small, large = taken(each_store, f"{key}/1"), taken(each_store, f"{key}/2")
    session = SessionRef("s" * 1000, 1000, 1)
    members = Members(
        "rw", tuple(session._replace(key=f"{number:04}{session.key[4:]}") for number in range(size // 1000)), ()
    )
    written = [
        replace(small, rvn="a", data=b"x"),
        replace(large, rvn="b", data=bytes(size), lease_ms=None, members=members),
    ]

    each_store.replace_many(
        [Replace(new, old.version) for new, old in zip(written, (small, large), strict=True)], timeout_s=TIMEOUT_S
    )

    assert [each_store.read(new.key, timeout_s=TIMEOUT_S) for new in written] == written
    kept = [replace(new, rvn=new.rvn * 2) for new in written]
    each_store.replace_many(
        [Replace(new, old.version, True) for new, old in zip(kept, written, strict=True)], timeout_s=TIMEOUT_S
    )
    assert [each_store.read(new.key, timeout_s=TIMEOUT_S) for new in kept] == kept


class TestRights:
    """The GRANT that ``dlock doctor --policy`` prints."""

    def test_it_is_enough_to_lock_and_not_to_make_or_delete(self, url: str, key: str) -> None:
        """Every verb and guarantees() work with it; provision() of another table names it."""
        store = opened(url, user="app", password="a")
        other = opened(url, user="app", password="a", table="another")
        with plain(url) as cursor:
            cursor.execute("CREATE USER app@'%' IDENTIFIED BY 'a'")
            cursor.execute(grants(options_of(url, user="app")))
            try:
                store.provision()
                store.guarantees()
                record = taken(store, key)
                assert store.replace(renewal(record), timeout_s=TIMEOUT_S).applied
                assert store.replace_many([renewal(record)], timeout_s=TIMEOUT_S)
                assert store.read(key, timeout_s=TIMEOUT_S) is not None
                assert [each.key for each in store.scan(key, timeout_s=TIMEOUT_S)] == [key]
                with pytest.raises(StoreSetupError, match=r"1142.*it needs CREATE"):
                    other.provision()
            finally:
                cursor.execute("DROP USER app@'%'")
        store.close()
        other.close()

    def test_without_a_right_the_error_names_the_grant(self, url: str, key: str) -> None:
        """SELECT alone."""
        store = opened(url, user="looker", password="l")
        with plain(url) as cursor:
            cursor.execute("CREATE USER looker@'%' IDENTIFIED BY 'l'")
            cursor.execute(f"GRANT SELECT ON {TABLE} TO looker@'%'")
            try:
                with pytest.raises(StoreSetupError, match=re.escape(grants(store.options))):
                    store.claim(claim(key), timeout_s=TIMEOUT_S)
            finally:
                cursor.execute("DROP USER looker@'%'")
        store.close()


class TestBounds:
    """A verb ends in its time, and waiters leave room for what keeps a lock."""

    def test_a_server_that_says_nothing_is_given_up(self, key: str) -> None:
        """At connecting, nothing was sent."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = opened(f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/locks")
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="nothing was sent"):
                store.claim(claim(key), timeout_s=0.3)
            assert time.monotonic() - began < 0.3 + SLACK_S
            store.close()

    def test_a_name_that_is_searched_for_long_is_given_up(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The search goes on, on its own thread, and holds nobody."""
        end = threading.Event()

        def search(*_: object, **__: object) -> list[object]:
            end.wait(30)
            raise socket.gaierror

        monkeypatch.setattr(socket, "getaddrinfo", search)
        store = opened("mysql://root@db.example/locks")
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.claim(claim(key), timeout_s=0.3)
        took = time.monotonic() - began
        end.set()
        store.close()

        assert took < 0.3 + SLACK_S

    @pytest.mark.usefixtures("store")
    def test_a_connection_that_comes_too_late_serves_the_next_request(
        self, url: str, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that takes longer for a connection than a request may take would else serve none, however often it is asked."""
        gate, connect = threading.Event(), DeadlineSocket.connected

        def slow(options: Any, deadline: float) -> Any:
            gate.wait(30)
            return connect(options, deadline)

        monkeypatch.setattr(DeadlineSocket, "connected", slow)
        store = opened(url)
        assert isinstance(store._link, PooledLink)
        shelf = store._link.pools[False].shelf
        with pytest.raises(StoreUnavailableError):
            store.claim(claim(key), timeout_s=0.2)

        gate.set()
        until = time.monotonic() + 20
        while not shelf and time.monotonic() < until:
            time.sleep(0.01)  # until the lane has put it there
        gate.clear()

        assert store.claim(claim(key), timeout_s=TIMEOUT_S).applied
        gate.set()
        store.close()

    def test_renewals_go_on_while_waiters_have_all_connections(self, store: MySQLStore, key: str) -> None:
        """A claim that gets no connection in its time is told so, and was not sent."""
        record, link = taken(store, key), store._link
        assert isinstance(link, PooledLink)
        link.pools[False].seats = Seats(0)

        with pytest.raises(StoreUnavailableError, match="all connections"):
            store.claim(claim(f"{key}/other"), timeout_s=0.05)

        assert store.replace(renewal(record), timeout_s=TIMEOUT_S).applied
        assert store.release(release(renewal(record).record), timeout_s=TIMEOUT_S).record is not None

    def test_a_call_without_time_sends_nothing(self, store: MySQLStore, key: str) -> None:
        """Nor does it wait."""
        with pytest.raises(StoreUnavailableError):
            store.claim(claim(key), timeout_s=1e-9)

        assert store.read(key, timeout_s=TIMEOUT_S) is None


class TestText:
    """No text can become SQL."""

    def test_a_literal_is_harmless_or_hexadecimal(self) -> None:
        """Nothing in it has a meaning in any SQL mode."""
        assert literal("billing/42") == "'billing/42'"
        assert literal("it's") == "X'69742773'"
        assert literal("a\\") == "X'615c'"
        assert literal(b"\0") == "X'00'"
        assert (literal(None), literal(7), literal(value=True)) == ("NULL", "7", "1")

    @pytest.mark.parametrize("tail", ["'; DROP TABLE x; --", "\\", "%s %", " ", "A", "a", "ä", "a\u0308", "🔒"])
    def test_a_hostile_key_is_a_key_like_any_other(self, each_store: MySQLStore, key: str, tail: str) -> None:
        """Found by its own bytes, and by no others."""
        record = taken(each_store, key + tail)

        assert each_store.read(key + tail, timeout_s=TIMEOUT_S) == record
        assert each_store.read(key, timeout_s=TIMEOUT_S) is None

    def test_a_damaged_row_is_a_record_error_and_is_kept(self, url: str, each_store: MySQLStore, key: str) -> None:
        """In a batch it is the error of its own key only."""
        good, bad = taken(each_store, f"{key}/good"), taken(each_store, f"{key}/bad")
        with plain(url) as cursor:
            cursor.execute(f"UPDATE {TABLE} SET payload = 'x', rvn = 'y' WHERE k = %s", (bad.key,))  # noqa: S608
            cursor.connection.commit()

        first, second = each_store.replace_many([renewal(good), renewal(bad)], timeout_s=TIMEOUT_S)

        assert isinstance(first, Reply)
        assert first.applied
        assert isinstance(second, RecordError)
        with pytest.raises(RecordError):
            each_store.claim(claim(bad.key), timeout_s=TIMEOUT_S)


def test_a_damaged_payload_that_was_kept_does_not_hide_the_write(url: str, each_store: MySQLStore, key: str) -> None:
    """An error that says that nothing was written would leave a held record behind."""
    record = taken(each_store, key)
    assert each_store.release(release(record), timeout_s=TIMEOUT_S).applied
    with plain(url) as cursor:
        cursor.execute(f"UPDATE {TABLE} SET payload = 'x' WHERE k = %s", (key,))  # noqa: S608  # a name of ours
        cursor.connection.commit()

    with pytest.raises(OutcomeUnknownError, match="was written, but its payload is damaged"):
        each_store.claim(claim(key)._replace(keep_payload=True), timeout_s=TIMEOUT_S)


def test_a_claim_that_was_applied_twice_is_refused_the_second_time(each_store: MySQLStore, key: str) -> None:
    """The RVN alone does not tell a write from its copy; the number of the write does."""
    request = claim(key)
    first = each_store.claim(request, timeout_s=TIMEOUT_S)

    again = each_store.claim(request, timeout_s=TIMEOUT_S)

    assert first.applied
    assert again._replace(age_ms=None) == Reply(applied=False, record=first.record)


def test_many_locks_are_renewed_in_one_request_each_500(url: str, store: MySQLStore, key: str) -> None:
    """One UPDATE, whatever the number."""
    records = [taken(store, f"{key}/{number}") for number in range(50)]
    with plain(url) as cursor:
        count = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'COM_UPDATE_MULTI'"
        cursor.execute(count)
        [(before,)] = cursor.fetchall()

        replies = store.replace_many([renewal(record) for record in records], timeout_s=TIMEOUT_S)

        cursor.execute(count)
        [(after,)] = cursor.fetchall()
    assert all(isinstance(reply, Reply) and reply.applied for reply in replies)
    assert int(after) - int(before) == 1


def test_a_payload_that_stays_is_not_sent() -> None:
    """So renewals of locks with much data need no more requests than others."""
    table, record = Table(options_of("mysql://h/app")), held("k", data=b"x" * DATA_MAX_BYTES)
    kept = Replace(record, record.version, keep_payload=True)

    assert max(len(table.change(kept).sql), len(table.changes([Arm.of(kept)]).sql)) < 2_000


def test_a_batch_is_never_longer_than_what_a_server_takes(url: str, key: str) -> None:
    """A server refuses a longer one altogether, and each time: all locks of the client would be lost. A row that is too long is told."""
    setting = "SET GLOBAL max_allowed_packet"
    with plain(url) as cursor:
        cursor.execute(f"{setting} = {1 << 20}")
        try:
            store = opened(url)
            renewals = [renewal(taken(store, f"{key}/{number}"), data=bytes(30_000)) for number in range(40)]
            replies = store.replace_many(renewals, timeout_s=TIMEOUT_S)
            assert [isinstance(reply, Reply) and reply.applied for reply in replies] == [True] * 40
            store.close()

            cursor.execute(f"{setting} = {1 << 14}")
            store = opened(url)
            with pytest.raises(RecordError, match="max_allowed_packet"):
                store.read(f"{key}/0", timeout_s=TIMEOUT_S)
            with pytest.raises(StoreUnavailableError, match="max_allowed_packet"):
                store.claim(claim(f"{key}/0"), timeout_s=TIMEOUT_S)
            results = store.replace_many(renewals, timeout_s=TIMEOUT_S)
            for each, result in zip(renewals, results, strict=True):
                assert isinstance(result, StoreError)
                assert f"could not replace key {each.record.key!r}" in str(result)
            store.close()
        finally:
            cursor.execute(f"{setting} = DEFAULT")


def test_a_row_that_refuses_costs_no_other_its_renewal(url: str, each_store: MySQLStore, key: str) -> None:
    """By a trigger, as by a constraint: the statement fails whole, and with it all locks of the client would be lost."""
    records = [taken(each_store, f"{key}/{number}") for number in range(5)]
    with plain(url) as cursor:
        refuse = f"IF NEW.k = '{key}/3' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF"
        cursor.execute(f"CREATE TRIGGER refusing BEFORE UPDATE ON {TABLE} FOR EACH ROW {refuse}")
        results = each_store.replace_many([renewal(record) for record in records], timeout_s=TIMEOUT_S)
        cursor.execute("DROP TRIGGER refusing")

    assert [getattr(result, "applied", None) for result in results] == [True, True, True, None, True]
    assert type(results[3]) is StoreSetupError
    assert results[3].key == f"{key}/3"


def test_the_server_clock_of_a_client_is_there(url: str, key: str) -> None:
    """``server_clock`` is accepted, and a held lock is not taken over."""
    with LockClient(opened(url), server_clock=True) as one, LockClient(opened(url), server_clock=True) as two:
        with one.lock(key):
            assert two.try_acquire(key) is None
        lease = two.try_acquire(key)
        assert lease is not None
        lease.release()


def test_a_fault_of_the_adapter_is_not_told_as_a_time_out(each_store: MySQLStore) -> None:
    """Only a time-out before a request is one; whoever reads of it looks for a slow network."""
    call = Call("read", "k", TIMEOUT_S)

    assert type(each_store._verbs.trouble(TimeoutError(), call)) is StoreUnavailableError
    assert each_store._verbs.trouble(LookupError("a column"), call) is None
