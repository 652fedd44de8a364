"""``dlock elect`` as users run it: terms, hand-overs, signals and exit codes, in real processes on one SQLite file."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from dlock_core import LeaderState, connect
from tests.cli.support import PATIENCE_S, Shell, finish, line

SAY_TERM = 'echo "term $DLOCK_FENCING_TOKEN"'

# Raises the signal in the pause after a term, however long a busy machine makes the rest; "beside" another thread, which may get it.
STRUCK_BETWEEN_TERMS = """
import os, signal, sys, threading, time, types
from dlock_core import __main__
from dlock_core.command import elect

struck = threading.Event()
if sys.argv.pop(1) == "beside":
    threading.Thread(target=struck.wait).start()

def strike(_):
    os.kill(os.getpid(), signal.SIGTERM)
    struck.set()

elect.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=strike)
__main__.main()
"""

# Raises the signal at the very end of a term, when the event loop comes round no more.
STRUCK_AT_THE_END = """
import os, signal
from dlock_core import __main__
from dlock_core.command import run

connected = run.Run._connected

async def struck(self):
    code = await connected(self)
    os.kill(os.getpid(), signal.SIGTERM)
    return code

run.Run._connected = struck
__main__.main()
"""

# Says in the pause after each term how much the collector of garbage will never look at again.
SAY_FROZEN = """
import gc, time, types
from dlock_core import __main__
from dlock_core.command import elect

elect.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: print(gc.get_freeze_count(), flush=True))
__main__.main()
"""


def electing(shell: Shell, *options: str, script: str) -> subprocess.Popen[str]:
    """Start a candidate."""
    return shell.start("elect", *options, "k", "--", "sh", "-c", script)


def test_each_term_runs_the_command_anew(shell: Shell) -> None:
    """Each with a greater token, in the environment; the value is what an observer reads; TERM ends it with the command."""
    process = electing(shell, "--value", "host:80", script=f"{SAY_TERM}; read line")
    assert line(process.stdout) == "term 1"
    with connect(shell.url) as client:
        leader = client.election("k").leader()
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert line(process.stdout) == "term 2"

    process.send_signal(signal.SIGTERM)
    code = process.wait(
        PATIENCE_S
    )  # its input stays open until then: at the end of that the command would end by itself
    err = finish(process)[2]

    assert leader is not None
    assert (leader.term, leader.value, leader.state) == (1, b"host:80", LeaderState.LEADING)
    assert code == 128 + signal.SIGTERM, err
    assert not shell.held()


def test_a_command_that_handles_the_signal_gives_the_code_and_the_election_ends(shell: Shell) -> None:
    """The signal goes to the command; when that has ended, the candidate campaigns no more."""
    process = electing(shell, script=f"trap 'exit 3' TERM; {SAY_TERM}; while :; do sleep 0.05; done")
    assert line(process.stdout) == "term 1"

    process.send_signal(signal.SIGTERM)

    assert finish(process)[0] == 3


def test_a_signal_that_ends_no_program_ends_no_election(shell: Shell) -> None:
    """It is the command's: USR1 may have it begin anew."""
    process = electing(shell, script=f"trap 'exit 0' USR1; {SAY_TERM}; while :; do sleep 0.05; done")
    assert line(process.stdout) == "term 1"

    process.send_signal(signal.SIGUSR1)

    assert line(process.stdout) == "term 2"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 128 + signal.SIGTERM


def test_the_command_is_told_to_stop_the_grace_before_the_end_of_its_term(shell: Shell) -> None:
    """By TERM; when it has ended, the candidate campaigns again."""
    shell.environment["DLOCK_MAX_HOLD"] = "9"
    stops = f"trap 'echo stops; exit 0' TERM; {SAY_TERM}; while :; do sleep 0.05; done"
    process = electing(shell, "--grace", "4.5", script=stops)

    assert [line(process.stdout) for _ in range(3)] == ["term 1", "stops", "term 2"]

    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0


@pytest.mark.parametrize(("options", "told"), [((), ""), (("--once",), "; exit code 76")], ids=["goes on", "once"])
def test_a_lost_term_names_an_exit_code_only_where_it_ends_dlock(
    shell: Shell, options: tuple[str, ...], told: str
) -> None:
    """Who reads of an exit code looks for a process that has ended, and here it campaigns again."""
    shell.environment["DLOCK_MAX_HOLD"] = "0.5"
    process = electing(shell, *options, script=f"{SAY_TERM}; exec sleep 60")

    assert line(process.stdout) == "term 1"
    while "the command was ended" not in (said := line(process.stderr)):
        pass
    assert said.endswith(f"was held for its max_hold{told}")

    if not options:
        assert line(process.stdout) == "term 2"
        process.send_signal(signal.SIGTERM)
    finish(process)


def test_a_signal_while_it_waits_ends_the_wait(shell: Shell) -> None:
    """Nothing is held, nothing was run."""
    holder = shell.holding()
    process = electing(shell, "--verbose", script=SAY_TERM)
    while "asking for" not in line(process.stderr):
        pass

    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)

    assert (code, out) == (128 + signal.SIGTERM, "")
    assert shell.held()
    holder.communicate("\n", timeout=PATIENCE_S)


@pytest.mark.parametrize("threads", ["alone", "beside"])
def test_a_signal_between_two_terms_ends_it(shell: Shell, threads: str) -> None:
    """No further term begins, and the exit code tells the signal, whichever thread of the last term is still there to get it."""
    process = shell.start("elect", "--verbose", "k", "--", "true", program=("-c", STRUCK_BETWEEN_TERMS, threads))

    code, _, err = finish(process)

    assert code == 128 + signal.SIGTERM
    assert err.count("asking for") == err.count("campaigning again") == 1


def test_signal_at_the_very_end_of_a_term_is_heard(shell: Shell) -> None:
    """No other term begins: who stops a service sends TERM once, and then waits."""
    process = shell.start("elect", "--verbose", "k", "--", "true", program=("-c", STRUCK_AT_THE_END))

    code, _, err = finish(process)

    assert code == 0
    assert err.count("asking for") == 1


def test_the_next_candidate_leads_when_the_leader_is_killed(shell: Shell) -> None:
    """One lease after the kill, by a fresh token; the dead leader's command is gone by then. The fleet's time-out is that of its locks."""
    shell.environment["DLOCK_TIMEOUT"] = "0"
    first = electing(shell, "--lease", "1", script=f"{SAY_TERM}; exec sleep 60")
    assert line(first.stdout) == "term 1"
    second = electing(shell, "--lease", "1", script=f"{SAY_TERM}; read line")

    first.kill()

    assert line(second.stdout) == "term 2"
    assert first.stdout is not None
    assert first.stdout.read() == "", "the command of the dead leader holds its output open"
    second.send_signal(signal.SIGTERM)
    assert "nothing was run" not in finish(second)[2]


def test_once_leads_one_term(shell: Shell) -> None:
    """The exit code is the command's."""
    done = shell.run("elect", "--once", "k", "--", "sh", "-c", f"{SAY_TERM}; exit 7")

    assert (done.returncode, done.stdout) == (7, "term 1\n")


def test_a_later_command_has_the_signals_that_the_first_had(shell: Shell) -> None:
    """Nothing that the process has set for itself in its first term is inherited in the second."""
    masks = "grep -E 'SigBlk|SigIgn' /proc/self/status | tr '\\n\\t' '  '; echo; read line"
    process = electing(shell, script=masks)
    first = line(process.stdout)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()

    assert line(process.stdout) == first
    process.send_signal(signal.SIGTERM)
    finish(process)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("k",), 64, "no command is given"),
        (("k", "--grace", "11", "--", "true"), 64, "a grace of 11 s does not fit"),
        (("k", "--", "/nowhere/command"), 127, "is it installed"),
        (("k", "--", "/etc/passwd"), 126, "cannot run"),
        (("", "--", "true"), 64, "key"),
    ],
)
def test_what_cannot_work_is_refused(shell: Shell, arguments: tuple[str, ...], code: int, told: str) -> None:
    """With the exit codes of 'dlock run', and without a second try."""
    done = shell.run("elect", *arguments)

    assert done.returncode == code
    assert told in done.stderr


def test_a_store_that_cannot_be_reached_ends_it(shell: Shell, tmp_path: Path) -> None:
    """With 69, for the supervisor to start it again."""
    done = shell.run("elect", "--url", f"sqlite:///{tmp_path}/nowhere/locks.db", "k", "--", "true")

    assert done.returncode == 69


def test_what_the_locks_of_the_fleet_are_makes_no_second_leader(shell: Shell) -> None:
    """A file of options for all programs may ask for permits or a session: an election has one leader, by whose record others judge."""
    shell.environment |= {"DLOCK_PERMITS": "3", "DLOCK_RENEWAL": "session"}
    process = electing(shell, "--lease", "1", script=f"{SAY_TERM}; sleep 1; echo on; read line")
    assert [line(process.stdout) for _ in range(2)] == ["term 1", "on"]

    record = shell.record()
    assert record is not None
    assert (record.members, record.session, record.lease_ms) == (None, None, 1000)
    process.send_signal(signal.SIGTERM)
    finish(process)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists what is open")
def test_terms_leave_nothing_open(shell: Shell) -> None:
    """A leader whose command ends each second would have no files left after some minutes."""
    shell.environment["DLOCK_STALL_TIMEOUT"] = "60"
    process = electing(shell, script="ls /proc/$PPID/fd | wc -l; read line")
    assert process.stdin is not None
    opened = []
    for _ in range(3):
        opened.append(line(process.stdout))
        process.stdin.write("\n")
        process.stdin.flush()

    process.send_signal(signal.SIGTERM)
    finish(process)
    assert len(set(opened)) == 1, opened


def test_terms_leave_no_garbage_that_stays(shell: Shell) -> None:
    """A leader whose command ends each second would grow by gigabytes a day."""
    process = shell.start("elect", "k", "--", "true", program=("-c", SAY_FROZEN))
    frozen = [int(line(process.stdout)) for _ in range(3)]

    process.send_signal(signal.SIGTERM)
    finish(process)
    assert frozen == sorted(frozen, reverse=True)
