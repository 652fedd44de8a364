"""Stores that delete records: a key that exists may be absent again, and then a claim of the absent key that comes late is applied."""

from __future__ import annotations

import pytest

from dlock_core.record import State
from dlock_core.states import Abandon, Cleaning, Ended, Seeking
from dlock_core.store import Claim, Expect
from tests.core.attempts import Attempt, held, timings


def attempt(*, deletes: bool = True) -> Attempt:
    """Begin an attempt at a lock without a lease, whose first claim gets no answer: claim f1 is unresolved, read f2 under way."""
    return Attempt(timings(fail_closed=True, auto_renew=False, deletes=deletes)).begin().unknown()


@pytest.mark.parametrize("deletes", [True, False])
def test_late_claim_that_lands_behind_another_holder_is_adopted(*, deletes: bool) -> None:
    """Another held the key meanwhile, and deleted the record: what stands there then is our own, and no stranger's for ever."""
    waiting = attempt(deletes=deletes).answer(held("theirs", lease=None))
    waiting.at(1).due().answer(held("f1", lease=None, owner="me"))

    assert waiting.valid == deletes
    assert isinstance(waiting.state, Seeking) != deletes


@pytest.mark.parametrize("deletes", [True, False])
def test_late_claim_of_one_who_gave_up_is_followed_behind_another_holder(*, deletes: bool) -> None:
    """The clean-up goes on while another's record stands, until the claim is seen; then it is given back."""
    cleaning = attempt(deletes=deletes).answer(held("theirs", lease=None)).give_up()

    assert isinstance(cleaning.state, Cleaning if deletes else Ended)
    if not deletes:
        return
    cleaning.due().answer(held("theirs", lease=None))
    assert isinstance(cleaning.state, Cleaning)
    cleaning.at(1000).due().answer(held("f1", lease=None, owner="me"))
    assert cleaning.request.record.state is State.FREE
    assert isinstance(cleaning.grant().state, Ended)


@pytest.mark.parametrize("deletes", [True, False])
def test_late_claim_beside_the_one_that_was_granted_is_disowned(*, deletes: bool) -> None:
    """It may stand there after the release: the next attempt of this client then takes it over at once."""
    granted = attempt(deletes=deletes).answer(None)
    assert granted.request == Claim(granted.request.record, Expect.ABSENT, ticket="ticket")
    granted.grant()

    assert granted.valid
    assert [effect.rvns for effect in granted.effects if isinstance(effect, Abandon)] == ([("f1",)] if deletes else [])


@pytest.mark.parametrize("deletes", [True, False])
def test_claim_that_was_seen_and_freed_is_followed_where_a_copy_of_it_may_come(*, deletes: bool) -> None:
    """One that expects nothing lands on any free record, also twice; where records are deleted the clean-up ends with what it removed."""
    cleaning = Attempt(timings(deletes=deletes)).begin().give_up()
    cleaning.due().answer(held("f1", owner="me")).grant()

    assert isinstance(cleaning.state, Ended if deletes else Cleaning)
