"""Files and stores of the tests of SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlock_sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path for a file."""
    return tmp_path / "locks.db"


@pytest.fixture
def open_store() -> Iterator[Callable[..., SqliteStore]]:
    """Open stores that are closed at the end."""
    stores: list[SqliteStore] = []

    def opened(path: Path, **options: Any) -> SqliteStore:
        stores.append(SqliteStore(path, **options))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def store(path: Path, open_store: Callable[..., SqliteStore]) -> SqliteStore:
    """Return a store on a new file."""
    return open_store(path)
