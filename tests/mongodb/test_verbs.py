"""The exchanges of the verbs, with answers that no server here gives: lost in the middle, cut, partly failed, unconfirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure

from dlock_core.errors import OutcomeUnknownError, RecordError, StoreError, StoreUnavailableError
from dlock_core.record import Version
from dlock_core.store import Claim, Grade, Guarantees, Release, Replace, Reply, TokenOrder
from dlock_mongodb._verbs import MongoDBVerbs
from dlock_mongodb.options import MongoDBStoreOptions
from dlock_mongodb.provision import Facts
from tests.mongodb.support import any_claim, freed, held
from tests.mongodb.test_wire import cursor, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPECTED = Version("r", 1)
LOST = AutoReconnect("the answer was lost")
GUARANTEES = Guarantees(
    "mongodb",
    "8",
    Grade.A,
    TokenOrder.ORDERED,
    deletes=False,
    refusal_linearizable=False,
    durable=True,
    failover="",
    clock="",
)


def verbs() -> MongoDBVerbs:
    """Return the verbs of a store that has inspected its server."""
    made = MongoDBVerbs(MongoDBStoreOptions(database="db", collection="c"), lambda _: None)
    made._facts = Facts(GUARANTEES, notifies=True, read_level="linearizable")
    return made


def hold(exchange: Any, *answers: dict[str, Any] | Exception) -> Any:
    """Return the result of *exchange* when the server gives these *answers*, all of them."""
    left = list(answers)
    try:
        exchange.send(None)
        while True:
            answer = left.pop(0)
            _ = exchange.throw(answer) if isinstance(answer, Exception) else exchange.send(answer)
    except StopIteration as end:
        assert not left
        return end.value


def renewals(count: int) -> list[Replace]:
    """Return requests to renew *count* locks."""
    return [Replace(held(f"k{number}"), EXPECTED) for number in range(count)]


def answered(applied: int, *failed: tuple[int, int]) -> dict[str, Any]:
    """Return the answer to a batch: how many were *applied*, and the (place, code) of each statement that *failed*."""
    errors = [{"index": place, "code": code} for place, code in failed]
    return {"ok": 1, "n": 100, "nModified": applied, **({"writeErrors": errors} if errors else {})}


def standing(request: Replace) -> dict[str, Any]:
    """Return the document before *request*."""
    return {**stored(request.record), "rvn": EXPECTED.rvn}


def kinds(results: Sequence[Reply | StoreError]) -> list[object]:
    """Return True for each that was applied, False for each refusal, and the class of each error."""
    return [each.applied if isinstance(each, Reply) else type(each) for each in results]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (answered(3), [True] * 3),
        (answered(2, (1, 112)), [True, OutcomeUnknownError, True]),
        (answered(1, (0, 112), (1, 50)), [OutcomeUnknownError, OutcomeUnknownError, True]),
        (answered(2), [OutcomeUnknownError] * 3),
        (answered(1, (1, 112)), [OutcomeUnknownError] * 3),
        (answered(0), [OutcomeUnknownError] * 3),
        (answered(0, (2, 50)), [OutcomeUnknownError] * 3),
    ],
)
def test_a_batch_keeps_its_first_answer_when_the_second_is_lost(first: dict[str, Any], expected: list[object]) -> None:
    """A renewal that was applied is never denied; of the others nothing is certain."""
    requests = renewals(3)

    results = hold(verbs().replace_many(requests), first, *([] if expected == [True] * 3 else [LOST]))

    assert kinds(results) == expected
    for request, result in zip(requests, results, strict=True):
        if isinstance(result, StoreError):
            assert result.key == request.record.key
            assert result.__cause__ is LOST


@pytest.mark.parametrize(
    "error", [NotPrimaryError("", {"code": 10107}), OperationFailure("", 112, {"code": 112})], ids=repr
)
def test_a_whole_batch_that_failed_is_of_unknown_outcome(error: Exception) -> None:
    """A command is refused at the door; but nobody promises that the door was not shut between two statements."""
    with pytest.raises(OutcomeUnknownError):
        hold(verbs().replace_many(renewals(2)), error)
    with pytest.raises(type(error)):
        hold(verbs().replace_many(renewals(1)), error)


def test_a_batch_without_a_right_says_so() -> None:
    """The first of its statements is refused as the others are."""
    with pytest.raises(OperationFailure):
        hold(verbs().replace_many(renewals(2)), OperationFailure("", 13, {"code": 13}))


def test_a_batch_is_settled_by_the_records_that_stand() -> None:
    """Applied, refused, absent, damaged, failed by itself, and without room in the answer: each its own result."""
    requests = renewals(6)
    other = held("k1")
    documents = [
        stored(requests[0].record),
        stored(other),
        {"_id": "k3", "x": 1},
        standing(requests[4]),
        standing(requests[5]),
    ]

    came = hold(verbs().replace_many(requests), answered(1, (4, 112), (5, 50)), cursor(*documents))
    cut = hold(verbs().replace_many(requests[:3]), answered(1), cursor(*documents[:2], number=17))

    assert came[:3] == [Reply(True, requests[0].record), Reply(False, other), Reply(False, None)]
    assert kinds(came[3:]) == [RecordError, StoreUnavailableError, OutcomeUnknownError]
    assert cut[:2] == came[:2]
    assert type(cut[2]) is OutcomeUnknownError
    assert hold(verbs().replace_many(requests[:1]), answered(0, (0, 112)), cursor()) == [Reply(False, None)]


def test_an_answer_without_a_document() -> None:
    """It is a refusal by an absent key, but for a claim that should have made it: that one looks."""
    nothing: dict[str, Any] = {"ok": 1, "value": None, "lastErrorObject": {"n": 0, "updatedExisting": False}}
    duplicate = {"ok": 0, "code": 11000}
    claim, other = any_claim("k"), held("k")

    assert hold(verbs().replace(Replace(held("k"), EXPECTED)), nothing) == Reply(False, None)
    assert hold(verbs().claim(Claim(held("k"), EXPECTED)), nothing) == Reply(False, None)
    for answer in (nothing, duplicate):
        assert hold(verbs().claim(claim), answer, cursor(stored(claim.record))) == Reply(True, claim.record)
        assert hold(verbs().claim(claim), answer, cursor(stored(other))) == Reply(False, other)
        with pytest.raises(OutcomeUnknownError) as caught:
            hold(verbs().claim(claim), answer, cursor())
        assert caught.value.key == "k"
    assert hold(verbs().replace(Replace(held("k"), EXPECTED)), duplicate, cursor(stored(other))) == Reply(False, other)


def test_an_unconfirmed_write_is_never_adopted() -> None:
    """Also where the answer shows our own record."""
    claim = any_claim("k")
    concern = {"code": 64, "codeName": "WriteConcernTimeout"}

    with pytest.raises(OutcomeUnknownError):
        hold(verbs().claim(claim), {"ok": 1, "value": stored(claim.record), "writeConcernError": concern})
    with pytest.raises(OutcomeUnknownError):
        hold(verbs().replace_many(renewals(1)), {**answered(1), "writeConcernError": concern})


def test_a_waiter_hears_that_it_may_not_mark_its_document() -> None:
    """It would wait without a mark for ever. Where the server is away just now, it does."""
    refused = OperationFailure("not authorized", 13)

    with pytest.raises(OperationFailure):
        hold(verbs().moved_on("k", held("k")), refused)

    assert hold(verbs().moved_on("k", held("k")), LOST) is False


def test_a_key_that_is_free_is_not_waited_for() -> None:
    """Also where its record is the one that was seen."""
    free = freed(held("k"))

    assert hold(verbs().moved_on("k", free), {"ok": 1, "value": None}, cursor(stored(free))) is True


def test_what_keeps_a_lock_waits_for_no_claim() -> None:
    """A takeover, whose token is greater, is one more claim."""
    renewal, takeover = renewals(1)[0], Replace(held("k", fencing_token=2), EXPECTED)
    release = Release(freed(held("k")), EXPECTED)

    sent = [next(verbs().replace(each)) for each in (renewal, takeover, release)]

    assert [command.urgent for command in sent] == [True, False, True]
    assert next(verbs().replace_many([renewal])).urgent
