"""A DynamoDB Local in which the clients of several languages meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from dlock_conformance.servers import ServerMissingError, resolve

from dlock_core import LockClient, connect
from dlock_core.backend import backend_for

REGION = "eu-west-1"
Connect = Callable[..., LockClient]


@pytest.fixture(scope="package")
def endpoint() -> str:
    """Return the URL of the server."""
    try:
        return resolve("dynamodb").url
    except ServerMissingError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(autouse=True, scope="package")
def credentials() -> Iterator[None]:
    """Give boto3 what a local server takes."""
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in os.environ:
            patch.setenv(name, "testing")
    yield
    patch.undo()


@pytest.fixture(scope="package")
def url(endpoint: str) -> Callable[..., str]:
    """Make the URL of a table; the table is made too."""

    def made(table: str, dialect: str, **more: str) -> str:
        written = f"dynamodb://{REGION}/{table}?dialect={dialect}&endpoint_url={quote(endpoint, safe='')}"
        backend = backend_for(written)
        store = backend.open(backend.options.from_url(written))
        store.provision()
        store.close()
        return written + "".join(f"&{name}={value}" for name, value in more.items())

    return made


@pytest.fixture
def join(url: Callable[..., str]) -> Iterator[Connect]:
    """Connect clients of ours that are closed after the test."""
    joined: list[LockClient] = []

    def one(table: str, dialect: str, *, token_row: bool = False, **options: Any) -> LockClient:
        more = {"token_row": "true"} if token_row else {}
        joined.append(connect(url(table, dialect, **more), **options))
        return joined[-1]

    yield one
    for client in joined:
        client.close()


@pytest.fixture
def raw(endpoint: str) -> Iterator[Any]:
    """Return a plain boto3 client."""
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint)
    yield client
    client.close()


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    """Return a file with a number that nothing protects."""
    path = tmp_path / "counter"
    path.write_text("0" * 8)
    return path
