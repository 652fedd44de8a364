"""Who waits for a lock in SQLite, and what wakes them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from dlock_core.errors import (
    StoreError,
)
from dlock_core.kit import is_ready
from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Replace, Reply
from dlock_sqlite import SqliteStore
from tests.sqlite.support import SOON_S, free, fresh_rvn, held, line, mode_of, output, pipes, start, take

if TYPE_CHECKING:
    from collections.abc import Callable


def eventually(condition: Callable[[], object]) -> None:
    """Return once *condition()* is true; looking for it is the only way to see another thread begin to wait."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestWakeUps:
    """Waiting for a release."""

    def test_a_release_in_another_process_wakes(self, path: Path, store: SqliteStore) -> None:
        """The waiter returns long before its time is over, in fifty of fifty."""
        program = """
for number in range(50):
    key = f"k{number}"
    record = store.read(key, timeout_s=5)
    begin = time.monotonic()
    store.wait(record, ticket="t", timeout_s=20)
    say(time.monotonic() - begin < 5 and not store.read(key, timeout_s=5).held)
store.close()
"""
        records = [take(store, f"k{number}") for number in range(50)]
        process = start(program, path)
        for record in records:
            eventually(lambda: pipes(path))

            free(store, record)

            assert line(process) == "True"
        output(process)

    def test_a_release_in_this_process_wakes(self, path: Path, store: SqliteStore) -> None:
        """Threads of one store wake each other as processes do, and leave nothing behind."""
        record = take(store)
        waiting = _asleep(store, record)

        free(store, record)

        assert waiting.ended_after_s() < SOON_S
        assert not Path(f"{path}-wake").exists()

    def test_a_release_wakes_where_poll_is_taken_away(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Eventlet removes ``select.poll`` from the process that it patches."""
        monkeypatch.delattr("select.poll")
        record = take(store)
        waiting = _asleep(store, record)

        free(store, record)

        assert waiting.ended_after_s() < SOON_S

    def test_a_lock_that_an_operator_frees_wakes(self, path: Path, store: SqliteStore) -> None:
        """A replace that frees the key is a release to those who wait."""
        record = take(store)
        waiting = _asleep(store, record)
        freed = LockRecord("k", State.FREE, fresh_rvn(), record.fencing_token + 1, "", None)

        store.replace(Replace(freed, record.version), timeout_s=SOON_S)

        assert waiting.ended_after_s() < SOON_S

    @pytest.mark.parametrize("granted_again", [True, False])
    def test_a_release_before_the_call_is_seen(self, store: SqliteStore, granted_again: bool) -> None:
        """Who comes after the release does not wait for the next one."""
        record = take(store)
        free(store, record)
        if granted_again:
            take(store)
        begin = time.monotonic()

        store.wait(record, ticket="t", timeout_s=60)

        assert time.monotonic() - begin < SOON_S

    def test_an_absent_key_is_not_waited_for(self, store: SqliteStore) -> None:
        """There is nobody whose release could wake."""
        begin = time.monotonic()

        store.wait(held("absent"), ticket="t", timeout_s=60)

        assert time.monotonic() - begin < SOON_S

    @pytest.mark.parametrize("batch", [False, True], ids=["alone", "in_a_batch"])
    def test_a_renewal_wakes_the_longest_waiting_alone(self, path: Path, store: SqliteStore, *, batch: bool) -> None:
        """It looks at the record anew, and keeps its place for the release."""
        record = take(store)
        first = _asleep(store, record, ticket="t0")
        second = _asleep(store, record, ticket="t1")

        renewal = Replace(held(), record.version)
        reply = (
            store.replace_many([renewal], timeout_s=SOON_S)[0] if batch else store.replace(renewal, timeout_s=SOON_S)
        )
        assert isinstance(reply, Reply)
        assert reply.applied
        assert first.ended_after_s() < SOON_S
        assert len(pipes(path)) == 1

        renewed = reply.record
        assert renewed is not None
        again = _asleep(store, renewed, ticket="t0")
        free(store, renewed)
        assert again.ended_after_s() < SOON_S
        assert len(pipes(path)) == 1
        free(store, take(store))
        assert second.ended_after_s() < SOON_S

    def test_a_renewal_before_the_wait_is_seen(self, store: SqliteStore) -> None:
        """Whoever was shown an older version is not kept waiting."""
        record = take(store)
        assert store.replace(Replace(held(), record.version), timeout_s=SOON_S).applied

        store.wait(record, ticket="t", timeout_s=60)

    def test_the_longest_waiting_is_woken_alone(self, path: Path, store: SqliteStore) -> None:
        """One release wakes one waiter, first come first."""
        record = take(store)
        waiters = [_asleep(store, record, ticket=f"t{number}") for number in range(3)]

        for number in range(3):
            free(store, record)

            waiters[number].ended_after_s()
            assert len(pipes(path)) == 2 - number
            if number < 2:
                record = take(store)

    def test_a_ticket_keeps_its_place(self, path: Path, store: SqliteStore) -> None:
        """Who waited before stands before those who came meanwhile, until its attempt is granted: a refusal is none."""
        record = take(store)
        store.wait(record, ticket="old", timeout_s=0)
        assert not store.claim(Claim(held(), Expect.ANY, ticket="old"), timeout_s=SOON_S).applied
        later = _asleep(store, record, ticket="new")
        again = _asleep(store, record, ticket="old")

        free(store, record)
        again.ended_after_s()
        record = take(store, ticket="old")

        assert store._file.wake_ups._places.keys() == {"new"}
        free(store, record)
        later.ended_after_s()

    def test_places_are_bounded(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Attempts that end without a grant are forgotten one day."""
        monkeypatch.setattr("dlock_sqlite._wake._PLACES_MAX", 3)
        record = take(store)

        for number in range(5):
            store.wait(record, ticket=f"t{number}", timeout_s=0)

        assert list(store._file.wake_ups._places) == ["t2", "t3", "t4"]

    def test_a_waiter_that_leaves_passes_its_wake_up_on(self, path: Path, store: SqliteStore) -> None:
        """The chosen one that ends before it saw the choice wakes the next."""
        record = take(store)
        leaver = store._file.wake_ups
        name, pipe = leaver._enter("k", "first")
        staying = _asleep(store, record, ticket="second")

        free(store, record)
        assert len(pipes(path)) == 1
        leaver._leave("k", name, pipe, woken=False)

        assert staying.ended_after_s() < SOON_S

    def test_a_waiter_that_is_interrupted_passes_its_wake_up_on(self, store: SqliteStore) -> None:
        """It was chosen while it looked whether there is anything to wait for, and will not look at the record any more."""
        record = take(store)
        store.wait(record, ticket="first", timeout_s=0)
        staying = _asleep(store, record, ticket="second")

        def interrupted() -> bool:
            free(store, record)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store._file.wake_ups.wait("k", "first", SOON_S, interrupted)

        assert staying.ended_after_s() < SOON_S

    def test_a_waiter_that_leaves_unchosen_wakes_nobody(self, path: Path, store: SqliteStore) -> None:
        """A time that is over is no release, and neither is one that was refused."""
        record = take(store)
        staying = _asleep(store, record)

        store.wait(record, ticket="other", timeout_s=0)
        assert not store.replace(Replace(held(), Version("other", 1)), timeout_s=SOON_S).applied

        assert len(pipes(path)) == 1
        free(store, record)
        staying.ended_after_s()

    def test_a_killed_waiter_is_passed_over(self, path: Path, store: SqliteStore) -> None:
        """The pipe of a dead process takes no wake-up."""
        record = take(store)
        dead = start("store.wait(store.read('k', timeout_s=5), ticket='t', timeout_s=60)", path)
        eventually(lambda: len(pipes(path)) == 1)
        living = _asleep(store, record)
        dead.kill()
        dead.communicate(timeout=30)

        free(store, record)

        assert living.ended_after_s() < SOON_S
        assert not Path(f"{path}-wake").exists()

    def test_a_forked_child_keeps_no_dead_waiter_alive(self, path: Path, store: SqliteStore) -> None:
        """A child has no copy of its parent's pipes."""
        program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads
record = store.read("k", timeout_s=5)
threading.Thread(target=store.wait, args=(record,), kwargs={"ticket": "t", "timeout_s": 60}, daemon=True).start()
while not store._file.wake_ups._pipes: time.sleep(0.001)
while not os.path.isdir(path + "-wake") or store._file._user: time.sleep(0.001)
if os.fork() == 0:
    say(os.getpid())  # it has closed its copies by now
time.sleep(60)
"""
        record = take(store)
        parent = start(program, path)
        child = int(line(parent))
        try:
            parent.kill()
            parent.wait(30)
            living = _asleep(store, record)

            free(store, record)

            assert living.ended_after_s() < SOON_S
        finally:
            os.kill(child, signal.SIGKILL)
            parent.communicate(timeout=30)

    @pytest.mark.parametrize("released", [True, False])
    def test_without_pipes_the_row_is_looked_at(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, released: bool
    ) -> None:
        """Where no pipe can be made a release is seen within a moment all the same, and the time is kept, without haste."""
        Path(f"{path}-wake").touch()
        record = take(store)
        looks = Mock(wraps=store.read)
        monkeypatch.setattr(store, "read", looks)
        waiting = _Waiter(store, record, timeout_s=60 if released else 0.3)

        if released:
            eventually(lambda: looks.called)
            free(store, record)

        assert (0 if released else 0.3) <= waiting.ended_after_s() < SOON_S
        assert released or looks.call_count < 20

    def test_without_free_descriptors_the_row_is_looked_at(self, path: Path) -> None:
        """A process at its limit of open files still waits, and leaves no pipe behind."""
        program = """
import resource
record = take(store).record
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(int(name) for name in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
store.wait(record, ticket="t", timeout_s=0.1)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
say([name for _, _, names in os.walk(path + "-wake") for name in names])
store.close()
"""
        assert output(start(program, path)) == "[]\n"

    def test_a_release_without_waiters_makes_nothing(self, path: Path, store: SqliteStore) -> None:
        """The directory of the wake-ups exists only once somebody waits, and goes with the store."""
        record = take(store)
        free(store, record)
        assert not Path(f"{path}-wake").exists()

        again = take(store)
        waiting = _asleep(store, again)
        modes = [mode_of(entry) for entry in (pipes(path)[0], pipes(path)[0].parent, Path(f"{path}-wake"))]
        free(store, again)
        waiting.ended_after_s()

        assert modes == [0o600, 0o700, 0o700]
        assert not Path(f"{path}-wake").exists()

    def test_users_who_may_write_the_database_may_wake_each_other(self, path: Path, store: SqliteStore) -> None:
        """Else each user's waiters polled while another user held the lock, or had left the directory behind."""
        record = take(store)
        path.chmod(0o660)
        waiting = _asleep(store, record)
        modes = [mode_of(entry) for entry in (pipes(path)[0], pipes(path)[0].parent, Path(f"{path}-wake"))]
        free(store, record)
        waiting.ended_after_s()

        assert modes == [0o660, 0o2770, 0o2770]

    def test_waiters_that_come_and_go_meet_no_missing_directory(self, path: Path, store: SqliteStore) -> None:
        """The last to leave removes the key's directory under the feet of the next, who makes it again."""
        record = take(store)
        failures: list[bool] = []

        def come_and_go(number: int) -> None:
            for _ in range(100):
                subscribed = store._file.wake_ups.wait("k", f"t{number}", 0, lambda: False)
                failures.extend([True] * (not subscribed))

        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert pipes(path) == []
        free(store, record)


class _Waiter:
    """A thread that waits; an error in it is an error of the test."""

    def __init__(self, store: SqliteStore, record: LockRecord, *, ticket: str = "t", timeout_s: float = 60) -> None:
        self._store, self._record, self._ticket, self._timeout_s = store, record, ticket, timeout_s
        self._error: StoreError | None = None
        self._took_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._store.wait(self._record, ticket=self._ticket, timeout_s=self._timeout_s)
        except StoreError as error:
            self._error = error
        self._took_s = time.monotonic() - begin

    def ended_after_s(self) -> float:
        """Return how long the wait took."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._error is None
        return self._took_s

    def sleeps(self) -> bool:
        """Whether it has nothing left to do but to be woken: it has its pipe, and has seen that the record is as it knows it."""
        assert self._thread.ident is not None
        frame = sys._current_frames().get(self._thread.ident)
        return frame is not None and frame.f_code is is_ready.__code__


def _asleep(store: SqliteStore, record: LockRecord, **options: str) -> _Waiter:
    """Return a waiter that sleeps."""
    waiter = _Waiter(store, record, **options)  # type: ignore[arg-type]  # the ticket
    eventually(waiter.sleeps)
    return waiter
