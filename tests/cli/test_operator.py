"""``dlock ls``, ``show``, ``init`` and ``doctor``."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlock_core import LockRecord, State, connect
from dlock_core.clock import wall_ms
from dlock_core.command.app import operator_commands
from dlock_core.command.show import escape, held_in_words, print_rows, record_facts, renewed_in_words
from dlock_core.errors import AcquireTimeoutError, LockLostError
from dlock_core.record import Broken, Times
from tests.cli.operator_support import Command
from tests.cli.support import PATIENCE_S, Shell

if TYPE_CHECKING:
    from dlock_core import LockClient


SECRET = "hunter2"


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [("ls",), ("doctor", "-o", "json"), ("--help",)])
def test_output_that_has_no_place_is_told(shell: Shell, arguments: tuple[str, ...]) -> None:
    """A full disk is one line on stderr, and an exit code of its own."""
    shell.run("init")
    with FULL.open("w") as full:
        done = shell.run(*arguments, stdout=full)

    assert done.returncode == 74
    assert (
        done.stderr == "dlock: the output could not be written: No space left on device; what was asked for is done\n"
    )


def test_dlock_alone_says_what_is_missing(dlock: Command) -> None:
    """One line, as all that is wrong with the usage."""
    assert dlock() == (64, "", "dlock: Missing command; see 'dlock --help'\n")


def test_ls_lists_what_is_stored(dlock: Command, client: LockClient) -> None:
    """One line a record, with a heading; the prefix selects."""
    with client.lock("app/b"), client.lock("app/a"), client.lock("other"):
        code, out, err = dlock("ls", "app/")

    rows = [row.split() for row in out.splitlines()]
    assert (code, err) == (0, "")
    assert rows[0] == ["KEY", "OWNER", "HELD", "RENEWED", "LEASE"]
    assert [row[0] for row in rows[1:]] == ["app/a", "app/b"]
    assert all(row[2] in "012" and row[3:] == ["s", "0", "s", "ago", "20", "s", "left"] for row in rows[1:])


def test_ls_fits_a_narrow_terminal(dlock: Command, client: LockClient) -> None:
    """With a key and an owner of usual length."""
    with client.lock("billing/42"):
        assert max(map(len, dlock("ls")[1].splitlines())) <= 60 + len(client._context.owner) - 22


def test_ls_on_a_terminal_without_room_for_its_columns_is_not_fitted(
    monkeypatch: pytest.MonkeyPatch, dlock: Command, client: LockClient
) -> None:
    """The terminal folds the lines: columns of one character could not be read."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "19")
    with client.lock("billing/42"):
        assert len(dlock("ls")[1].splitlines()) == 2


def test_ls_and_show_tell_how_many_wait(dlock: Command, client: LockClient) -> None:
    """Where the store knows; a table in which nobody waits has no column for it. Each client is one waiter of a lock."""
    lease = client.acquire("k")
    assert "WAIT" not in dlock("ls")[1]
    with connect(client.options) as one, connect(client.options) as two:
        threads = [threading.Thread(target=lambda c=c: c.acquire("k", timeout=60).release()) for c in (one, two)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while (record := client.get("k")) is None or record.waiters != 2:
            assert time.monotonic() < until
            time.sleep(0.01)  # the threads tell nobody that they wait

        listed, shown = dlock("ls")[1], dlock.json("show", "k")
        with connect(client.options) as third, pytest.raises(AcquireTimeoutError, match="2 waiting for it"):
            third.acquire("k", timeout=0)

        lease.release()
        for thread in threads:
            thread.join()
    assert [row.split()[-1] for row in listed.splitlines()] == ["WAIT", "2"]
    assert shown["waiters"] == 2


def test_ls_and_show_tell_a_dead_holder(dlock: Command, client: LockClient) -> None:
    """The store's clock says that the lease has ended, though the record still says held."""
    lease = client.acquire("k", lease_duration=0.05, auto_renew=False)
    time.sleep(0.1)  # by the store's clock, which nobody can set

    for command in (("ls",), ("show", "k")):
        assert re.search(r"ended \d+ s ago", dlock(*command)[1])
    assert dlock.json("ls")[0]["age_ms"] >= 50
    with pytest.raises(LockLostError):
        lease.release()


def test_ls_shows_what_is_held_and_with_all_what_is_free(dlock: Command, client: LockClient) -> None:
    """A free record keeps its token, and is of no interest to most."""
    with client.lock("free"):
        pass
    with client.lock("held"):
        everything, held = dlock.json("ls", "--all"), dlock.json("ls")

    assert [record["key"] for record in everything] == ["free", "held"]
    assert [record["key"] for record in held] == ["held"]


@pytest.mark.parametrize("output", ["table", "json"])
def test_ls_shows_what_stands_beside_a_foreign_record(
    dlock: Command, client: LockClient, tmp_path: Path, output: str
) -> None:
    """An operator still sees the rest, and that it is not all."""
    with client.lock("x"):
        pass
    with closing(sqlite3.connect(tmp_path / "locks.db")) as file, file:
        file.execute("UPDATE lock SET state = 'odd'")
    with client.lock("a") as first, client.lock("z"):
        code, out, err = dlock("ls", "-o", output)

    assert code == 69
    assert out.count(first.owner) == 2
    assert "key 'x'" in err
    assert "NOT complete" in err


def test_ls_of_an_empty_store_prints_the_heading_or_an_empty_list(dlock: Command, client: LockClient) -> None:
    """Nothing is not an error."""
    assert dlock("ls") == (0, "KEY  OWNER  HELD  RENEWED  LEASE\n", "")
    assert dlock.json("ls") == []


def test_show_prints_every_fact_as_json(dlock: Command, client: LockClient) -> None:
    """JSON loses nothing: bytes are base64, text is text."""
    with client.lock(
        "k", lease_duration=7, data=b"\xff\x00", attributes={"a": 1, "b": b"\x01", "c": "text", "d": True}
    ) as lease:
        facts = dlock.json("show", "k")

    assert facts == {
        "key": "k",
        "state": "held",
        "fencing_token": lease.fencing_token,
        "owner": lease.owner,
        "lease_ms": 7000,
        "rvn": facts["rvn"],
        "data": None,
        "data_base64": "/wA=",
        "attributes": {"a": 1, "b": {"base64": "AQ=="}, "c": "text", "d": True},
        "broken": None,
        "granted_at": facts["granted_at"],
        "written_at": facts["granted_at"],
        "waiters": None,
        "session": None,
        "members": None,
        "age_ms": facts["age_ms"],
    }


def test_show_prints_facts_in_lines(dlock: Command, client: LockClient) -> None:
    """For people: what is not there is left out."""
    with client.lock("k", data=b"text", attributes={"a": 1, "b": "two"}):
        code, out, _ = dlock("show", "k")

    facts = dict(row.split(maxsplit=1) for row in out.splitlines() if not row.startswith(" "))
    assert code == 0
    held = {
        "key",
        "state",
        "fencing_token",
        "owner",
        "rvn",
        "data",
        "attributes",
        "granted",
        "lease",
        "held",
        "written",
    }
    assert facts.keys() == held
    assert (facts["data"], facts["lease"], facts["attributes"]) == ("text", "20 s left", "a=1")
    assert "b='two'" in out


def test_show_and_ls_tell_the_last_owner_and_how_long_it_held_the_lock(dlock: Command, client: LockClient) -> None:
    """After the release, which is what the record's time of writing and its age are then about."""
    with client.lock("k"):
        pass

    shown, listed, facts = dlock("show", "k")[1], dlock("ls", "--all")[1], dlock.json("show", "k")
    for told in (shown, listed):
        assert client._context.owner in told
        assert re.search(r"\d s ago", told)
    assert re.search(r"^last owner +", shown, re.MULTILINE)
    assert re.search(r"^granted at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, by its owner's clock$", shown, re.MULTILINE)
    assert (facts["owner"], facts["state"]) == (client._context.owner, "free")
    assert dt.datetime.fromisoformat(facts["granted_at"]) <= dt.datetime.fromisoformat(facts["written_at"])


def test_times_without_a_clock_of_the_store_are_marked_as_those_of_hosts() -> None:
    """They may be as wrong as the clocks of two hosts; a record without times says nothing, an absurd one breaks nothing."""
    now_s = wall_ms() // 1000
    record = LockRecord("k", State.HELD, "r", 1, "o", 1000, times=Times(now_s - 7200, now_s - 600))

    assert (renewed_in_words(record, None), renewed_in_words(record, 3000)) == ("~10 min ago", "3 s ago")
    assert held_in_words(record) == "2 h"
    assert held_in_words(replace(record, state=State.FREE, lease_ms=None)) == "110 min"
    assert (renewed_in_words(replace(record, times=None), None), held_in_words(replace(record, times=None))) == (
        "-",
        "-",
    )
    assert record_facts(replace(record, times=Times(2**60, -(2**70))))["granted_at"] == f"{2**60} s after 1970"


def test_show_of_binary_data_says_how_much(dlock: Command, client: LockClient) -> None:
    """A terminal is no place for bytes."""
    with client.lock("k", data=b"\xff\x1b[2J"):
        _, out, _ = dlock("show", "k")

    assert "5 bytes (base64): /xtbMko=" in out


def test_show_of_an_unknown_key_exits_with_1(dlock: Command, client: LockClient) -> None:
    """Nothing there is told from trouble."""
    assert dlock("show", "k") == (1, "", "dlock: nothing is stored under key 'k'; 'dlock ls --all' lists what is\n")
    assert dlock("show", "k", "-o", "json")[:2] == (1, "null\n")


def test_init_provisions_and_may_be_repeated(dlock: Command, url: str) -> None:
    """The store is ready afterwards."""
    assert dlock("init")[0] == 0
    assert dlock.json("init")["provisioned"] is True


def test_doctor_reports_what_is_known(dlock: Command, url: str) -> None:
    """The store, its promises, the clock and the way there."""
    dlock("init")
    facts = dlock.json("doctor")

    assert (facts["store"], facts["grade"], facts["token"]) == ("sqlite", "A", "ordered")
    assert abs(facts["clock_rate_ppm"]) < facts["drift_bound_ppm"]
    assert 0 < facts["read_ms_median"] <= facts["read_ms_max"]
    assert facts["versions"].keys() == {"dlock-core", "python", "system"}
    assert "DLOCK_URL" in facts["configuration"]


def test_doctor_speaks_to_people(dlock: Command, url: str) -> None:
    """Guarantees in words."""
    dlock("init")
    code, out, err = dlock("doctor")

    assert (code, err) == (0, "")
    for words in (
        "every grant has a greater token",
        "round trip",
        "within the bound of",
        "no file (DLOCK_CONFIG is not set)",
    ):
        assert words in out


def test_f11_doctor_tells_of_the_token_floor(dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who moves to another store must know that tokens begin anew there, and what to do."""
    assert "set token_floor above its highest" in dlock("doctor")[1]

    monkeypatch.setenv("DLOCK_TOKEN_FLOOR", "5000")

    assert dlock.json("doctor")["token_floor"] == 5000
    assert "from 5000 on (token_floor)" in dlock("doctor")[1]


def test_doctor_says_which_file_was_taken(
    dlock: Command, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration that is found by name is named."""
    file = tmp_path / "dlock.toml"
    file.write_text("lease_duration = 5.0\n")
    monkeypatch.setenv("DLOCK_CONFIG", str(file))

    facts = dlock.json("doctor")

    assert str(file) in facts["configuration"]
    assert facts["lease_s"] == 5


@pytest.mark.parametrize("arguments", [["ls"], ["show", "k"], ["doctor"], ["init"]])
def test_no_secret_is_printed(dlock: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """A password in the URL stays there, also where the URL is wrong."""
    for wrong in (f"reddis://user:{SECRET}@host/0", f"user:{SECRET}@host", f"sqlite:///x?{SECRET}=1&y={SECRET}"):
        monkeypatch.setenv("DLOCK_URL", wrong)

        code, out, err = dlock(*arguments)

        assert code == 64
        assert SECRET not in out + err.replace(f"{SECRET}=…", "").replace(f"'{SECRET}'", "")


def test_an_unexpected_record_is_one_line_and_69(dlock: Command, url: str, tmp_path: Path) -> None:
    """A store that is none ends in a message, not in a traceback."""
    (tmp_path / "locks.db").write_bytes(b"nonsense " * 1000)

    code, out, err = dlock("ls")

    assert (code, out) == (69, "")
    assert err.count("\n") == 1


def test_version_and_help(dlock: Command) -> None:
    """The two things that everybody tries first."""
    assert dlock("--version")[1].startswith("dlock 0.")
    code, out, _ = dlock("--help")
    rows = out.partition("Commands:\n")[2].splitlines()
    assert len(rows) == len(operator_commands()) + 3
    assert [row for row in rows if not row.endswith(".") or row.endswith("...")] == []  # none is cut
    code, out, _ = dlock("run", "--help")
    assert code == 0
    assert "KEY... -- COMMAND [ARGUMENTS]..." in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[2Jb", "a\\x1b[2Jb"), ("ä\u202eb", "ä\\u202eb"), ("\ud800", "\\ud800"), ("a\nb", "a\\nb")],
)
def test_what_could_control_a_terminal_is_written_out(text: str, shown: str) -> None:
    """Owners and data come from others."""
    assert escape(text) == shown


def test_rows_are_escaped_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A script reads whole keys, and markup is text."""
    print_rows(("KEY",), [("k" * 1000,), ("[bold]x[/bold]\x1b[0m",)])

    assert capsys.readouterr().out.splitlines() == ["KEY", "k" * 1000, "[bold]x[/bold]\\x1b[0m"]


def test_a_broken_record_carries_by_whom() -> None:
    """Who broke it is a fact like the others."""
    record = LockRecord("k", State.HELD, "1", 2, "o", 1000, broken=Broken("operator", 5))

    assert record_facts(record)["broken"] == {"by": "operator", "at_ms": 5}


@pytest.mark.parametrize("arguments", [("ls",), ("--help",), ("run", "--help")])
def test_output_that_nobody_reads_is_no_traceback(shell: Shell, arguments: tuple[str, ...]) -> None:
    """``dlock ls | head -1`` ends quietly."""
    with connect(shell.url) as client:
        for number in range(50):
            with client.lock(f"{number:04}" + "k" * 900):
                pass
    process = shell.start(*arguments)
    assert process.stdout is not None
    process.stdout.close()

    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(PATIENCE_S) == 128 + 13
    assert err == ""


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_the_install_line_is_printed(missing: str) -> None:
    """The core installs without a CLI library; the command says what it lacks."""
    program = f"import sys; sys.modules[{missing!r}] = None; from dlock_core.__main__ import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )

    assert done.returncode == 64
    assert done.stderr == f"dlock: the command needs {missing}, which is not installed: pip install 'dlock-core[cli]'\n"
