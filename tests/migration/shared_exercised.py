"""The methods for shared locks that the page names, each by what it does."""

from __future__ import annotations

from tests.migration.shop import Shop, exercise


@exercise("client.read_lock()")
def client_read_lock(shop: Shop) -> None:
    """Several readers at once, and no writer beside them."""
    with shop.client().read_lock("k", timeout=0), shop.client().read_lock("k", timeout=0):
        assert shop.client().try_acquire("k", mode="write") is None


@exercise("client.write_lock()")
def client_write_lock(shop: Shop) -> None:
    """One writer, and no reader beside it."""
    with shop.client().write_lock("k", timeout=0):
        assert shop.client().try_acquire("k", mode="read") is None
        assert shop.client().try_acquire("k", mode="write") is None


@exercise("client.semaphore()")
def client_semaphore(shop: Shop) -> None:
    """As many holders as there are permits."""
    with (
        shop.client().semaphore("k", permits=2, timeout=0) as first,
        shop.client().semaphore("k", permits=2, timeout=0) as second,
    ):
        assert {first.slot, second.slot} == {0, 1}
        assert shop.client().try_acquire("k", permits=2) is None
