"""A pytest plugin, opt-in: ``pytest_plugins = ["dlock_conformance.plugin"]`` in the top ``conftest.py``, or ``-p``.

It ends a run with a table of what was tried: which store, in which version, found how, and which clauses held.
``--dlock-report=FILE`` writes the same as JSON. ``--dlock-require=redis,mongodb`` makes a store that did not run a failure:
a run without servers must not look good. It deselects the tests that a suite's *lacks* names, and works with pytest-xdist:
the workers try the stores, and the process that started them writes the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlock_conformance.report import Report
from dlock_conformance.servers import Server, ServerMissingError, resolve

__all__ = ["dlock_server"]

_REPORT = pytest.StashKey[Report]()
_REQUIRED = "--dlock-require"
_LEFT_OUT = "dlock_left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our two options."""
    group = parser.getgroup("dlock", "conformance of stores of locks")
    if any("--dlock-report" in option.names() for option in group.options):
        return  # a conftest.py has added them for us
    group.addoption("--dlock-report", metavar="FILE", help="write what the suite found as JSON")
    group.addoption(
        _REQUIRED, metavar="NAMES", default="", help="stores that must have been tried, for example redis,mongodb"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin a report."""
    report = config.stash[_REPORT] = Report()
    config.pluginmanager.register(_Collector(report), "dlock-report")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that do not apply to their store, and keep the reasons."""
    from dlock_conformance.needs import inapplicable, name_of  # pytest has rewritten the suite's assertions by now

    left_out: dict[pytest.Item, tuple[str, str, str, str]] = {}
    for item in items:
        # Other tests of the same run may have parameters of these names.
        if isinstance(item, pytest.Function) and hasattr(item.cls, "lacks") and hasattr(item, "callspec"):
            parameters = item.callspec.params
            reason = inapplicable(item.cls, item.function, item.name, parameters)
            if reason is not None:
                colour = str(parameters["colour"])
                left_out[item] = (name_of(item.cls, parameters), colour, item.function.__name__, reason)
    if not left_out:
        return
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    config.stash[_REPORT].leave_out(left_out.values())
    if _is_worker(config):
        config.workeroutput[_LEFT_OUT] = list(left_out.values())  # type: ignore[attr-defined]  # of pytest-xdist


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is required, before anything runs."""
    required = ", ".join(_required(config))
    return f"dlock: required stores: {required}" if required else None


@pytest.fixture(scope="session")
def dlock_server(request: pytest.FixtureRequest) -> Callable[[str], Server]:
    """Return :func:`~dlock_conformance.servers.resolve`: a server that is missing skips the test, or fails it if it is required."""

    def find(name: str) -> Server:
        try:
            return resolve(name)
        except ServerMissingError as error:
            if name in _required(request.config):
                pytest.fail(f"{name} is required. {error}", pytrace=False)
            pytest.skip(str(error))

    return find


def _required(config: pytest.Config) -> list[str]:
    return [name.strip() for name in str(config.getoption(_REQUIRED, "")).split(",") if name.strip()]


class _Collector:
    """Hands each result to the report, also those of other processes (pytest-xdist)."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one result."""
        self._report.add([report])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take from a worker of pytest-xdist what it has left out; all workers collect the same tests."""
        self._report.leave_out(getattr(node, "workeroutput", {}).get(_LEFT_OUT, ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the JSON, and fail if what is required was not tried."""
    if _is_worker(session.config):
        return
    report = session.config.stash[_REPORT]
    report.close()
    target = session.config.getoption("--dlock-report", None)
    if target:
        Path(target).write_text(json.dumps(report.as_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if report.missing(_required(session.config)) and session.exitstatus in {
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    }:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the table."""
    report = config.stash[_REPORT]
    lines = report.lines()
    missing = report.missing(_required(config))
    if not lines and not missing:
        return
    terminalreporter.section("dlock conformance")
    for line in lines:
        terminalreporter.write_line(line)
    for name in missing:
        terminalreporter.write_line(f"required and not tried: {name}", red=True)
