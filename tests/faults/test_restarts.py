"""A server that is killed and started again with its data loses no lock whose lease is longer than that takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dlock_conformance.harness import Colour, StoreHarness
from dlock_conformance.parties import Parties, Party
from dlock_conformance.servers import Server

from tests.backends import SERVED, provision, served_url
from tests.faults.extent import MEASURED
from tests.scripted import ScriptedServer

# A Java machine on a busy computer takes its time to start.
LEASE_S = 120.0
RENEWED_EVERY_S = 0.5

pytestmark = pytest.mark.slow


class OwnServer(ScriptedServer):
    """A server that nobody else uses; it keeps its data over a crash."""

    def __init__(self, name: str, folder: Path) -> None:
        script = {
            "redis": "redis.sh",
            "dynamodb": "dynamodb-local.sh",
            "mongodb": "mongo-wire.sh",
            "mysql": "mariadb.sh",
            "postgres": "postgres.sh",
        }[name]
        super().__init__(script, DLOCK_DDB_DIR=str(folder))
        self._crashes = name != "dynamodb"
        at = f"127.0.0.1:{self.port}"
        urls = {
            "redis": f"redis://{at}/0",
            "dynamodb": f"http://{at}",
            "mongodb": f"mongodb://{at}/?directConnection=true",
            "mysql": f"mysql://root@{at}/locks",
            "postgres": f"postgresql://postgres@{at}/postgres",
        }
        self.url = served_url(Server(name, urls[name], script))

    def restart(self) -> None:
        """Kill it, and start it again."""
        if self._crashes:
            self.crash()
        else:
            os.kill(self.pid, signal.SIGKILL)
        self.start()


@pytest.fixture(scope="module", params=SERVED)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    """Start each in turn."""
    started = OwnServer(request.param, tmp_path_factory.mktemp("data"))
    try:
        provision(started.url)
        yield started
    finally:
        started.stop()


def renewed_since(party: Party, key: str, limit_s: float) -> bool:
    """Return whether the record of *key* changes within *limit_s*."""
    seen, until = party.get(key), time.monotonic() + limit_s
    while party.get(key) == seen:
        if time.monotonic() > until:
            return False
        time.sleep(RENEWED_EVERY_S / 10)  # between two looks at what a thread does
    return True


@pytest.mark.parametrize("colour", list(Colour))
def test_a_held_lock_outlives_a_restart(
    server: OwnServer, colour: Colour, record_property: Callable[[str, object], None]
) -> None:
    """Renewals fail for a while, then go on; nobody is told of a loss, and the next token is greater."""
    with Parties(StoreHarness(server.url, lease_s=LEASE_S), colour) as parties:
        holder = parties.join(heartbeat_period=RENEWED_EVERY_S)
        held = holder.acquire(parties.key())

        began = time.monotonic()
        server.restart()
        away_s = time.monotonic() - began
        rival = parties.join()
        went_on = renewed_since(rival, held.key, LEASE_S / 2)

        assert went_on
        assert held.is_valid
        assert held.loss is None
        assert rival.try_acquire(held.key) is None
        held.release()
        following = rival.acquire(held.key, timeout=LEASE_S / 4)
        assert following.token > held.token
    record_property(f"{MEASURED}kill -9 and start of the server", f"{away_s:.1f} s away, held on, next token greater")
