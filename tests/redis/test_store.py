"""The store against a real server, beyond what the conformance suite asks: tokens, scripts, requests, foreign values, rights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreSetupError, StoreUnavailableError
from dlock_core.record import TOKEN_MAX, LockRecord, State, Version
from dlock_core.store import Release, Replace, Reply
from dlock_redis import RedisStore
from dlock_redis._errors import ACL_RULES
from dlock_redis._scripts import CLAIM
from tests.redis.support import ABOUT, Server, calls, claim, fresh, granted, held, release, renew, tomb, version

THREADS = 8


def test_one_of_racing_claims_is_granted(url: str, key: str) -> None:
    """Eight threads, one store, one free key, again and again; tokens only rise."""
    with redis.Redis.from_url(url) as client:
        store = RedisStore(client)
        barrier, tokens = threading.Barrier(THREADS), list[int]()

        def race() -> None:
            for _ in range(100):
                barrier.wait(30)
                reply = claim(store, key)
                barrier.wait(30)
                if reply.applied and reply.record is not None:
                    tokens.append(reply.record.fencing_token)
                    assert release(store, reply.record).applied

        threads = [threading.Thread(target=race) for _ in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        store.close()

    assert len(tokens) == 100
    assert tokens == sorted(set(tokens))


def test_f10_token_rises_over_lost_data(open_store: Callable[..., Any], server: Server, admin: Any, key: str) -> None:
    """After FLUSHALL the next token is greater than all before: the server's clock is its floor."""
    store, last = open_store(server.url), 0
    for _ in range(50):
        record = granted(store, key)
        assert record.fencing_token > last
        last = record.fencing_token
        admin.flushall()


def test_token_is_exact_to_the_last(store: Any, raw: Any, key: str) -> None:
    """No number goes through a double's shortest form: the last token is minted, and the one after it refused."""
    record = granted(store, key, fields={"token": TOKEN_MAX - 1})
    assert record.fencing_token == TOKEN_MAX - 1
    assert raw.hget(key, "token") == b"9007199254740990"
    release(store, record)

    last = granted(store, key)
    assert last.fencing_token == TOKEN_MAX
    assert renew(store, last).record is not None
    assert release(store, LockRecord(**{**_fields(last), "rvn": version(store.read(key, timeout_s=5.0)).rvn})).applied

    with pytest.raises(StoreUnavailableError, match="reached its end"):
        claim(store, key)


def _fields(record: LockRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_each_verb_is_one_request(open_store: Callable[..., Any], server: Server, admin: Any, key: str) -> None:
    """Granted or refused."""
    store = open_store(server.url)
    record = granted(store, key)
    assert renew(store, record).applied
    store.read(key, timeout_s=5.0)
    held_now = store.read(key, timeout_s=5.0)
    verbs: list[Callable[[], Any]] = [
        lambda: claim(store, key, ticket=fresh()),
        lambda: renew(store, record),
        lambda: release(store, record),
        lambda: store.read(key, timeout_s=5.0),
        lambda: store.replace_many(
            [Replace(held(each), Version("x", 1), keep_payload=True) for each in (key, key + "2")], timeout_s=5.0
        ),
        lambda: release(store, held_now),
        lambda: claim(store, key, ticket=fresh()),
    ]
    store.replace_many([Replace(held(key), Version("x", 1), keep_payload=True)], timeout_s=5.0)

    for verb in verbs:
        before = int(admin.info("stats")["total_commands_processed"]), calls(admin, "evalsha")
        verb()
        after = int(admin.info("stats")["total_commands_processed"]), calls(admin, "evalsha")
        assert after[1] - before[1] == 1


def test_script_that_the_server_has_forgotten_is_sent_again(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """NOSCRIPT means that nothing was run; the text follows, and each verb is applied once."""
    store = open_store(server.url)
    record = granted(store, key)
    for verb in (lambda: renew(store, record), lambda: store.read(key, timeout_s=5.0), lambda: claim(store, key + "2")):
        admin.script_flush()
        verb()
    assert admin.script_exists(CLAIM.digest.decode()) == [True]

    admin.script_flush()
    results = store.replace_many(
        [Replace(held(key), Version("x", 1)), Replace(held("none"), Version("x", 1))], timeout_s=5.0
    )
    assert [result.applied for result in results] == [False, False]


@pytest.mark.parametrize("kind", ["string", "list", "hash", "half"])
def test_foreign_value_is_an_error_and_stays(store: Any, raw: Any, key: str, kind: str) -> None:
    """It is no lock, whoever put it there."""
    if kind == "string":
        raw.set(key, "x")
    elif kind == "list":
        raw.rpush(key, "x")
    else:
        raw.hset(
            key,
            mapping={"a": "b"}
            if kind == "hash"
            else {"v": "1", "state": "free", "token": "0x10", "rvn": "r", "about": ABOUT},
        )
    before = raw.dump(key)
    mine = held(key)

    for ask in (
        lambda: claim(store, key),
        lambda: store.replace(Replace(mine, mine.version), timeout_s=5.0),
        lambda: store.release(Release(tomb(mine), mine.version), timeout_s=5.0),
        lambda: store.read(key, timeout_s=5.0),
        lambda: list(store.scan(key, timeout_s=5.0)),
    ):
        with pytest.raises(RecordError):
            ask()

    assert raw.dump(key) == before


@pytest.mark.parametrize("payload", ["x", "[]", '["a"]-', "[1]\nx"])
@pytest.mark.parametrize("keep", [False, True], ids=["replace", "keep"])
def test_free_record_with_a_damaged_payload_is_never_taken(
    store: Any, raw: Any, key: str, payload: str, *, keep: bool
) -> None:
    """An error after the write would leave a lock held by nobody: one without a lease, for ever."""
    release(store, granted(store, key))
    raw.hset(key, "payload", payload)
    before = raw.hgetall(key)

    with pytest.raises(RecordError):
        claim(store, key, keep_payload=keep, fields={"lease_ms": None})

    assert raw.hgetall(key) == before


def test_grant_whose_payload_cannot_be_read_is_an_unknown_outcome(store: Any, raw: Any, key: str) -> None:
    """It was applied, so it is not refused (clause S15); in a batch, too."""
    record = granted(store, key)
    raw.hset(key, "payload", "[damaged]\n-")

    with pytest.raises(OutcomeUnknownError):
        renew(store, record)
    now = Version(raw.hget(key, "rvn").decode(), record.fencing_token)
    [result] = store.replace_many([Replace(held(key, record.fencing_token), now, keep_payload=True)], timeout_s=5.0)

    assert isinstance(result, OutcomeUnknownError)


def test_batch_gives_each_its_own_result(store: Any, raw: Any, key: str) -> None:
    """Applied, refused, absent and foreign in one request."""
    first, second = granted(store, f"{key}/1"), granted(store, f"{key}/2", fields={"data": b"kept"})
    third = granted(store, f"{key}/4")
    raw.set(f"{key}/3", "foreign")
    requests = [
        Replace(held(first.key, first.fencing_token), first.version),
        Replace(held(second.key, second.fencing_token), second.version, keep_payload=True),
        Replace(held(first.key + "0"), first.version),
        Replace(held(f"{key}/3"), first.version),
        Replace(held(third.key), first.version),
    ]

    results = store.replace_many(requests, timeout_s=5.0)

    assert results[0] == Reply(applied=True, record=requests[0].record)
    assert (results[1].applied, results[1].record.data) == (True, b"kept")
    assert results[2] == Reply(applied=False, record=None)
    assert isinstance(results[3], RecordError)
    assert results[4] == Reply(applied=False, record=third)


@pytest.mark.parametrize("lease_ms", [20000, 30000], ids=["one_lease", "two_leases"])
def test_batch_of_mere_renewals_gives_each_its_own_result(store: Any, raw: Any, key: str, lease_ms: int) -> None:
    """They go in fewer words, where all say the same of their holder, and what stands and what is told is the same."""
    first, second = granted(store, f"{key}/1"), granted(store, f"{key}/2", fields={"data": b"kept"})
    raw.set(f"{key}/3", "foreign")
    requests = [
        Replace(held(first.key, first.fencing_token, data=b"never written"), first.version, keep_payload=True),
        Replace(held(second.key, second.fencing_token, lease_ms=lease_ms), second.version, keep_payload=True),
        Replace(held(f"{key}/0"), Version("x", 1), keep_payload=True),
        Replace(held(f"{key}/3"), Version("x", 1), keep_payload=True),
        Replace(held(granted(store, f"{key}/4").key), Version("x", 1), keep_payload=True),
    ]

    results = store.replace_many(requests, timeout_s=5.0)

    stand = [store.read(f"{key}/{n}", timeout_s=5.0) for n in (1, 2, 4)]
    assert results[0] == Reply(applied=True, record=stand[0])
    assert results[1] == Reply(applied=True, record=stand[1])
    assert (stand[0].rvn, stand[0].data) == (requests[0].record.rvn, None)
    assert (stand[1].rvn, stand[1].data, stand[1].lease_ms) == (requests[1].record.rvn, b"kept", lease_ms)
    assert results[2] == Reply(applied=False, record=None)
    assert isinstance(results[3], RecordError)
    assert results[4] == Reply(applied=False, record=stand[2])


def test_batch_of_the_limit_is_one_request(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str
) -> None:
    """Five hundred renewals, and so it is counted."""
    store = open_store(server.url)
    records = [granted(store, f"{key}/{n}") for n in range(store.batch_limit)]
    store.replace_many([Replace(held("none"), Version("x", 1), keep_payload=True)], timeout_s=5.0)
    before, counted = calls(admin, "evalsha", "eval"), store.requests["replace"]

    results = store.replace_many(
        [Replace(held(each.key, each.fencing_token), each.version, keep_payload=True) for each in records],
        timeout_s=5.0,
    )

    assert all(result.applied for result in results)
    assert (calls(admin, "evalsha", "eval"), store.requests["replace"]) == (before + 1, counted + 1)


def test_scan_takes_a_prefix_as_it_is(store: Any, key: str) -> None:
    """Nothing in it is a wildcard."""
    wanted = [f"{key}*[a]?\\{n}" for n in range(3)]
    for each in (*wanted, f"{key}xa", f"{key}*b"):
        granted(store, each)

    assert sorted(record.key for record in store.scan(f"{key}*[a]?\\", timeout_s=5.0)) == sorted(wanted)


def test_scan_of_the_whole_database_passes_other_values_over(store: Any, raw: Any, key: str) -> None:
    """A database is shared; a prefix of one's own is not."""
    granted(store, f"{key}/lock")
    raw.set(f"{key}/other", "x")

    assert f"{key}/lock" in {record.key for record in store.scan("", timeout_s=5.0)}
    found = []
    with pytest.raises(RecordError, match="/other") as caught:
        found.extend(store.scan(key, timeout_s=5.0))
    assert caught.value.key == f"{key}/other"


def test_age_that_another_writer_has_left_there_is_not_that_of_the_record(store: Any, raw: Any, key: str) -> None:
    """A writer that keeps no time changes the version only: what it wrote is not older than now."""
    granted(store, key)
    raw.hset(key, "written", "1704067200000000 another")

    [_, age_ms] = store.read_age(key, timeout_s=5)

    assert age_ms == 0


def test_age_of_a_record_is_that_of_its_last_write(store: Any, raw: Any, key: str) -> None:
    """By the server's clock, in ms; never less than nothing, whatever that clock does."""
    record = granted(store, key)
    seconds, micros = raw.time()
    now = seconds * 1_000_000 + micros
    ages = []
    for written in (now - 5_000_000, now + 60_000_000):
        raw.hset(key, "written", f"{written} {record.rvn}")
        ages.append(store.read_age(key, timeout_s=5)[1])

    assert 5_000 <= ages[0] < 15_000
    assert ages[1] == 0


def test_nothing_ever_expires(store: Any, raw: Any, key: str) -> None:
    """Neither the record nor the tombstone has a time to live."""
    record = granted(store, key)
    assert raw.pttl(key) == -1
    release(store, record)
    assert raw.pttl(key) == -1


@pytest.mark.parametrize("state", [State.FREE, State.GONE])
def test_listed_rights_suffice_and_one_less_does_not(
    open_store: Callable[..., Any], server: Server, admin: Any, state: State
) -> None:
    """The rule that our messages name is what is needed, for every verb and the wait."""
    admin.execute_command("ACL", "SETUSER", "locks", "on", ">pw", "~app:*", "-@all", *ACL_RULES.split())
    store = open_store(f"redis://locks:pw@127.0.0.1:{server.port}/0")

    record = granted(store, "app:a", ticket="t")
    standing = renew(store, record).record
    assert standing is not None
    store.replace_many([Replace(held("app:a"), Version("x", 1))], timeout_s=5.0)
    store.wait(standing, ticket="u", timeout_s=0.05)
    freed = store.release(Release(tomb(standing, state), standing.version), timeout_s=5.0)
    assert freed.applied
    store.wait(standing, ticket="u", timeout_s=5.0)
    assert [each.key for each in store.scan("app:", timeout_s=5.0)] == ["app:a"]
    assert store.prune([freed.record], older_than_ms=0, dry_run=False, timeout_s=5.0) == 1
    assert store.guarantees().store in ("redis", "valkey")
    with pytest.raises(StoreSetupError, match=r"\+evalsha"):
        claim(store, "other:a")
    for right in ("-hset", "-hmget"):
        admin.execute_command("ACL", "SETUSER", "locks", right)
        with pytest.raises(StoreSetupError):
            claim(store, "app:b")
    assert not admin.exists("app:b")


@pytest.mark.parametrize("credentials", ["", "locks:wrong@", "nobody:pw@"])
def test_wrong_credentials_are_told_without_them(
    open_store: Callable[..., Any], server: Server, admin: Any, key: str, credentials: str
) -> None:
    """A missing or wrong password is a fault of the set-up."""
    admin.execute_command("ACL", "SETUSER", "locks", "on", ">pw", "~*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "off")
    store = open_store(f"redis://{credentials}127.0.0.1:{server.port}/0")

    with pytest.raises(StoreSetupError) as caught:
        claim(store, key)

    assert "wrong" not in str(caught.value).replace("wrongpass", "")
