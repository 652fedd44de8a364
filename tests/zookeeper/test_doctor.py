"""What ``dlock doctor`` says of servers, and which are refused."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade
from dlock_zookeeper import ZooKeeperStore
from dlock_zookeeper._look import Look, look_at
from dlock_zookeeper.provision import guarantees, participants
from tests.cli.operator_support import Command
from tests.zookeeper.support import session

CONFIG = b"""server.1=127.0.0.1:2888:3888:participant
server.2=127.0.0.1:2889:3889:participant
server.3=127.0.0.1:2890:3890:observer
version=0"""


def test_doctor_examines_a_server(address: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its version, its grade, what it answers, and the rights that a user needs."""
    command = Command(capsys)

    told = command.json("doctor", "--url", url)
    _, policy, _ = command("doctor", "--policy", "--url", f"zookeeper://locker:secret@{address}/tests")
    _, of_anyone, _ = command("doctor", "--policy", "--url", url)

    assert "zookeeper" in str(told)
    assert f"{address}: answers as standalone" in str(told)
    assert "addauth digest locker:PASSWORD; setAcl -R /tests auth:locker:cdrw" in policy
    assert "setAcl -R /tests world:anyone:cdrw" in of_anyone
    assert "secret" not in policy


@pytest.mark.parametrize(
    ("said", "told"),
    [
        # A leader with leaderServes=no answers as one without a majority does: an operator looked for the wrong fault.
        ("This ZooKeeper instance is not currently serving requests", "has no majority, or leads with leaderServes=no"),
        # As a server does that answers to no four letters by its 4lw.commands.whitelist.
        ("srvr is not executed because it is not in the whitelist.", "shows no state"),
    ],
)
def test_server_that_tells_no_mode_answers_all_the_same(said: str, told: str) -> None:
    """What it lets an operator know is shown."""
    assert str(Look("zk:2181", said)) == f"zk:2181: answers, but {told}"


def test_server_alone_is_grade_b(url: str, address: str) -> None:
    """By a URL, and by a client of the user's, below a chroot or not."""
    store = ZooKeeperStore(url)
    with session(f"{address}/tests") as client:
        for each in (store, ZooKeeperStore(client)):
            each.provision()
            told = each.guarantees()

            assert (told.grade, told.durable, told.deletes) == (Grade.B, True, False)
            assert told.version.count(".") == 2
            assert "one server" in told.failover
    store.close()


def test_observers_do_not_vote() -> None:
    """Only participants count for the majority; two of them are no more than one."""
    voting = participants(CONFIG)

    assert voting == 2
    assert guarantees([Look("a:1", "Mode: follower")], voting).grade is Grade.B
    assert guarantees([Look("a:1", "Mode: follower")], 3).grade is Grade.A
    assert guarantees([Look("a:1", trouble="no answer")], None).grade is Grade.B


def test_server_that_is_too_old_is_named() -> None:
    """Also where the others fit."""
    fits, old = Look("a:1", "Zookeeper version: 3.8.0-abc"), Look("b:2", "Zookeeper version: 3.4.14-4c25d480e6")

    with pytest.raises(StoreSetupError, match=r"b:2 is ZooKeeper 3\.4"):
        guarantees([fits, old], 3)


@pytest.mark.parametrize("mode", ["standalone", "follower"])
def test_servers_that_are_of_no_one_ensemble_are_refused(mode: str) -> None:
    """Each granted the lock that another had granted: two held it."""
    alone, other = Look("a:1", "Mode: standalone"), Look("b:2", f"Mode: {mode}")

    for looks in ([alone, other], [other, alone]):
        with pytest.raises(StoreSetupError, match="stands alone, and would grant the same lock as"):
            guarantees(looks, 3)

    assert guarantees([alone, Look("b:2", trouble="no answer")], None).grade is Grade.B


def test_server_that_closes_the_connection_is_told_however_soon_it_does() -> None:
    """By a reset, too, which it sends where it had something to read still: one that has as many connections as it allows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            asked, _ = listener.accept()
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            asked.close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        told = look_at(f"127.0.0.1:{listener.getsockname()[1]}", 5.0)
        refusing.join()

    assert "closes the connection; is it the right port" in str(told)
