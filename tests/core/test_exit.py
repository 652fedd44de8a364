"""The end of the interpreter: what is held is released, nothing hangs, nothing is printed that helps nobody."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.core.processes import run_program, start_program

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('a bug')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("threading.Thread(target=lambda: time.sleep(0.1)).start()", 0),
    ],
    ids=["end", "sys.exit", "exception", "interrupt", "other-thread"],
)
@posix
def test_hazard_26_exit_releases_what_is_held(ending: str, code: int) -> None:
    """However the program ends by itself, its locks are free at once (hazard 26)."""
    ended = run_program(
        f"""
        client = LockClient(Store(), lease_duration=20)
        leases = [client.acquire(key) for key in "abc"]
        {ending}
        """
    )

    assert ended.code == code
    assert sorted(ended.out.split("\n")) == ["", "released a", "released b", "released c"]
    assert "dlock" not in ended.err
    assert "Exception ignored" not in ended.err


def test_exit_releases_the_locks_of_a_client_that_only_its_leases_keep() -> None:
    """Whoever kept the lease and not the client still gets it released."""
    ended = run_program(
        """
        def take():
            return LockClient(Store(), lease_duration=20).acquire("k")

        lease = take()
        import gc
        gc.collect()
        """
    )

    assert (ended.code, ended.out, ended.err) == (0, "released k\n", "")


def test_trouble_at_the_release_of_one_client_keeps_no_other_from_its_own() -> None:
    """Neither a log that raises, as one that wants the request at work, nor a store that raises what no store should."""
    ended = run_program(
        """
        import logging

        class Silent(Store):
            def release(self, request, *, timeout_s):
                raise OutcomeUnknownError("no answer")

        class Broken(Store):
            def close(self):
                raise LookupError("no store of ours")

        def refuse(record):
            raise LookupError("out of any request")

        logging.getLogger("dlock.client").addFilter(refuse)
        clients = [LockClient(kind(), lease_duration=2) for kind in (Silent, Broken, Store) for _ in range(4)]
        for client in clients:
            client._owns_store = True
        leases = [client.acquire(f"k{number}") for number, client in enumerate(clients)]
        """
    )

    assert ended.code == 0
    assert sorted(ended.out.split()) == sorted(8 * ["released"] + [f"k{number}" for number in range(4, 12)])
    assert "Exception ignored" not in ended.err


def test_hazard_26_many_exits_with_held_locks_are_clean() -> None:
    """No hang, no traceback, all released: with a thread of renewals at work, waiters and callbacks."""
    ended = run_program(
        """
        for number in range(40):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                client = LockClient(Store(), lease_duration=2, heartbeat_period=0.01)
                lease, other = client.acquire("k"), client.acquire("other", lease_duration=20)
                lease.on_lost(lambda loss: None)

                def wait():
                    with contextlib.suppress(LeaseStateError):  # the client is closed under its feet
                        client.acquire("other")

                threading.Thread(target=wait, daemon=True).start()
                sys.exit(0)
            _, status = os.waitpid(pid, 0)
            assert status == 0, (number, status)
        """,
        "-W",
        "ignore::DeprecationWarning",
    )

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("released other") >= 40


def test_exit_with_a_store_that_hangs_costs_one_request_time_out() -> None:
    """However many locks are held: the rest lapses, and is told."""
    ended = run_program(
        """
        class Hanging(Store):
            def release(self, request, *, timeout_s):
                time.sleep(timeout_s)
                raise StoreUnavailableError("no answer", key=request.record.key)

        client = LockClient(Hanging(), lease_duration=3)
        leases = [client.acquire(f"k{number}") for number in range(40)]
        begun = time.monotonic()
        atexit.register(lambda: None)
        import dlock_core.client as module
        atexit.unregister(module._release_at_exit)
        module._release_at_exit()
        os.write(1, f"{time.monotonic() - begun:.2f}".encode())
        os._exit(0)
        """
    )

    assert ended.code == 0
    assert 0.4 < float(ended.out) < 3.0  # 40 releases would take 20 s
    assert "no time was left to release lock" in ended.err
    assert "Traceback" not in ended.err


def test_exit_while_a_renewal_hangs_does_not_wait_for_it() -> None:
    """The thread of the renewals is a daemon: its request is nobody's to wait for."""
    ended = run_program(
        """
        begun = threading.Event()

        class Hanging(Store):
            def replace(self, request, *, timeout_s):
                begun.set()
                threading.Event().wait()

            replace_many = replace

        client = LockClient(Hanging(), lease_duration=0.2)
        client.acquire("k", lease_duration=0.2)._closed = True
        lease = client.acquire("other", lease_duration=60)
        begun.wait()
        """
    )

    assert ended.code == 0
    assert "released other" in ended.out
    assert "Traceback" not in ended.err
    assert ended.seconds < 30


def test_exit_waits_for_the_body_of_a_daemon_thread_no_longer_than_for_a_request() -> None:
    """Such a body never ends by itself, and its stop grace may be long; its term lapses."""
    ended = run_program(
        """
        client = LockClient(Store(), lease_duration=24, request_timeout=0.5)
        leads = threading.Event()

        def body(term):
            leads.set()
            threading.Event().wait()

        threading.Thread(target=lambda: client.election("k", stop_grace=12).run(body), daemon=True).start()
        leads.wait()
        """
    )

    assert ended.code == 0
    assert "its body still runs" in ended.err
    assert ended.seconds < 10


def test_exit_with_an_asyncio_client_left_open_is_quiet() -> None:
    """Its loop is gone, so its lock lapses: a line in the log says so, and nothing is raised."""
    ended = run_program(
        """
        async def main():
            global client, lease
            client = await AsyncLockClient(AsyncMemoryStore(), lease_duration=20)
            lease = await client.acquire("k")

        asyncio.run(main())
        """
    )

    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert "Exception ignored" not in ended.err


def test_exit_with_an_asyncio_client_on_threads_does_not_hang() -> None:
    """The pools' threads are waited for by the interpreter, but none of them waits for long."""
    ended = run_program(
        """
        async def main():
            global client, lease
            client = await AsyncLockClient(Store(), lease_duration=2)
            lease = await client.acquire("k")
            waiting = asyncio.ensure_future(client.acquire("k"))
            await asyncio.sleep(0.05)

        asyncio.run(main())
        """
    )

    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert ended.seconds < 30


def test_lock_taken_in_an_exit_handler_is_given_back() -> None:
    """A handler that runs before ours may use the client; one that runs after it is told that the client is closed."""
    ended = run_program(
        """
        client = LockClient(Store(), lease_duration=20)

        def before():
            with client.lock("k") as lease:
                os.write(1, f"{lease.ensure()}\\n".encode())

        atexit.register(before)
        """
    )

    assert (ended.code, ended.out, ended.err) == (0, "1\nreleased k\n", "")


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_signal_has_the_effect_that_the_program_gives_it(number: signal.Signals) -> None:
    """No handler is installed: SIGINT interrupts and releases; the others end the process at once, and the lock lapses (hazard 27)."""
    process = start_program(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Jobs in the background, of which a test run may be one, begin with some of these ignored.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        client = LockClient(Store(), lease_duration=20)
        lease = client.acquire("k")
        waiting = threading.Event()
        os.write(1, b"ready\\n")
        # Again and again: Python notices no signal that comes in the moment before a wait without an end begins.
        while not waiting.wait(0.1):
            pass
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == -number
    assert out == ("released k\n" if number == signal.SIGINT else "")
    assert "dlock" not in err.replace("dlock_core", "")


@posix
def test_signal_handler_that_exits_releases() -> None:
    """The usual ``signal(SIGTERM, lambda *_: sys.exit())`` ends in order."""
    process = start_program(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        client = LockClient(Store(), lease_duration=20)
        with client.lock("k"):
            os.write(1, b"ready\\n")
            threading.Event().wait()
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.terminate()
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (7, "released k\n", "")


@posix
def test_hazard_27_five_hundred_signals_whose_handler_asks_the_lease_never_deadlock() -> None:
    """A handler runs on top of whatever the main thread was doing inside the client; what needs no request may be asked in it."""
    ended = run_program(
        """
        signal.alarm(50)
        client, seen = LockClient(Store(), lease_duration=20), []
        outer = client.acquire("outer")
        outer.on_lost(print)

        def handler(*_):
            assert outer.is_valid and outer.remaining > 0 and outer.ensure() == 1 and client.holds("outer")
            assert not outer.lost.is_set() and outer.loss is None
            seen.append(1)

        signal.signal(signal.SIGUSR1, handler)
        sys.stdout = open(os.devnull, "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        stop = threading.Event()

        def fire():
            while not stop.wait(0.001):
                os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=fire)
        thread.start()
        while len(seen) < 500:
            with client.lock("k") as lease:
                lease.renew()
        stop.set()
        thread.join()
        client.close()
        """
    )

    assert (ended.code, ended.err) == (0, "")


@posix
def test_signals_that_raise_anywhere_leave_a_client_that_can_be_closed() -> None:
    """Interrupted at dozens of arbitrary points, the client still closes, and then every key is free."""
    ended = run_program(
        """
        signal.alarm(50)
        space = MemorySpace()

        class Plain:
            capabilities = frozenset()
            def __init__(self):
                self.inner = MemoryStore(space)
                for name in ("claim", "replace", "release", "read", "scan", "guarantees", "provision", "close"):
                    setattr(self, name, getattr(self.inner, name))

        class Stop(Exception):
            pass

        armed = False

        def handler(*_):
            if armed:
                raise Stop

        # In a finalizer nobody can catch what a handler raises: Python prints it.
        sys.unraisablehook = lambda told: told.exc_type is Stop or sys.__unraisablehook__(told)
        signal.signal(signal.SIGALRM, handler)
        client, caught, step = LockClient(Plain(), lease_duration=20), 0, 0
        while caught < 60:
            step += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 + 0.000001 * (step % 400))
                armed = True
                with client.lock("k", timeout=0):
                    pass
                armed = False
            except Stop:
                caught += 1
            except (AcquireTimeoutError, LeaseStateError):
                pass  # what an interrupted release left is followed up
            finally:
                armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        client.close()
        assert all(not record.held for record in space.records.values())
        """,
        measured=False,  # an interrupt may leave the measuring tool's own mutex locked
    )

    assert ended.code == 0
    assert "Traceback" not in ended.err
