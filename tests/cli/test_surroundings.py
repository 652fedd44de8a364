"""What the child of ``dlock run`` finds around it: files, environment, signals, its group."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.cli.support import Shell


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_run_where_standard_files_are_closed(shell: Shell, closed: tuple[int, ...]) -> None:
    """Nothing of ours comes to stand in their place, which the guard would take for our end; the command finds them closed."""
    script = "; ".join(f"[ -e /proc/$$/fd/{file} ] && exit 9" for file in closed) + "; echo held > told"

    done = shell.run("run", "k", "--", "sh", "-c", script, through=" ".join(f"{file}>&-" for file in closed))

    assert (done.returncode, done.stderr) == (0, "")
    assert (shell.folder / "told").read_text() == "held\n"
    assert not shell.held()


def test_run_hands_stdin_and_stdout_on(shell: Shell) -> None:
    """The command stands in a pipeline as if it were alone."""
    process = shell.start("run", "k", "--", "cat")

    out, err = process.communicate("through\n", timeout=30)

    assert (process.returncode, out, err) == (0, "through\n", "")


def test_run_tells_the_child_what_it_holds(shell: Shell) -> None:
    """The child gets key, token and owner; what was inherited under these names does not win."""
    names = ("DLOCK_KEY", "DLOCK_OWNER", "DLOCK_FENCING_TOKEN", "DLOCK_FENCING_TOKENS")
    shell.environment.update(dict.fromkeys(names, "inherited"))

    done = shell.run("run", "--owner", "me", "--prefix", "app/", "k", "--", sys.executable, "-c", PRINT_ENVIRONMENT)

    told = json.loads(done.stdout)
    record = shell.record("app/k")
    assert record is not None
    token = record.fencing_token
    assert told == {
        "DLOCK_KEY": "k",
        "DLOCK_OWNER": "me",
        "DLOCK_FENCING_TOKEN": str(token),
        "DLOCK_FENCING_TOKENS": json.dumps({"k": token}),
    }


def test_run_of_several_keys_tells_them_in_lines(shell: Shell) -> None:
    """With several keys each has a line; a token of several lines is no number, and cannot be mistaken for the one fence."""
    shell.run("run", "a", "--", "true")

    done = shell.run("run", "b", "a", "--", sys.executable, "-c", PRINT_ENVIRONMENT)

    told = json.loads(done.stdout)
    assert told["DLOCK_KEY"] == "a\nb"
    assert told["DLOCK_FENCING_TOKEN"] == "2\n1"
    assert json.loads(told["DLOCK_FENCING_TOKENS"]) == {"a": 2, "b": 1}


def test_the_childs_open_files_are_its_own(shell: Shell) -> None:
    """The child inherits stdin, stdout and stderr, and nothing of ours: neither pipes nor the store."""
    done = shell.run("run", "k", "--", "ls", "-l", "/proc/self/fd")

    numbers = {part[-3] for row in done.stdout.splitlines() if len(part := row.split()) > 8}
    assert numbers == {"0", "1", "2", "3"}, done.stdout  # 3: the folder that ls reads
    assert "locks.db" not in done.stdout


def test_the_child_leads_a_process_group_in_our_session(shell: Shell) -> None:
    """A group of its own gets our signals and nobody else's; the session stays, or the terminal would be lost."""
    program = "import os; print(os.getpid() == os.getpgrp(), os.getsid(0))"

    done = shell.run("run", "k", "--", sys.executable, "-c", program)

    assert done.stdout.split() == ["True", str(os.getsid(0))]


def test_a_signal_that_was_ignored_stays_ignored(shell: Shell) -> None:
    """What nohup does holds for the command, too; what Python ignores for itself does not."""
    inner = [sys.executable, "-m", "dlock_core", "run", "k", "--", "sh", "-c", "grep SigIgn /proc/self/status"]

    done = shell.run(
        program=("-c", f"import signal, os; signal.signal(1, signal.SIG_IGN); os.execv({inner[0]!r}, {inner!r})")
    )

    ignored = int(done.stdout.split()[1], 16)
    assert ignored & 1 << signal.SIGHUP - 1
    assert not ignored & 1 << signal.SIGPIPE - 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process was started with")
@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}], ids=["unset", "set"])
def test_command_has_the_locale_that_dlock_was_started_with(shell: Shell, given: dict[str, str]) -> None:
    """Python sets LC_CTYPE for itself where the locale is C; a command that sorts or compares text must not notice."""
    for name in ("LC_ALL", "LANG", "LC_CTYPE"):
        shell.environment.pop(name, None)
    shell.environment |= given

    done = shell.run("run", "k", "--", "sh", "-c", "echo ${LC_CTYPE-unset}")

    assert done.stdout.strip() == given.get("LC_CTYPE", "unset")


PRINT_ENVIRONMENT = """
import json, os
names = ("DLOCK_KEY", "DLOCK_OWNER", "DLOCK_FENCING_TOKEN", "DLOCK_FENCING_TOKENS")
print(json.dumps({name: os.environ[name] for name in names}))
"""
