"""The pytest fixtures of dlock, loaded with pytest; what they need is imported when one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core.client import LockClient

__all__ = ["lock_client"]


@pytest.fixture
def lock_client() -> Iterator[LockClient]:
    """A client on a memory store of its own, closed after the test; ``lock_client.options`` are the defaults."""
    from dlock_core.client import LockClient  # every pytest run of a user loads this module
    from dlock_core.memory import MemoryStore

    with LockClient(MemoryStore()) as client:
        yield client
