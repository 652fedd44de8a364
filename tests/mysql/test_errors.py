"""What the server's errors mean: shown on a real server, and what is said to be certainly not applied was not applied."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pymysql
import pytest

from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError, StoreUnavailableError
from dlock_mysql import MySQLStore, _link
from dlock_mysql._errors import translate, unconnected
from tests.mysql.support import (
    TABLE,
    TIMEOUT_S,
    claim,
    opened,
    options_of,
    plain,
    release,
    renewal,
    taken,
    wait_for_waiters,
)
from tests.scripted import ScriptedServer

OPTIONS = options_of("mysql://h/app")
ROW = f"SELECT token FROM {TABLE} WHERE k = %s FOR UPDATE"  # noqa: S608  # a name of ours
CHANGE = f"UPDATE {TABLE} SET rvn = 'changed' WHERE k = %s"  # noqa: S608  # as above


class TestRivals:
    """A transaction that another program holds open on the row."""

    def test_a_lock_wait_time_out_was_not_applied(self, url: str, each_store: MySQLStore, key: str) -> None:
        """1205: the row is as it was after the other transaction's end, and for good."""
        record = taken(each_store, key)

        with plain(url) as cursor:
            cursor.execute(ROW, (key,))
            with pytest.raises(StoreUnavailableError, match=r"1205"):
                each_store.replace(renewal(record), timeout_s=TIMEOUT_S)
            with pytest.raises(StoreUnavailableError, match=r"1205"):
                each_store.replace_many([renewal(record)], timeout_s=TIMEOUT_S)
            cursor.connection.rollback()

        assert each_store.read(key, timeout_s=TIMEOUT_S) == record
        assert each_store.replace(renewal(record), timeout_s=TIMEOUT_S).applied

    def test_a_limit_on_the_time_of_statements_leaves_no_outcome_unknown(
        self, url: str, each_store: MySQLStore, key: str
    ) -> None:
        """1205 all the same, not 1969: max_statement_time of the server is not that of a connection of the store."""
        with plain(url) as cursor, plain(url) as rival:
            cursor.execute("SET GLOBAL max_statement_time = 0.2")
            try:
                record = taken(each_store, key)
                rival.execute(ROW, (key,))
                with pytest.raises(StoreUnavailableError, match=r"1205"):
                    each_store.replace(renewal(record), timeout_s=TIMEOUT_S)
                rival.connection.rollback()
            finally:
                cursor.execute("SET GLOBAL max_statement_time = DEFAULT")

    def test_a_request_that_ends_before_the_wait_names_what_it_may_wait_for(
        self, url: str, store: MySQLStore, key: str
    ) -> None:
        """The server gives up a lock after a second; a shorter request hears nothing."""
        record = taken(store, key)

        with plain(url) as cursor:
            cursor.execute(ROW, (key,))
            with pytest.raises(OutcomeUnknownError, match=r"no answer in time.*another transaction may have locked"):
                store.replace(renewal(record), timeout_s=0.3)

    @pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system tells of the end of a process in another way")
    def test_a_fork_meanwhile_holds_up_no_child(self, url: str, store: MySQLStore, key: str) -> None:
        """While a thread waits for the answer of the server it has locked the reader of its connection; the child does not touch it."""
        record = taken(store, key)

        with plain(url) as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute(ROW, (key,))
            waiting = pool.submit(store.replace, renewal(record), timeout_s=TIMEOUT_S)
            wait_for_waiters(url, 1)
            child = os.fork()
            if child == 0:
                os._exit(7)
            end = os.pidfd_open(child)
            in_time = bool(select.select([end], [], [], TIMEOUT_S)[0])
            os.close(end)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            cursor.connection.rollback()
            with suppress(StoreUnavailableError):  # 1205, where the machine was slow
                waiting.result()

        assert in_time
        assert store.read(key, timeout_s=TIMEOUT_S) is not None

    def test_a_deadlock_was_not_applied(
        self, url: str, each_store: MySQLStore, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1213: a batch that locks two rows in the order of their keys meets a greater transaction that locks them in the other."""
        # Else the batch's wait for its second row may end before the deadlock.
        monkeypatch.setattr(
            _link, "_SESSION", _link._SESSION.replace("lock_wait_timeout = 1", "lock_wait_timeout = 60")
        )
        first, second = taken(each_store, f"{key}/1"), taken(each_store, f"{key}/2")

        with plain(url) as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute("CREATE TABLE IF NOT EXISTS ballast (number INT)")
            # The server ends the transaction that has changed less.
            cursor.execute("INSERT INTO ballast VALUES (0)" + ", (0)" * 99)
            cursor.execute(ROW, (second.key,))
            batch = pool.submit(each_store.replace_many, [renewal(first), renewal(second)], timeout_s=TIMEOUT_S)
            wait_for_waiters(url, 1)
            cursor.execute(ROW, (first.key,))
            with pytest.raises(StoreUnavailableError, match="1213"):
                batch.result()
            cursor.connection.rollback()

        assert each_store.read(first.key, timeout_s=TIMEOUT_S) == first
        assert each_store.read(second.key, timeout_s=TIMEOUT_S) == second

    def test_a_row_that_was_changed_during_the_wait_is_refused(
        self, url: str, each_store: MySQLStore, key: str
    ) -> None:
        """With innodb_snapshot_isolation, the default of newer servers, MariaDB answers 1020; there the adapter turns it off."""
        with plain(url) as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute("SELECT @@version, @@GLOBAL.innodb_snapshot_isolation")
            ((version, isolation),) = cursor.fetchall()
            cursor.execute("SET GLOBAL innodb_snapshot_isolation = ON")
            record = taken(each_store, key)  # on a connection that has it
            cursor.execute(CHANGE, (key,))
            late = pool.submit(each_store.replace, renewal(record), timeout_s=TIMEOUT_S)
            wait_for_waiters(url, 1)
            cursor.connection.commit()
            cursor.execute("SET GLOBAL innodb_snapshot_isolation = %s", (isolation,))

        if tuple(map(int, re.findall(r"\d+", version)[:3])) >= (11, 6, 2):
            assert not late.result().applied
        else:
            with pytest.raises(StoreUnavailableError, match="1020: another transaction had the row"):
                late.result()

    @pytest.mark.parametrize(
        ("kind", "numbers"),
        [
            (StoreUnavailableError, "1205 1213 1020 3101 1040 1203 1226 1021 1041 1114 1153 1301 1047 1290 1792 1836"),
            (
                StoreSetupError,
                "1044 1142 1143 1227 1045 1698 1820 1862 1129 1130 3159 2026 2059 1146 1049 1054 1264 1288 1347 1364 1366",
            ),
            (StoreSetupError, "3118 4151 1184 1406 1193 1064 1235 1665 1644 1062 1452 3819 4025"),
        ],
    )
    def test_what_the_server_has_refused_is_certain(self, kind: type[StoreError], numbers: str) -> None:
        """Each has an entry of its own in the table, and the error is that of its key."""
        for number in numbers.split():
            error = translate(
                pymysql.OperationalError(int(number), "secret"), "could not", OPTIONS, key="k", writes=True
            )

            assert type(error) is kind, number
            assert error.key == "k"
            assert "secret" not in str(error)
            assert "{" not in str(error)

    @pytest.mark.parametrize(
        "option", ["--read-only", "--super-read-only", "--max-session-mem-used", "--read-only=NO_LOCK"]
    )
    def test_an_option_of_the_server_that_is_in_the_way_is_named(self, option: str) -> None:
        """The number of a server that is read-only is that of every option, such as a limit to what a session may use."""
        said = f"The MariaDB server is running with the {option} option so it cannot execute this statement"
        error = translate(pymysql.OperationalError(1290, said), "could not", OPTIONS, key="k", writes=True)

        assert f"1290: the server runs with {option}; nothing was written; where it is read-only" in str(error)

    @pytest.mark.parametrize("number", [1317, 1927, 1969, 2006, 2013, 2014, 4711])
    def test_what_is_not_in_the_table_is_unknown(self, number: int) -> None:
        """A statement that was killed, a connection that was lost, and every number that nobody knows."""
        error = pymysql.OperationalError(number, "")

        write, read = (translate(error, "could not", OPTIONS, key="k", writes=writes) for writes in (True, False))

        assert (type(write), type(read)) == (OutcomeUnknownError, StoreUnavailableError)
        is_servers = f"the server ended it, and 'perror {number}' says why"
        assert (is_servers in str(write), is_servers in str(read)) == (number not in range(2000, 3000),) * 2
        assert str(write).endswith("; the write may have been applied")

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (TimeoutError("no end of the call"), "TimeoutError: no end of the call: nothing was sent"),
            (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError 111: refused: nothing was sent"),
            (RuntimeError(), "RuntimeError: nothing was sent"),
            (pymysql.OperationalError(1927, "secret"), "OperationalError 1927: the server ended it, and 'perror 1927'"),
        ],
    )
    def test_a_connection_that_was_not_made_is_told(self, error: Exception, said: str) -> None:
        """In the words of the system, if there are any; what else the driver says may be the user's data."""
        found = unconnected(error, OPTIONS)

        assert type(found) is StoreUnavailableError
        assert said in str(found)


class TestConnections:
    """Connections that the server ends."""

    def test_a_connection_that_was_killed_while_idle_is_not_used(self, url: str, store: MySQLStore, key: str) -> None:
        """The next request goes out on another one, and its outcome is known."""
        record = taken(store, key)
        _kill_others(url)

        assert store.replace(renewal(record), timeout_s=TIMEOUT_S).applied

    def test_a_connection_that_is_killed_during_a_write_leaves_an_unknown_outcome(
        self, url: str, each_store: MySQLStore, key: str
    ) -> None:
        """The store can't tell whether the write came first."""
        record = taken(each_store, key)
        came: list[Exception] = []

        def renew() -> None:
            try:
                each_store.replace(renewal(record), timeout_s=TIMEOUT_S)
            except StoreError as error:
                came.append(error)

        with plain(url) as cursor:
            cursor.execute(ROW, (key,))
            thread = threading.Thread(target=renew)
            thread.start()
            wait_for_waiters(url, 1)
            _kill_others(url, spared=cursor.connection.thread_id())
            thread.join()

        assert [type(error) for error in came] == [OutcomeUnknownError]
        assert each_store.read(key, timeout_s=TIMEOUT_S) == record

    def test_a_restart_is_survived(self, server: ScriptedServer, store: MySQLStore, key: str) -> None:
        """Kill -9: what was answered is there, and the token goes on."""
        record = taken(store, key)

        server.crash()
        with pytest.raises(StoreUnavailableError, match="nothing was sent"):
            store.read(key, timeout_s=TIMEOUT_S)
        server.start()

        assert store.read(key, timeout_s=TIMEOUT_S) == record
        assert store.release(release(record), timeout_s=TIMEOUT_S).applied
        assert taken(store, key).fencing_token == record.fencing_token + 1


def _kill_others(url: str, spared: int = 0) -> None:
    with plain(url) as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE command <> 'Daemon'")
        for (number,) in cursor.fetchall():
            if number not in {spared, cursor.connection.thread_id()}:
                cursor.execute(f"KILL {number}")


class TestSetUp:
    """What a user has to mend names what is wrong, and nothing is half written."""

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"table": "no_such_table"}, "1146.*dlock init"),
            ({"database": "no_such_database"}, "1049.*CREATE DATABASE"),
            ({"user": "nobody", "password": "hunter2"}, "1045.*user"),
            ({"user": "locked_out"}, "4151.*ACCOUNT UNLOCK"),
            ({"ssl_mode": "required"}, "2026.*encryption"),
        ],
    )
    def test_a_wrong_option_is_a_setup_error(self, url: str, key: str, changes: dict[str, str], said: str) -> None:
        """And no message shows the password."""
        store = opened(url, **changes)
        with plain(url) as cursor:
            cursor.execute("CREATE OR REPLACE USER locked_out ACCOUNT LOCK")

        with pytest.raises(StoreSetupError, match=said) as caught:
            store.claim(claim(key), timeout_s=TIMEOUT_S)

        store.close()
        assert "hunter2" not in str(caught.value)

    def test_a_server_that_demands_encryption_is_a_setup_error(self, url: str, key: str) -> None:
        """MariaDB, up to 11.3, refuses it as it refuses a password, so the message names both."""
        store = opened(url)
        with plain(url) as cursor:
            cursor.execute("SET GLOBAL require_secure_transport = 1")
            try:
                with pytest.raises(StoreSetupError, match=r"(1045|3159): .*demands encryption"):
                    store.claim(claim(key), timeout_s=TIMEOUT_S)
            finally:
                cursor.execute("SET GLOBAL require_secure_transport = 0")
        store.close()

    def test_a_table_of_another_shape_is_refused_and_left(self, url: str, key: str) -> None:
        """By provision() and guarantees(), which name what differs, and by every verb."""
        store = opened(url, table="accounts")
        with plain(url) as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS accounts (k VARBINARY(1024) PRIMARY KEY, balance INT)")
        for ask in (store.provision, store.guarantees):
            with pytest.raises(
                StoreSetupError, match=r"balance, .*format.* differ; if programs keep locks in it, put that right"
            ):
                ask()
        with pytest.raises(StoreSetupError, match=r"not dlock's"):
            store.claim(claim(key), timeout_s=TIMEOUT_S)
        store.close()

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("ENGINE = Aria", "engine"),
            ("DROP PRIMARY KEY, ADD PRIMARY KEY (k(5))", "unique index PRIMARY differ"),
            ("ADD UNIQUE KEY one (owner(50))", "unique index one differ"),
        ],
    )
    def test_a_table_of_another_engine_or_index_is_refused(self, url: str, change: str, said: str) -> None:
        """Only InnoDB has transactions; a step that met the row of another key in an index would have that for its answer."""
        store = opened(url, table="fast")
        with plain(url) as cursor:
            cursor.execute(f"CREATE OR REPLACE TABLE fast LIKE {TABLE}")
            cursor.execute(f"ALTER TABLE fast {change}")
        with pytest.raises(StoreSetupError, match=said):
            store.guarantees()
        store.close()

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("ADD CONSTRAINT few CHECK (token < 1)", "constraint that is not dlock's"),
            ("a trigger", "a trigger of the table refuses writes"),
        ],
    )
    def test_a_table_that_refuses_writes_is_a_setup_error(self, url: str, key: str, change: str, said: str) -> None:
        """And nothing was written: a client that took it for no answer would ask for ever."""
        store = opened(url, table="guarded")
        with plain(url) as cursor:
            cursor.execute(f"CREATE OR REPLACE TABLE guarded LIKE {TABLE}")
            cursor.execute(
                "CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"
                if change == "a trigger"
                else f"ALTER TABLE guarded {change}"
            )

        with pytest.raises(StoreSetupError, match=said):
            store.claim(claim(key), timeout_s=TIMEOUT_S)
        assert store.read(key, timeout_s=TIMEOUT_S) is None
        store.close()

    def test_too_many_connections_are_unavailable(self, url: str, key: str) -> None:
        """Nothing was sent, and the lock is where it was."""
        store = opened(url, user="lonely", password="l")
        with plain(url) as cursor:
            cursor.execute("CREATE USER lonely@'%' IDENTIFIED BY 'l' WITH MAX_USER_CONNECTIONS 1")
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO lonely@'%'")
            try:
                with (
                    plain(url, user="lonely", password="l"),
                    pytest.raises(StoreUnavailableError, match=r"1226.*SHOW CREATE USER|1203"),
                ):
                    store.claim(claim(key), timeout_s=TIMEOUT_S)
            finally:
                cursor.execute("DROP USER lonely@'%'")
        store.close()

    def test_a_server_of_another_kind_is_unavailable(self, key: str) -> None:
        """Whatever it says in place of a greeting."""
        import socket

        with socket.create_server(("127.0.0.1", 0)) as listener:

            def greet() -> None:
                client, _ = listener.accept()
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.close()

            thread = threading.Thread(target=greet)
            thread.start()
            store = opened(f"mysql://root@127.0.0.1:{listener.getsockname()[1]}/locks")
            with pytest.raises(StoreUnavailableError):
                store.claim(claim(key), timeout_s=2)
            thread.join()
            store.close()


def test_options_of_the_tests_show_no_password(url: str) -> None:
    """Nor does their representation."""
    assert "hunter2" not in repr(options_of(url, password="hunter2"))
