"""What a person meets who tries ``dlock run`` for the first time."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import AsyncLockClient, MissingDriverError
from dlock_core.backend import importing
from dlock_core.command.options import DURATION
from dlock_core.command.show import Say, WaitLine
from dlock_core.testing import AsyncFaultyStore
from tests.cli.support import Shell, line

if TYPE_CHECKING:
    from tests.cli.operator_support import Command


@pytest.mark.parametrize("words", ["run k", "elect --once k", "once --slot 1 k"])
def test_command_on_the_memory_store_is_refused(shell: Shell, words: str) -> None:
    """Every run would have a store of its own, and exclude nobody."""
    done = shell.run(*words.split(), "--url", "memory://", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (64, "")
    assert "protects nothing" in done.stderr


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("10s", 10.0), ("1m", 60.0), ("2h", 7200.0), ("7", 7.0)])
def test_durations_may_have_a_unit(text: str, seconds: float) -> None:
    """As people write them; a number alone is seconds."""
    assert DURATION.convert(text, None, None) == seconds


def test_lease_with_a_wrong_unit_is_told(shell: Shell) -> None:
    """With the forms that are right."""
    done = shell.run("run", "--lease", "10x", "k", "--", "true")

    assert done.returncode == 64
    assert "'10x' is not a duration; write seconds, or 500ms, 10s, 1m, 2h" in done.stderr


def test_run_in_a_pipe_says_that_it_waits(shell: Shell) -> None:
    """Else a log of a continuous integration ends in silence."""
    shell.holding("--owner", "the holder")
    waiter = shell.start("run", "k", "--", "true")

    assert line(waiter.stderr).startswith("dlock: waiting for 'k' for 1 s: held by 'the holder' since 20")


def test_run_inside_of_a_run_of_the_same_key_says_that_it_waits_for_its_parent(shell: Shell) -> None:
    """The owner alone, a number of a process, does not tell that neither of the two will ever end."""
    outer = shell.start(
        "run", "k", "--", sys.executable, "-m", "dlock_core", "run", "--timeout", "5", "k", "--", "true"
    )

    said = line(outer.stderr)
    assert said.startswith("dlock: waiting for 'k' for 1 s: held by "), said
    assert said.endswith("; that is the dlock around this one: if it waits for this one to end, neither ends"), said
    outer.terminate()


def test_wait_line_says_why_the_store_gives_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """One that refuses, such as a replica, or a server without a free connection, is not one that is away."""
    faulty = AsyncFaultyStore()

    async def scene() -> None:
        async with AsyncLockClient(faulty) as client:
            with faulty.outage():
                waits = WaitLine(client, ["k"], Say())
                await asyncio.sleep(1.2)  # it says nothing for a second
                waits.end()

    asyncio.run(scene())
    said = "dlock: waiting for 'k' for 1 s: the store does not answer: read of 'k' was not sent (injected)\n"
    assert capsys.readouterr().err == said


def test_shell_completes_commands_and_options(shell: Shell) -> None:
    """As the page of the command says."""
    shell.environment |= {"_DLOCK_COMPLETE": "bash_complete", "COMP_WORDS": "dlock run --skip", "COMP_CWORD": "2"}

    assert shell.run().stdout == "plain,--skip-if-held\n"


def test_the_file_of_the_page_is_read(shell: Shell) -> None:
    """A lease, a prefix, and a setting of the store."""
    file = shell.folder / "dlock.toml"
    file.write_text(
        f'url = "{shell.url}"\nlease_duration = 30.0\nprefix = "billing/"\n[store]\nsynchronous = "extra"\n'
    )
    shell.environment["DLOCK_CONFIG"] = str(file)
    del shell.environment["DLOCK_URL"]

    assert shell.json("doctor")["lease_s"] == 30
    assert str(file) in shell.json("doctor")["configuration"]


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "top",
        "top -o json",
        "show k",
        "break k --token 1",
        "break k~dlock/s/1 --session",
        "prune --older-than 30d",
    ],
)
def test_command_that_looks_makes_no_store_where_the_path_is_mistyped(dlock: Command, url: str, command: str) -> None:
    """An empty list would say that nothing is held."""
    code, out, err = dlock(*command.split())

    assert (code, out) == (69, "")
    assert "there is none; check the path, or make it with " + f"'dlock init --url {url}'" in err
    assert not Path(url.removeprefix("sqlite://")).exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:9/0?allow_unsafe=redis-replcia", "perhaps 'redis-replica' is meant"),
        ("postgresql://127.0.0.1:9/locks?lease_duration=5&heartbeat_period=4", "does not fit lease_duration=5 s"),
    ],
)
def test_command_that_looks_tells_wrong_options_before_it_looks_for_the_store(
    dlock: Command, url: str, said: str
) -> None:
    """Else a server that is away would hide them. No server is there."""
    code, _, err = dlock("ls", "--url", url)

    assert code == 64
    assert said in err


def test_single_try_at_a_free_lock_promises_no_other(shell: Shell) -> None:
    """Another program keeps the file for longer than a request may take."""
    assert shell.run("run", "k", "--", "true").returncode == 0
    keeper = sqlite3.connect(shell.url.removeprefix("sqlite:///"), isolation_level=None)
    keeper.execute("BEGIN IMMEDIATE")
    done = shell.run("run", "--no-wait", "k", "--", "true")
    keeper.close()

    assert done.returncode == 69
    assert "dlock: waiting for 'k' for 1 s: free, and it is being asked for\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "wrong", "place"),
    [
        (("break", "k", "--token"), "Option '--token' requires an argument", "dlock break"),
        (("run", "k", "--no-wait=1"), "Option '--no-wait' does not take a value", "dlock run"),
        (("--version=1",), "Option '--version' does not take a value", "dlock"),
    ],
)
def test_a_wrong_value_of_an_option_names_the_help_of_its_command(
    dlock: Command, arguments: tuple[str, ...], wrong: str, place: str
) -> None:
    """That help has the option; the one of dlock itself has not."""
    assert dlock(*arguments) == (64, "", f"dlock: {wrong}; see '{place} --help'\n")


def test_run_of_a_line_in_quotes_says_how_it_is_written(shell: Shell) -> None:
    """Who takes the command for a line of a shell learns that none reads it, and what to write."""
    done = shell.run("run", "k", "--", "echo it's $HOME")

    assert done.returncode == 127
    told = """no shell reads it: write its words apart, or sh -c 'echo it'"'"'s $HOME'"""
    assert done.stderr == f"""dlock: cannot run "echo it's $HOME": No such file or directory; {told}\n"""


def test_driver_that_is_there_and_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its import has said tells what to mend: to install it again may change nothing."""
    (tmp_path / "driver_without_its_own.py").write_text("import what_the_driver_needs\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(MissingDriverError) as caught, importing("redis-py", "redis"):
        import_module("driver_without_its_own")

    told = "the redis store needs redis-py, which cannot be imported (No module named 'what_the_driver_needs'): pip install"
    assert str(caught.value).startswith(told)
