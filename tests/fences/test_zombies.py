"""A holder that was paused past its lease: what it then writes is refused, by each recipe on its real server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dlock_core.fence import s3_put
from dlock_core.testing import FakeClock, FaultyStore
from tests.fences.accounts import ACCOUNTS, s3_bucket


@pytest.fixture(scope="module")
def tokens() -> tuple[int, int]:
    """Return the tokens of a holder that slept past its lease, and of its successor."""
    store = FaultyStore()
    with FakeClock() as clock, clock.client(store) as client, clock.client(store) as other:
        zombie = client.acquire("account/anna", auto_renew=False)
        assert other.try_acquire("account/anna") is None
        clock.advance(21)
        successor = other.acquire("account/anna", timeout=0)
        successor.release()
        return zombie.fencing_token, successor.fencing_token


@pytest.mark.parametrize("name", ACCOUNTS)
def test_zombie_cannot_write(name: str, tokens: tuple[int, int]) -> None:
    """A holder writes as often as it likes, also twice the same, until its successor has written."""
    zombie, successor = tokens
    with ACCOUNTS[name]() as account:
        assert [account.write(balance, zombie) for balance in (10, 11, 11)] == [True, True, True]
        assert account.write(20, successor)

        assert not account.write(12, zombie)
        assert account.balance() == 20
        assert account.write(21, successor)


def test_tokens_are_compared_as_numbers() -> None:
    """Also where a script has them as text: 10 comes after 9, and beyond what a double holds one more is more."""
    great = 2**53
    with ACCOUNTS["redis"]() as account:
        assert [account.write(0, token) for token in (9, 10, 9)] == [True, True, False]
        assert [account.write(0, token) for token in (great, great + 1, great)] == [True, True, False]


def test_s3_refuses_a_write_that_another_one_overtook() -> None:
    """The zombie had read before its successor wrote; the one that made no object in time is refused, too."""
    with s3_bucket() as s3:
        put = partial(s3.put_object, Bucket="accounts", Key="anna")
        early: dict[str, Any] = s3_put(None, 1) or {}
        put(Body=b"token 1", **early)
        late: dict[str, Any] = s3_put(s3.head_object(Bucket="accounts", Key="anna"), 1) or {}
        put(Body=b"token 2", **(s3_put(s3.head_object(Bucket="accounts", Key="anna"), 2) or {}))

        for condition in (early, late):
            with pytest.raises(s3.exceptions.ClientError, match="PreconditionFailed"):
                put(Body=b"token 1 again", **condition)
        assert s3_put(s3.head_object(Bucket="accounts", Key="anna"), 1) is None


def test_s3_overlooks_a_later_holder_that_wrote_the_same_bytes() -> None:
    """The control: why the page says that the body must have the token in it."""
    with s3_bucket() as s3:
        put = partial(s3.put_object, Bucket="accounts", Key="anna")
        put(Body=b"same", **(s3_put(None, 1) or {}))
        late: dict[str, Any] = s3_put(s3.head_object(Bucket="accounts", Key="anna"), 1) or {}
        put(Body=b"same", **(s3_put(s3.head_object(Bucket="accounts", Key="anna"), 2) or {}))

        put(Body=b"of the zombie", **late)
        assert s3.head_object(Bucket="accounts", Key="anna")["Metadata"] == {"fencing-token": "1"}
