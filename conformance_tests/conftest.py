"""The plugin that reports what was tried, for our own runs of the suite."""

from __future__ import annotations

import pytest
from dlock_conformance import plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options; ``pytest_plugins`` would do, were this the top folder."""
    plugin.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin, unless the command line did."""
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, plugin.__name__)
