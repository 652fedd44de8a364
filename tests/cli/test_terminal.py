"""``dlock run`` on a terminal: progress, the foreground, Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import connect
from tests.cli.support import PATIENCE_S, Shell, Terminal, finish_with_line

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Terminal]:
    """Return a terminal with a shell."""
    terminal = Terminal(shell)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.master)


def test_the_command_has_the_terminal(terminal: Terminal) -> None:
    """It reads what is typed, and the shell has the terminal again afterwards."""
    terminal.type(f"{RUN} k -- sh -c 'echo armed; read line; echo got $line'\n")
    terminal.expect(r"armed\r\n")

    terminal.type("this\n")

    terminal.expect(r"got this\r\n")
    terminal.expect(r"ready\$ ")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 0\r\n")


def test_the_command_stands_in_the_foreground_from_its_start(terminal: Terminal) -> None:
    """A program that has windows, or a shell, asks for that before it reads."""
    asks = "import os; print('fore' if os.tcgetpgrp(0) == os.getpgrp() else 'back', 'ground')"
    terminal.type(f'{RUN} k -- {sys.executable} -c "{asks}"\n')

    assert "fore ground" in terminal.expect(r"(fore|back) ground\r\n")


def test_a_job_that_goes_on_in_the_background_leaves_the_terminal_to_the_shell(terminal: Terminal) -> None:
    """To the end of its command, and beyond."""
    terminal.type(f"set -b; mkfifo go; {RUN} --lease 60 k -- sh -c 'echo armed; read line <go'\n")
    terminal.expect(r"armed\r\n")
    terminal.type("\x1a")
    terminal.expect(r"Stopped[^\n]*\n")

    terminal.type("bg; echo >go\n")
    terminal.expect(r"Done[^\n]*\n")

    assert os.tcgetpgrp(terminal.master) == terminal.process.pid


HEEDS = "trap 'exit 3' INT; while sleep 0.05; do :; done"


@pytest.mark.parametrize(("does", "pipe", "code"), [("exec cat", "", 130), (HEEDS, "| cat", 3)])
def test_an_interrupt_from_the_keyboard_ends_the_command(
    terminal: Terminal, shell: Shell, does: str, pipe: str, code: int
) -> None:
    """Ctrl-C goes to the command, in a pipeline through dlock; the code is the command's."""
    terminal.type(f'{RUN} k -- sh -c "echo armed; {does}" {pipe}\n')
    terminal.expect(r"armed\r\n")

    terminal.type("\x03")

    terminal.expect(r"ready\$ ")
    terminal.type("echo code ${PIPESTATUS[0]}\n")
    terminal.expect(rf"code {code}\r\n")
    assert not shell.held()


def test_an_interrupt_from_the_keyboard_ends_an_election_with_its_command(terminal: Terminal, shell: Shell) -> None:
    """The terminal sends it to the command alone, and yet whoever types it means both: no further term begins."""
    terminal.type(f"{RUN.removesuffix('run')}elect k -- sh -c 'echo armed; exec cat'\n")
    terminal.expect(r"armed\r\n")

    terminal.type("\x03")

    terminal.expect(r"ready\$ ")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 130\r\n")
    assert not shell.held()


@pytest.mark.parametrize("command", ["run", "elect"])
def test_an_interrupt_from_the_keyboard_ends_a_script_too(terminal: Terminal, command: str) -> None:
    """Whoever types it wants no further step of the script, nor of a loop: a mere exit code would not tell the shell of it."""
    steps = f"{RUN.removesuffix('run')}{command} k -- sh -c 'echo armed; exec cat'; echo 'next' step"
    terminal.type(f"cat > steps; for each in 1 2; do bash steps; echo 'next' round; done\n{steps}\n\x04")
    terminal.expect(r"armed\r\n")

    terminal.type("\x03")

    assert "next " not in terminal.expect(r"ready\$ ")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 130\r\n")


def test_an_interrupt_from_the_keyboard_of_a_wait_ends_a_loop_too(terminal: Terminal, shell: Shell) -> None:
    """The lock of the next round is not asked for."""
    shell.holding()
    terminal.type(f"for each in 1 2; do {RUN} k -- true; echo 'next' round; done\n")
    terminal.expect(r"waiting for 'k'")

    terminal.type("\x03")

    assert "next " not in terminal.expect(r"ready\$ ")


def test_a_wait_shows_its_progress_and_can_be_interrupted(terminal: Terminal, shell: Shell) -> None:
    """Who holds it, and for how long we have waited; Ctrl-C gives up."""
    shell.holding("--owner", "the holder")
    terminal.type(f"{RUN} k -- true\n")
    terminal.expect(r"waiting for 'k' for 1 s: held by 'the holder' since ")

    terminal.type("\x03")

    terminal.expect("SIGINT while waiting for 'k'")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 130\r\n")


def test_a_wait_goes_on_where_its_terminal_is_closed(terminal: Terminal, shell: Shell) -> None:
    """The job was to go on without it, or nothing would be ignored: nobody sees the progress any more, but the command is run."""
    holder = shell.holding()
    terminal.type(f"trap '' HUP; exec {RUN} k -- touch ran\n")
    terminal.expect(r"waiting for 'k' for 1 s")

    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, terminal.master)
    os.close(nowhere)
    assert finish_with_line(holder) == 0

    assert terminal.process.wait(PATIENCE_S) == 0
    assert (shell.folder / "ran").exists()


def test_top_shows_the_locks_until_it_is_interrupted(terminal: Terminal, shell: Shell) -> None:
    """It looks again by itself: a lock that is taken meanwhile comes, and what is wrong."""
    terminal.type(f"{RUN.removesuffix('run')}top --every 100ms\n")
    terminal.expect(r"0 held")
    shell.holding("--owner", "the holder")
    terminal.expect(r"1 held")
    terminal.expect(r"RENEWALS")
    terminal.expect(r"the holder")
    with closing(sqlite3.connect(shell.folder / "locks.db")) as file, file:
        file.execute("UPDATE lock SET state = 'odd'")
    terminal.expect(r"0 held  what the SQLite file has under key 'k' is not a record")

    terminal.type("\x03")

    terminal.expect(r"ready\$ ")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 130\r\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_top_leaves_the_terminal_as_it_was(terminal: Terminal, number: signal.Signals) -> None:
    """It was on a screen of its own, without a cursor."""
    terminal.type(f"{RUN.removesuffix('run')}top --every 100ms\n")
    terminal.expect(r"\x1b\[\?1049h")
    terminal.expect(r"0 held")

    shell = terminal.process.pid
    [top] = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    os.kill(int(top), number)

    left = terminal.expect(r"ready\$ ")
    assert "\x1b[?1049l" in left
    assert "\x1b[?25h" in left
    terminal.type("echo code $?\n")
    terminal.expect(rf"code {128 + number}\r\n")


def test_top_gives_the_terminal_back_while_it_is_stopped(terminal: Terminal) -> None:
    """After each Ctrl-Z the shell has its own screen and a cursor, and fg shows the locks again at once."""
    terminal.type(f"{RUN.removesuffix('run')}top --every 1h\n")
    terminal.expect(r"0 held")

    for _ in range(2):
        terminal.type("\x1a")

        left = terminal.expect(r"Stopped")
        assert left.rindex("\x1b[?1049l") > left.rfind("\x1b[?1049h")
        assert left.rindex("\x1b[?25h") > left.rfind("\x1b[?25l")
        terminal.expect(r"ready\$ ")
        terminal.go_on()
        terminal.expect(r"\x1b\[\?1049h")
        terminal.expect(r"0 held")
    terminal.type("\x03")
    terminal.expect(r"ready\$ ")


def test_a_stop_from_the_keyboard_stops_the_job_until_it_is_resumed(terminal: Terminal) -> None:
    """Ctrl-Z gives the shell back; fg goes on where it was, the lock still held."""
    terminal.type(f"{RUN} --lease 60 k -- sh -c 'echo armed; read line; echo got $line'\n")
    terminal.expect(r"armed\r\n")

    terminal.type("\x1a")
    terminal.expect(r"resume it within \d+ s")
    terminal.expect(r"Stopped[^\n]*\n")
    terminal.expect(r"ready\$ ")
    terminal.go_on()
    terminal.type("this\n")

    terminal.expect(r"got this\r\n")


def test_a_stopped_job_does_not_outlive_its_lease(terminal: Terminal, shell: Shell) -> None:
    """The guard ends what nobody resumes: another can have the lock, and the job says so with 76."""
    terminal.type(f"{RUN} --lease 1 k -- sh -c 'echo armed $$; read line; echo got $line'\n")
    pid = terminal.expect(r"armed \d+\r\n").split()[-1]
    terminal.type("\x1a")
    terminal.expect(r"Stopped[^\n]*\n")

    assert shell.run("run", "k", "--", "true").returncode == 0
    assert state_of(pid) == "Z"
    terminal.type("fg\n")

    terminal.expect("exit code 76")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 76\r\n")


@pytest.mark.parametrize(("to", "pipe"), [("", "|"), (">&2", "2>&1 >/dev/null |")], ids=["stdout", "stderr"])
def test_another_program_of_the_pipeline_may_read_from_the_terminal(terminal: Terminal, to: str, pipe: str) -> None:
    """As a pager does that shows the output: the command has not taken the terminal from it, and all go on."""
    pager = "sh -c 'read first; echo $first; read typed </dev/tty; echo got $typed; exec cat'"
    terminal.type(f"{RUN} k -- sh -c 'echo armed {to}; sleep 1; echo over {to}' {pipe} {pager}\n")
    terminal.expect(r"armed\r\n")

    terminal.type("this\n")

    terminal.expect(r"got this\r\n")
    terminal.expect(r"over\r\n")
    terminal.expect(r"ready\$ ")


def test_a_command_that_is_fed_by_a_pipe_may_read_from_the_terminal(terminal: Terminal) -> None:
    """As one does that asks for a password."""
    terminal.type(f"echo fed | {RUN} k -- sh -c 'echo armed; read typed </dev/tty; read line; echo got $typed $line'\n")
    terminal.expect(r"armed\r\n")

    terminal.type("this\n")

    terminal.expect(r"got this fed\r\n")
    terminal.expect(r"ready\$ ")


def test_a_stop_from_the_keyboard_stops_a_command_in_a_pipeline(terminal: Terminal) -> None:
    """It is not in the foreground, where Ctrl-Z would reach it; it goes on with fg, and Ctrl-C ends it."""
    terminal.type(f"sleep 60 | {RUN} --lease 60 k -- sh -c 'echo armed $$; exec sleep 60'\n")
    pid = terminal.expect(r"armed \d+\r\n").split()[-1]

    terminal.type("\x1a")
    terminal.expect(r"resume it within \d+ s")
    terminal.expect(r"Stopped[^\n]*\n")
    assert state_of(pid) == "T"

    terminal.go_on()
    terminal.type("\x03")

    terminal.expect(r"ready\$ ")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 130\r\n")


def test_a_stop_from_the_keyboard_stops_a_wait(terminal: Terminal, shell: Shell) -> None:
    """The shell is back, and fg goes on with the wait."""
    holder = shell.holding()
    terminal.type(f"{RUN} k -- echo 'have' it\n")
    terminal.expect(r"waiting for 'k'")

    terminal.type("\x1a")
    terminal.expect(r"Stopped[^\n]*\n")
    terminal.go_on()
    assert finish_with_line(holder) == 0

    terminal.expect(r"have it\r\n")


def test_a_command_in_the_background_that_reads_stops_the_job(terminal: Terminal) -> None:
    """As it would without dlock: the shell tells it, and fg gives it the terminal."""
    terminal.type(f"set -b; {RUN} --lease 60 k -- sh -c 'read line; echo got $line' &\n")
    terminal.expect(r"resume it within \d+ s")
    terminal.expect(r"Stopped[^\n]*\n")

    terminal.go_on()
    terminal.type("this\n")

    terminal.expect(r"got this\r\n")


def state_of(pid: str) -> str:
    """Return the letter of the process's state, once it is not that of a process at work."""
    deadline = time.monotonic() + PATIENCE_S
    while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) in "RS":
        assert time.monotonic() < deadline
        time.sleep(0.01)  # for the next look
    return state


RUN = f"{sys.executable} -m dlock_core run"


def test_freeing_at_once_asks_first_and_does_nothing_where_the_answer_is_no(terminal: Terminal, shell: Shell) -> None:
    """A slip of the hand on a terminal frees nobody's lock, and the exit code says that nothing was done."""
    shell.holding("--owner", "the holder")
    terminal.type("dlock break k --token 1 --now\n")
    terminal.expect(r"although its holder may still be at work\?")

    terminal.type("n\n")

    terminal.expect(r"nothing was done to 'k'")
    terminal.type("echo code $?\n")
    terminal.expect(r"code 1\r\n")
    assert shell.held()


def test_ls_fits_60_columns_also_with_long_owners_and_keys(terminal: Terminal, shell: Shell) -> None:
    """An owner is shown by its beginning and its end, a key in full, over several lines."""
    key, owner = f"billing/{'0123456789' * 9}/end", f"build-agent.{'x' * 200}.internal:9f3c"
    with connect(shell.url, owner=owner) as client, client.lock(key), client.lock("k"):
        for options in ("", " --all"):
            terminal.type(f"stty cols 60; clear; dlock ls{options}; echo 'that is' all\n")
            terminal.expect("KEY")
            shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.expect("that is all\r\n"))

            rows = shown.splitlines()[1:-1]
            assert max(map(len, rows)) <= 60, shown
            assert key in "".join(row.split()[0] for row in rows if row[:1].strip()), shown
            assert "build" in shown, shown
            assert "9f3c" in shown, shown
