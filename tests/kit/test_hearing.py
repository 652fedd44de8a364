"""When a client that has no answer takes its connection for dead, and when its server for slow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dlock_core.kit import Hearing, hearing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that the test sets."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(hearing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_silence_counts_from_the_last_sign_of_life(clock: SimpleNamespace) -> None:
    """A short one says nothing, nor one in which others were answered."""
    heard = Hearing()
    heard.answered(99.99)

    clock.now = 100.05
    assert not heard.is_silent(100.0)
    clock.now = 100.3
    heard.heard()
    clock.now = 100.35
    assert not heard.is_silent(100.0)
    clock.now = 100.5
    assert heard.is_silent(100.0)


def test_silence_that_is_no_longer_than_answers_take_says_nothing(clock: SimpleNamespace) -> None:
    """Also where others come soon, as reads do while writes wait for a disk; a longer one counts, and so does each after a while."""
    heard = Hearing()
    heard.answered(99.4)
    clock.now = 101.0
    heard.answered(100.99)

    clock.now = 101.8
    assert not heard.is_silent(101.0)
    clock.now = 102.0
    assert heard.is_silent(101.0)
    heard.answered(101.99)
    clock.now = 112.5
    assert heard.is_silent(112.3)


def test_second_silence_in_a_row_has_to_be_longer(clock: SimpleNamespace) -> None:
    """Where a server has become slow no answer tells so before a connection was made anew: the next one is left alone."""
    heard = Hearing()

    clock.now = 100.25
    assert heard.is_silent(100.0)
    clock.now = 101.25
    assert not heard.is_silent(101.0)
    clock.now = 102.5
    assert heard.is_silent(102.0)


def test_long_silence_counts_however_slow_the_server_is(clock: SimpleNamespace) -> None:
    """Its connection may be dead all the same."""
    heard = Hearing()
    heard.answered(95.0)

    clock.now = 102.1
    assert heard.is_silent(100.0)
