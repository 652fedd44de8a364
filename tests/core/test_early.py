"""Early takeover through the clients: what is written, what is asked, and who gets the lock when."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ConfigurationError, LockRecord, OwnerState, Stamp, UnsupportedError
from dlock_core.client import LockClient
from dlock_core.engine.owner_probe import boot, identity, same_host
from dlock_core.memory import AsyncMemoryStore, MemorySpace, MemoryStore
from dlock_core.record import ProcessIdentity, State
from dlock_core.testing import FakeClock, FaultyStore
from tests.core.worlds import async_only, both_colours, eventually, raw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.core.worlds import World


async def dies(world: World, key: str = "k", **options: Any) -> int:
    """Have a client hold *key* that renews nothing any more; return the token."""
    settings: dict[str, Any] = {"auto_renew": False, "lease_duration": 10} | options
    client = world.client(**settings)
    await client.__aenter__()
    lease = await client.acquire(key)
    await vanish(client, lease)
    return int(lease.fencing_token)


async def vanish(client: Any, lease: Any) -> None:
    """End *client* as a kill does: its lease is neither released nor warned of, and no thread of it is left."""
    raw(lease)._closed = True
    getattr(client, "_inner", client)._engine.driver.held.clear()
    await client.close()


# ---- bounded wall clock


@both_colours
async def test_lock_of_long_ago_is_had_at_once_by_wall_clocks(world: World) -> None:
    """A newcomer that has seen nothing: lease, drift and skew have passed since the stamp."""
    token = await dies(world, clock_skew=1)
    await world.jump(11.2)

    async with world.client(clock_skew=1) as client:
        lease = await client.try_acquire("k")

        assert lease is not None
        assert lease.fencing_token == token + 1


@both_colours
async def test_renewals_are_stamped_anew(world: World) -> None:
    """A holder that lives is never old."""
    async with world.client(clock_skew=1, lease_duration=10) as holder, world.client(clock_skew=1) as client:
        lease = await holder.acquire("k")
        await world.live(30)

        assert await client.try_acquire("k") is None
        record = await client.get("k")
        assert record is not None
        assert isinstance(record.stamp, Stamp)
        assert record.stamp.rvn == record.rvn
        assert lease.is_valid


@both_colours
async def test_without_the_option_nothing_is_stamped_and_no_stamp_is_read(world: World) -> None:
    """The default is observation."""
    await dies(world)
    async with world.client() as client:
        record = await client.get("k")
        assert record is not None
        assert record.stamp is None
        assert record.process is None
    await dies(world, "stamped", clock_skew=1)
    await world.jump(1000)

    async with world.client() as client:
        assert await client.try_acquire("stamped") is None


@both_colours
async def test_wall_clock_that_is_behind_the_holders_observes(world: World) -> None:
    """The stamp is of its future."""
    await dies(world, clock_skew=1)
    await world.jump(100)
    world.clock.skew = -200

    async with world.client(clock_skew=1) as client:
        assert await client.try_acquire("k") is None


@both_colours
async def test_record_that_another_writer_renewed_without_a_stamp_is_not_old(world: World) -> None:
    """The stamp left behind is of an earlier write: F17."""
    await dies(world, clock_skew=1)
    record = world.space.records["k"]
    left = LockRecord("k", State.HELD, "renewed", 1, "other", 10_000, stamp=record.stamp)
    world.space.records["k"] = left
    await world.jump(100)

    async with world.client(clock_skew=1) as client:
        assert await client.try_acquire("k") is None


@both_colours
async def test_what_one_attempt_trusted_does_not_count_for_the_next(world: World) -> None:
    """Attempts of one client share what was observed, and nothing that a clock has told one of them."""
    await dies(world, clock_skew=5)
    await world.jump(14)
    async with world.client() as client:
        assert await client.try_acquire("k", clock_skew=5) is None
        await world.jump(2)

        assert await client.try_acquire("k") is None
        lease = await client.try_acquire("k", clock_skew=5)
        assert lease is not None


# ---- the store's clock


@both_colours
async def test_lock_of_long_ago_is_had_at_once_by_the_stores_clock(world: World) -> None:
    """Two requests more than a free key costs."""
    space = MemorySpace(world.clock.now)
    store = MemoryStore(space) if world.colour == "sync" else AsyncMemoryStore(space)
    client = world.client(store, auto_renew=False, lease_duration=10)
    await client.__aenter__()
    await vanish(client, await client.acquire("k"))
    await world.jump(11)

    async with world.client(store, server_clock=True) as newcomer:
        lease = await newcomer.try_acquire("k")
        assert lease is not None
        assert lease.fencing_token == 2


@both_colours
async def test_lock_that_is_renewed_is_young_by_the_stores_clock(world: World) -> None:
    """However long it has been held."""
    space = MemorySpace(world.clock.now)
    store = MemoryStore(space) if world.colour == "sync" else AsyncMemoryStore(space)
    async with world.client(store, lease_duration=10) as holder, world.client(store, server_clock=True) as other:
        lease = await holder.acquire("k")
        for _ in range(10):
            await world.live(2.5)
            assert await other.try_acquire("k") is None
        assert lease.is_valid


@both_colours
async def test_store_without_a_clock_is_refused_when_the_client_is_built(world: World) -> None:
    """And a call that asks for it is refused before anything is sent."""
    with pytest.raises(UnsupportedError, match="server_clock needs a store that tells the age"):
        async with world.client(server_clock=True):
            pass
    async with world.client() as client:
        with pytest.raises(UnsupportedError, match="server_clock"):
            await client.acquire("k", server_clock=True)
        assert not world.store.requests


# ---- owner probe


@both_colours
async def test_owner_that_a_probe_calls_dead_is_taken_over_from_at_once(world: World) -> None:
    """By what the user knows of it; the probe is shown the record."""
    token = await dies(world, owner="host-7")
    asked: list[LockRecord] = []

    def probe(record: LockRecord) -> str:
        asked.append(record)
        return "dead" if record.owner == "host-7" else "unknown"

    async with world.client(owner_probe=probe) as client:
        lease = await client.try_acquire("k")

    assert lease is not None
    assert lease.fencing_token == token + 1
    assert [record.owner for record in asked] == ["host-7"]


def raises(record: LockRecord) -> OwnerState:
    """Fail."""
    raise RuntimeError(record.key)


@both_colours
@pytest.mark.parametrize(
    ("probe", "told"),
    [
        (lambda record: OwnerState.ALIVE, ""),
        (lambda record: OwnerState.UNKNOWN, ""),
        (lambda record: True, "must answer alive, dead or unknown"),
        (lambda record: None, "must answer alive, dead or unknown"),
        (raises, "raised"),
    ],
    ids=["alive", "unknown", "true", "none", "raises"],
)
async def test_anything_but_dead_is_waited_for(
    world: World, probe: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A probe that is wrong costs time, and never exclusion."""
    await dies(world)

    async with world.client(owner_probe=probe) as client:
        assert await client.try_acquire("k") is None

    assert told in caplog.text


@both_colours
async def test_probe_that_hangs_is_left_behind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its answer, when it comes, is nobody's."""
    await dies(world)
    hung = threading.Event()

    async with world.client(owner_probe=lambda record: hung.wait(60) and "dead", request_timeout=0.05) as client:
        assert await client.try_acquire("k") is None

    hung.set()
    assert "did not answer within" in caplog.text


@async_only
async def test_probe_of_an_asyncio_client_may_be_a_coroutine_function(world: World) -> None:
    """It is awaited in the loop."""
    await dies(world)

    async def probe(record: LockRecord) -> OwnerState:
        await asyncio.sleep(0)
        return OwnerState.DEAD

    async with world.client(owner_probe=probe) as client:
        lease = await client.try_acquire("k")
        assert lease is not None
    with pytest.raises(UnsupportedError, match="coroutine function"):
        LockClient(MemoryStore(), owner_probe=probe)


# ---- processes of this host


def record_of(process: ProcessIdentity | None) -> LockRecord:
    """Return a record that *process* holds."""
    return LockRecord("k", State.HELD, "x", 1, "o", 10_000, process=process)


def me() -> ProcessIdentity:
    """Return who this process is."""
    found = identity()
    assert found is not None
    return found


def other(**changes: Any) -> ProcessIdentity:
    """Return this process's identity with *changes*."""
    mine = me()
    names = ("boot_id", "pid_namespace", "pid", "started_at", "child_group")
    return ProcessIdentity(**{name: getattr(mine, name) for name in names} | changes)


def ended_pid() -> int:
    """Return the number of a process that has ended and was reaped."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_this_process_is_alive() -> None:
    """It is the one that was asked about."""
    assert same_host(record_of(me())) is OwnerState.ALIVE


def test_process_that_is_gone_is_dead() -> None:
    """No process has its number."""
    assert same_host(record_of(other(pid=ended_pid()))) is OwnerState.DEAD


def test_process_whose_number_another_has_is_dead() -> None:
    """It began at another time."""
    assert same_host(record_of(other(started_at=me().started_at - 1))) is OwnerState.DEAD


@pytest.mark.parametrize("changes", [{"boot_id": "x/0"}, {"pid_namespace": 1}], ids=["boot", "namespace"])
def test_process_of_elsewhere_is_unknown(changes: dict[str, Any]) -> None:
    """In another container a foreign number looks dead; another boot on a machine of the same name proves nothing."""
    assert same_host(record_of(other(pid=ended_pid(), **changes))) is OwnerState.UNKNOWN


@pytest.mark.parametrize(
    ("part", "pid"),
    [
        *[("pid", number) for number in (2**31, 2**80, 0, -1, -(2**30), "7", None)],
        *[("child_group", number) for number in (2**31, 2**80, -1, -(2**30), "7")],
    ],
    ids=str,
)
def test_number_that_no_process_has_is_unknown(part: str, pid: Any) -> None:
    """A record may be damaged: that is no proof of a death, and no reason for an acquire to fail."""
    assert same_host(record_of(other(**{"pid": ended_pid(), part: pid}))) is OwnerState.UNKNOWN


def test_record_that_names_no_process_is_unknown() -> None:
    """Its writer had not opted in."""
    assert same_host(record_of(None)) is OwnerState.UNKNOWN


def test_owner_whose_child_group_lives_is_alive() -> None:
    """The work goes on without the one who holds the lock for it."""
    assert same_host(record_of(other(pid=ended_pid(), child_group=os.getpgrp()))) is OwnerState.ALIVE
    assert same_host(record_of(other(pid=ended_pid(), child_group=ended_pid()))) is OwnerState.DEAD


def test_zombie_is_dead_once_all_its_threads_are() -> None:
    """It does nothing any more, whether its parent has noticed or not."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123  # of the kernel's
            started = int(file.read().rpartition(")")[2].split()[19])

        assert same_host(record_of(other(pid=pid, started_at=started))) is OwnerState.DEAD
    finally:
        os.waitpid(pid, 0)


def test_group_of_zombies_is_dead() -> None:
    """Where nobody reaps them they stay for ever, and work no more."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        eventually(lambda: same_host(record_of(other(pid=ended_pid(), child_group=pid))) is OwnerState.DEAD)
    finally:
        os.waitpid(pid, 0)


def test_process_that_may_not_be_signalled_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another user's, and there."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", refuse)

    assert same_host(record_of(other(pid=1))) is OwnerState.ALIVE


def test_machine_that_cannot_tell_processes_apart_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No /proc, no probe and no observations that outlive a process."""
    monkeypatch.setattr("dlock_core.clock._PROC", tmp_path)

    assert boot() is None
    with pytest.raises(UnsupportedError, match="same-host"):
        LockClient(MemoryStore(), owner_probe="same-host")
    with pytest.raises(UnsupportedError, match="boot id"):
        LockClient(MemoryStore(), observations=tmp_path / "seen")
    assert same_host(record_of(None)) is OwnerState.UNKNOWN


@both_colours
async def test_living_process_keeps_its_lock_from_probes_of_its_own_host(world: World) -> None:
    """Even one that renews nothing: its lease decides."""
    await dies(world, owner_probe="same-host")

    async with world.client(owner_probe="same-host") as client:
        record = await client.get("k")
        assert record is not None
        assert record.process == me()
        assert await client.try_acquire("k") is None


# ---- observations that outlive a process


def dead(clock: FakeClock, space: MemorySpace, *keys: str) -> int:
    """Have somebody hold *keys* who renews nothing any more; return the last token."""
    client, token = clock.client(MemoryStore(space), auto_renew=False, lease_duration=10), 0
    for key in keys:
        lease = client.acquire(key)
        token, lease._closed = lease.fencing_token, True
    client._engine.driver.held.clear()  # neither released nor warned of, as after a kill
    client.close()
    return token


def test_next_process_continues_what_the_last_has_seen(tmp_path: Path) -> None:
    """Clients that try once each, over one lease: only together have they seen it all."""
    clock, space, file = FakeClock(), MemorySpace(), tmp_path / "seen"
    token = dead(clock, space, "k")
    for number in range(21):
        with clock.client(FaultyStore(MemoryStore(space)), observations=file) as client:
            lease = client.try_acquire("k")
            assert (lease is not None) == (number == 20), f"after {number / 2} s"
            assert lease is None or lease.fencing_token == token + 1
        clock.advance(0.5)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def test_without_a_file_no_process_of_one_try_ever_takes_over(tmp_path: Path) -> None:
    """The negative control."""
    clock, space = FakeClock(), MemorySpace()
    dead(clock, space, "k")
    for _ in range(50):
        with clock.client(FaultyStore(MemoryStore(space))) as client:
            assert client.try_acquire("k") is None
        clock.advance(0.5)


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    """Each keeps what the other has seen; of one record the earlier sight counts."""
    clock, space, file = FakeClock(), MemorySpace(), tmp_path / "seen"
    dead(clock, space, "a", "b")
    one = clock.client(FaultyStore(MemoryStore(space)), observations=file)
    two = clock.client(FaultyStore(MemoryStore(space)), observations=file)
    assert one.try_acquire("a") is None
    clock.advance(5)
    assert two.try_acquire("a") is None
    assert two.try_acquire("b") is None
    clock.advance(5)

    one.close()
    two.close()
    with clock.client(FaultyStore(MemoryStore(space)), observations=file) as three:
        lease = three.try_acquire("a")
        assert lease is not None
        assert three.try_acquire("b") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"format": 1}'], ids=repr)
def test_damaged_file_is_begun_anew(tmp_path: Path, text: str) -> None:
    """It only delays."""
    file = tmp_path / "seen"
    file.write_text(text)
    file.chmod(0o600)
    clock, space = FakeClock(), MemorySpace()
    dead(clock, space, "k")

    with clock.client(FaultyStore(MemoryStore(space)), observations=file) as client:
        assert client.try_acquire("k") is None

    assert '"k"' in file.read_text()


def test_file_that_others_may_write_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may write it could have a lock taken over."""
    file = tmp_path / "seen"
    file.write_text("{}")
    file.chmod(0o666)

    LockClient(MemoryStore(), observations=file)

    assert "other users may write that file" in caplog.text


def test_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The attempt itself is as it was."""
    folder = tmp_path / "seen"
    folder.mkdir()
    clock, space = FakeClock(), MemorySpace()
    dead(clock, space, "k")

    with clock.client(FaultyStore(MemoryStore(space)), observations=folder) as client:
        assert client.try_acquire("k") is None

    assert "cannot be written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def test_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """When the client is built."""
    with pytest.raises(ConfigurationError, match="folder"):
        LockClient(MemoryStore(), observations=tmp_path / "no" / "seen")
