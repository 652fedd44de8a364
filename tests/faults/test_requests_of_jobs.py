"""Jobs and elections cost each store as many requests as the page of the benchmarks says."""

from __future__ import annotations

import uuid
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import resolve

from benchmarks.bench_jobs import OPERATIONS, counted
from dlock_core import connect
from dlock_core.backend import backend_for
from tests.backends import SERVED, is_request, provision, served_url, url_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_server_gets_one_request_for_each_that_the_page_counts(name: str) -> None:
    """Counted by a proxy, on warm connections."""
    server = resolve(name)
    provision(served_url(server))
    found = {}
    with closing(FaultProxy(*server.address, is_request=partial(is_request, name))) as proxy:
        url = served_url(server, proxy.address)
        with connect(url, prefix=f"{uuid.uuid4()}/", lease_duration=300) as client:
            with client.lock("warm-up"):
                client.get("warm-up")
            for what, operation in OPERATIONS.items():
                before = proxy.requests()
                operation(client)
                found[what] = proxy.requests() - before

    assert found == {what: sum(verbs.values()) for what, verbs in counted().items()}


def test_sqlite_gets_the_requests_that_the_page_counts(tmp_path: Path) -> None:
    """As the store in memory does."""
    url = url_for("sqlite", tmp_path)
    backend = backend_for(url)
    with closing(backend.open(backend.options.from_url(url))) as store:
        assert counted(store) == counted()
