"""A forked child has its parent's memory, and none of its locks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from weakref import WeakSet

import pytest

from dlock_core.engine.process import members
from tests.core.processes import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "win32", reason="there is no fork here")

# Forking with threads is what these programs are about; Python warns of it from 3.12 on.
QUIET = ("-W", "ignore::DeprecationWarning")
# And memory:// in a forked child warns that no other process sees its locks.
OWN_SPACE = (*QUIET, "-W", "ignore::RuntimeWarning")


def test_hazard_22_child_never_touches_the_store_and_the_parent_goes_on() -> None:
    """Forked inside 200 critical sections, the children that leave the block release nothing; the parent's locks stay valid (hazard 22)."""
    ended = run_program(
        """
        client = LockClient(Store(), lease_duration=20)
        for number in range(200):
            with client.lock("k") as lease:
                pid = os.fork()
                if pid == 0:
                    break  # through the end of the block
                _, status = os.waitpid(pid, 0)
                assert status == 0, status
                assert lease.is_valid and lease.ensure() == number + 1
        if os.getpid() != ME:
            atexit._run_exitfuncs()
            os._exit(0)
        mine, others = counted()
        assert others == 0, others
        assert mine == 400, mine
        client.close()
        os.write(1, b"done\\n")
        """,
        *QUIET,
    )

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("released k") == 200
    assert ended.out.endswith("done\n")


def test_childs_copy_of_a_lease_and_a_client_is_dead() -> None:
    """Whatever the child asks is answered without the store: not valid, or LeaseStateError that says what to do; leaving is silent."""
    ended = run_program(
        """
        client = LockClient(Store(), lease_duration=20, reentrant=True)
        lease, block = client.acquire("k"), client.lock("block")
        block.__enter__()
        lock_all = client.lock_all(["a", "b"])
        lock_all.__enter__()
        job = client.once("job", slot=1).__enter__()
        before = counted()
        pid = os.fork()
        if pid == 0:
            try:
                assert not lease.is_valid
                assert lease.remaining == 0.0
                assert lease.loss is None
                assert "'k' token 1" in repr(lease)
                refused = [
                    lambda: lease.ensure(), lambda: lease.ensure(60), lambda: lease.renew(), lambda: lease.release(),
                    lambda: lease.lost, lambda: lease.stopping, lambda: lease.on_lost(print), lambda: lease.on_risk(print),
                    lambda: lease.__enter__(),
                    lambda: client.acquire("k"), lambda: client.try_acquire("new"), lambda: client.holds("k"),
                    lambda: client.get("k"), lambda: list(client.scan()), lambda: client.guarantees(), lambda: client.provision(),
                    lambda: client.break_lock("k", fencing_token=1), lambda: client.lock("new").__enter__(),
                    lambda: client.lock_all(["x"]).__enter__(), lambda: client.__enter__(), lambda: client.health(),
                    lambda: job.finish(),
                ]
                for position, call in enumerate(refused):
                    try:
                        call()
                    except LeaseStateError as error:
                        assert "connect() anew and acquire for yourself, or use shared_client()" in str(error), error
                    else:
                        raise AssertionError(f"call {position} was not refused")
                block.__exit__(None, None, None)
                block.__exit__(ValueError, ValueError("body"), None)
                lock_all.__exit__(None, None, None)
                job.__exit__(None, None, None)
                lease.__exit__(None, None, None)
                client.close()
                client.__exit__(None, None, None)
                del lease, block, lock_all, job, client
                with connect("memory://anew") as anew, anew.lock("k") as own:
                    assert own.is_valid and own.fencing_token == 1
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        assert counted() == before
        assert lease.ensure() == 1
        lease.renew()
        client.close()
        """,
        *OWN_SPACE,
    )

    assert (ended.code, ended.err) == (0, "")


def test_memory_in_a_forked_child_warns_that_no_other_process_sees_its_locks() -> None:
    """At the line that opens it; where the program began, it is silent."""
    ended = run_program(
        """
        connect("memory://").close()
        if os.fork() == 0:
            connect("memory://").close()
            os._exit(0)
        os.wait()
        """,
        *QUIET,
    )

    assert (ended.code, ended.err.count("Warning")) == (0, 1)
    assert "RuntimeWarning: dlock: memory:// in a forked process: no other process sees its locks" in ended.err


def test_child_of_a_fork_that_met_a_held_mutex_does_not_hang() -> None:
    """Another thread may be inside the client and the space at the fork: the child finds their mutexes held for ever."""
    ended = run_program(
        """
        client = connect("memory://busy", lease_duration=20)
        lease, election = client.acquire("k"), client.election("e")
        inside, over = threading.Event(), threading.Event()

        def hold():
            with client._runtime.mutex, client._store.space.mutex:
                inside.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                assert not lease.is_valid and lease.remaining == 0.0
                calls = [
                    lease.ensure, lease.renew, lease.release, lambda: lease.lost, lambda: lease.on_lost(print), lambda: client.acquire("x"),
                    lambda: lease.on_risk(print), lambda: client.holds("k"), client.guarantees, election.try_campaign, election.leader,
                ]
                for call in calls:
                    with contextlib.suppress(LeaseStateError):
                        call()
                        raise AssertionError(call)
                lease.__exit__(None, None, None)
                client.close()
                del lease
                with connect("memory://busy") as anew, anew.lock("k", timeout=0) as own:
                    assert own.is_valid
                sys.exit(0)
            except Exception as error:
                os.write(2, repr(error).encode())
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        over.set()
        thread.join()
        assert status == 0, status
        assert lease.ensure() == 1
        lease.release()
        client.close()
        """,
        *OWN_SPACE,
    )

    assert (ended.code, ended.err) == (0, "")


def test_hazard_17_record_version_numbers_of_parent_and_child_have_none_in_common() -> None:
    """A thousand of each side, drawn after the fork, are two thousand (F10)."""
    ended = run_program(
        """
        from dlock_core.engine.driver import new_rvn
        new_rvn()
        read, write = os.pipe()
        pid = os.fork()
        numbers = {new_rvn() for _ in range(1000)}
        if pid == 0:
            os.write(write, "\\n".join(numbers).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            theirs = set(pipe.read().split())
        os.waitpid(pid, 0)
        assert len(numbers) == len(theirs) == 1000
        assert not numbers & theirs
        assert all(len(number) == 32 for number in numbers)
        """
    )

    assert (ended.code, ended.err) == (0, "")


def test_child_of_an_event_loop_has_no_lock_either() -> None:
    """An asyncio lease is dead in the child, its block ends silently, and the parent's goes on."""
    ended = run_program(
        """
        class AsyncStore(AsyncMemoryStore):
            async def release(self, request, *, timeout_s):
                count("release")
                return await super().release(request, timeout_s=timeout_s)

        def drive(coroutine):
            try:
                coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            raise AssertionError("it suspended")

        async def main():
            async with AsyncLockClient(AsyncStore()) as client:
                block = client.lock("k")
                lease = await block.__aenter__()
                pid = os.fork()
                if pid == 0:
                    assert not lease.is_valid
                    for call in (lease.ensure, lease.release, client.guarantees, lambda: client.acquire("x")):
                        with contextlib.suppress(LeaseStateError):
                            drive(call())
                            os._exit(2)
                    for signal in ("lost", "stopping"):
                        with contextlib.suppress(LeaseStateError):
                            getattr(lease, signal)
                            os._exit(3)
                    drive(block.__aexit__(None, None, None))
                    drive(client.close())
                    os._exit(0)
                _, status = os.waitpid(pid, 0)
                assert status == 0, status
                assert counted() == (0, 0)
                assert await lease.ensure() == 1
                await block.__aexit__(None, None, None)

        asyncio.run(main())
        """,
        *QUIET,
    )

    assert (ended.code, ended.err) == (0, "")


def test_parent_goes_on_renewing_after_a_fork() -> None:
    """The renewal thread is the parent's, and stays at work; the child's new client has one of its own."""
    ended = run_program(
        """
        client = LockClient(Store(), lease_duration=1)
        lease = client.acquire("k")
        pid = os.fork()
        mine = LockClient(MemoryStore(), lease_duration=1)
        own = mine.acquire("k")
        begun, deadline = own._handle.state.sent_at, time.monotonic() + 20
        while own._handle.state.sent_at == begun and time.monotonic() < deadline:
            time.sleep(0.01)  # until the first renewal, which comes by the clock
        assert own._handle.state.sent_at > begun
        mine.close()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert lease.is_valid
        client.close()
        """,
        *QUIET,
    )

    assert (ended.code, ended.err) == (0, "")


class Thing:
    """Something that can be open."""


class Growing(WeakSet[Thing]):
    """A set to which another thread adds while it is read."""

    def __init__(self, now: list[Thing], later: list[Thing]) -> None:
        super().__init__(now)
        self.later = later

    def __iter__(self) -> Iterator[Thing]:
        """Yield what is there, and add one more after the first."""
        for thing in super().__iter__():
            if self.later:
                self.add(self.later.pop())
            yield thing


def test_what_is_open_can_be_read_while_more_is_opened() -> None:
    """Threads that opened a SQLite file while another one did ended with a RuntimeError of the set, which CPython 3.14 raises no more."""
    now, later = [Thing(), Thing()], [Thing(), Thing()]
    everything = {*now, *later}

    assert set(now) <= set(members(Growing(now, later))) <= everything
