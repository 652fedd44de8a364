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


class _Connection:
    """A connection that notes in *closed* that it was closed."""

    fit = True

    def __init__(self, name: object, closed: list[object], *, alive: bool = True) -> None:
        self.name, self._closed, self._alive = name, closed, alive

    def is_alive(self) -> bool:
        """Whether it was made so."""
        return self._alive

    def close(self) -> None:
        """Note it."""
        self._closed.append(self.name)

    def disown(self) -> None:
        """Do nothing."""

    def send(self, request: object, deadline: float) -> object:
        """Answer with the name."""
        return self.name

    def __repr__(self) -> str:
        return str(self.name)


def test_a_shelf_gives_what_is_alive_and_closes_the_rest() -> None:
    """The last that came is the first to go."""
    closed: list[object] = []
    shelf = Shelf()
    for name in ("a", "b", "stale"):
        shelf.put(_Connection(name, closed, alive=name != "stale"))

    assert repr(shelf.take()) == "b"
    assert closed == ["stale"]
    shelf.close()
    shelf.put(_Connection("late", closed))
    assert closed == ["stale", "a", "late"]
    assert shelf.take() is None
    assert not shelf


def test_of_the_connections_that_came_too_late_one_is_kept() -> None:
    """It serves the next request; more of them would only be open."""
    closed: list[object] = []
    shelf = Shelf()

    shelf.keep_one(_Connection("a", closed))
    shelf.keep_one(_Connection("b", closed))

    assert closed == ["b"]
    assert repr(shelf.take()) == "a"


def test_a_doubted_connection_is_taken_as_a_last_resort_only() -> None:
    """It counts as open until it is dropped. One that the server has closed is none, and a shelf that is closed keeps none."""
    closed: list[object] = []
    shelf = Shelf()
    for name in ("a", "b", "stale"):
        shelf.put(_Connection(name, closed, alive=name != "stale"))
    shelf.doubt()

    assert shelf.take() is None
    assert len(shelf) == 2
    assert repr(shelf.take(doubted=True)) == "a"
    shelf.drop_doubted()
    assert closed == ["stale", "b"]
    shelf.put(_Connection("c", closed))
    shelf.doubt()
    shelf.close()
    assert closed == ["stale", "b", "c"]


class _ListOfClosed(list[Any]):
    """Another thread closes the shelf just before something is put here."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def append(self, link: object) -> None:
        """Let the other be first."""
        self._shelf.close()
        super().append(link)


def test_a_connection_that_comes_back_while_the_shelf_is_closed_is_closed() -> None:
    """However the threads run: no list keeps it that nobody looks at any more."""
    closed: list[object] = []
    shelf = Shelf()
    shelf._connections = _ListOfClosed(shelf)

    shelf.put(_Connection("late", closed))

    assert closed == ["late"]


def test_a_further_connection_comes_after_the_first_of_the_reserve() -> None:
    """A lone request opens one. Where others are under way, the reserve gets one first, but only if it has none."""
    made = iter(range(9))

    def connect(*_: object) -> _Connection:
        return _Connection(next(made), [])

    urgent = Pool(2, connect)
    usual = Pool(3, connect, urgent)
    seats = [usual.seats.take(0)]

    assert repr(usual._opened(0)[0]) == "0"
    assert not urgent.shelf
    seats.append(usual.seats.take(0))
    assert repr(usual._opened(0)[0]) == "2"
    assert repr(urgent.shelf.take()) == "1"
    usual.shelf.put(_Connection(9, []))
    assert usual.connections == (2, 1, 3)
    seats.append(urgent.seats.take(0))
    assert repr(usual._opened(0)[0]) == "3"
    assert repr(urgent._opened(0)[0]) == "4"
    assert not urgent.shelf


def test_tasks_have_a_reserve_too() -> None:
    """By the same rule."""

    async def scene() -> None:
        made = iter(range(9))

        async def connect(*_: object) -> _Connection:
            return _Connection(next(made), [])

        urgent = AsyncPool(2, connect)
        usual = AsyncPool(3, connect, urgent)
        assert await usual.seats.take(0)
        assert repr((await usual._opened(0))[0]) == "0"
        assert await usual.seats.take(0)
        assert repr((await usual._opened(0))[0]) == "2"
        assert usual.connections == (2, 0, 3)
        assert repr(urgent.shelf.take()) == "1"

    asyncio.run(scene())
