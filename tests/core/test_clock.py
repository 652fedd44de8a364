"""Which clock decides, by system and by what the kernel lets a process read."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dlock_core.clock import find_clock
from dlock_core.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW", "CLOCK_MONOTONIC")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that leaves only the clocks *known*, each of which reads as its place; the *refused* ones raise OSError."""

    def leave(*known: str, refused: tuple[str, ...] = ()) -> None:
        def read(clock_id: int) -> int:
            if _NAMES[clock_id] in refused:
                raise OSError(22, "Invalid argument")
            return clock_id

        monkeypatch.setattr(time, "clock_gettime_ns", read)
        for place, name in enumerate(_NAMES):
            monkeypatch.delattr(time, name, raising=False)
            if name in known:
                monkeypatch.setattr(time, name, place, raising=False)

    return leave


@pytest.mark.parametrize(
    ("platform", "known", "chosen"),
    [
        ("linux", _NAMES, "CLOCK_BOOTTIME"),
        ("darwin", _NAMES[1:], "CLOCK_MONOTONIC_RAW"),
        ("darwin", _NAMES[2:], "CLOCK_MONOTONIC"),
        ("freebsd14", _NAMES[2:], "CLOCK_MONOTONIC"),
    ],
)
def test_clock_is_the_one_that_counts_sleep_and_never_steps(
    kernel: Callable[..., None], platform: str, known: tuple[str, ...], chosen: str
) -> None:
    """On macOS CLOCK_MONOTONIC may step, and the raw clock does not."""
    kernel(*known)

    assert find_clock(platform)() == _NAMES.index(chosen)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_clock_that_the_kernel_refuses_is_not_chosen(
    kernel: Callable[..., None], platform: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sandbox may know fewer clocks than Python does: the import goes on with Python's own, and says so."""
    kernel(*_NAMES, refused=_NAMES)

    assert find_clock(platform) is time.monotonic_ns
    assert ("refuses" in caplog.text) == (platform != "win32")


def test_fake_clock_goes_on_by_any_duration_and_never_back() -> None:
    """Seconds or a timedelta, as everywhere; a step back would be a clock that no machine has."""
    clock = FakeClock()
    begin = clock.now()

    clock.advance(timedelta(seconds=2))
    clock.advance(0.5)
    with pytest.raises(ValueError, match="-1 is not a finite number of seconds, 0 or more"):
        clock.advance(-1)

    assert clock.now() - begin == 2_500_000_000


def test_fake_clock_keeps_the_time_that_passes_in_two_threads_at_once() -> None:
    """Else a test whose threads both advance would wait for a time that does not come."""
    clock = FakeClock()
    begin = clock.now()

    class Met(timedelta):
        def total_seconds(self) -> float:
            other = threading.Thread(target=clock.advance, args=(1,))
            other.start()
            other.join()
            return super().total_seconds()

    clock.advance(Met(seconds=2))

    assert clock.now() - begin == 3_000_000_000


def test_fake_clock_calls_what_is_due_in_the_order_of_its_time() -> None:
    """And what is due at one instant in the order in which it was asked for, as an event loop does."""
    called: list[str] = []

    async def scenario() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock()
        for name, seconds in (("last", 3), ("first", 1), ("second", 1)):
            clock.call_later(loop, seconds, lambda name=name: called.append(name))  # type: ignore[misc]  # its default
        clock.advance(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert called == ["first", "second", "last"]
