"""What holds for all tests, wherever they are."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Generator
from typing import Any
from zlib import crc32

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# pymongo leaves the socket of an asyncio connection open that was cancelled while it connected, as closing its client does (seen with 4.20,
# without dlock: 115 of 300 clients closed at once). The collector finds it some tests later.
_LEAVES_SOCKETS = "mongodb"
# Of processes side by side one runs the whole of a group: a JVM and a stand-in for MongoDB take long to start and to get quick, so one for
# each process would starve the others. The clients' suites have servers of their own all the same: they wait for minutes, with leases of
# seconds, and need next to no processor. All other tests go to whichever process is free. The groups begin in this order, those that take
# longest first, and those that wait before those that need a processor, which fill the gaps.
_GROUPS = {
    "conformance_tests/test_dynamodb.py::TestDynamoDBStore": "dynamodb",
    "conformance_tests/test_dynamodb.py": "dynamodb, clients",
    "conformance_tests/test_mongodb.py::TestMongoDBStore": "mongodb",
    "conformance_tests/test_mongodb": "mongodb, clients",
    "tests/mongodb/": "mongodb",
    "conformance_tests/test_dynamodb": "dynamodb",
    "tests/dynamodb/": "dynamodb",
    "tests/interop/": "dynamodb",
    "tests/faults/": "all stores",
    "tests/fences/": "all stores",
    "tests/migration/": "all stores",
    "tests/test_examples": "all stores",
    "tests/test_demo": "all stores",
    "conformance_tests/test_zookeeper.py::TestZooKeeperClient": "zookeeper, clients",
    "conformance_tests/test_etcd.py::TestEtcdClient": "etcd, clients",
    "conformance_tests/test_mysql": "mysql, conformance",
    "tests/core/test_explore": "explorations",
    "tests/core/test_mutants": "explorations",
    "conformance_tests/test_third_party_store": "a store of others",
    "conformance_tests/test_suite_has_teeth": "broken stores",
    "conformance_tests/test_postgres.py::TestPostgres18": "postgres 18, conformance",
    "conformance_tests/test_postgres": "postgres, conformance",
    "conformance_tests/test_redis.py": "redis, conformance",
    "tests/core/test_simulate": "simulations",
    "tests/core/test_proof": "proof",
    "tests/core/test_session_worlds": "worlds of sessions",
    "tests/core/test_traces": "traces",
    "conformance_tests/test_zookeeper": "zookeeper, conformance",
    "conformance_tests/test_redis_versions": "redis versions",
    "conformance_tests/test_etcd": "etcd, conformance",
    "tests/redis/": "redis",
    "tests/zookeeper/": "zookeeper",
    "tests/contrib/": "frameworks",
    "tests/etcd/": "etcd",
    "tests/postgres/": "postgres",
    "tests/mysql/": "mysql",
}
# These need a processor and no clock, for minutes; at this niceness they leave the processors to the tests that hold real leases.
_PATIENT = ("tests/core/test_explore", "tests/core/test_mutants", "tests/core/test_simulate", "tests/core/test_traces")
_NICENESS = 15
# These are many, and wait most of their time: several processes run a part of them each.
_IN_PARTS, _PARTS = "broken stores", 4
# Who else makes a process nicer can't take it back.
_MAY_TAKE_BACK = hasattr(os, "geteuid") and os.geteuid() == 0


def _group_of(nodeid: str) -> str | None:
    return _group_of_test(nodeid.partition("[")[0])


@functools.cache
def _group_of_test(name: str) -> str | None:
    return next((group for start, group in _GROUPS.items() if name.startswith(start)), None)


class _ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out the groups, and each other test by itself. The marks of pytest-xdist say nothing to pytest 9.2 (its issue 1386)."""

    def _split_scope(self, nodeid: str) -> str:
        group = _group_of(nodeid)
        return f"{group}, part {crc32(nodeid.encode()) % _PARTS}" if group == _IN_PARTS else group or nodeid

    # The two below do what those of pytest-xdist do, which for each test go over all that were collected, and all that the process has had.

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a group that is done, and give the process more to do."""
        nodeid = self.collection[item_index]
        scope, work = self._split_scope(nodeid), self.assigned_work[node]
        work[scope][nodeid] = True
        if all(work[scope].values()):
            del work[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        scope, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = tests
        node.send_runtest_some([self._places[nodeid] for nodeid, done in tests.items() if not done])

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {nodeid: place for place, nodeid in enumerate(self.collection)}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByGroup:
    """Have pytest-xdist hand out the tests by group."""
    config.option.loadscopereorder = False
    return _ByGroup(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the groups where processes run side by side; it would hand out those of most tests first."""
    if hasattr(config, "workerinput"):
        order = [*dict.fromkeys(_GROUPS.values()), None]
        items.sort(key=lambda item: order.index(_group_of(item.nodeid)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector off while tests are collected: next to nothing of that is garbage, and each process goes over all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have botocore read its descriptions of AWS once, not for each session: it is most of what opening a store of DynamoDB costs.

    The collector leaves alone what has been loaded: a test that calls it would have it go over all tests, and a forked child copy them.
    """
    gc.collect()
    gc.freeze()
    botocore: Any = sys.modules.get("botocore.session")
    if botocore is not None:
        botocore.create_loader = functools.cache(botocore.create_loader)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the driver's sockets pass where it is at work, and nowhere else."""
    if _LEAVES_SOCKETS in item.nodeid:
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the long tests without a clock run when nobody else does."""
    if not (_MAY_TAKE_BACK and item.nodeid.startswith(_PATIENT)):
        return (yield)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    try:
        return (yield)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect them before a test of something else begins."""
    if _LEAVES_SOCKETS in item.nodeid and (nextitem is None or _LEAVES_SOCKETS not in nextitem.nodeid):
        gc.collect()
