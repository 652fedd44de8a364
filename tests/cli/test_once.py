"""``dlock once``, and the flags of ``dlock run`` that bound a hold by its progress or keep it closed after a death."""

from __future__ import annotations

import os
import re
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from dlock_core import connect
from tests.cli.support import line

if TYPE_CHECKING:
    from tests.cli.support import Shell


def test_slot_is_run_once(shell: Shell) -> None:
    """The second host exits with 0 and runs nothing; the next slot is run."""
    first = shell.run("once", "job", "--slot", "2026-11-21", "--", "echo", "one")
    second = shell.run("once", "-v", "job", "--slot", "2026-11-21", "--", "echo", "two")
    third = shell.run("once", "job", "--slot", "2026-11-22", "--", "echo", "three")

    assert (first.returncode, first.stdout) == (0, "one\n")
    assert (second.returncode, second.stdout) == (0, "")
    assert "nothing was run: '2026-11-21' of 'job' was finished" in second.stderr
    assert (third.returncode, third.stdout) == (0, "three\n")
    assert not shell.held("job")


def test_output_is_kept_and_printed_where_the_slot_is_done(shell: Shell) -> None:
    """Byte for byte; a longer one is printed whole and kept in part."""
    script = ("sh", "-c", "printf 'a\\n\\0b'; echo trouble >&2")
    for _ in range(2):
        done = shell.run("once", "--keep-output", "job", "--slot", "1", "--", *script)
        assert (done.returncode, done.stdout) == (0, "a\n\0b")

    long = ("sh", "-c", "head -c 70000 /dev/zero | tr '\\0' x")
    assert shell.run("once", "--keep-output", "job", "--slot", "2", "--", *long).stdout == "x" * 70_000
    assert shell.run("once", "--keep-output", "job", "--slot", "2", "--", *long).stdout == "x" * 65_536


@pytest.mark.parametrize("code", [74, 141], ids=["full", "closed"])
def test_output_that_has_no_place_is_an_error_of_the_output_alone(shell: Shell, code: int) -> None:
    """The command has run, and its slot is finished."""
    words = ("once", "--keep-output", "job", "--slot", "1", "--", "sh", "-c", "echo ran >> runs; echo said")
    closed, out = os.pipe()
    os.close(closed)
    if code == 74:
        os.close(out)
        out = os.open("/dev/full", os.O_WRONLY)
    done = shell.run(*words, stdout=out)
    os.close(out)

    assert done.returncode == code, done.stderr
    assert ("what was asked for is done" in done.stderr) == (code == 74)
    assert shell.run(*words).stdout == "said\n"
    assert (shell.folder / "runs").read_text() == "ran\n"


# As where every file system is read-only, but for the store's.
NOWHERE = """
import tempfile
tempfile._candidate_tempdir_list = lambda: ["/proc"]
from dlock_core.__main__ import main
main()
"""


def test_only_output_that_is_kept_needs_a_temporary_file(shell: Shell) -> None:
    """A container whose files are read-only has no place for one, which is told as what it is."""
    nowhere = ("-c", NOWHERE)
    ran = shell.run("once", "job", "--slot", "1", "--", "echo", "ran", program=nowhere)
    kept = shell.run("once", "--keep-output", "job", "--slot", "2", "--", "echo", "ran", program=nowhere)

    assert (ran.returncode, ran.stdout) == (0, "ran\n")
    assert (kept.returncode, kept.stdout) == (64, "")
    assert "--keep-output needs a place for the output while the command runs; set TMPDIR" in kept.stderr


def test_command_that_fails_leaves_the_slot_due(shell: Shell) -> None:
    """Its code is the exit code, and the next run runs it again."""
    failed = shell.run("once", "job", "--slot", "1", "--", "sh", "-c", "exit 3")

    assert failed.returncode == 3
    assert "slot '1' of 'job' stays due: the command ended with code 3" in failed.stderr
    assert not shell.held("job")
    assert shell.run("once", "job", "--slot", "1", "--", "echo", "again").stdout == "again\n"


def test_job_that_another_process_runs_is_busy(shell: Shell) -> None:
    """Once it was seen to renew, and with --timeout 0 at once; with a longer one the end of the run is waited for."""
    running = shell.start("once", "--lease", "2", "job", "--slot", "1", "--", "sh", "-c", "echo running; read line")
    assert line(running.stdout) == "running"

    for options in ((), ("--timeout", "0")):
        done = shell.run("once", "--lease", "2", *options, "job", "--slot", "1", "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (75, "")
        assert "another process is at it" in done.stderr
    waiting = shell.start("once", "-v", "--timeout", "30", "job", "--slot", "1", "--", "echo", "ran")
    while "looking at" not in line(waiting.stderr):
        pass
    running.communicate("\n", timeout=30)
    out, _ = waiting.communicate(timeout=30)
    assert (running.returncode, waiting.returncode, out) == (0, 0, "")


def test_run_that_was_killed_is_redone(shell: Shell) -> None:
    """By the next process, one lease after it began to look."""
    running = shell.start("once", "--lease", "1", "job", "--slot", "1", "--", "sh", "-c", "echo running; sleep 60")
    assert line(running.stdout) == "running"
    running.send_signal(signal.SIGKILL)
    running.wait(30)

    done = shell.run("once", "--lease", "1", "job", "--slot", "1", "--", "echo", "redone")

    assert (done.returncode, done.stdout) == (0, "redone\n")


def test_key_with_other_data_is_refused(shell: Shell) -> None:
    """And the data stay."""
    with connect(shell.url) as client, client.lock("job", data=b"precious"):
        pass

    done = shell.run("once", "job", "--slot", "1", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (69, "")
    assert "no job has left there" in done.stderr
    record = shell.record("job")
    assert record is not None
    assert record.data == b"precious"


def test_run_of_a_job_is_ended_at_its_longest_time(shell: Shell) -> None:
    """Exit code 76, and the slot stays due."""
    done = shell.run("once", "--at-most-for", "3", "job", "--slot", "1", "--", "sleep", "60")

    assert done.returncode == 76
    assert "its --at-most-for of 3 s ends" in done.stderr
    assert done.stderr.endswith("slot '1' of 'job' stays due\n")
    assert shell.run("once", "job", "--slot", "1", "--", "echo", "again").stdout == "again\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--at-most-for", "1", "--grace", "3"),
            "does not fit a --at-most-for of 1 s; give 0 to 0.5 s, or a longer --at-most-for",
        ),
        (("--at-most-for", "0"), "dlock: --at-most-for: 0 s is too short"),
    ],
)
def test_longest_time_that_cannot_be_is_told_by_its_own_name(shell: Shell, options: tuple[str, ...], told: str) -> None:
    """Nobody has written ``max_hold``."""
    done = shell.run("once", *options, "job", "--slot", "1", "--", "true")

    assert done.returncode == 64
    assert told in done.stderr


def test_no_run_begins_too_soon_after_the_last(shell: Shell) -> None:
    """The next slot stays due, and is skipped until the time of the last run is over; that time is told, for it may be of a wrong clock."""
    shell.run("once", "--at-least-for", "1h", "job", "--slot", "1", "--", "true")

    skipped = shell.run("once", "--keep-output", "job", "--slot", "2", "--", "echo", "two")

    assert (skipped.returncode, skipped.stdout) == (0, "")
    assert "slot '2' of 'job' stays due, and nothing was run: slot '1' was begun too short a time ago" in skipped.stderr
    [until] = re.findall(r"no run begins before (\S+ \S+) UTC", skipped.stderr)
    ahead = datetime.fromisoformat(f"{until}+00:00") - datetime.now(UTC)
    assert timedelta(minutes=50) < ahead <= timedelta(minutes=60, seconds=1)


def test_wrong_use_is_told(shell: Shell) -> None:
    """Exit code 64."""
    for arguments in (
        ("once", "job", "--", "true"),
        ("once", "job", "--slot", "1"),
        ("once", "job", "--slot", "", "--", "true"),
    ):
        assert shell.run(*arguments).returncode == 64


def test_command_that_makes_no_progress_is_ended(shell: Shell) -> None:
    """One that writes to $DLOCK_PROGRESS goes on."""
    stuck = shell.run("run", "--stall-timeout", "1", "k", "--", "sleep", "60")
    assert stuck.returncode == 76
    assert "its stall_timeout of 1 s ends" in stuck.stderr
    assert "because lock 'k' (token 1) had no progress for its stall_timeout" in stuck.stderr

    works = "for step in 1 2 3 4 5 6 7 8; do sleep 0.25; echo > $DLOCK_PROGRESS; done; echo done"
    busy = shell.run("run", "--stall-timeout", "1.5", "k", "--", "sh", "-c", works)
    assert (busy.returncode, busy.stdout) == (0, "done\n"), busy.stderr


def test_command_whose_progress_counts_for_nothing_is_told_no_file_for_it(shell: Shell) -> None:
    """It may ask by that whether to say how far it is."""
    assert shell.run("run", "k", "--", "sh", "-c", "echo ${DLOCK_PROGRESS-unset}").stdout == "unset\n"


def test_program_that_the_command_starts_shows_progress_too(shell: Shell) -> None:
    """Python, as others, closes what it has inherited before it starts a program, whose own files get these numbers."""
    own = shell.folder / "own"
    own.write_text("of the program")
    files = " ".join(f"{number}<>{own}" for number in range(3, 10))
    step = ["sh", "-c", f"exec {files}; echo > $DLOCK_PROGRESS"]
    works = f"import subprocess, time\nfor _ in range(8): time.sleep(0.25); subprocess.run({step!r}, check=True)"

    busy = shell.run("run", "--stall-timeout", "1.5", "k", "--", sys.executable, "-c", works)

    assert (busy.returncode, busy.stderr) == (0, "")
    assert own.read_text() == "of the program"


def test_lock_delay_is_in_the_record(shell: Shell) -> None:
    """Others wait for the lease and the delay; a clean end skips both."""
    process = shell.holding("--lease", "20", "--lock-delay", "5")

    record = shell.record()
    assert record is not None
    assert (record.lease_ms, record.delay_ms) == (25_000, 5_000)
    process.communicate("\n", timeout=30)
    assert shell.run("run", "--no-wait", "k", "--", "true").returncode == 0


# Keeps everybody out of the store until it is ended, outside of the command's group, which ends with the lease.
KEEP_STORE = """
import os, sqlite3, sys, time
os.setsid()
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("kept", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_output_comes_out_where_the_end_could_not_be_written(shell: Shell, code: int) -> None:
    """The store is gone when the command has ended: its code is told, and what will become of the slot."""
    (shell.folder / "keep.py").write_text(KEEP_STORE)
    script = f"{sys.executable} keep.py locks.db 2>/dev/null & echo $! >&2; sleep 1; exit {code}"
    done = shell.run("once", "--lease", "2", "--keep-output", "job", "--slot", "1", "--", "sh", "-c", script)
    keeper, *said = done.stderr.splitlines()
    os.kill(int(keeper), signal.SIGKILL)

    assert (done.returncode, done.stdout) == (code or 69, "kept\n")
    told = (
        "slot '1' of 'job' stays due: the command ended with code 3"
        if code
        else "slot '1' of 'job' may be run again: the command ended with code 0, but the store has not confirmed that: "
    )
    assert any(told in each for each in said), said


def test_who_is_waited_for_is_told(shell: Shell) -> None:
    """While it waits, as ``dlock run`` does, and where it goes away."""
    running = shell.start("once", "job", "--slot", "1", "--", "sh", "-c", "echo running; read line")
    assert line(running.stdout) == "running"

    done = shell.run("once", "--timeout", "2.5", "job", "--slot", "1", "--", "echo", "ran")
    waiting, busy = done.stderr.splitlines()
    running.communicate("\n", timeout=30)

    assert re.match(r"dlock: waiting for 'job' for 1 s: held by '.+' since .+ \(token 1\)", waiting), waiting
    assert re.search(r"another process is at it: held by '.+' since .+ \(token 1\); nothing was run", busy), busy
