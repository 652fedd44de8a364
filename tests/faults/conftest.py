"""What was measured is shown at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.extent import MEASURED

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that the tests recorded, each on a line."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties:
            if name.startswith(MEASURED):
                _, bracket, which = report.nodeid.partition("[")
                terminalreporter.write_line(f"{name.removeprefix(MEASURED)} {bracket}{which}: {value}")
