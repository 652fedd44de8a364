"""What the SQLite store promises, by the file system that its file is on."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import connect
from dlock_core.errors import StoreSetupError, StoreUnavailableError, UnsafeStoreError
from dlock_core.store import Grade
from dlock_sqlite import SqliteStore, _rights, provision
from tests.cli.operator_support import Command

if TYPE_CHECKING:
    from collections.abc import Callable


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 30 0:31 / /home/local rw - ext4 /dev/vdb rw
30 27 0:30 / /home rw shared:1 master:2 - nfs4 server:/home rw
32 27 0:32 / /mnt/with\\040space rw - cifs //server/share rw
37 27 0:37 / /mnt/\u2028line rw - nfs server:/line rw
33 27 0:33 / /over rw - ext4 /dev/vdc rw
34 33 0:34 / /over rw - fuse.sshfs host: rw
35 27 0:35 / /ram rw - tmpfs tmpfs rw
36 27 0:36 / /layers rw - overlay overlay rw
38 27 0:38 / /named rw - fuse.\udcff user rw
a line that is cut
"""


class TestGuarantees:
    """What the store says of itself."""

    def test_a_local_disk_is_grade_a(self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """One host, durable, no clock; the file is there afterwards."""
        self._mounted(path, monkeypatch, "ext4")

        said = store.guarantees()

        assert (said.store, said.version, said.grade, said.durable) == ("sqlite", sqlite3.sqlite_version, Grade.A, True)
        assert (said.token, said.deletes, said.refusal_linearizable) == ("ordered", False, True)
        assert said.clock.startswith("none; with server_clock, and for waits below a lease, this host")
        assert said.unsafe == ()
        assert "one host only" in said.notes[0]
        assert [note for note in said.notes[1:] if "a rare race" not in note] == []
        assert path.exists()

    def test_a_network_file_system_is_unsafe_and_not_written(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The core refuses it by the name that a user may allow; before that nothing is made there."""
        self._mounted(path, monkeypatch, "nfs4")

        said = store.guarantees()

        [(name, reason)] = said.unsafe
        assert name == "sqlite-network-filesystem"
        assert "nfs4" in reason
        assert str(path) in reason
        assert said.grade is Grade.C
        assert not path.exists()

    @pytest.mark.parametrize("way", ["link", "mount"])
    def test_a_file_with_a_second_name_is_unsafe(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """Each name has a log of its own, in which the other's locks are not: two processes were granted one lock, with one token."""
        store.provision()
        if way == "link":
            path.with_name("other.db").hardlink_to(path)
        else:
            self._mounted(path, monkeypatch, "ext4", point=path)

        with pytest.raises(UnsafeStoreError, match="two can hold one lock") as raised:
            connect(f"sqlite:///{path}").try_acquire("k")

        assert raised.value.name == "sqlite-second-name"
        assert "give --allow-unsafe sqlite-second-name to the command" in str(raised.value)
        with connect(f"sqlite:///{path}", allow_unsafe={"sqlite-second-name"}) as client:
            client.acquire("k").release()

    def test_doctor_examines_a_file_that_is_refused(
        self, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the reason, the remedy, and the name that accepts it; the exit code tells, and no file is made."""
        self._mounted(path, monkeypatch, "nfs4")

        code, out, err = Command(capsys)("doctor", "--url", f"sqlite:///{path}")

        assert (code, err) == (1, "")
        for words in ("REFUSED", "sqlite-network-filesystem: ", "remedy: put the file on a local disk", "-> C:"):
            assert words in out
        assert not path.exists()

    def test_doctor_makes_no_file(
        self, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A check leaves all as it is, whoever runs it and whatever the options say; what the file would promise is told."""
        monkeypatch.setenv("DLOCK_PROVISION", "true")
        dlock = Command(capsys)

        code, out, err = dlock("doctor", "--url", f"sqlite:///{path}")

        assert (code, err) == (0, "")
        assert "the file is not there yet" in out
        assert "not measured: the store is made when a program first opens it" in out
        assert not path.parent.is_dir() or not list(path.parent.iterdir())
        path.touch()
        assert "the file is not there yet" in dlock("doctor", "--url", f"sqlite:///{path}")[1]
        assert not path.stat().st_size

    def test_doctor_says_why_a_file_cannot_be_made(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not have to try."""
        dlock = Command(capsys)

        code, _, err = dlock("doctor", "--url", f"sqlite:///{tmp_path}/no/locks.db")
        monkeypatch.setattr(_rights, "_may", lambda name, mode: name != str(tmp_path))
        denied = dlock("doctor", "--url", f"sqlite:///{tmp_path}/locks.db")

        assert (code, denied[0]) == (69, 69)
        assert f"mkdir -p '{tmp_path}/no" in err
        assert f"it cannot be made; give this user the right to enter the directory '{tmp_path}'" in denied[2]

    def test_store_that_makes_nothing_refuses_its_verbs(self, path: Path, store: SqliteStore) -> None:
        """As long as there is no file."""
        with (
            closing(SqliteStore(path, creates=False)) as looking,
            pytest.raises(
                StoreSetupError, match="there is none; check the path, or make it with 'dlock init --url URL'"
            ),
        ):
            looking.read("k", timeout_s=1)

        assert not path.exists()
        store.provision()
        with closing(SqliteStore(path, creates=False)) as looking:
            assert looking.read("k", timeout_s=1) is None
        loop = path.with_name("loop")
        loop.symlink_to(loop)
        with pytest.raises(StoreUnavailableError, match=r"cannot be made or read \(Too many levels"):
            SqliteStore(loop, creates=False).guarantees()

    def test_a_file_in_memory_is_not_durable(
        self, path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a restart of the host removes is said to be so."""
        self._mounted(path, monkeypatch, "tmpfs")

        said = store.guarantees()

        assert (said.grade, said.durable, said.unsafe) == (Grade.B, False, ())
        assert any("tmpfs" in note for note in said.notes)

    def test_an_unknown_file_system_is_noted(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the system does not say what it is, the user is asked to look."""
        monkeypatch.setattr(provision, "_MOUNT_INFO", "/does/not/exist")

        said = store.guarantees()

        assert any("not known here" in note for note in said.notes)
        assert said.unsafe == ()

    def test_normal_is_not_durable(
        self, path: Path, open_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who asked for fewer syncs is told what they cost; asking for them was the consent."""
        self._mounted(path, monkeypatch, "ext4")

        said = open_store(path, synchronous="normal").guarantees()

        assert (said.grade, said.durable, said.unsafe) == (Grade.B, False, ())
        assert any("power cut" in note for note in said.notes)

    def test_guarantees_tell_what_is_wrong_with_the_file(self, path: Path, store: SqliteStore) -> None:
        """Whoever connects learns of a bad file at once."""
        path.write_text("not a database, but long enough to be looked at as one")

        with pytest.raises(StoreSetupError):
            store.guarantees()

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/var/locks.db", "ext4"),
            ("/home/me/locks.db", "nfs4"),
            ("/homely/locks.db", "ext4"),
            ("/home/local/locks.db", "ext4"),
            ("/mnt/with space/locks.db", "cifs"),
            ("/mnt/\u2028line/locks.db", "nfs"),
            ("/over/locks.db", "fuse.sshfs"),
            ("/ram/locks.db", "tmpfs"),
            ("/layers/locks.db", "overlay"),
            ("/named/locks.db", "fuse.\udcff"),
        ],
    )
    def test_the_file_system_is_that_of_the_nearest_mount(self, path: str, kind: str) -> None:
        """The longest mount point above the path counts, and of two on one point the later."""
        mount = provision.nearest_mount(path, os.fsencode(MOUNTS))

        assert mount is not None
        assert mount.kind == kind

    def test_no_mounts_no_answer(self) -> None:
        """An empty table says nothing."""
        assert provision.nearest_mount("/x", b"") is None

    @pytest.mark.parametrize(
        "kind",
        ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "afs", "fuse.sshfs", "fuse.new", "fuse"],
    )
    def test_network_file_systems_are_known(self, kind: str) -> None:
        """Another host's kernel may have the file open there; an unknown FUSE program is not trusted."""
        assert provision.is_shared_with_hosts(kind)

    @pytest.mark.parametrize(
        "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"]
    )
    def test_local_file_systems_are_fine(self, kind: str) -> None:
        """One kernel has all locks."""
        assert not provision.is_shared_with_hosts(kind)

    @pytest.mark.parametrize(
        ("version", "fixed"),
        [
            ((3, 40, 1), False),
            ((3, 44, 6), True),
            ((3, 45, 0), False),
            ((3, 50, 7), True),
            ((3, 51, 2), False),
            ((3, 51, 3), True),
            ((3, 53, 0), True),
        ],
    )
    def test_the_race_of_older_versions_is_noted(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], fixed: bool
    ) -> None:
        """Versions with the repair are told from those without it."""
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

        assert any("rare race" in note for note in store.guarantees().notes) != fixed

    def _mounted(self, path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, point: Path | None = None) -> None:
        table = path.with_name("mountinfo")
        table.write_text(
            f"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:1 / {point or path.parent} rw - {kind} source rw\n"
        )
        monkeypatch.setattr(provision, "_MOUNT_INFO", str(table))
