"""Which processes of this host are dead, as the probe of the owner sees it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import LockRecord, OwnerState, UnsupportedError
from dlock_core.client import LockClient
from dlock_core.clock import boot
from dlock_core.engine import owner_probe
from dlock_core.engine.owner_probe import same_host
from dlock_core.memory import MemoryStore
from dlock_core.record import ProcessIdentity, State
from tests.core.early_support import dies, me, other
from tests.core.worlds import both_colours, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.core.worlds import World


def record_of(process: ProcessIdentity | None) -> LockRecord:
    """Return a record that *process* holds."""
    return LockRecord("k", State.HELD, "x", 1, "o", 10_000, process=process)


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


def test_processes_that_end_meanwhile_hide_no_group_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do all the time; where nobody was seen to work they may have left somebody behind."""
    stat = owner_probe._stat

    def look(folder: Path) -> list[str]:
        if folder.name.isdigit() and folder.name not in ("1", str(os.getpid())):
            raise FileNotFoundError(folder)
        return stat(folder)

    monkeypatch.setattr(owner_probe, "_stat", look)
    with zombie() as pid:
        assert same_host(record_of(other(pid=ended_pid(), child_group=os.getpgrp()))) is OwnerState.ALIVE
        assert same_host(record_of(other(pid=ended_pid(), child_group=pid))) is OwnerState.UNKNOWN


@contextmanager
def zombie() -> Iterator[int]:
    """Yield the number of a process that has ended, and leads a group; nobody reaps it meanwhile."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        yield pid
    finally:
        os.waitpid(pid, 0)


def test_zombie_is_dead_once_all_its_threads_are() -> None:
    """It does nothing any more, whether its parent has noticed or not."""
    with zombie() as pid:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123  # of the kernel's
            started = int(file.read().rpartition(")")[2].split()[19])

        assert same_host(record_of(other(pid=pid, started_at=started))) is OwnerState.DEAD


def test_group_of_zombies_is_dead() -> None:
    """Where nobody reaps them they stay for ever, and work no more."""
    with zombie() as pid:
        eventually(lambda: same_host(record_of(other(pid=ended_pid(), child_group=pid))) is OwnerState.DEAD)


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
