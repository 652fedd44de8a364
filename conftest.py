"""What holds for all tests, wherever they are."""

from __future__ import annotations

import gc

import pytest

# pymongo leaves the socket of an asyncio connection open that was cancelled while it connected, as closing its client does (seen with 4.20,
# without dlock: 115 of 300 clients closed at once). The collector finds it some tests later.
_LEAVES_SOCKETS = "mongodb"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the driver's sockets pass where it is at work, and nowhere else."""
    for item in items:
        if _LEAVES_SOCKETS in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect them before a test of something else begins."""
    if _LEAVES_SOCKETS in item.nodeid and (nextitem is None or _LEAVES_SOCKETS not in nextitem.nodeid):
        gc.collect()
