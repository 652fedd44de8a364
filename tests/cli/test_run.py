"""``dlock run``: exit codes, several keys, what it says."""

from __future__ import annotations

import json
import re
import signal
import stat
import sys

import pytest

from tests.cli.support import Shell, finish, finish_with_line, line


@pytest.mark.parametrize("code", [0, 1, 2, 64, 75, 255])
def test_run_passes_the_childs_code_through(shell: Shell, code: int) -> None:
    """The command's own exit code is the exit code, and the lock is free afterwards."""
    done = shell.run("run", "k", "--", "sh", "-c", f"exit {code}")

    assert (done.returncode, done.stderr) == (code, "")
    assert not shell.held()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_run_of_a_child_killed_by_a_signal_exits_with_128_and_its_number(shell: Shell, number: signal.Signals) -> None:
    """As a shell does."""
    done = shell.run("run", "k", "--", "sh", "-c", f"kill -{number.value} $$")

    assert done.returncode == 128 + number
    assert not shell.held()


@pytest.mark.parametrize("name", ["no-such-command", "no\nsuch"])
def test_run_of_a_missing_command_exits_with_127(shell: Shell, name: str) -> None:
    """What is not there is told from what cannot be run; the lock is given back."""
    done = shell.run("run", "k", "--", name)

    assert done.returncode == 127
    assert done.stderr == f"dlock: cannot run {name!r}: No such file or directory; is it installed, and in PATH?\n"
    assert not shell.held()


def test_run_of_a_command_without_a_name_exits_with_127(shell: Shell) -> None:
    """A variable that is empty is told, and not passed over in silence."""
    done = shell.run("run", "k", "--", "")

    assert done.returncode == 127
    assert done.stderr.startswith("dlock: cannot run ''")
    assert not shell.held()


def test_owner_that_no_environment_can_hold_is_refused(shell: Shell) -> None:
    """It is a label for people, on one line."""
    done = shell.run("run", "--url", f"{shell.url}?owner=a%00b%0Ac", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (64, "")
    assert "owner: 'a\\x00b\\nc' holds the control character '\\x00' at position 1" in done.stderr


@pytest.mark.parametrize("content", ["data", "#!/bin/sh\n"])
def test_run_of_a_file_that_is_not_executable_exits_with_126(shell: Shell, content: str) -> None:
    """The file is there, and the system refuses it."""
    file = shell.folder / "plain"
    file.write_text(content)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)

    done = shell.run("run", "k", "--", str(file))

    assert done.returncode == 126
    assert "Permission denied" in done.stderr


def test_run_of_a_script_without_an_interpreter_line_exits_with_126(shell: Shell) -> None:
    """No shell is involved, not even by falling back to one."""
    file = shell.folder / "script"
    file.write_text("echo ran\n")
    file.chmod(stat.S_IRWXU)

    done = shell.run("run", "k", "--", str(file))

    assert (done.returncode, done.stdout) == (126, "")


def test_run_involves_no_shell(shell: Shell) -> None:
    """Arguments arrive as they were given."""
    words = ["a b", "$HOME", "*", "", ";", "'", "--"]

    done = shell.run(
        "run", "k", "--", sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words
    )

    assert json.loads(done.stdout) == words


def test_run_takes_options_up_to_the_first_dashes_only(shell: Shell) -> None:
    """What follows is the command's, though it looks like ours."""
    done = shell.run("run", "k", "--", "echo", "--timeout", "--", "-E", "7")

    assert done.stdout == "--timeout -- -E 7\n"


def test_run_on_a_held_key_without_waiting_exits_with_75(shell: Shell) -> None:
    """The message names the key and the holder; nothing is run."""
    holder = shell.holding("--owner", "the holder")

    done = shell.run("run", "--no-wait", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("dlock: could not acquire lock 'k' in one try: held by 'the holder' since ")
    assert re.search(r" UTC, last renewed \d+ s ago by the store's clock; nothing was run\n$", done.stderr)
    assert finish_with_line(holder) == 0


def test_run_that_times_out_exits_with_75(shell: Shell) -> None:
    """A wait has an end where one was asked for."""
    shell.holding()

    done = shell.run("run", "--timeout", "0.2", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (75, "")
    assert "within 0.2 s" in done.stderr


def test_run_with_a_conflict_code_exits_with_it(shell: Shell) -> None:
    """As flock's -E; 0 is a code, too."""
    shell.holding()

    assert [shell.run("run", "--no-wait", "-E", code, "k", "--", "true").returncode for code in ("9", "0")] == [9, 0]


def test_run_that_skips_exits_with_0_and_says_so(shell: Shell) -> None:
    """A job in a timetable that runs elsewhere already is no failure."""
    shell.holding("--owner", "the holder")

    done = shell.run("run", "--skip-if-held", "k", "--", "echo", "ran")
    quiet = shell.run("run", "--quiet", "--skip-if-held", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout, quiet.returncode, quiet.stderr) == (0, "", 0, "")
    assert done.stderr.startswith("dlock: skipped: lock 'k' is held by 'the holder' since ")


def test_run_waits_for_the_lock(shell: Shell) -> None:
    """The default is to wait, and a release ends the wait."""
    holder = shell.holding()
    waiter = shell.waiting()

    assert finish_with_line(holder) == 0

    code, out, _ = finish(waiter)
    assert (code, out) == (0, "ran\n")


def test_run_with_an_unreachable_store_exits_with_69(shell: Shell) -> None:
    """The store's trouble is not the lock's, and not the user's."""
    (shell.folder / "locks.db").write_bytes(b"this is not a database, " * 100)

    done = shell.run("run", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("dlock: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument"),
        (["run", "k"], "no command is given"),
        (["run", "k", "--"], "no command is given"),
        (["run", "--", "true"], "Missing argument"),
        (["run", "k", "true"], "no command is given"),
        (["run", "--no-such", "k", "--", "true"], "No such option"),
        (["run", "--timeout", "x", "k", "--", "true"], "not a duration"),
        (["run", "--timeout", "nan", "k", "--", "true"], "timeout"),
        (["run", "--timeout", "-1", "k", "--", "true"], "timeout"),
        (["run", "--lease", "0", "k", "--", "true"], "lease_duration"),
        (["run", "--lease", "10", "--grace", "6", "k", "--", "true"], "grace of 6 s"),
        (["run", "--grace", "nan", "k", "--", "true"], "grace of nan s"),
        (["run", "-E", "256", "k", "--", "true"], "256"),
        (["run", "-E", "3", "--skip-if-held", "k", "--", "true"], "--skip-if-held"),
        (["run", "--no-wait", "--timeout", "1", "k", "--", "true"], "--no-wait"),
        (["run", "-q", "-v", "k", "--", "true"], "--quiet"),
        (["run", "k", "k", "--", "true"], "asked for twice"),
        (["run", "", "--", "true"], "a key must be a str of one character or more, not ''"),
        (["run", "a\nb", "--", "true"], "control character"),
        (["run", "--url", "reddis://user:secret@host", "k", "--", "true"], "unknown store scheme 'reddis'"),
        (
            ["run", "--url", "mysql+aiomysql://host/db", "k", "--", "true"],
            "'mysql+aiomysql://…'; write mysql://…; installed: ",
        ),
        (["run", "--url", "sqlite:///x?y=secret", "k", "--", "true"], "'y'"),
        (["run", "--url", "etcd://host/\udcff", "k", "--", "true"], "the etcd store holds a byte that is not UTF-8"),
        (
            ["run", "--url", "user:secret@host", "k", "--", "true"],
            "is not a URL, since it does not begin with scheme://",
        ),
        (["nonesuch"], "No such command"),
    ],
)
def test_wrong_usage_exits_with_64_and_one_line(shell: Shell, arguments: list[str], message: str) -> None:
    """Wrong usage has one code and one line, with what to do, and never a secret."""
    done = shell.run(*arguments)

    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("dlock: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert "secret" not in done.stderr


def test_run_without_a_store_says_how_to_name_one(shell: Shell) -> None:
    """No store is guessed."""
    del shell.environment["DLOCK_URL"]

    done = shell.run("run", "k", "--", "true")

    assert done.returncode == 64
    assert "--url" in done.stderr
    assert "DLOCK_URL" in done.stderr


def test_run_of_several_keys_holds_all_or_none(shell: Shell) -> None:
    """One that is held keeps the others free."""
    shell.holding(key="b")

    done = shell.run("run", "--no-wait", "a", "b", "c", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (75, "")
    assert not shell.held("a")
    assert not shell.held("c")


def test_run_of_several_keys_holds_all_while_the_child_runs(shell: Shell) -> None:
    """And frees all of them."""
    process = shell.start("run", "b", "a", "--", "sh", "-c", "echo running; read line")
    assert line(process.stdout) == "running"

    held = [shell.held("a"), shell.held("b")]

    assert held == [True, True]
    assert finish_with_line(process) == 0
    assert [shell.held("a"), shell.held("b")] == [False, False]


def test_run_writes_its_data_into_the_record(shell: Shell) -> None:
    """Whoever looks sees it."""
    shell.holding("--data", "deploy of 7f3c", "--owner", "ci")

    record = shell.record()

    assert record is not None
    assert (record.data, record.owner) == (b"deploy of 7f3c", "ci")


def test_run_reads_the_file_that_is_named_and_says_so(shell: Shell) -> None:
    """The folder one stands in does not choose the store."""
    del shell.environment["DLOCK_URL"]
    file = shell.folder / "dlock.toml"
    file.write_text(f"url = {json.dumps(shell.url)}\nlease_duration = 7.0\n")

    ignored = shell.run("run", "k", "--", "true")
    shell.environment["DLOCK_CONFIG"] = str(file)
    process = shell.holding("-v")

    record = shell.record()
    assert ignored.returncode == 64
    assert record is not None
    assert record.lease_ms == 7000
    _, err = process.communicate("\n", timeout=30)
    assert f"file '{file}' (DLOCK_CONFIG)" in err


def test_nothing_on_a_pipe_controls_a_terminal(shell: Shell) -> None:
    """A log file gets plain lines, and none at all where there is nothing to say."""
    holder = shell.holding()
    waiter = shell.start("run", "--timeout", "2.5", "k", "--", "true")

    code, out, err = finish(waiter)

    assert (code, out) == (75, "")
    assert err.count("\n") == 2  # that it waits, and that it gave up
    assert err.replace("\n", "").isprintable()
    assert holder.poll() is None


def test_quiet_says_nothing_but_errors(shell: Shell) -> None:
    """The exit code is what a script reads."""
    holder = shell.holding()
    waiter = shell.start("run", "-q", "--timeout", "0.1", "k", "--", "true")

    code, _, err = finish(waiter)

    assert code == 75
    assert err.startswith("dlock: could not acquire")
    assert holder.poll() is None
