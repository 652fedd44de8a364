"""Seats bound the requests that are under way; a shelf keeps the connections that none of them uses."""

from __future__ import annotations

import asyncio
from typing import Any

from dlock_core.kit import AsyncPool, AsyncSeats, Pool, Seats, Shelf


def test_there_are_as_many_seats_as_were_asked_for() -> None:
    """A seat that comes back can be taken again; a caller without one goes on after its time-out."""
    seats = Seats(2)
    first, second = seats.take(1), seats.take(1)

    assert first is not None
    assert second is not None
    assert seats.taken == 2
    assert seats.take(0.01) is None
    seats.leave(first)
    assert seats.take(1) is first


def test_a_seat_that_is_dropped_is_free_again() -> None:
    """As where a signal raises between the taking and the giving back."""
    seats = Seats(1)

    for _ in range(100):
        assert seats.take(0) is not None

    assert seats.taken == 0


def test_tasks_have_seats_too() -> None:
    """With the same bound and time-outs."""

    async def scene() -> None:
        seats = AsyncSeats(1)
        assert await seats.take(1)
        assert seats.taken == 1
        assert not await seats.take(0.01)
        waiting = asyncio.create_task(seats.take(10))
        await asyncio.sleep(0)
        seats.leave()
        assert await waiting
        seats.leave()
        assert seats.taken == 0

    asyncio.run(scene())


def test_a_shelf_gives_what_is_usable_and_closes_the_rest() -> None:
    """The last that came is the first to go."""
    closed: list[str] = []
    shelf = Shelf[str](lambda name: name != "stale", closed.append)
    for name in ("a", "b", "stale"):
        shelf.put(name)

    assert shelf.take() == "b"
    assert closed == ["stale"]
    shelf.close()
    shelf.put("late")
    assert closed == ["stale", "a", "late"]
    assert shelf.take() is None
    assert not shelf


def test_of_the_connections_that_came_too_late_one_is_kept() -> None:
    """It serves the next request; more of them would only be open."""
    closed: list[str] = []
    shelf: Shelf[str] = Shelf(bool, closed.append)

    shelf.keep_one("a")
    shelf.keep_one("b")

    assert closed == ["b"]
    assert shelf.take() == "a"


class _ListOfClosed(list[Any]):
    """Another thread closes the shelf just before something is put here."""

    def __init__(self, shelf: Shelf[Any]) -> None:
        self._shelf = shelf

    def append(self, link: object) -> None:
        """Let the other be first."""
        self._shelf.close()
        super().append(link)


def test_a_connection_that_comes_back_while_the_shelf_is_closed_is_closed() -> None:
    """However the threads run: no list keeps it that nobody looks at any more."""
    closed: list[str] = []
    shelf: Shelf[str] = Shelf(bool, closed.append)
    shelf._connections = _ListOfClosed(shelf)

    shelf.put("late")

    assert closed == ["late"]


def test_a_further_connection_comes_after_the_first_of_the_reserve() -> None:
    """A lone request opens one. Where others are under way, the reserve gets one first, but only if it has none."""
    made = iter(range(9))
    urgent: Pool[int] = Pool(2, Shelf(lambda _: True, int))
    usual: Pool[int] = Pool(3, Shelf(lambda _: True, int), urgent)
    seats = [usual.seats.take(0)]

    assert usual.opened(lambda: next(made)) == 0
    assert not urgent.shelf
    seats.append(usual.seats.take(0))
    assert usual.opened(lambda: next(made)) == 2
    assert urgent.shelf.take() == 1
    usual.shelf.put(9)
    assert usual.connections == (2, 1, 3)
    seats.append(urgent.seats.take(0))
    assert usual.opened(lambda: next(made)) == 3
    assert urgent.opened(lambda: next(made)) == 4
    assert not urgent.shelf


def test_tasks_have_a_reserve_too() -> None:
    """By the same rule."""

    async def scene() -> None:
        made = iter(range(9))

        async def connect() -> int:
            return next(made)

        urgent: AsyncPool[int] = AsyncPool(2, Shelf(lambda _: True, int))
        usual: AsyncPool[int] = AsyncPool(3, Shelf(lambda _: True, int), urgent)
        assert await usual.seats.take(0)
        assert await usual.opened(connect) == 0
        assert await usual.seats.take(0)
        assert await usual.opened(connect) == 2
        assert usual.connections == (2, 0, 3)
        assert urgent.shelf.take() == 1

    asyncio.run(scene())
