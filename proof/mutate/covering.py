"""Which tests run a line, and how long each takes: a change of the line is judged by them, the quickest first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from coverage import CoverageData

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ADAPTERS", "LAST", "QUICK", "TESTS", "Covering", "cover", "judges_of"]

# These change, trace or explore the code themselves, or start processes that nobody measures here.
_LEFT_OUT = (
    *("explore", "explore_without_tokens", "session_worlds", "job_worlds", "simulate", "walks", "traces"),
    *("mutants", "interrupts", "proof", "proof_faults", "shared_client"),
)
# These explore, simulate and trace by themselves, and take a minute: they are asked last.
LAST = tuple(f"tests/core/test_{name}.py" for name in ("explore", "simulate", "interrupts"))
TESTS = ("tests/core", "tests/kit", *(f"--ignore=tests/core/test_{name}.py" for name in _LEFT_OUT))
QUICK = ("tests/core/test_timers.py",)
# Of the suite, what asks the store alone: that of the client waits for whole leases.
_SUITES = {
    "dynamodb": ("test_dynamodb.py::TestDynamoDBStore", "test_dynamodb_dialects.py"),
    "etcd": ("test_etcd.py::TestEtcdStore",),
    "mongodb": ("test_mongodb.py::TestMongoDBStore",),
    "mysql": ("test_mysql.py::TestMySQLStore", "test_mysql.py::TestMySQLStoreWithoutReturning"),
    "postgres": ("test_postgres.py::TestPostgresStore",),
    "redis": ("test_redis.py::TestRedisStore",),
    "sqlite": ("test_sqlite.py::TestSqliteStore",),
    "zookeeper": ("test_zookeeper.py::TestZooKeeperStore",),
}
ADAPTERS = tuple(f"dlock_{store}" for store in _SUITES)
_FIRST = 40
_SECONDS_MAX, _SECONDS_OF_ONE, _SECONDS_LEAST = 20.0, 2.0, 0.02
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
_TIME = re.compile(r"^([\d.]+)s call +(\S.*)$", re.MULTILINE)


def judges_of(file: str) -> tuple[str, ...]:
    """Return the tests that may notice a change of *file*: those of the core, or those of its adapter and the suite on its store."""
    store = file.partition("/")[0].removeprefix("dlock_")
    if store not in _SUITES:
        return TESTS
    return (f"tests/{store}", *(f"conformance_tests/{suite}" for suite in _SUITES[store]))


@dataclass
class Covering:
    """The tests of each line of each file, and how many seconds each takes."""

    seconds: dict[str, float]
    tests: dict[str, dict[int, frozenset[str]]]

    def __post_init__(self) -> None:
        """See how near each test is to each file: the tests that run a line share it."""
        self._near: dict[str, defaultdict[str, float]] = {}
        for file, of_lines in self.tests.items():
            near = self._near[file] = defaultdict(float)
            for tests in of_lines.values():
                for test in tests:
                    near[test] += 1 / len(tests)

    def __or__(self, other: Covering) -> Covering:
        """Return what both know."""
        return Covering(self.seconds | other.seconds, self.tests | other.tests)

    def rounds(self, file: str, line: int) -> Iterator[list[str]]:
        """Yield the tests that run *line* of *file* and are not slow: some first, then the others, up to twenty seconds of them.

        The quickest of each file of tests come first, then the second of each: those of one file are alike. Of the others, the nearest
        come first: those that run most lines of *file* that few tests run, for the time that they take; each function once, before it is
        asked with other parameters.
        A statement of several lines is run where it begins, or on one of its lines: what runs the nearest one above counts.
        """
        of_file = self.tests.get(file, {})
        found = next((tests for above in range(line, 0, -1) if (tests := of_file.get(above))), frozenset())
        timed = sorted((self.seconds.get(test, 0.0), test) for test in found)
        of_one_file: dict[str, list[tuple[float, str]]] = {}
        for seconds, test in timed:
            if seconds <= _SECONDS_OF_ONE:
                of_one_file.setdefault(test.split("::")[0], []).append((seconds, test))
        quick = [each for of_all in zip_longest(*of_one_file.values()) for each in of_all if each is not None]
        yield [test for _, test in quick[:_FIRST]]
        rest = sorted(
            quick[_FIRST:], key=lambda each: self._near[file][each[1]] / max(each[0], _SECONDS_LEAST), reverse=True
        )
        once: dict[str, tuple[float, str]] = {}
        for each in rest:
            once.setdefault(each[1].partition("[")[0], each)
        rest = list(dict.fromkeys([*once.values(), *rest]))
        spent = accumulate(seconds for seconds, _ in rest)
        yield [test for (_, test), so_far in zip(rest, spent, strict=True) if so_far <= _SECONDS_MAX]


def cover(copy: Path, files: Sequence[str], tests: Sequence[str], processes: int) -> Covering:
    """Run *tests* in the *copy* of the project, and return which of them run the lines of *files*.

    Raises: RuntimeError: a test fails, also by itself: by the load of the others it may.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-vv", "-p", "no:cacheprovider", "--timeout=120"]
    side_by_side = ["-n", str(processes)]
    rooms = sorted({f"--cov={file.partition('/')[0]}" for file in files})
    measure = [*rooms, "--cov-context=test", "--cov-report=", "--durations=0"]
    # What coverage uses by default from CPython 3.14 on does not know the tests apart.
    knows_tests = {**os.environ, "COVERAGE_CORE": "ctrace"}
    done = subprocess.run(
        [*command, *side_by_side, *measure, *tests],
        cwd=copy,
        env=knows_tests,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = _FAILED.findall(done.stdout)
    if done.returncode and not (
        failed and subprocess.run([*command, *failed], cwd=copy, capture_output=True, check=False).returncode == 0
    ):
        raise RuntimeError(f"the tests fail without any change: {done.stdout[-2000:]}{done.stderr[-400:]}")
    data = CoverageData(str(copy / ".coverage"))
    data.read()
    found = {
        file: {
            line: frozenset(name for context in contexts if (name := context.removesuffix("|run")) != context)
            for line, contexts in data.contexts_by_lineno(str(copy / file)).items()
        }
        for file in files
    }
    return Covering({test: float(seconds) for seconds, test in _TIME.findall(done.stdout)}, found)
