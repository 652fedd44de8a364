"""Signal handlers inside of what the kit guards by a mutex: at each place, one that uses it too, and one that raises."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core.backend import CheckedModel
from dlock_core.engine.observations import ObservationMapping
from dlock_core.kit import News, Watch
from dlock_core.kit.watch import Queues
from dlock_dynamodb._units import Units

if TYPE_CHECKING:
    from collections.abc import Callable

SOON_S = 10.0
PLACES_MAX = 500
ANSWER = {"ConsumedCapacity": {"CapacityUnits": 1.0}}


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def at_place(number: int, work: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Do *work*, and call *handler* at one of the places where Python runs signal handlers; whether there is such a place.

    It is done in a thread of its own, which must come to an end.
    """
    reached: list[bool] = []

    def look(frame: Any, event: str, _: object) -> None:
        nonlocal number
        names = ("watch.py", "_units.py", "observations.py", "dlock_core/backend.py")
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(names):
            number -= 1
            if number < 0:
                sys.setprofile(None)
                reached.append(True)
                handler()

    def watched() -> None:
        sys.setprofile(look)
        try:
            with suppress(Interrupt):
                work()
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive(), "the handler hangs"
    return bool(reached)


def raises() -> None:
    """Raise, as Ctrl-C does."""
    raise Interrupt


class OfQueues:
    """Somebody waits, is woken, leaves."""

    def __init__(self) -> None:
        self.queues = Queues()

    def use(self) -> None:
        """Do it."""
        wake = threading.Event().set
        self.queues.enter("k", wake)
        self.queues.wake("k")
        self.queues.leave("k", wake, used=False)
        self.queues.wake_all()

    def check(self) -> None:
        """Wake somebody."""
        woken = threading.Event()
        self.queues.enter("k", woken.set)
        self.queues.wake_all()
        assert woken.is_set()


class OfUnits:
    """Units are counted and read."""

    def __init__(self) -> None:
        self.units = Units()

    def use(self) -> None:
        """Do it."""
        self.units.answered("claim", "put_item", ANSWER)
        _ = self.units.billed

    def check(self) -> None:
        """Count once more."""
        before = self.units.billed.get("claim", {}).get("write", 0.0)
        self.units.answered("claim", "put_item", ANSWER)
        assert self.units.billed["claim"]["write"] == before + 1


class OfObservations:
    """Observations are put into the user's mapping."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.mapping = ObservationMapping(self.kept, "boot")

    def use(self) -> None:
        """Do it."""
        self.mapping.save({}, 1)

    check = use


class OfModels:
    """A model of options is built at its first use."""

    def __init__(self) -> None:
        class Options(CheckedModel):
            number: int = 1

        self.model = Options

    def use(self) -> None:
        """Build it, unless it is built."""
        assert self.model(number=2).model_dump() == {"number": 2}

    check = use


class Stream:
    """A stream without news."""

    def __init__(self) -> None:
        self.close = threading.Event().set

    def try_next(self) -> None:
        """Return no news."""
        threading.Event().wait(0.01)


class OfWatch:
    """Somebody waits for news."""

    def __init__(self) -> None:
        self.watch = Watch(News(Stream, list, (OSError,)))

    def use(self) -> None:
        """Do it."""
        self.watch.wait("k", 0.01, bool)

    def check(self) -> None:
        """Wait once more, and close."""
        self.use()
        self.watch.close()


@pytest.mark.parametrize("handles", ["use", "raise"])
@pytest.mark.parametrize("kind", [OfQueues, OfUnits, OfObservations, OfModels, OfWatch])
def test_signal_handler_at_any_place_leaves_it_usable(kind: Callable[[], Any], handles: str) -> None:
    """Its own use of it comes to an end, and so does that of what it has interrupted, and every later one."""
    for number in range(PLACES_MAX):
        subject = kind()
        reached = at_place(number, subject.use, subject.use if handles == "use" else raises)
        after = threading.Thread(target=subject.check, daemon=True)
        after.start()
        after.join(SOON_S)
        assert not after.is_alive(), f"it hangs after place {number}"
        if not reached:
            assert number > 3
            return
    pytest.fail("there is no end to the places")
