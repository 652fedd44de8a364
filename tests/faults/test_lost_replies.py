"""A reply that is lost after the write was applied loses no lock and leaves none behind, on every server and in both colours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from dlock_conformance.faults import Fault
from dlock_conformance.harness import Colour, StoreHarness
from dlock_conformance.parties import Parties, Party
from dlock_conformance.proxy import FaultProxy
from dlock_conformance.servers import resolve

from dlock_core.record import Loss
from tests.backends import SERVED, is_request, provision, served_url
from tests.faults.extent import EXTENT, MEASURED

pytestmark = pytest.mark.slow

# So long that a key which is free only when a lease has run out is told from one that was given back.
LEASE_S = 30.0
HELD = 20
RENEWED_EVERY_S = 0.5
AWAY_S = 1.0


class Scene(NamedTuple):
    """A client on a way that loses replies, and a rival on one that does not."""

    proxy: FaultProxy
    client: Party
    rival: Party
    key: Callable[[str], str]

    def lose_one(self) -> None:
        """Lose the next reply."""
        self.proxy.lose_replies(1)

    def is_held(self, key: str) -> bool:
        """Whether the rival is refused."""
        lease = self.rival.try_acquire(key)
        if lease is not None:
            lease.release()
        return lease is None

    def is_free(self, key: str, above: int) -> bool:
        """Whether the rival gets *key* at once, with a token *above* that of the last holder."""
        lease = self.rival.try_acquire(key)
        if lease is None:
            return False
        lease.release()
        return lease.token > above


@pytest.fixture(params=list(Colour))
def colour(request: pytest.FixtureRequest) -> Colour:
    """Take both colours in turn."""
    return Colour(request.param)


@pytest.fixture(params=SERVED)
def scene(request: pytest.FixtureRequest, colour: Colour) -> Iterator[Scene]:
    """Open both clients, with warm connections, on a real server."""
    server = resolve(request.param)
    provision(served_url(server))
    proxy = FaultProxy(*server.address, is_request=partial(is_request, server.name))
    try:
        with (
            Parties(StoreHarness(served_url(server, proxy.address), lease_s=LEASE_S), colour) as parties,
            Parties(StoreHarness(served_url(server), lease_s=LEASE_S), colour) as others,
        ):
            made = Scene(proxy, parties.join(heartbeat_period=RENEWED_EVERY_S), others.join(), parties.key)
            for party in made.client, made.rival:
                party.acquire(made.key("warm-up")).release()
            yield made
            proxy.heal()
    finally:
        proxy.close()


def test_a_claim_without_a_reply_is_held(scene: Scene, record_property: Callable[[str, object], None]) -> None:
    """Whoever acquired has the lock, though nothing told so at first, and gives it back at once."""
    lost: list[Loss] = []
    for number in range(EXTENT.lost_replies):
        key = scene.key(f"claim/{number}")
        scene.lose_one()

        lease = scene.client.acquire(key, auto_renew=False)

        assert not scene.proxy.replies_to_lose
        lease.on_lost(lost.append)
        assert lease.is_valid
        assert scene.is_held(key)
        lease.release()
        assert scene.is_free(key, lease.token)
    assert lost == []
    record_property(f"{MEASURED}claims without a reply", f"{EXTENT.lost_replies} held, 0 lost, 0 left behind")


def test_a_renewal_without_a_reply_keeps_the_lock(scene: Scene, record_property: Callable[[str, object], None]) -> None:
    """It is valid for a lease again, nobody is told of a loss, and its release counts."""
    lost: list[Loss] = []
    for number in range(EXTENT.lost_replies):
        key = scene.key(f"renew/{number}")
        lease = scene.client.acquire(key, auto_renew=False)
        lease.on_lost(lost.append)
        scene.lose_one()

        lease.renew()

        assert not scene.proxy.replies_to_lose
        assert lease.is_valid
        assert lease.remaining > LEASE_S / 2
        assert scene.is_held(key)
        lease.release()
        assert scene.is_free(key, lease.token)
    assert lost == []
    record_property(f"{MEASURED}renewals without a reply", f"{EXTENT.lost_replies} held, 0 lost, 0 left behind")


def test_a_release_without_a_reply_frees_the_key(scene: Scene, record_property: Callable[[str, object], None]) -> None:
    """The key is there for the next one at once, not a lease later."""
    for number in range(EXTENT.lost_replies):
        key = scene.key(f"release/{number}")
        lease = scene.client.acquire(key, auto_renew=False)
        scene.lose_one()

        lease.release()

        assert not scene.proxy.replies_to_lose
        assert lease.loss is None
        assert scene.is_free(key, lease.token)
    record_property(f"{MEASURED}releases without a reply", f"{EXTENT.lost_replies} released, 0 left behind")


def test_renewals_in_the_background_survive_lost_replies_and_a_server_that_is_away(scene: Scene) -> None:
    """Twenty locks are held on, whichever replies are lost, and while nothing answers for a part of their lease."""
    lost: list[Loss] = []
    leases = [scene.client.acquire(scene.key(f"held/{number}")) for number in range(HELD)]
    for lease in leases:
        lease.on_lost(lost.append)
    tokens = [lease.token for lease in leases]

    scene.proxy.lose_replies(3)
    renewed(scene)
    scene.proxy.begin(Fault.REFUSE)
    time.sleep(AWAY_S)  # two heartbeats, which fail
    scene.proxy.heal()
    renewed(scene)

    assert lost == []
    assert all(lease.is_valid for lease in leases)
    for lease, token in zip(leases, tokens, strict=True):
        lease.release()
        assert scene.is_free(lease.key, token)


def renewed(scene: Scene) -> None:
    """Return when all locks were renewed since, with no reply left to be lost."""
    until = time.monotonic() + LEASE_S / 2
    while scene.proxy.replies_to_lose:
        assert time.monotonic() < until, "no renewal was sent"
        time.sleep(0.02)  # until the heartbeats have come
    keys = [scene.key(f"held/{number}") for number in range(HELD)]
    seen = {key: scene.rival.get(key) for key in keys}
    while any(scene.rival.get(key) == seen[key] for key in keys):
        assert time.monotonic() < until, "not all were renewed"
        time.sleep(0.02)  # as above
