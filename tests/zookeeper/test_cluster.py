"""Three servers: what a lock has that outlives one of them, and what is told while there is no majority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from dlock_core import Lease, connect
from dlock_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Grade
from dlock_zookeeper import ZooKeeperStore
from tests.core.worlds import eventually
from tests.scripted import ScriptedServer
from tests.zookeeper.cluster import ZooKeeperCluster
from tests.zookeeper.support import TIMEOUT_S, any_claim, granted, released, renewed

LEASE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ZooKeeperCluster]:
    """Start it, and make the root; each test leaves it whole."""
    cluster = ZooKeeperCluster()
    store = ZooKeeperStore(f"zookeeper://{cluster.endpoints}/tests")
    eventually(lambda: succeeds(store.provision), "the root")
    store.close()
    yield cluster
    cluster.close()


@pytest.fixture
def members(cluster: ZooKeeperCluster) -> Iterator[ZooKeeperStore]:
    """Return a store that knows all servers."""
    store = ZooKeeperStore(f"zookeeper://{cluster.endpoints}/tests")
    yield store
    store.close()


def succeeds(action: object) -> bool:
    """Do *action*; whether that was confirmed."""
    assert callable(action)
    try:
        action()
    except StoreError:
        return False
    return True


def asked_again(store: ZooKeeperStore, key: str) -> LockRecord | None:
    """Read until a server answers: an election takes some seconds."""
    found: list[LockRecord | None] = []
    eventually(lambda: succeeds(lambda: found.append(store.read(key, timeout_s=1.0))), "an answer")
    return found[0]


def granted_again(store: ZooKeeperStore, key: str) -> LockRecord:
    """Claim until that is confirmed; what stands may be an earlier try."""
    came: list[LockRecord | None] = []
    eventually(
        lambda: succeeds(lambda: came.append(store.claim(any_claim(key), timeout_s=1.0).record)), "an answer to a claim"
    )
    assert came[0] is not None
    return came[0]


def test_three_servers_are_grade_a(cluster: ZooKeeperCluster, members: ZooKeeperStore) -> None:
    """A write counts when a majority has it; each server is looked at."""
    told = members.guarantees()

    assert told.grade is Grade.A
    assert "voting servers: 3" in told.notes
    assert f"{cluster.address(cluster.leader())}: answers as leader" in told.notes
    assert "majority" in told.failover


def test_lock_outlives_the_leader_of_the_ensemble(cluster: ZooKeeperCluster, members: ZooKeeperStore, key: str) -> None:
    """The holder renews by the servers that are left, keeps everybody else out, and the next grant has a greater token."""

    def lasts(lease: Lease) -> bool:
        return succeeds(lease.renew)

    with connect(f"zookeeper://{cluster.endpoints}/tests", lease_duration=LEASE_S, prefix="") as client:
        lease = client.acquire(key)
        leader = cluster.leader()
        leader.crash()
        try:
            eventually(lambda: lasts(lease), "a renewal by the servers that are left")
            refused = granted_again(members, key)
            lease.release()
            second = client.acquire(key)
        finally:
            leader.start()

        assert refused.fencing_token == lease.fencing_token
        assert second.fencing_token > lease.fencing_token
        second.release()


def test_without_a_majority_a_write_is_unknown_and_the_servers_are_named(
    cluster: ZooKeeperCluster, members: ZooKeeperStore, key: str
) -> None:
    """Two of three stand still, as behind a partition. When they are back, the write has been applied once or not at all."""
    held = granted_again(members, f"{key}-held")
    alive, *paused = cluster.members
    claim = any_claim(key)

    cluster.pause(*paused)
    try:
        with pytest.raises(OutcomeUnknownError, match="may be applied"):
            members.claim(claim, timeout_s=2.0)
        told: list[str] = []

        def has_given_up() -> bool:
            with pytest.raises((OutcomeUnknownError, StoreUnavailableError)) as caught:
                members.claim(any_claim(f"{key}-2"), timeout_s=4.0)
            told.append(str(caught.value))
            return f"{cluster.address(alive)}: answers, but has no majority" in told[-1]

        eventually(has_given_up, "that the server that is left says so")
    finally:
        cluster.go_on()

    for silent in paused:
        assert f"{cluster.address(silent)}: no answer" in told[-1]
    found = asked_again(members, key)
    assert found is None or found.rvn == claim.record.rvn
    assert members.read(f"{key}-held", timeout_s=TIMEOUT_S) == held


def test_server_that_is_behind_reads_what_was_written_elsewhere(cluster: ZooKeeperCluster, key: str) -> None:
    """Each read follows a sync: it shows what another client had confirmed by another server just before."""
    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(ZooKeeperStore(f"zookeeper://{cluster.address(member)}/tests")))
            for member in cluster.members
        ]
        record = granted_again(stores[0], key)
        for _ in range(50):
            for writer in stores:
                reply = writer.replace(renewed(record), timeout_s=TIMEOUT_S)
                assert reply.applied
                assert reply.record is not None
                record = reply.record
                assert [store.read(key, timeout_s=TIMEOUT_S) for store in stores] == [record] * len(stores)


def test_restart_of_all_servers_keeps_what_is_held(
    cluster: ZooKeeperCluster, members: ZooKeeperStore, key: str
) -> None:
    """All are killed at once; the token of the next grant is greater."""
    held = granted_again(members, key)

    cluster.each(ScriptedServer.crash)
    cluster.each(ScriptedServer.start)

    assert asked_again(members, key) == held
    assert members.release(released(held), timeout_s=TIMEOUT_S).applied
    assert granted(members, key).fencing_token > held.fencing_token
