"""Locks shared with the real Java client, in its own rows: ``dynamodb://…?dialect=awslabs``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dlock_conformance.harness import Colour
from dlock_conformance.holder_process import holder

from dlock_core import LockClient, LockLostError
from dlock_core.record import NO_TOKEN, State
from tests.interop.support import Speaker, hammer, hammer_s, hammered, java

TABLE, DIALECT, OWNER = "interop-java", "awslabs", "java-host"
# Nobody is taken over by mistake on a busy machine: only where a test kills a holder is the lease short.
LONG_S, SHORT_S, SLACK_S = 60.0, 3.0, 20.0
LEAST = 3

Connect = Callable[..., LockClient]


@pytest.fixture(scope="module")
def speaker(endpoint: str, url: Callable[..., str]) -> Iterator[Speaker]:
    """One Java client for these tests; starting one takes seconds."""
    url(TABLE, DIALECT)
    with java(endpoint, TABLE, lease_s=LONG_S, owner=OWNER) as speaker:
        yield speaker


@pytest.mark.parametrize("mode", ["delete", "mark", "update"])
def test_both_count_exactly(speaker: Speaker, join: Connect, counter: Path, mode: str) -> None:
    """One counter that nothing but the lock protects, whatever the Java client leaves in the row: nothing, a mark, the row updated."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, delete_on_release=mode == "delete")
    key = f"count-{mode}"

    speaker.tell("hammer", key, counter, mode, hammer_s(), LEAST)
    ours = hammer(client, key, counter, seconds=hammer_s(), least=LEAST)
    theirs = int(speaker.answer())

    assert int(counter.read_text()) == ours + theirs
    assert min(ours, theirs) >= LEAST


def test_without_the_lock_they_do_not(speaker: Speaker, join: Connect, counter: Path) -> None:
    """The same work under two keys: increments are lost, so the test above can fail."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S)
    for _ in range(5):
        counter.write_text("0" * 8)
        speaker.tell("hammer", "apart-theirs", counter, "delete", 0.5, 20)
        ours = hammer(client, "apart-ours", counter, seconds=0.5, least=20)
        theirs = int(speaker.answer())
        if int(counter.read_text()) != ours + theirs:
            return
    pytest.fail("two clients without a common lock lost no increment in five rounds")


@pytest.mark.parametrize("mode", ["delete", "update"])
def test_tokens_of_ours_rise_while_both_count(speaker: Speaker, join: Connect, counter: Path, mode: str) -> None:
    """In a row that Java does not touch, whether it deletes the lock's row or leaves our token in it; and the count is exact."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, token_row=True)
    key = f"tokens-{mode}"

    speaker.tell("hammer", key, counter, mode, hammer_s(), LEAST)
    tokens = hammered(client, key, counter, seconds=hammer_s(), least=LEAST)
    theirs = int(speaker.answer())

    assert int(counter.read_text()) == len(tokens) + theirs
    assert theirs >= LEAST
    assert tokens == sorted(set(tokens))
    assert tokens[0] >= 1


def test_java_takes_no_row_of_tokens(speaker: Speaker, join: Connect) -> None:
    """Asked for a lock of that name it finds one that is held; and a lease of ours after its own has a greater token."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, token_row=True)
    with client.lock("beside") as lease:
        first = lease.fencing_token

    refused = speaker.ask("try", "dlock-token:beside")
    shown = speaker.ask("get", "dlock-token:beside")
    speaker.ask("acquire", "beside", "delete", 0)
    assert speaker.ask("release", "beside") == "true"
    with client.lock("beside") as lease:
        second = lease.fencing_token

    assert refused == "refused"
    assert shown.startswith("dlock fencing tokens 3153600000000 ")
    assert (first, second) == (1, 2)


def test_java_sees_ours(speaker: Speaker, join: Connect) -> None:
    """Owner, lease and data; and while ours is held it is refused, before and after a heartbeat."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, data=b"from-python", owner="python-host")
    lease = client.acquire("ours")

    shown = speaker.ask("get", "ours").split(" ")
    refused = [speaker.ask("try", "ours")]
    lease.renew(data=b"changed")
    renewed = speaker.ask("get", "ours").split(" ")
    refused.append(speaker.ask("try", "ours"))
    lease.release()

    assert (shown[:2], shown[3]) == (["python-host", "60000"], "from-python")
    assert (renewed[:2], renewed[3]) == (["python-host", "60000"], "changed")
    assert renewed[2] != shown[2]
    assert refused == ["refused", "refused"]


@pytest.mark.parametrize("delete", [False, True], ids=["marked", "deleted"])
def test_java_sees_our_release(speaker: Speaker, join: Connect, *, delete: bool) -> None:
    """At once, and the data that was left where the row was; ours in turn sees theirs."""
    key = f"handed-{delete}"
    client = join(TABLE, DIALECT, lease_duration=LONG_S, delete_on_release=delete, replace_data=False)
    client.acquire(key, data=b"first").release()

    taken = speaker.ask("acquire", key, "delete" if delete else "mark", 0).split(" ")
    assert client.try_acquire(key) is None
    record = client.get(key)
    released = speaker.ask("release", key, *([] if delete else ["left-by-java"]))
    with client.lock(key, timeout=SLACK_S) as lease:
        assert lease.data == (None if delete else b"left-by-java")
        assert lease.fencing_token == NO_TOKEN

    assert (taken[0], taken[3]) == (OWNER, "-" if delete else "first")
    assert record is not None
    assert (record.state, record.owner, record.lease_ms) == (State.HELD, OWNER, 60_000)
    assert released == "true"


def test_a_waiter_of_ours_outlives_a_java_heartbeat_and_has_the_lock_at_its_release(
    endpoint: str, join: Connect
) -> None:
    """More than one of its leases passes while it is renewed, and nothing is taken; then its crash is noticed."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S)
    with java(endpoint, TABLE, lease_s=SHORT_S) as other:
        assert other.ask("acquire", "crash-java", "delete", 0).split(" ")[1] == "3000"
        until = time.monotonic() + 1.2 * SHORT_S
        while time.monotonic() < until:
            assert client.try_acquire("crash-java") is None, "a lock that Java renews was taken over"
            time.sleep(0.1)  # a lease has to pass in real time
        other.kill()

        began = time.monotonic()
        lease = client.acquire("crash-java", timeout=SHORT_S + SLACK_S)
        took = time.monotonic() - began
        lease.release()

    assert took < SHORT_S + SLACK_S


def test_java_takes_over_from_a_killed_process_of_ours(
    speaker: Speaker, url: Callable[..., str], join: Connect
) -> None:
    """After SIGKILL, one lease after its last heartbeat; before it Java waits."""
    with holder(url(TABLE, DIALECT), "crash-python", lease_s=SHORT_S, colour=Colour.SYNC) as (process, token):
        assert token == NO_TOKEN
        assert speaker.ask("try", "crash-python") == "refused"
        process.send_signal(signal.SIGKILL)
        process.wait()

        taken = speaker.ask("acquire", "crash-python", "delete", int(SLACK_S * 1000))

    assert taken.startswith(OWNER)
    assert speaker.ask("release", "crash-python") == "true"


def test_a_heartbeat_of_ours_never_revives_what_java_released(speaker: Speaker, join: Connect, raw: Any) -> None:
    """Another of our name marks the row released, as Java does: under the same number. We are told, and the row stays free."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, owner=OWNER)
    lease = client.acquire("revived")

    assert speaker.ask("steal", "revived") == "true"
    row = raw.get_item(TableName=TABLE, Key={"key": {"S": "revived"}}, ConsistentRead=True)["Item"]
    with pytest.raises(LockLostError):
        lease.renew()

    assert row["isReleased"] == {"S": "1"}
    assert raw.get_item(TableName=TABLE, Key={"key": {"S": "revived"}}, ConsistentRead=True)["Item"] == row
    with pytest.raises(LockLostError):
        lease.release()
    assert speaker.ask("acquire", "revived", "delete", 0).startswith(OWNER)
    assert speaker.ask("release", "revived") == "true"


def test_java_learns_that_an_operator_broke_its_lock(speaker: Speaker, join: Connect) -> None:
    """Its next heartbeat is refused: the number of its row is another, and so is the owner."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S, owner="operator")
    speaker.ask("acquire", "broken", "mark", 0)

    assert client.break_lock("broken", fencing_token=0)

    shown = speaker.ask("get", "broken").split(" ")
    assert shown[0] == "operator"
    assert speaker.ask("release", "broken") == "false"
    assert client.break_lock("broken", fencing_token=0, now=True)
    assert speaker.ask("acquire", "broken", "delete", 0).startswith(OWNER)
    speaker.ask("release", "broken")


def test_each_lists_what_the_other_has(endpoint: str, url: Callable[..., str], join: Connect) -> None:
    """Held and released, of both, by both."""
    url("interop-java-list", DIALECT)
    client = join("interop-java-list", DIALECT, lease_duration=LONG_S)
    with java(endpoint, "interop-java-list", lease_s=LONG_S) as other:
        other.ask("acquire", "java-held", "mark", 0, "data")
        other.ask("acquire", "java-marked", "mark", 0)
        other.ask("release", "java-marked")
        lease = client.acquire("our-held", attributes={"zone": "a"})
        with join("interop-java-list", DIALECT, lease_duration=LONG_S, token_row=True).lock("our-counted"):
            pass
        client.acquire("our-marked").release()

        listed = {record.key: (record.state, record.data, record.lease_ms) for record in client.scan()}
        theirs = other.ask("list")
        lease.release()

    assert listed == {
        "java-held": (State.HELD, b"data", 60_000),
        "java-marked": (State.FREE, None, None),
        "our-counted": (State.FREE, None, None),
        "our-held": (State.HELD, None, 60_000),
        "our-marked": (State.FREE, None, None),
    }
    # Java knows no rows that are no locks: it lists one that is held.
    assert theirs == "dlock-token:our-counted+ java-held+ java-marked- our-counted- our-held+ our-marked-"


def test_the_rows_of_both_have_the_same_shape(speaker: Speaker, join: Connect, raw: Any) -> None:
    """The same attributes of the same types and forms, held and marked."""
    client = join(TABLE, DIALECT, lease_duration=LONG_S)
    shapes = []

    def look(key: str, release: Callable[[], object]) -> None:
        held = raw.get_item(TableName=TABLE, Key={"key": {"S": key}})["Item"]
        release()
        marked = raw.get_item(TableName=TABLE, Key={"key": {"S": key}})["Item"]
        assert len(held["recordVersionNumber"]["S"]) == 36
        assert held["leaseDuration"] == marked["leaseDuration"] == {"S": "60000"}
        assert held["ownerName"] == marked["ownerName"]
        assert marked["isReleased"] == {"S": "1"}
        shapes.append([{name: next(iter(value)) for name, value in row.items()} for row in (held, marked)])

    speaker.ask("acquire", "shape-java", "mark", 0, "x")
    look("shape-java", lambda: speaker.ask("release", "shape-java"))
    look("shape-ours", client.acquire("shape-ours", data=b"x").release)

    assert shapes[0] == shapes[1]
