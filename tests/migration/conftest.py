"""One store of each kind, on real servers; shared by all tests of this run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from dlock_conformance.servers import resolve

from dlock_core.backend import backend_for
from dlock_core.store import LockStore
from tests.migration.shop import Shop

EMBEDDED = ("memory", "sqlite")
STORES = (*EMBEDDED, "redis", "dynamodb", "mongodb", "mysql")


def url_of(name: str, folder: Path) -> str:
    """Return the URL of a store of this kind; a server that cannot be had fails the test."""
    if name == "memory":
        return "memory://migration"
    if name == "sqlite":
        return f"sqlite:///{folder / 'locks.db'}"
    url = resolve(name).url
    if name == "dynamodb":
        return f"dynamodb://eu-west-1/migration?endpoint_url={quote(url, safe='')}"
    if name == "mongodb":
        return f"{url.partition('?')[0]}migration?directConnection=true"
    return url


@pytest.fixture(scope="session")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LockStore, str]]:
    """Open and provision a store; return it and its URL."""
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in os.environ:
            patch.setenv(name, "testing")
    url = url_of(request.param, tmp_path_factory.mktemp("migration"))
    backend = backend_for(url)
    store = backend.open(backend.options.from_url(url))
    store.provision()
    yield store, url
    store.close()
    patch.undo()


@pytest.fixture
def shop(opened: tuple[LockStore, str]) -> Iterator[Shop]:
    """Clients on that store."""
    shop = Shop(*opened)
    yield shop
    shop.close()
