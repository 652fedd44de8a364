"""Observations that outlive a process."""

from __future__ import annotations

import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dlock_core import ConfigurationError, UnsupportedError
from dlock_core.client import LockClient
from dlock_core.engine.observations import ObservationFile
from dlock_core.memory import MemorySpace, MemoryStore
from dlock_core.record import Version
from dlock_core.states import Observation
from dlock_core.testing import FakeClock, FaultyStore
from dlock_core.timings import NANOS

if TYPE_CHECKING:
    from pathlib import Path


SEEN = Observation(Version("rvn", 1), 60 * NANOS, 1 * NANOS)


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


@pytest.mark.parametrize("mode", [0o620, 0o602], ids=oct)
def test_file_that_others_may_write_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """Whoever may write it could have a lock taken over."""
    file = tmp_path / "seen"
    file.write_text("{}")
    file.chmod(mode)

    LockClient(MemoryStore(), observations=file)

    assert "other users may write that file" in caplog.text


@pytest.mark.parametrize(("owner", "believed"), [("root", True), ("this user", True), ("another", False)])
def test_file_is_believed_that_this_user_or_root_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: str, believed: bool
) -> None:
    """A file of another user is that user's to write, whatever its mode."""
    file = ObservationFile(tmp_path / "seen", "boot")
    file.save({"k": SEEN}, 2 * NANOS)
    uid = {"root": 0, "this user": 4_711, "another": 4_712}[owner]
    status = SimpleNamespace(st_uid=uid, st_mode=0o100600)
    told = SimpleNamespace(geteuid=lambda: 4_711, fstat=lambda _: status)
    monkeypatch.setattr("dlock_core.engine.observations.os", told)

    found = file.load(2 * NANOS)

    assert found == ({"k": SEEN} if believed else {})
    assert caplog.messages == (
        [] if believed else [f"observations {str(file.path)!r} are not read: other users may write that file"]
    )


def test_file_that_cannot_be_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With what is wrong with it."""
    file = ObservationFile(tmp_path / "seen", "boot")
    file.path.write_text("{")
    file.path.chmod(0o600)

    assert file.load(0) == {}

    (told,) = caplog.messages
    assert told.startswith(
        f"observations {str(file.path)!r} cannot be read, and are begun anew: Expecting property name"
    )


def test_next_holder_is_seen_in_the_place_of_the_last(tmp_path: Path) -> None:
    """What this process has seen is newer than what the file says of another version."""
    file = ObservationFile(tmp_path / "seen", "boot")
    newer = SEEN._replace(version=Version("next", 2), seen_at=2 * NANOS)

    file.save({"k": SEEN}, 3 * NANOS)
    file.save({"k": newer}, 3 * NANOS)

    assert file.load(3 * NANOS) == {"k": newer}


def test_half_of_a_file_is_hidden_beside_it_and_removed_when_it_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another file system could not rename it at once, and whoever lists the folder need not see it."""
    halves: list[Path] = []

    def replace(half: Path, _: Path) -> None:
        halves.append(half)
        raise OSError("injected")

    monkeypatch.setattr("pathlib.Path.replace", replace)
    file = ObservationFile(tmp_path / "seen", "boot")
    file.save({"k": SEEN}, 2 * NANOS)

    (half,) = halves
    assert half.parent == tmp_path
    assert half.name.startswith(".dlock-")
    assert not list(tmp_path.iterdir())
    assert caplog.messages == [f"observations {str(file.path)!r} cannot be written: injected"]


def test_folder_that_went_away_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was written that could be removed."""
    file = ObservationFile(tmp_path / "no" / "seen", "boot")

    file.save({"k": SEEN}, 2 * NANOS)

    assert "cannot be written" in caplog.text


def test_machine_that_does_not_tell_one_boot_from_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen before a reboot must not count after it."""
    monkeypatch.setattr("dlock_core.engine.observations.boot", lambda: None)

    with pytest.raises(UnsupportedError, match="observations need a boot id"):
        LockClient(MemoryStore(), observations=tmp_path / "seen")


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
