"""Slots from a schedule: which run of a job is the latest that is due by now. They read the wall clock, in ``once`` that of its client.

A slot is named by its scheduled time, so hosts whose clocks differ by less than half a period name the same runs. A job that runs more
often than its slots change does nothing the second time.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dlock_core.errors import ConfigurationError
from dlock_core.once import Schedule
from dlock_core.options import to_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlock_core.keywords import Seconds

__all__ = ["daily", "every", "hourly", "weekly"]

_SlotT = TypeVar("_SlotT", str, int)

_DAY = dt.timedelta(days=1)
_WEEK = 7
_MINUTES = 60
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def now() -> dt.datetime:
    """Return the present, by the wall clock."""
    return dt.datetime.now(dt.UTC)


class _Slots(Schedule, Generic[_SlotT]):
    """The slots that *due* names for an instant; a call is for the present."""

    def __init__(self, due: Callable[[dt.datetime], _SlotT]) -> None:
        self._due: Callable[[dt.datetime], _SlotT] = due

    def __call__(self) -> _SlotT:
        return self._due(now())

    def at(self, wall_ms: int) -> _SlotT:
        return self._due(dt.datetime.fromtimestamp(wall_ms / 1000, dt.UTC))


def daily(at: str, tz: str | dt.tzinfo = "UTC") -> Callable[[], str]:
    """Return the slots of a job that runs each day at *at*, as "02:00", in the time zone *tz*: dates, as "2026-11-22".

    A time that a change of the clocks skips or repeats has one slot all the same; one that is skipped has come when the clocks change.

    Raises: ConfigurationError: *at* or *tz* is wrong.
    """
    time, zone = _time(at), _zone(tz)
    return _Slots(lambda present: _latest(present, time, zone).isoformat())


def weekly(day: str, at: str, tz: str | dt.tzinfo = "UTC") -> Callable[[], str]:
    """Return the slots of a job that runs on *day*, as "monday", at *at*: the dates of that day.

    Raises: ConfigurationError: *day*, *at* or *tz* is wrong.
    """
    if day not in WEEKDAYS:
        raise ConfigurationError(f"day {day!r} is not one of {', '.join(WEEKDAYS)}")
    weekday, time, zone = WEEKDAYS.index(day), _time(at), _zone(tz)

    def due(present: dt.datetime) -> str:
        latest = _latest(present, time, zone)
        return (latest - (latest.weekday() - weekday) % _WEEK * _DAY).isoformat()

    return _Slots(due)


def hourly(minute: int = 0) -> Callable[[], str]:
    """Return the slots of a job that runs each hour at *minute*: hours in UTC, as "2026-11-22T03Z".

    Raises: ConfigurationError: *minute* is not from 0 to 59.
    """
    if type(minute) is not int or not 0 <= minute < _MINUTES:
        raise ConfigurationError(f"minute {minute!r} is not from 0 to 59")
    return _Slots(lambda present: (present - dt.timedelta(minutes=minute)).strftime("%Y-%m-%dT%HZ"))


def every(period: Seconds) -> Callable[[], int]:
    """Return the slots of a job that runs every *period* seconds since 1970: the second in which each begins.

    So they grow also where the job gets another period.

    Raises: ConfigurationError: *period* is not a duration of 1 second or more.
    """
    try:
        seconds = to_seconds(period, least=1)
    except ValueError as error:
        raise ConfigurationError(f"period: {error}") from None
    if seconds < 1:
        raise ConfigurationError(f"period {seconds:g} s is too short; give 1 second or more")
    return _Slots(lambda present: int(present.timestamp() // seconds * seconds))


def _latest(present: dt.datetime, time: dt.time, zone: dt.tzinfo) -> dt.date:
    """Return the date of the latest *time* that has passed in *zone*. One that a change of the clocks skips passes with that change."""
    local = present.astimezone(zone)
    date = local.date()
    return date if dt.datetime.combine(date, time, zone) <= present or time <= local.time() else date - _DAY


def _time(at: str) -> dt.time:
    try:
        time = dt.time.fromisoformat(at)
    except (TypeError, ValueError):
        time = None
    if time is None or time.tzinfo is not None:
        raise ConfigurationError(f'time {at!r} is not a time of day, as "02:00"')
    return time


def _zone(tz: str | dt.tzinfo) -> dt.tzinfo:
    # Of pytz, whose zones have an offset of the 19th century where they are not localized.
    name = getattr(tz, "zone", None)
    if isinstance(tz, dt.tzinfo) and name is None:
        return tz
    try:
        return ZoneInfo(name or tz)  # type: ignore[arg-type]  # of another type it is refused
    except (ZoneInfoNotFoundError, TypeError, ValueError, OSError):
        raise ConfigurationError(
            f'time zone {tz!r} is not known here; give a name, as "Europe/Berlin", or a tzinfo'
        ) from None
