"""The SQLite store between processes: races, kills and forks."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dlock_core.errors import (
    StoreUnavailableError,
)
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Expect
from dlock_sqlite import SqliteStore
from tests.sqlite.support import SOON_S, free, held, line, occupied, output, read, sql, start, take


class TestRaces:
    """Many threads and processes at one file."""

    def test_threads_have_one_winner_a_round(self, store: SqliteStore) -> None:
        """Of eight threads that expect the same version one is applied, each time."""
        barrier = threading.Barrier(8)
        wins: list[list[LockRecord]] = [[] for _ in range(50)]

        def race() -> None:
            for number, won in enumerate(wins):
                barrier.wait(SOON_S)
                reply = store.claim(Claim(held(f"k{number}"), Expect.ANY), timeout_s=SOON_S)
                if reply.applied and reply.record:
                    won.append(reply.record)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [len(won) for won in wins] == [1] * 50

    def test_processes_have_one_winner_a_round(self, path: Path) -> None:
        """Eight processes race for 300 rounds of one key, from making the file on: one winner each, tokens without a gap."""
        program = """
say("ready"); sys.stdin.readline()
token = 0
while token < 300:
    reply = take(store)
    if reply.applied:
        token = reply.record.fencing_token
        say("won", token)
        free(store, reply.record)
    else:
        token = reply.record.fencing_token
store.close()
"""
        processes = [start(program, path) for _ in range(8)]
        assert [line(process) for process in processes] == ["ready"] * 8
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

        won = [int(word) for process in processes for word in output(process).split() if word != "won"]

        assert sorted(won)[:300] == list(range(1, 301))
        assert len(set(won)) == len(won)

    @pytest.mark.slow
    def test_a_killed_process_leaves_a_usable_file(self, path: Path, rng: random.Random) -> None:
        """SIGKILL at any point loses no grant that was answered, damages nothing and locks nothing."""
        program = """
while True:
    reply = take(store)
    record = reply.record
    say(record.fencing_token)
    free(store, record)
"""
        with closing(SqliteStore(path)) as store:
            for _ in range(15):
                process = start(program, path)
                line(process)
                # The point of the kill is what varies here.
                time.sleep(rng.uniform(0, 0.03))
                process.kill()
                out, _ = process.communicate(timeout=30)

                record = read(store)

                assert record is not None
                # A line may be cut where the process was killed.
                assert record.fencing_token >= max([int(word) for word in out.split("\n")[:-1]], default=0)
                if record.held:
                    free(store, record)
                assert take(store, "after").fencing_token > 0
                free(store, read(store, "after") or record)
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]

    def test_a_process_killed_while_it_makes_the_file_leaves_nothing_half_made(self, path: Path) -> None:
        """What was begun and not committed is begun again by the next."""
        program = """
from dlock_sqlite._file import SqliteFile
from dlock_sqlite import _file as _file
from dlock_sqlite import _wake as _wake
from dlock_sqlite import _wire as wire
class Killed(str):
    pass
store._file._restrict = lambda: os.kill(os.getpid(), signal.SIGKILL)
take(store)
"""
        process = start(program, path)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL

        with closing(SqliteStore(path)) as store:
            assert take(store).fencing_token == 1


RAW_FORK = """
store.close()
def opened():
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection
parent = opened()
parent.execute("CREATE TABLE t (x)")
here, there = os.pipe()
go, gone = os.pipe()
if os.fork() == 0:
    child = opened()
    child.execute("INSERT INTO t VALUES (1)")
    os.write(there, b"x")
    os.read(go, 1)
    say("child", child.execute("SELECT x FROM t ORDER BY x").fetchall())
    os._exit(0)
os.read(here, 1)
parent.close()
import subprocess
third = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('INSERT INTO t VALUES (2)'); c.close()"
subprocess.run([sys.executable, "-c", third, path], check=True)
os.write(gone, b"x")
os.wait()
"""


OUR_FORK = '''
take(store, "parent")
here, there = os.pipe()
go, gone = os.pipe()
if os.fork() == 0:
    take(store, "child")
    again = SqliteStore(path)
    take(again, "child's own")
    os.write(there, b"x")
    os.read(go, 1)
    say("child", [record.key for record in store.scan("", timeout_s=5)])
    say("own", [record.key for record in again.scan("", timeout_s=5)])
    again.close()
    store.close()
    os._exit(0)
os.read(here, 1)
say("parent", [record.key for record in store.scan("", timeout_s=5)])
store.close()
import subprocess
third = """
import sys
from dlock_core.record import LockRecord, State
from dlock_sqlite.store import SqliteStore
from dlock_core.store import Claim, Expect
store = SqliteStore(sys.argv[1])
store.claim(Claim(LockRecord("third", State.HELD, "r", 1, "o", None), Expect.ANY), timeout_s=5)
store.close()
"""
subprocess.run([sys.executable, "-c", third, path], check=True)
os.write(gone, b"x")
os.wait()
'''


class TestForks:
    """What a fork does to SQLite's locks, and to ours."""

    def test_the_bare_driver_splits_after_a_fork(self, path: Path) -> None:
        """The control: a child that opens the file anew works on a log that its parent removed, and misses another's commit."""
        assert "child [(1,)]" in output(start(RAW_FORK, path))

    def test_a_fork_leaves_one_truth(self, path: Path) -> None:
        """Parent, child and a third process see each other's records, whoever closes first; the child's store goes on."""
        keys = "['child', \"child's own\", 'parent']"
        all_keys = "['child', \"child's own\", 'parent', 'third']"

        assert output(start(OUR_FORK, path)) == f"parent {keys}\nchild {all_keys}\nown {all_keys}\n"

    def test_forks_amid_the_traffic_of_threads_are_safe(self, path: Path) -> None:
        """A fork waits for the statement that runs: in 40 forks under load no child meets a mutex or a lock that is stuck."""
        program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads; that is the subject
stop = threading.Event()
def work(key):
    while not stop.is_set():
        free(store, take(store, key).record)
threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(3)]
for thread in threads: thread.start()
for number in range(40):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            free(store, take(store, f"child {number}").record)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, number
stop.set()
for thread in threads: thread.join()
say(len(list(store.scan("child", timeout_s=5))))
store.close()
"""
        assert output(start(program, path)) == "40\n"

    def test_hazard_23_an_inherited_connection_is_never_used(self, path: Path, store: SqliteStore) -> None:
        """Where a fork could not close it, neither this store nor a new one touches the file, and closing leaves it alone."""
        take(store)
        inherited = store._file._connection
        store._file._pid = -1

        with closing(SqliteStore(path)) as other, closing(SqliteStore(path.with_name("other.db"))) as elsewhere:
            for refused in (store, other):
                with pytest.raises(StoreUnavailableError, match="forked while it was in use"):
                    read(refused)
            assert read(elsewhere) is None
        store.close()

        assert inherited is not None
        assert inherited.execute("SELECT count(*) FROM lock").fetchone() == (1,)
        inherited.close()

    def test_a_fork_does_not_wait_for_ever(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A statement that outlasts the patience of a fork keeps its connection, which is then marked as inherited."""
        monkeypatch.setattr("dlock_sqlite._file._PATIENCE_S", 0.05)
        take(store)

        with occupied(store):
            store._file.before_fork()
            assert store._file._connection is not None
            store._file.after_fork_in_parent()

        store._file.before_fork()
        assert store._file._connection is None
        store._file.after_fork_in_parent()
        with ThreadPoolExecutor(1) as pool:  # another thread than the one that has forked
            assert pool.submit(store.read, "k", timeout_s=1).result() is not None

    def test_a_child_begins_with_nothing_of_its_parent(self, path: Path, store: SqliteStore) -> None:
        """No mutex that a thread of the parent holds, and no pipe that a thread of the parent reads."""
        take(store)
        _, pipe = store._file.wake_ups._enter("k", "t")
        with occupied(store):
            store._file.after_fork_in_child()

            assert store.read("k", timeout_s=1) is not None
        store._file._user = threading.get_ident()  # of a call that the fork interrupted
        store._file.after_fork_in_child()
        assert read(store) is not None
        store.close()
        assert store._file._connection is None
        assert store._file.wake_ups._pipes == set()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pipe)
