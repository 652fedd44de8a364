"""``make demo``: it shows what it says, on a pipe too, and fails where a promise was broken."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import demo
from examples.ledger import ACCOUNTS, Ledger
from examples.recording import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty bank in ``bank.db``."""
    demo.create(tmp_path / "bank.db")
    opened = Ledger(tmp_path / "bank.db")
    yield opened
    opened.close()


@pytest.mark.slow
def test_demo_shows_the_main_job_on_a_pipe() -> None:
    """Tokens, both takeovers, the zombie refused and told, exact books beside wrong ones, and nothing that controls a terminal."""
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"anna #\d+ .* dora #\d+", ended.stdout)
    assert re.search(r"worker-1 KILLED inside its section, holding (\w+) #\d+ and \w+ #\d+\n", ended.stdout)
    assert re.search(r"worker-2 STOPPED inside its section", ended.stdout)
    takeovers = re.findall(r"worker-\d took \w+ over, token (\d+) -> (\d+), \d+\.\d\d s after (\w+)", ended.stdout)
    assert [what for _, _, what in takeovers] == ["its", "it"]
    assert all(int(later) > int(earlier) for earlier, later, _ in takeovers)
    assert re.search(r"the zombie's write with .* was REFUSED by the fence", ended.stdout)
    assert re.search(r"worker-2 was told: lock '\w+' \(token \d+\) was lost", ended.stdout)
    assert re.search(r"with locks .*: EXACT\n", ended.stdout)
    assert re.search(r"without locks .*: WRONG\n", ended.stdout)
    assert ended.stdout.endswith("all promises were kept\n")
    assert all(character == "\n" or character.isprintable() for character in ended.stdout)


def test_demo_with_a_broken_promise_exits_with_1_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both a promise of the locked run, and a comparison that shows nothing."""

    class Broken:
        def __init__(self, *_: object) -> None:
            self.broken = ["the books are not exact under locks"]

        def run(self) -> None:
            """Nothing: the promise was broken before."""

    monkeypatch.setattr(demo, "Demo", Broken)
    monkeypatch.setattr(demo, "run_without_locks", lambda *_: False)

    assert demo.main() == 1

    printed = capsys.readouterr()
    assert "BROKEN: the books are not exact under locks\n" in printed.err
    assert "BROKEN: the run without locks was exact by chance" in printed.err
    assert printed.out.endswith("2 promises were broken\n")


def test_books_that_do_not_add_up_are_wrong(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A balance that no journal entry explains is seen."""
    path = tmp_path / "bank.db"
    assert ledger.write(ledger.read("anna", "boris", 7), {"anna": 1, "boris": 1})
    assert demo.report(path, "first")
    with sqlite3.connect(path) as other:
        other.execute("UPDATE account SET balance = balance + 1 WHERE name = ?", (ACCOUNTS[0],))
    other.close()

    assert not demo.report(path, "second")

    assert capsys.readouterr().out.count("EXACT") == 1


def test_the_recording_in_the_readme_is_of_a_demo_that_kept_its_promises() -> None:
    """The picture is what the code of today draws from its own lines, and they show both takeovers, the refusal and both books."""
    picture = (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    rows = [unescape(row) for row in re.findall(r"<text [^>]*>(.*)</text>", picture)]
    printed = re.sub(r"\n {10}(?=\S)", " ", "\n".join(rows))

    assert draw(printed) == picture
    assert re.search(
        r"worker-\d KILLED .*took \w+ over.* STOPPED .*took \w+ over.* REFUSED .*: EXACT\n.*: WRONG\n",
        printed,
        re.DOTALL,
    )
    assert printed.endswith("all promises were kept")


def test_the_recording_shows_each_line_at_its_time_and_breaks_long_ones() -> None:
    """A line without a time comes with the one before; what XML would read as its own is escaped."""
    picture = draw("begin\n  1.50 s  token 1 -> 2 & on\n" + "word " * 30 + "\n")
    rows = re.findall(r'animation-delay:([\d.]+)s" x="16" y="(\d+)">(.*)</text>', picture)

    assert [(at, y) for at, y, _ in rows] == [("0.00", "30"), ("1.50", "48"), ("1.50", "66"), ("1.50", "84")]
    assert rows[1][2] == "  1.50 s  token 1 -&gt; 2 &amp; on"
    assert all(len(text) <= 100 for _, _, text in rows)
