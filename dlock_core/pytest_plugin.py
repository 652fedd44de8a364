"""The pytest fixtures of dlock, loaded with pytest; what they need is imported when one is used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core.client import LockClient

__all__ = ["lock_client", "worker_locks"]


@pytest.fixture
def lock_client() -> Iterator[LockClient]:
    """A client on a memory store of its own, closed after the test; ``lock_client.options`` are the defaults."""
    from dlock_core.client import LockClient  # every pytest run of a user loads this module
    from dlock_core.memory import MemoryStore

    with LockClient(MemoryStore()) as client:
        yield client


@pytest.fixture(scope="session")
def worker_locks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockClient]:
    """A client whose locks exclude each other between the workers of pytest-xdist: a file in the temporary folder of the run.

    ``with worker_locks.lock("database"):`` lets one worker in at a time; ``worker_locks.once("database", slot=1, timeout=60)`` is due in
    one worker of the run.
    """
    from urllib.parse import quote

    from dlock_core.client import connect  # as above

    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # each worker has a folder within that of the run
    with connect(f"sqlite:///{quote(os.fsencode(folder / 'worker_locks.db'))}") as client:
        yield client
