"""What holds for all tests, wherever they are."""

from __future__ import annotations

import gc

import pytest

# pymongo leaves the socket of an asyncio connection open that was cancelled while it connected, as closing its client does (seen with 4.20,
# without dlock: 115 of 300 clients closed at once). The collector finds it some tests later.
_LEAVES_SOCKETS = "mongodb"
# Of processes side by side one runs the whole of a group: a JVM and a stand-in for MongoDB take long to start and to get quick, so one for
# each process would starve the others. All other tests go to whichever process is free.
_GROUPS = {
    "conformance_tests/test_dynamodb": "dynamodb, conformance",
    "conformance_tests/test_mongodb": "mongodb, conformance",
    "conformance_tests/test_redis.py": "redis, conformance",
    "conformance_tests/test_redis_versions": "redis versions",
    "tests/dynamodb/": "dynamodb",
    "tests/interop/": "dynamodb",
    "tests/mongodb/": "mongodb",
    "tests/redis/": "redis",
    "tests/faults/": "all stores",
    "tests/migration/": "all stores",
    "tests/test_examples": "all stores",
    "tests/test_demo": "all stores",
    "tests/core/test_proof": "proof",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the driver's sockets pass where it is at work, and nowhere else; name the group of each test for pytest-xdist."""
    grouped = config.pluginmanager.hasplugin("xdist")
    for item in items:
        group = next((group for start, group in _GROUPS.items() if item.nodeid.startswith(start)), None)
        if grouped and group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if _LEAVES_SOCKETS in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect them before a test of something else begins."""
    if _LEAVES_SOCKETS in item.nodeid and (nextitem is None or _LEAVES_SOCKETS not in nextitem.nodeid):
        gc.collect()
