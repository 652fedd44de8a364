"""The client that a program shares: made at import, opened at its first use, one in each process, closed at exit."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlock_core import ConfigurationError, LeaseStateError, LockClient, StoreError, connect, shared_client
from dlock_core.memory import MemoryStore
from dlock_core.options import ClientOptions
from tests.backends import url_for
from tests.core.processes import run_program

# Forking with threads is what these programs are about; Python warns of it from 3.12 on.
QUIET = ("-W", "ignore::DeprecationWarning")
forks = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "win32", reason="there is no fork here")


def test_nothing_is_opened_before_the_first_lock(tmp_path: Path) -> None:
    """Making the client, its repr, its blocks and its decorators need no store; the first lock does."""
    file = tmp_path / "locks.db"
    client = shared_client(f"sqlite:///{file}")

    @client.locked("import")
    def work() -> str:
        return "done"

    @client.once("job", slot=1)
    def job() -> str:
        return "run"

    run, block = client.once("other", slot=1), client.lock("import")
    assert "shared sqlite:///" in repr(client)
    assert not file.exists()
    with block:
        assert file.exists()
    assert work() == "done"
    assert (job(), job()) == ("run", None)
    with run:
        assert run.due
    with pytest.raises(LeaseStateError, match="was used before"), run:
        pass
    client.close()


def test_wrong_options_are_refused_at_once() -> None:
    """A typing error shows where the client is made, not at its first use in a forked worker."""
    with pytest.raises(ConfigurationError, match="lease_duration"):
        shared_client("memory://", lease_duration=-1)
    with pytest.raises(ConfigurationError, match="no store is named"):
        shared_client()
    with pytest.raises(ConfigurationError, match="unknown store scheme 'rediss3'"):
        shared_client("rediss3://locks")
    with pytest.raises(ConfigurationError, match="SQLite path '' is no file"):
        shared_client("sqlite:///")
    with pytest.raises(ConfigurationError, match="poll_perod"):
        shared_client("memory://").once("k", slot=1, poll_perod=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="poll_perod"):
        shared_client("memory://").locked("k", poll_perod=1)  # type: ignore[call-arg]


def test_equal_options_share_one_client() -> None:
    """Two modules that ask for the same get the same; another prefix is another client."""
    first = shared_client("memory://shared", lease_duration=5)

    assert shared_client("memory://shared", lease_duration=5) is first
    assert shared_client("memory://shared", lease_duration=5, prefix="other/") is not first
    assert isinstance(first, LockClient)


def test_threads_that_come_at_once_open_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use may be that of many threads."""
    opened: list[MemoryStore] = []
    asked = MemoryStore.guarantees

    def guarantees(store: MemoryStore) -> object:
        opened.append(store)
        return asked(store)

    monkeypatch.setattr(MemoryStore, "guarantees", guarantees)
    client = shared_client("memory://many")
    barrier = threading.Barrier(8)

    def use(number: int) -> bool:
        barrier.wait()
        with client.lock(f"k{number}") as lease:
            return lease.is_valid

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    assert len(opened) == 1
    client.close()


@pytest.mark.parametrize("use", ["close", "lock"])
def test_signal_handler_may_use_a_client_that_its_thread_is_opening(monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    """Nothing waits for itself, and one store stays open."""
    client, opened = shared_client("memory://handled", owner=use), list[LockClient]()

    def interrupted(options: ClientOptions) -> LockClient:
        made = connect(options)
        opened.append(made)
        if len(opened) == 1:  # the handler runs here
            if use == "close":
                client.close()
            else:
                client.acquire("k").release()
        return made

    monkeypatch.setattr("dlock_core.shared.connect", interrupted)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: client.acquire("j").release()).result(10)

    client.acquire("j").release()
    if use == "lock":
        with pytest.raises(LeaseStateError, match="closed"):
            opened[0].acquire("j")
    client.close()
    assert len(opened) == (1 if use == "close" else 2)


def test_a_closed_client_opens_again() -> None:
    """Leaving its block releases what this process holds; the next use is a first use."""
    client = shared_client("memory://again")
    with client:
        lease = client.acquire("k")
    assert not lease.is_valid
    with client.lock("k") as second:
        assert second.fencing_token == 2
    client.close()
    client.close()


def test_a_store_that_was_away_is_tried_again(tmp_path: Path) -> None:
    """A failed first use leaves nothing behind."""
    client = shared_client(f"sqlite:///{tmp_path}/later/locks.db", request_timeout=1)
    with pytest.raises((StoreError, ConfigurationError)):
        client.acquire("k", timeout=0)
    job = client.once("job", slot=1)
    with pytest.raises((StoreError, ConfigurationError)):
        job.__enter__()
    del job  # and does not warn that it was never entered
    (tmp_path / "later").mkdir()

    with client.lock("k") as lease:
        assert lease.is_valid
    client.close()


def test_the_end_of_a_job_does_not_open_a_client_that_was_closed_meanwhile() -> None:
    """The run is not marked, as with any client, and no store is left open behind the close."""
    client = shared_client("memory://ended", lease_duration=1)
    with ThreadPoolExecutor(1) as pool, client.once("job", slot=1) as job:
        pool.submit(pytest.raises, ExceptionGroup, client.close).result()  # the body still runs
        with pytest.raises(StoreError, match="closed"):
            job.finish(b"done")

    assert client._own is None  # type: ignore[attr-defined]  # the shared client's own


@forks
@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_children_have_clients_of_their_own(store: str, tmp_path: Path) -> None:
    """Forked with a lock held: the child is kept out, takes another one, and its end frees nothing of the parent's."""
    ended = run_program(
        f"""
        client = shared_client({url_for(store, tmp_path)!r}, prefix={str(tmp_path)!r}, lease_duration=20)
        lease = client.acquire("parent")
        children = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                assert client.try_acquire("parent") is None
                assert not client.holds("parent") and not lease.is_valid
                with client.lock("child", timeout=20) as own:
                    assert own.is_valid
                sys.exit(0)
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
        lease.renew()
        assert lease.ensure() == lease.fencing_token and not client.get("child").held
        lease.release()
        print("done")
        """,
        *QUIET,
    )

    assert (ended.code, ended.out, ended.err) == (0, "done\n", "")


@forks
def test_a_fork_while_another_thread_opens_the_store_does_not_hang() -> None:
    """The child finds the mutexes of a thread that it does not have, and gets along."""
    ended = run_program(
        """
        from dlock_core import shared
        client = shared_client("memory://opening")
        inside, over = threading.Event(), threading.Event()

        def hold():
            with client._opening, shared._mutex:
                inside.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            with shared_client("memory://opening").lock("k") as lease:
                os._exit(0 if lease.is_valid else 1)
        status = os.waitpid(pid, 0)[1]
        over.set()
        thread.join()
        assert status == 0, status
        """,
        *QUIET,
        *("-W", "ignore::RuntimeWarning"),  # memory:// is told to be of one process
    )

    assert (ended.code, ended.err) == (0, "")


@forks
def test_locks_of_every_process_are_released_at_its_exit(tmp_path: Path) -> None:
    """The parent and its child both end with a lock held; nobody has to wait for their leases."""
    url = url_for("sqlite", tmp_path)
    ended = run_program(
        f"""
        client = shared_client({url!r}, lease_duration=60)
        lease = client.acquire("parent")
        pid = os.fork()
        if pid == 0:
            lease = client.acquire("child")
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        *QUIET,
    )

    assert (ended.code, ended.err) == (0, "")
    with connect(url) as client:
        for key in ("parent", "child"):
            free = client.try_acquire(key)
            assert free is not None
            free.release()


@forks
@pytest.mark.parametrize("leads", [True, False])
def test_children_campaign_while_their_parent_leads_or_campaigns(leads: bool, tmp_path: Path) -> None:
    """By one election object, made where the module is imported: the child was told that it leads, or campaigns, already."""
    ended = run_program(
        f"""
        client = shared_client({url_for("sqlite", tmp_path)!r}, lease_duration=20)
        election = client.election("k")
        other = client.election("k").campaign()
        if {leads}:
            other.resign()
            term = election.campaign()
        else:
            threading.Thread(target=election.campaign, daemon=True).start()
            while election._candidate._campaign is None:
                threading.Event().wait(0.001)
        pid = os.fork()
        if pid == 0:
            assert election.try_campaign() is None
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)
        os._exit(0)
        """,
        *QUIET,
    )

    assert (ended.code, ended.out, ended.err) == (0, "0\n", "")
