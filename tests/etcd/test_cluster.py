"""Three members: what a lock has that outlives one of them, and what is told while there is no majority."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from dlock_conformance.servers import free_port

from dlock_core import Lease, connect
from dlock_core.errors import OutcomeUnknownError, StoreError, StoreSetupError
from dlock_core.record import LockRecord
from dlock_core.store import Grade
from dlock_etcd import EtcdStore
from dlock_etcd.provision import inspection
from tests.core.worlds import eventually
from tests.etcd.cluster import EtcdCluster
from tests.etcd.support import TIMEOUT_S, Refusal, Waiter, administer, any_claim, coded, released, renewed
from tests.scripted import ScriptedServer

LEASE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    """Start it; each test leaves it whole."""
    cluster = EtcdCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def members(cluster: EtcdCluster) -> Iterator[EtcdStore]:
    """Return a store that knows all members."""
    store = EtcdStore(f"etcd://{cluster.endpoints}/tests")
    yield store
    store.close()


def asked_again(store: EtcdStore, key: str) -> LockRecord | None:
    """Read until a member answers: an election takes about a second."""
    found: list[LockRecord | None] = []

    def answered() -> bool:
        try:
            found.append(store.read(key, timeout_s=1.0))
        except StoreError:
            return False
        return True

    eventually(answered, "an answer")
    return found[0]


def test_three_members_are_grade_a(members: EtcdStore) -> None:
    """A write counts when a majority has it."""
    told = members.guarantees()

    assert told.grade is Grade.A
    assert "voting servers: 3" in told.notes
    assert "majority" in told.failover


def test_lock_outlives_the_leader_of_the_cluster(cluster: EtcdCluster, members: EtcdStore, key: str) -> None:
    """The holder renews by the members that are left, keeps everybody else out, and the next grant has a greater token."""
    with connect(f"etcd://{cluster.endpoints}/tests", lease_duration=LEASE_S, prefix="") as client:
        lease = client.acquire(key)
        leader = cluster.leader()
        leader.crash()
        try:
            eventually(lambda: renewed_now(lease), "a renewal by the members that are left")
            refused = members.claim(any_claim(key), timeout_s=TIMEOUT_S)
            lease.release()
            second = client.acquire(key)
        finally:
            leader.start()

        assert not refused.applied
        assert second.fencing_token > lease.fencing_token
        second.release()


def renewed_now(lease: Lease) -> bool:
    """Renew; whether that was confirmed."""
    try:
        lease.renew()
    except StoreError:
        return False
    return True


def test_without_a_majority_a_write_is_unknown_and_the_endpoints_that_answer_are_named(
    cluster: EtcdCluster, members: EtcdStore, key: str
) -> None:
    """Two of three stand still, as behind a partition. When they are back, the write has been applied once or not at all."""
    held = members.claim(any_claim(f"{key}/held"), timeout_s=TIMEOUT_S).record
    alive, *paused = cluster.members
    claim = any_claim(key)

    cluster.pause(*paused)
    try:
        with pytest.raises(OutcomeUnknownError, match=r"may be applied.*asked: 127"):
            members.claim(claim, timeout_s=2.0)
        told = members.guarantees().notes
    finally:
        cluster.go_on()

    address = cluster.address(alive)
    silent = ", ".join(cluster.address(member) for member in paused)
    assert f"answered: {address}; no answer: {silent}" in told
    found = asked_again(members, key)
    assert found is None or found.rvn == claim.record.rvn
    assert members.read(f"{key}/held", timeout_s=TIMEOUT_S) == held


def test_who_waits_at_a_member_that_is_cut_off_from_the_others_asks_again(cluster: EtcdCluster, key: str) -> None:
    """It goes on answering pings, and has no news: each lock came to its next holder by a poll, up to two seconds late, for hours."""
    alive, *paused = cluster.members
    store = EtcdStore(f"etcd://{cluster.address(alive)}/tests")
    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    waiter = Waiter(store, key)
    eventually(lambda: bool(store._verbs.queue._lease), "its place")

    cluster.pause(*paused)
    try:
        woken = waiter.woken.wait(TIMEOUT_S / 2)
    finally:
        cluster.go_on()

    assert woken
    store.close()


def test_restart_of_all_members_keeps_what_is_held(cluster: EtcdCluster, members: EtcdStore, key: str) -> None:
    """All are killed at once; the token of the next grant is greater."""
    held = members.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert held is not None

    cluster.each(ScriptedServer.crash)
    cluster.each(ScriptedServer.start)

    assert asked_again(members, key) == held
    assert members.release(released(held), timeout_s=TIMEOUT_S).applied
    second = members.claim(any_claim(key), timeout_s=TIMEOUT_S).record
    assert second is not None
    assert second.fencing_token > held.fencing_token
    assert members.replace(renewed(second), timeout_s=TIMEOUT_S).applied


def test_endpoint_that_cannot_keep_locks_is_named() -> None:
    """An old version, also where the other endpoints fit; or nothing but learners."""
    fits = SimpleNamespace(version="3.5.1", learner=False, leader=1, errors=())
    old, learner = (SimpleNamespace(**vars(fits) | each) for each in ({"version": "3.3.27"}, {"learner": True}))
    for states, why in (((fits, old), "b:2 is etcd 3.3.27"), ((learner, learner), "a:1, b:2: a learner answers no")):
        look = inspection(("a:1", "b:2"))
        next(look)
        look.send(states[0])

        with pytest.raises(StoreSetupError, match=why):
            look.send(states[1])


def test_learner_beside_endpoints_that_do_not_answer_is_no_mistake_of_the_set_up() -> None:
    """The voting members may come back: the error is that of who is silent, which is tried again."""
    look = inspection(("a:1", "b:2"))
    next(look)
    look.throw(Refusal(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses"))

    with pytest.raises(Refusal):
        look.send(SimpleNamespace(version="3.5.1", learner=True, leader=1, errors=()))


@pytest.fixture
def learner() -> Iterator[str]:
    """Start a member with a learner beside it; return the endpoints, the learner's first."""
    peers = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    members = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
    started: list[ScriptedServer] = []
    for number, (peer, known) in enumerate(zip(peers, (members.partition(",")[0], members), strict=True)):
        if started:
            administer(f"127.0.0.1:{started[0].port}", "cluster/member/add", peerURLs=[peer], isLearner=True)
        own = f"--name m{number} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer}"
        state = "existing" if started else "new"
        started.append(
            ScriptedServer(
                "etcd.sh", DLOCK_ETCD_ARGS=f"{own} --initial-cluster {known} --initial-cluster-state {state}"
            )
        )
    yield ",".join(f"127.0.0.1:{each.port}" for each in reversed(started))
    for each in reversed(started):
        each.stop()


def test_learner_is_passed_over(learner: str, key: str) -> None:
    """A member that is being replaced is one for a while: a client that came to it had an error, though the others answer."""
    store = EtcdStore(f"etcd://{learner}/tests")

    assert store.claim(any_claim(key), timeout_s=TIMEOUT_S).applied
    store.close()


def test_client_is_opened_while_an_endpoint_is_a_learner(learner: str, key: str) -> None:
    """As long as a member was being replaced no program with its address in the URL could start, though the others answer."""
    with connect(f"etcd://{learner}/tests") as client:
        client.acquire(key).release()
        told = client.guarantees().notes

    assert f"{learner.partition(',')[0]} is a learner, and is passed over until it votes" in told


@pytest.fixture
def alone() -> Iterator[str]:
    """Start a server that nobody has told of others; return its address."""
    server = ScriptedServer("etcd.sh")
    yield f"127.0.0.1:{server.port}"
    server.stop()


def test_endpoints_of_two_clusters_are_refused(alone: str, address: str, key: str) -> None:
    """Servers that nobody has told of each other: both granted the lock, once to whoever reached the first, once beside it.

    By default their ids are the same; a server that is named twice has these, too, and is used.
    """
    ends = alone, address
    while len({administer(each, "maintenance/status")["raftIndex"] for each in ends}) == 1:
        administer(alone, "kv/put", key=coded("any"))
    with pytest.raises(StoreSetupError, match=f"{alone} and {address} are of two clusters"):
        connect(f"etcd://{alone},{address}/tests")

    with connect(f"etcd://{address},{address.replace('127.0.0.1', 'localhost')}/tests") as client:
        client.acquire(key).release()


def test_endpoints_of_two_clusters_are_told_by_their_ids() -> None:
    """Whatever else they say."""
    look = inspection(("a:1", "b:2"))
    next(look)
    fits = {"version": "3.5.1", "learner": False, "leader": 1, "errors": ()}
    look.send(SimpleNamespace(**fits, header=SimpleNamespace(cluster_id=1)))

    with pytest.raises(StoreSetupError, match="a:1 and b:2 are of two clusters"):
        look.send(SimpleNamespace(**fits, header=SimpleNamespace(cluster_id=2)))


def test_members_that_tell_their_state_to_administrators_only_can_be_used() -> None:
    """As etcd does from 3.5.30 on: the user of the locks is none, and not all of them may be as new."""
    fits = SimpleNamespace(version="3.5.1", learner=False, leader=1, errors=(), header=SimpleNamespace(revision=7))
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
    for states, version in (((denied, denied), "of a version not told"), ((denied, fits), "3.5.1")):
        look = inspection(("a:1", "b:2"))
        next(look)
        for state in states:
            look.throw(state) if state is denied else look.send(state)
        with pytest.raises(StopIteration) as told:
            look.throw(denied)  # the list of the members

        guarantees = told.value.value
        assert guarantees.version == version
        assert any("told to administrators only: a:1" in note for note in guarantees.notes)
