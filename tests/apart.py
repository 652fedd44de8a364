"""Run each test as if it were the only one: ``pytest -p tests.apart --apart N``, see `make apart`.

A test may pass only because others ran before it: they have warmed a connection, taught the server a script, loaded a module or left a
thread. Here each runs in a forked process that has collected all tests and run none, with fixtures and servers of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from collections.abc import Sequence


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make apart` gives."""
    group = parser.getgroup("apart")
    group.addoption("--apart", type=int, metavar="N", help="run N tests, each in a process of its own; 0: all")
    group.addoption("--apart-seed", type=int, metavar="SEED", help="draw the same N tests as the run that printed this")


def pytest_configure(config: pytest.Config) -> None:
    """Draw a seed where none is given."""
    if config.option.apart_seed is None:
        config.option.apart_seed = random.SystemRandom().randrange(1 << 32)


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed."""
    return f"each test apart, --apart-seed {config.option.apart_seed}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of each of N test functions: their cases differ in numbers, and hardly in what they need."""
    chance = random.Random(config.option.apart_seed)
    chance.shuffle(items)
    functions = {item.nodeid.partition("[")[0]: item for item in items}
    kept = list(functions.values())[: config.option.apart or None]
    left_out = set(items).difference(kept)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    """Run *item* in a child, and report what it reports."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _in_child(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _in_child(item: pytest.Item) -> Sequence[pytest.TestReport]:
    hook = item.config.hook
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            reports = runtestprotocol(item, nextitem=None, log=False)
            plain = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
            with os.fdopen(write_end, "w", encoding="utf-8") as told:
                json.dump(plain, told)
            status = 0
        except BaseException:  # noqa: BLE001  # nothing of the child may go on as if it were the run
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as told:
        text = told.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        why = f"the process of the test ended with code {code}"
        return [pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")]
    return [hook.pytest_report_from_serializable(config=item.config, data=plain) for plain in json.loads(text)]
