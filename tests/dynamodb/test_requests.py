"""What the DynamoDB store asks of its table: requests, races and batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dlock_core.record import LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_dynamodb import DynamoDBStore
from dlock_dynamodb.provision import policy
from tests.dynamodb.store_support import OpenStore
from tests.dynamodb.support import TABLE, claimed, record, watched


class TestRequests:
    """Each verb is one request, and nothing else is ever sent."""

    def test_each_verb_is_one_request_granted_or_refused(self, open_store: OpenStore, key: str) -> None:
        """The refusal carries the record, so nobody asks again."""
        seen: list[str] = []
        store = open_store(watched(seen))
        held = claimed(store, key)
        stale = Version("stale", 1)

        steps: list[tuple[str, Callable[[], object]]] = [
            ("UpdateItem", lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10)),
            ("UpdateItem", lambda: store.claim(Claim(record(key, token=9), Expect.ANY), timeout_s=10)),
            ("UpdateItem", lambda: store.claim(Claim(record(key), Expect.ABSENT), timeout_s=10)),
            ("UpdateItem", lambda: store.claim(Claim(record(key + "x"), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.replace(Replace(record(key), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.replace(Replace(record(key + "x"), stale), timeout_s=10)),
            ("UpdateItem", lambda: store.release(Release(record(key, State.FREE), stale), timeout_s=10)),
            ("GetItem", lambda: store.read(key, timeout_s=10)),
            ("GetItem", lambda: store.read(key + "x", timeout_s=10)),
            ("BatchExecuteStatement", lambda: store.replace_many([Replace(record(key), stale)], timeout_s=10)),
            ("Scan", lambda: list(store.scan(key, timeout_s=10))),
            ("UpdateItem", lambda: store.release(Release(record(key, State.FREE), held.version), timeout_s=10)),
        ]
        for operation, step in steps:
            seen.clear()
            step()
            assert seen == [operation]

    def test_the_policy_allows_what_is_called_and_nothing_else(self, open_store: OpenStore, raw: Any, key: str) -> None:
        """Every operation of the store is in the policy, and every action of the policy is used."""
        seen: list[str] = []
        store = open_store(watched(seen))
        held = claimed(store, key)
        store.claim(Claim(record(key), Expect.ANY), timeout_s=10)
        held = store.replace(Replace(record(key), held.version), timeout_s=10).record or held
        store.replace_many([Replace(record(key), Version("stale", 1))], timeout_s=10)
        store.read(key, timeout_s=10)
        list(store.scan(key, timeout_s=10))
        store.release(Release(record(key, State.GONE), held.version), timeout_s=10)
        store.guarantees()
        used = {f"dynamodb:{'PartiQLUpdate' if name == 'BatchExecuteStatement' else name}" for name in seen}
        seen.clear()
        made = open_store(watched(seen), table="dlock-tests-policy")
        made.provision()
        raw.delete_table(TableName="dlock-tests-policy")

        locking, making = policy(store.options, account="1"), policy(store.options, account="1", provision=True)

        assert set(locking["Statement"][0]["Action"]) == used
        assert set(making["Statement"][0]["Action"]) == used | {f"dynamodb:{name}" for name in seen}
        assert locking["Statement"][0]["Resource"] == f"arn:aws:dynamodb:eu-west-1:1:table/{TABLE}"

    @pytest.mark.parametrize("limit", [1, 3])
    def test_a_scan_goes_through_all_pages(self, open_store: OpenStore, key: str, limit: int) -> None:
        """Pages that the filter left empty do not end it."""
        pages: list[str] = []
        paging = watched(pages)
        paging.events.register("provide-client-params.dynamodb.Scan", lambda params, **_: params | {"Limit": limit})
        store = open_store(paging)
        ours = {claimed(store, f"{key}/{number}").rvn for number in range(7)}
        pages.clear()

        assert {found.rvn for found in store.scan(f"{key}/", timeout_s=10)} == ours
        assert len(pages) > 7 // limit


class TestRaces:
    """Clause S1 on the real server."""

    def test_eight_threads_claim_and_one_wins_each_round(self, store: DynamoDBStore, key: str) -> None:
        """A hundred rounds, released in between: tokens count on without a gap."""
        tokens = []
        for _ in range(100):
            replies = _at_once([lambda: store.claim(Claim(record(key), Expect.ANY), timeout_s=10)] * 8)
            [winner] = [reply.record for reply in replies if reply.applied]
            assert winner is not None
            assert all(reply.record == winner for reply in replies)
            tokens.append(winner.fencing_token)
            store.release(Release(record(key, State.FREE, winner.fencing_token), winner.version), timeout_s=10)

        assert tokens == list(range(1, 101))

    def test_eight_threads_take_over_and_one_wins_each_round(self, store: DynamoDBStore, key: str) -> None:
        """By UpdateItem and by batch in the same race."""
        held = claimed(store, key)
        for _ in range(100):
            standing = held

            def alone(standing: LockRecord = standing) -> Reply:
                asked = record(key, token=standing.fencing_token + 1)
                return store.replace(Replace(asked, standing.version), timeout_s=10)

            def batch(standing: LockRecord = standing) -> Reply:
                asked = record(key, token=standing.fencing_token + 1)
                [result] = store.replace_many([Replace(asked, standing.version)], timeout_s=10)
                assert isinstance(result, Reply)
                return result

            replies = _at_once([alone, batch] * 4)
            [winner] = [reply.record for reply in replies if reply.applied]
            assert winner is not None
            held = winner

        assert held.fencing_token == 101


def _at_once(calls: list[Callable[[], Reply]]) -> list[Reply]:
    barrier, replies = threading.Barrier(len(calls)), []

    def contend(call: Callable[[], Reply]) -> None:
        barrier.wait(30)
        replies.append(call())

    threads = [threading.Thread(target=contend, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(replies) == len(calls)
    return replies


class TestBatch:
    """Clauses B1 to B3."""

    def test_a_full_batch_has_a_result_for_each(self, store: DynamoDBStore, key: str) -> None:
        """Granted, stolen, released, absent and foreign ones in one request touch each other not."""
        held = [claimed(store, f"{key}/{number}", data=b"x") for number in range(24)]
        store.release(Release(record(held[3].key, State.FREE), held[3].version), timeout_s=10)
        thief = store.replace(Replace(record(held[5].key, token=2), held[5].version), timeout_s=10).record
        requests = [
            Replace(record(old.key, data=b"y", token=1 + (number == 7)), old.version, keep_payload=number % 2 == 0)
            for number, old in enumerate(held)
        ]

        results = store.replace_many([*requests, Replace(record(f"{key}/absent"), Version("r", 1))], timeout_s=10)

        replies = [result for result in results if isinstance(result, Reply)]
        assert len(replies) == 25
        assert [number for number, reply in enumerate(replies) if not reply.applied] == [3, 5, 24]
        assert replies[5].record == thief
        assert replies[24].record is None
        for number in set(range(24)) - {3, 5}:
            reply = replies[number]
            assert reply.record is not None
            assert reply.record.rvn == requests[number].record.rvn
            assert reply.record.data == (b"x" if number % 2 == 0 else b"y")
            assert reply.record == store.read(reply.record.key, timeout_s=10)
        assert replies[7].record is not None
        assert replies[7].record.fencing_token == 2

    def test_a_batch_with_a_release_in_it_is_done_one_by_one(self, open_store: OpenStore, key: str) -> None:
        """A statement can't move a payload; a break that frees is rare."""
        seen: list[str] = []
        store = open_store(watched(seen))
        first, second = claimed(store, f"{key}/1", data=b"x"), claimed(store, f"{key}/2")
        seen.clear()

        results = store.replace_many(
            [
                Replace(record(first.key, State.GONE, 2), first.version, keep_payload=True),
                Replace(record(second.key), second.version),
            ],
            timeout_s=10,
        )

        assert all(isinstance(result, Reply) and result.applied for result in results)
        assert seen == ["UpdateItem"] * 2
