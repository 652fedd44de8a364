"""The MongoDB stores of both colours against a server: what they ask, what they answer, what they leave alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient
from pymongo.read_preferences import SecondaryPreferred
from pymongo.write_concern import WriteConcern

from dlock_core.errors import (
    ConfigurationError,
    RecordError,
    StoreSetupError,
    StoreUnavailableError,
)
from dlock_core.record import TOKEN_MAX, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import (
    AsyncBatchRenew,
    AsyncNotify,
    BatchRenew,
    Capability,
    Claim,
    Expect,
    Grade,
    Notify,
    Release,
    Replace,
    Reply,
)
from dlock_mongodb import AsyncMongoDBStore, MongoDBStore
from tests.mongodb.support import DATABASE, Counted, Face, Opener, any_claim, freed, fresh, held

THREADS, ROUNDS = 8, 100

EXACT: dict[str, dict[str, Any]] = {
    "no data": {"data": None},
    "empty data": {"data": b""},
    "zero bytes": {"data": bytes(65_536)},
    "truth is not one": {"attributes": (("false", False), ("one", 1), ("true", True), ("zero", 0))},
    "64-bit integers": {"attributes": (("a", 2**63 - 1), ("b", -(2**63) + 1), ("c", 2**31), ("d", -1))},
    "bytes are not text": {"attributes": (("b", b"x"), ("t", "x"))},
    "names like operators": {
        "attributes": tuple((name, "$$ROOT") for name in sorted(["$set", "_id", "a.b", "v", "\u00e9"]))
    },
    "values like operators": {"owner": "$_id", "attributes": (("a", "$owner"), ("b", "$$NOW"), ("c", "a\x00b"))},
    "unicode": {"owner": "h\u00f4te \U0001f512", "data": "\u00e9".encode()},
    "a great token": {"fencing_token": TOKEN_MAX - 1},
    "all the rest": {
        "lease_ms": None,
        "stamp": Stamp(1_795_000_000_123, "an rvn"),
        "process": ProcessIdentity("boot", 4_026_531_836, 17, 987_654_321_012, child_group=4),
        "broken": Broken("an operator", 1_795_000_000_123),
    },
}


@pytest.mark.parametrize("case", EXACT)
def test_a_record_comes_back_exactly(store: Face, key: str, case: str) -> None:
    """Every field of a grant, of a read and of a refusal is what was written, in value and type."""
    record = held(key, **EXACT[case])

    granted = store.claim(Claim(record, Expect.ANY))

    for came in (granted.record, store.read(key), store.claim(any_claim(key)).record):
        assert came == record
        assert [type(value) for _, value in came.attributes] == [type(value) for _, value in record.attributes]
        assert type(came.fencing_token) is int


@pytest.mark.parametrize("name", ["a.b", "$a", "$$ROOT", "$_id", "{'$gt': ''}", "a/b", "\u00e9", "e\u0301", "k" * 1024])
def test_a_key_is_never_an_operator(store: Face, key: str, name: str) -> None:
    """Whatever is written in it, a key names one document."""
    name = f"{key}{name}"[:1024]

    granted = store.claim(any_claim(name))

    assert granted.applied
    assert granted.record.key == name
    assert store.read(name) == granted.record
    assert store.scan(name) == [granted.record]


def test_every_verb_is_one_request(opener: Opener, key: str) -> None:
    """Granted or refused, a verb sends one command, and never a transaction number that a server would keep a row for."""
    counted = Counted()
    store = opener.store(event_listeners=[counted])
    store.guarantees()
    record = held(key)
    renewed, other = held(key), held(key)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("findAndModify", lambda: store.claim(Claim(record, Expect.ANY))),
        ("findAndModify", lambda: store.claim(any_claim(key))),
        ("findAndModify", lambda: store.replace(Replace(renewed, record.version))),
        ("findAndModify", lambda: store.replace(Replace(other, record.version))),
        ("update", lambda: store.replace_many([Replace(other, renewed.version)])),
        ("find", lambda: store.read(key)),
        ("aggregate", lambda: store.read_age(key)),
        ("find", lambda: store.scan(key)),
        ("findAndModify", lambda: store.release(Release(freed(other), record.version))),
        ("findAndModify", lambda: store.release(Release(freed(other), other.version))),
    ]
    for name, call in calls:
        counted.commands.clear()

        call()

        assert counted.names == [name]
        assert "txnNumber" not in counted.commands[0]
        if name == "findAndModify":
            assert counted.commands[0]["writeConcern"]["w"] == "majority"
            assert counted.commands[0]["writeConcern"]["j"] is True
            assert counted.commands[0]["maxTimeMS"] > 0


def test_a_client_of_the_user_weakens_nothing(opener: Opener, key: str) -> None:
    """Its write concern, read preference, retries and time-outs are not those of the commands."""
    counted = Counted()
    settings: dict[str, Any] = {
        "w": 0,
        "journal": False,
        "retryWrites": True,
        "retryReads": True,
        "timeoutMS": 60_000,
        "tz_aware": True,
    }
    client = opener.client(
        event_listeners=[counted], readPreference="secondaryPreferred", uuidRepresentation="standard", **settings
    )
    assert client.write_concern == WriteConcern(w=0, j=False)
    assert isinstance(client.read_preference, SecondaryPreferred)
    store = Face((MongoDBStore if opener.loop is None else AsyncMongoDBStore)(client, database=DATABASE), opener.loop)

    granted = store.claim(any_claim(key))
    store.read(key)

    assert granted.applied
    *_, claim, read = counted.commands
    assert claim["writeConcern"]["w"] == "majority"
    assert read["readConcern"] == {"level": "linearizable"}
    assert all("txnNumber" not in command and command["maxTimeMS"] <= 10_000 for command in (claim, read))
    store.close()
    assert opener.store().read(key) == granted.record


def test_a_client_of_the_other_colour_is_refused(url: str) -> None:
    """The mistake is told when the store is made."""
    with (
        MongoClient[Any](url) as client,
        pytest.raises(ConfigurationError, match=r"works with a pymongo\.AsyncMongoClient"),
    ):
        AsyncMongoDBStore(client)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"works with a pymongo\.MongoClient, not with AsyncMongoClient; a URL goes to connect"
    ):
        MongoDBStore(AsyncMongoClient(url, connect=False))  # type: ignore[arg-type]


def test_close_leaves_the_users_client_open(opener: Opener, key: str) -> None:
    """Whoever made the client closes it; the store says that it is closed."""
    client = opener.client()
    kind = MongoDBStore if opener.loop is None else AsyncMongoDBStore
    store, other = (Face(kind(client, database=DATABASE), opener.loop) for _ in range(2))
    record = store.claim(any_claim(key)).record

    store.close()
    store.close()

    with pytest.raises(StoreUnavailableError, match="was closed"):
        store.read(key)
    assert other.read(key) == record
    other.close()


@pytest.mark.parametrize("state", ["absent", "free"])
def test_of_racing_claims_one_wins(opener: Opener, key: str, state: str) -> None:
    """Eight threads or tasks, a hundred rounds: one winner each, shown to all, and every token is new."""
    stores = [opener.store() for _ in range(4)]
    gate = threading.Barrier(THREADS)
    came: list[list[Any]] = [[None] * THREADS for _ in range(ROUNDS)]
    standing: list[LockRecord] = []
    if state == "free":
        standing.append(stores[0].claim(any_claim(key)).record)
        stores[0].release(Release(freed(standing[0]), standing[0].version))

    def contend(place: int) -> None:
        store = stores[place % len(stores)]
        for number, row in enumerate(came):
            gate.wait()
            try:
                row[place] = store.claim(any_claim(key if state == "free" else f"{key}/{number}"))
            except Exception as error:  # noqa: BLE001  # judged below
                row[place] = error
            if gate.wait() == 0 and state == "free":
                [won] = [reply.record for reply in row if isinstance(reply, Reply) and reply.applied and reply.record]
                standing.append(won)
                store.release(Release(freed(won), won.version))
            gate.wait()

    threads = [threading.Thread(target=contend, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for row in came:
        assert [type(reply) for reply in row] == [Reply] * THREADS
        [winner] = [reply.record for reply in row if reply.applied]
        if state == "absent":
            assert {reply.record for reply in row} == {winner}
    tokens = [record.fencing_token for record in standing]
    assert tokens == list(range(1, ROUNDS + 2)) if state == "free" else not tokens


def test_the_age_is_since_the_last_write_by_the_servers_clock(store: Face, raw: Any, key: str) -> None:
    """Never less than nothing, whatever that clock does."""
    store.claim(any_claim(key))
    now = raw.find_one({"_id": key})["written"]
    ages = []
    for seconds in (-5, 3600):
        raw.update_one({"_id": key}, {"$set": {"written": now + timedelta(seconds=seconds)}})
        ages.append(store.read_age(key)[1])

    assert 4_999 <= ages[0] < 60_000
    assert ages[1] == 0


@pytest.mark.parametrize("written", [None, 0, "1970-01-01", Timestamp(1, 1)])
def test_a_record_that_does_not_say_when_it_was_written_is_not_old(
    store: Face, raw: Any, key: str, written: Any
) -> None:
    """That of an earlier dlock, which is read and renewed as ever; from then on its age is known."""
    record = store.claim(any_claim(key)).record
    raw.update_one({"_id": key}, {"$unset": {"written": 1}} if written is None else {"$set": {"written": written}})

    assert store.read_age(key) == (record, 0)
    assert store.replace(Replace(held(key), record.version, keep_payload=True)).applied
    assert isinstance(raw.find_one({"_id": key})["written"], datetime)


def test_a_batch_renews_all_in_one_request(opener: Opener, key: str) -> None:
    """Fifty renewals are one command; where some are refused one more tells their records."""
    counted = Counted()
    store = opener.store(event_listeners=[counted])
    records = [store.claim(any_claim(f"{key}/{number}", data=b"d")).record for number in range(50)]
    counted.commands.clear()

    requests = [Replace(held(record.key, data=b"d"), record.version, keep_payload=True) for record in records]
    results = store.replace_many(requests)

    assert counted.names == ["update"]
    assert results == [Reply(applied=True, record=request.record) for request in requests]
    assert store.scan(key) == sorted((request.record for request in requests), key=lambda record: record.key)


def test_a_batch_tells_each_lock_its_own_result(opener: Opener, raw: Any, key: str) -> None:
    """A refusal, an absent key and a foreign document touch none of the others."""
    counted = Counted()
    store = opener.store(event_listeners=[counted])
    first, stolen, last = (store.claim(any_claim(f"{key}/{name}")).record for name in ("first", "stolen", "last"))
    thief = store.replace(Replace(held(stolen.key, fencing_token=2), stolen.version)).record
    absent = held(f"{key}/absent")
    raw.insert_one({"_id": f"{key}/foreign", "x": 1})
    counted.commands.clear()

    renewals = [Replace(held(each.key), each.version) for each in (first, stolen, absent, held(f"{key}/foreign"), last)]
    results = store.replace_many(renewals)

    assert results[:3] == [Reply(True, renewals[0].record), Reply(False, thief), Reply(False, None)]
    assert isinstance(results[3], RecordError)
    assert results[4] == Reply(True, renewals[4].record)
    assert counted.names == ["update", "find"]
    assert store.replace_many([]) == []


def test_a_verb_makes_no_collection(opener: Opener, raw: Any, key: str) -> None:
    """A mistyped name is an error that names the command, until the collection is provisioned."""
    name = f"missing-{fresh()}"
    store = opener.store(collection=name)
    calls: list[Callable[[], Any]] = [
        store.guarantees,
        lambda: store.claim(any_claim(key)),
        lambda: store.read(key),
        lambda: store.scan(""),
        lambda: store.replace_many([Replace(held(key), Version("r", 1))]),
    ]

    for call in calls:
        with pytest.raises(StoreSetupError, match="dlock init"):
            call()
    assert name not in raw.database.list_collection_names()
    store.provision()
    store.provision()

    assert store.claim(any_claim(key)).applied
    raw.database.drop_collection(name)


@pytest.mark.parametrize(
    ("options", "index", "named"),
    [
        ({"capped": True, "size": 100_000}, {}, "capped"),
        ({}, {"keys": "at", "expireAfterSeconds": 60}, "TTL"),
        ({}, {"keys": "owner", "unique": True}, "unique"),
    ],
)
def test_a_collection_that_loses_or_refuses_locks_is_refused(
    opener: Opener, raw: Any, options: dict[str, Any], index: dict[str, Any], named: str
) -> None:
    """A capped collection, a TTL index and a unique one are named before anything is locked."""
    name = f"unfit-{fresh()}"
    made = raw.database.create_collection(name, **options)
    if index:
        made.create_index(**index)
    store = opener.store(collection=name)

    with pytest.raises(StoreSetupError, match=named):
        store.guarantees()

    made.drop()


def test_the_guarantees_say_what_the_server_is(store: Face) -> None:
    """They are the same for every store, and tell a stand-in from MongoDB."""
    told = store.guarantees()

    assert (told.store, told.deletes, told.refusal_linearizable, told.durable) == ("mongodb", False, False, True)
    assert told.unsafe == ()
    assert told.grade in (Grade.A, Grade.B)
    assert ("secantus" in told.version) == any("not MongoDB" in note for note in told.notes)


def test_the_capabilities_are_what_is_there(opener: Opener) -> None:
    """A store that has not seen its server can't notify; neither can one whose client has no connection to spare."""
    batch, notify = (BatchRenew, Notify) if opener.loop is None else (AsyncBatchRenew, AsyncNotify)
    store, single = opener.store(), opener.store(maxPoolSize=2)

    assert store.raw.capabilities == {Capability.BATCH_RENEW, Capability.SERVER_CLOCK}
    assert not isinstance(store.raw, notify)
    store.guarantees()
    single.guarantees()

    assert store.raw.capabilities == {Capability.BATCH_RENEW, Capability.SERVER_CLOCK, Capability.NOTIFY}
    assert isinstance(store.raw, batch)
    assert isinstance(store.raw, notify)
    assert single.raw.capabilities == {Capability.BATCH_RENEW, Capability.SERVER_CLOCK}
    assert not isinstance(single.raw, notify)


def test_all_waiters_share_one_change_stream(opener: Opener, key: str) -> None:
    """Ten waiters for ten keys open one stream, and each returns soon after its own release, not after another's."""
    counted = Counted()
    store, other = opener.store(event_listeners=[counted]), opener.store()
    store.guarantees()
    counted.commands.clear()
    records = [other.claim(any_claim(f"{key}/{number}")).record for number in range(10)]
    returned: dict[str, float] = {}

    def wait(record: LockRecord) -> None:
        store.wait(record, ticket=fresh(), timeout_s=20.0)
        returned[record.key] = time.monotonic()

    threads = [threading.Thread(target=wait, args=(record,)) for record in records]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while counted.names.count("findAndModify") < 10 and time.monotonic() < until:
        time.sleep(0.01)  # each waiter marks what is held
    time.sleep(0.2)  # and then waits, of which there is no sign
    assert not returned
    for record, thread in zip(records, threads, strict=True):
        released = time.monotonic()
        other.release(Release(freed(record), record.version))
        thread.join(10)
        assert returned[record.key] - released < 2.0
        assert len(returned) == records.index(record) + 1

    assert counted.names.count("aggregate") == 1


def test_a_release_before_the_wait_is_seen(store: Face, key: str) -> None:
    """Between the refusal and the wait the key may be freed; a renewal may have come first."""
    store.guarantees()
    seen = store.claim(any_claim(key)).record
    renewed = store.replace(Replace(held(key), seen.version)).record
    store.release(Release(freed(renewed), renewed.version))

    began = time.monotonic()
    store.wait(seen, ticket=fresh(), timeout_s=20.0)

    assert time.monotonic() - began < 2.0


def test_the_state_gone_and_must_exist(store: Face, key: str) -> None:
    """What is gone refuses a claim that wants it to exist, and gives its token on to one that doesn't."""
    first = store.claim(any_claim(key, data=b"old", fencing_token=41)).record
    gone = freed(first, state=State.GONE)
    store.release(Release(gone, first.version))

    assert store.claim(Claim(held(key), Expect.ANY, must_exist=True)) == Reply(False, gone)
    again = store.claim(Claim(held(key, data=b"new"), gone.version, keep_payload=True))

    assert again.applied
    assert (again.record.fencing_token, again.record.data) == (42, b"new")


def test_the_last_token_is_not_passed(store: Face, key: str) -> None:
    """Where the numbers end the key is never granted again, and the error says so."""
    last = store.claim(any_claim(key, fencing_token=TOKEN_MAX)).record
    free = freed(last)
    store.release(Release(free, last.version))

    with pytest.raises(StoreUnavailableError, match="has reached its end"):
        store.claim(any_claim(key))

    assert store.read(key) == free
