"""What the plugin reports, and what makes a run fail that looks green."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = ("-p", "no:cacheprovider", "-p", "dlock_conformance.plugin")
SUITE = """
import pytest
from dlock_conformance import LockStoreConformance, StoreHarness
from dlock_conformance.wire.wired import Wire, wired_harness

class TestWired(LockStoreConformance):
    colours = ("sync",)

    @pytest.fixture
    def harness(self):
        return wired_harness(Wire(), name="wired")
"""


def run(folder: Path, *options: str, suite: str = SUITE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *suite* as a stranger would, in a process and a folder of its own."""
    (folder / "test_wired.py").write_text(suite, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, "--rootdir", str(folder), *options]
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_report_says_what_was_tried(tmp_path: Path) -> None:
    """On the terminal and as JSON: the store, its clauses, and what each verb costs."""
    target = tmp_path / "report.json"

    done = run(tmp_path, "-k", "s8 or s23 or s22", f"--dlock-report={target}", "--dlock-require=wired")

    assert done.returncode == 0, done.stdout
    assert "TestWired (sync): wired 1, grade A, in this process" in done.stdout
    assert "not checked: nothing that the suite could check" in done.stdout
    assert "passed: 3 clauses (S8 S22 S23)" in done.stdout
    [tried] = json.loads(target.read_text(encoding="utf-8"))["tried"]
    assert tried["clauses"] == {"failed": [], "xfailed": [], "passed": ["S8", "S22", "S23"], "not_applicable": []}
    assert tried["requests"]["claim"] == tried["requests"]["replace_many_refused"] == 1


def test_tests_of_the_authors_own_may_have_any_parameters(tmp_path: Path) -> None:
    """Also of names that the suite has for its own."""
    own = """
import pytest

class TestOwn:
    @pytest.mark.parametrize(("way", "verb", "fault"), [("link", "claim_many", "cut")])
    def test_s1_of_another(self, way, verb, fault):
        assert way == "link"
"""

    done = run(tmp_path, suite=own)

    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("kind", ["LockStoreConformance", "LockClientConformance"])
def test_a_suite_without_a_harness_shows_how_one_is_given(tmp_path: Path, kind: str) -> None:
    """Each test says so, and nothing else."""
    done = run(
        tmp_path,
        "-x",
        suite=f"from dlock_conformance import {kind}\n\nclass TestMine({kind}):\n    colours = ('sync',)\n",
    )

    assert done.returncode == 1, done.stdout
    assert "TestMine does not say how its store is opened; give it @pytest.fixture def harness(self)" in done.stdout


def test_the_report_says_first_what_was_not_checked(tmp_path: Path) -> None:
    """And what to add to the harness. That a store is durable is not believed before it was seen."""
    suite = SUITE.replace('name="wired"', 'name="wired", restart=None, expires=None, several_processes=False')
    target = tmp_path / "report.json"

    done = run(tmp_path, "-k", "s18 or racing_processes", f"--dlock-report={target}", suite=suite)

    assert done.returncode == 0, done.stdout
    told = done.stdout.partition("TestWired (sync): ")[2].splitlines()
    assert [line.partition(";")[0] for line in told[1:4]] == [
        "    not checked without several_processes: S1",
        "    not checked without expires: S18",
        "    not checked without restart: S18",
    ]
    assert "add restart=…, which kills the server" in told[3]
    [tried] = json.loads(target.read_text(encoding="utf-8"))["tried"]
    assert tried["not_checked"] == {"several_processes": ["S1"], "expires": ["S18"], "restart": ["S18"]}


def test_what_needs_a_capability_that_the_store_does_not_have_is_no_gap(tmp_path: Path) -> None:
    """Whatever else such a test needs: who adds that has no more checked."""
    suite = SUITE.replace('name="wired"', 'name="wired", capabilities=(), plant_foreign=None')
    target = tmp_path / "report.json"

    run(tmp_path, "-k", "(s16 or b2 or p1 or c1) and sync", f"--dlock-report={target}", suite=suite)

    [tried] = json.loads(target.read_text(encoding="utf-8"))["tried"]
    assert tried["not_checked"] == {"plant_foreign": ["S16"]}


def test_a_clause_that_an_author_says_is_not_kept_is_not_reported_as_passed(tmp_path: Path) -> None:
    """Said as the page shows it, of one case: the others are still tried."""
    known = """
    @pytest.fixture(autouse=True)
    def known(self, request):
        if "upper and lower case" in request.node.name:
            request.applymarker(pytest.mark.xfail(strict=True, reason="its issue 17"))
"""
    folds = "from dlock_conformance.store_clauses import reading\nreading.PAIRS['upper and lower case'] = ('k', 'k')\n"

    done = run(tmp_path, "-k", "s12_two_keys or overrides", suite=folds + SUITE + known)

    assert done.returncode == 0, done.stdout
    assert "xfailed: 1 clauses (S12)" in done.stdout
    assert re.search(r"tests: \d+ passed, 1 xfailed", done.stdout), done.stdout


def test_a_store_that_does_not_go_the_way_of_the_faults_is_told_to(tmp_path: Path) -> None:
    """A fault that no store meets would be told as many faults of the store."""
    suite = SUITE.replace("import pytest", "import pytest\nfrom dlock_conformance.proxy import FaultProxy").replace(
        'name="wired"', 'name="wired", faults=FaultProxy("127.0.0.1", 1)'
    )

    done = run(tmp_path, "-x", "-k", "s15_a_lost_reply", suite=suite)

    assert done.returncode == 1
    assert 'StoreHarness(f"mystore://{proxy.address}", faults=proxy)' in done.stdout


def test_a_step_that_reads_before_it_writes_is_told_whose_reply_was_lost(tmp_path: Path) -> None:
    """Its store says of the read that nothing was written, which is true: nothing else is said of the write."""
    suite = SUITE.replace('wired_harness(Wire(), name="wired")', "reads_first()") + (
        "\n\ndef reads_first():\n"
        "    from dataclasses import replace\n"
        "    from dlock_conformance.wire.wired import WiredStore\n"
        "    from dlock_core.errors import StoreError, StoreUnavailableError\n"
        "    class ReadsFirst(WiredStore):\n"
        "        def claim(self, request, *, timeout_s):\n"
        "            try:\n"
        "                self.read(request.record.key, timeout_s=timeout_s)\n"
        "            except StoreError as error:\n"
        "                raise StoreUnavailableError('nothing was written') from error\n"
        "            return super().claim(request, timeout_s=timeout_s)\n"
        "    wire = Wire()\n"
        "    return replace(wired_harness(wire), open_store=lambda: ReadsFirst(wire))\n"
    )

    done = run(tmp_path, "-k", "s15_a_lost_reply and sync-claim-lose or s14_a_step", suite=suite)

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "the first reply to a claim was lost, and yet the server did not apply it once" in done.stdout


def test_a_required_store_that_was_not_tried_fails_the_run(tmp_path: Path) -> None:
    """All tests passed, and the run is a failure that names the store."""
    done = run(tmp_path, "-k", "s8", "--dlock-require=wired,redis")

    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "required and not tried: redis" in done.stdout


def test_a_store_for_asyncio_alone_is_named(tmp_path: Path) -> None:
    """As its URL opens it: not for threads, with an error that says so."""
    suite = SUITE.replace('wired_harness(Wire(), name="wired")', "replace(wired_harness(Wire()), open_store=refuse)")
    suite = suite.replace('"sync"', '"async"') + (
        "\n\nfrom dataclasses import replace\n\n\n"
        "def refuse():\n"
        "    from dlock_core.errors import UnsupportedError\n"
        "    raise UnsupportedError('for asyncio alone')\n"
    )

    done = run(tmp_path, "-k", "s8", "--dlock-require=wired memory", suite=suite)

    assert done.returncode == 0, done.stdout
    assert "TestWired (async): wired memory 1" in done.stdout


def test_a_server_that_is_missing_skips_unless_it_is_required(tmp_path: Path) -> None:
    """The reason says what was tried, and what to do."""
    suite = (
        "from dlock_conformance import servers\n"
        "def test_it(dlock_server):\n"
        "    servers._contained = servers._installed = servers._provisioned = servers._named\n"
        "    dlock_server('redis')\n"
    )

    lenient = run(tmp_path, "-rs", suite=suite, DLOCK_TEST_REDIS_URL="")
    strict = run(tmp_path, "--dlock-require=redis", suite=suite, DLOCK_TEST_REDIS_URL="")

    assert lenient.returncode == 0, lenient.stdout
    assert "1 skipped" in lenient.stdout
    assert "set DLOCK_TEST_REDIS_URL" in lenient.stdout
    assert strict.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "redis is required" in strict.stdout


def test_a_failure_says_what_to_mend(tmp_path: Path) -> None:
    """The clause, its text, what was expected, and what was asked."""
    suite = SUITE.replace("wired_harness(Wire()", "wired_harness(broken()") + (
        "\n\ndef broken():\n"
        "    from dlock_conformance.broken import BROKEN\n"
        "    wire = Wire()\n"
        "    next(each for each in BROKEN if each.name == 'a release has no condition').patch(wire)\n"
        "    return wire\n"
    )

    done = run(tmp_path, "-k", "expired_holder", suite=suite)

    assert done.returncode == 1
    for part in (
        "S6 does not hold for the sync store: a release by the holder before the takeover was applied",
        "Release condition. A release is applied if the record is ``held``",
        "expected:   [held rvn=",
        "came back:  granted [free rvn=",
        "what was asked, and what came back:",
    ):
        assert part in done.stdout
