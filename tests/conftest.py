"""The seed of a run: drawn once, shown, and all that is needed to repeat the random tests."""

from __future__ import annotations

import gc
import os
import random
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dlock_core.command.child import FORWARDED

SEED_VARIABLE = "DLOCK_SEED"
_SEED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Take the seed from the process that started this worker or from the environment, or draw one."""
    given = getattr(config, "workerinput", os.environ).get(SEED_VARIABLE)
    config.stash[_SEED] = int(given) if given else secrets.randbits(32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the seed of the run."""
    node.workerinput[SEED_VARIABLE] = str(node.config.stash[_SEED])


def pytest_report_header(config: pytest.Config) -> str:
    """Show the seed before the first test, so that a run that hangs shows it too."""
    return f"seed: {config.stash[_SEED]} ({SEED_VARIABLE}={config.stash[_SEED]} repeats it)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Close with the seed and the counts on plain lines."""
    counts = {name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "error", "skipped")}
    failed = counts["failed"] + counts["error"]
    terminalreporter.write_line("")
    terminalreporter.write_line(f"seed: {config.stash[_SEED]}")
    terminalreporter.write_line(f"total: {counts['passed']} passed, {failed} failed, {counts['skipped']} skipped")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this run."""
    return request.config.stash[_SEED]


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Return a generator of this test's own: the same under one seed, whichever other tests run."""
    return random.Random(f"{seed}:{request.path.name}::{request.node.name}")


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have nothing collected in circles: neither what the test leaves, nor, in the middle of it, what others have left."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def plain_signals() -> Iterator[None]:
    """Have what is started take signals, whatever was ignored or blocked where the tests were started: in the background, INT is.

    The command leaves them blocked, up to the end of its process, which is here that of the tests.
    """
    handlers = {number: signal.getsignal(number) for number in FORWARDED}
    for number, handler in handlers.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)
