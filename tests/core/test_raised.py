"""What is told of a lock that is lost, stopped or refused, word by word."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import AcquireTimeoutError, LeaseStateError, LockLostError, LossReason
from dlock_core.engine.progress import holder_in_words
from dlock_core.engine.raised import interrupted_error, lost_error
from dlock_core.record import NO_TOKEN, Broken, LockRecord, Loss, State
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from tests.core.worlds import World

OURS = LockRecord("k", State.HELD, "r", 1, "thief", 20_000)
LATER, TOKENLESS = replace(OURS, fencing_token=2), replace(OURS, fencing_token=NO_TOKEN)
FREE = replace(LATER, state=State.FREE)
BROKEN = replace(OURS, broken=Broken("ops", 1))
EARLIER = "the store shows an earlier state of it, as after a failover that lost writes, so another may hold it"


def of(record: LockRecord) -> str:
    """Say who has the lock now."""
    return f"; now it is {holder_in_words(record)}, with token {record.fencing_token}"


@pytest.mark.parametrize(
    ("reason", "record", "told"),
    [
        (LossReason.STOLEN, None, "its record was removed, so another may hold it"),
        (LossReason.STOLEN, FREE, "another holder took it over"),
        (LossReason.STOLEN, LATER, "another holder took it over" + of(LATER)),
        (LossReason.STOLEN, OURS, EARLIER + of(OURS)),
        (LossReason.STOLEN, TOKENLESS, "another holder took it over" + of(TOKENLESS)),
        (LossReason.EXPIRED, OURS, "its lease ran out and was not renewed" + of(OURS)),
        (LossReason.BROKEN, BROKEN, "an operator broke it; 'ops' did, and nobody gets it before one lease is over"),
    ],
)  # fmt: skip
def test_a_loss_tells_its_reason_and_who_has_the_lock_now(
    reason: LossReason, record: LockRecord | None, told: str
) -> None:
    """Of a record that is free nobody is told; one with an earlier token is of a store that went back, but for one without tokens."""
    loss = Loss("k", 1, reason, record)

    error = lost_error(a_handle(), loss)

    assert str(error) == (
        f"lock 'k' (token 1) was lost: {told}; what was done since may clash with another holder's work"
    )
    assert isinstance(error, LockLostError)
    assert error.loss is loss


@pytest.mark.parametrize(
    ("facts", "kind", "told"),
    [
        ({"is_closing": True}, LeaseStateError, "the client was closed while the block of lock 'k' ran; the block was cancelled"),
        ({"is_closing": True, "loss": Loss("k", 1, LossReason.EXPIRED, None)}, LockLostError, r"lock 'k' \(token 1\) was lost: its lease"),
        ({"stop_reason": LossReason.OVERRUN, "loss": Loss("k", 1, LossReason.EXPIRED, None)}, LockLostError, ".* was lost: its lease ran"),
        ({"stop_reason": LossReason.OVERRUN}, LockLostError, r"lock 'k' \(token 1\) was about to be lost: it was held longer than"),
        ({}, LeaseStateError, "the lease of lock 'k' was released; acquire it anew"),
    ],
)  # fmt: skip
def test_a_block_that_was_cancelled_tells_why(facts: dict[str, Any], kind: type[Exception], told: str) -> None:
    """A loss counts more than the close, or the warning, that came with it."""
    error = interrupted_error(a_handle(**facts))

    assert type(error) is kind
    assert re.match(told, str(error))


def a_handle(**facts: Any) -> Any:
    """Return the facts of a handle that messages are made of."""
    terms = SimpleNamespace(timings=SimpleNamespace(stop_grace_ns=2_000_000_000))
    given = {"name": "k", "token": 1, "is_closing": False, "loss": None, "stop_reason": None} | facts
    return SimpleNamespace(**given, state=SimpleNamespace(terms=terms))


@both_colours
async def test_a_refusal_tells_who_holds_the_lock_and_how_often_it_changed(world: World) -> None:
    """Its holder may be of the same client; a record that nobody holds is told as what it is."""
    async with world.client(owner="a", lease_duration=20, auto_renew=False) as a, world.client(owner="b") as b:
        refused = "could not acquire lock 'k' in one try: "
        with pytest.raises(AcquireTimeoutError) as absent:
            await b.acquire("k", timeout=0, only_if_exists=True)
        assert str(absent.value) == refused + "there is no such lock, and only_if_exists was asked for"
        held = await a.acquire("k")
        with pytest.raises(AcquireTimeoutError) as alone:
            await b.acquire("k", timeout=0)
        assert re.fullmatch(re.escape(refused) + r"held by 'a' since [^()]*", str(alone.value))

        await held.renew()
        for renewals in (0, 1, 2):
            waiting = world.spawn(b.acquire("k", timeout=12))
            for _ in range(renewals):
                await world.live(3)
                await held.renew()
            await world.live(12.5 - 3 * renewals)
            with pytest.raises(AcquireTimeoutError) as changed:
                await waiting.result()
            told = ["UTC", " (record changed once while waiting)", " (record changed 2 times while waiting)"]
            assert str(changed.value).endswith(told[renewals])
            await held.renew()
