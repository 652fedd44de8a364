"""The mark of a job in its record, and the slots that schedules give: pure functions."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dlock_core import ConfigurationError, RecordError, slots
from dlock_core.once import NOTHING, Finished, check_slot, finished_in, is_due, mark
from dlock_core.states import Payload
from dlock_core.testing import FakeClock


@pytest.mark.parametrize("slot", ["2026-11-22", 7, -1])
@pytest.mark.parametrize("result", [None, b"", b"done"])
def test_mark_comes_back(slot: str | int, result: bytes | None) -> None:
    """The slot with its type, the result, and until when others skip the job."""
    assert finished_in("k", mark(slot, result, at_ms=10, not_before_ms=0)) == Finished(slot, result, 0)
    assert finished_in("k", mark(slot, result, at_ms=10, not_before_ms=11)) == Finished(slot, result, 11)


def test_run_that_bars_nobody_leaves_no_time_behind() -> None:
    """The next host reads its own wall clock: one that is behind that of the last host would skip its run."""
    finished = finished_in("k", mark(1, None, at_ms=10, not_before_ms=10))

    assert finished.not_before_ms == 0
    assert is_due("k", finished, 2, wall_ms=5)


def test_empty_payload_is_no_mark() -> None:
    """Nothing was stored, or nothing by a job."""
    assert finished_in("k", None) is finished_in("k", Payload(None, ())) is NOTHING


@pytest.mark.parametrize(
    "payload",
    [
        Payload(b"mine", ()),
        Payload(b"", ()),
        Payload(None, (("by", "me"),)),
        Payload(None, (("once.slot", True),)),
        Payload(None, (("once.slot", b"x"),)),
        Payload(None, (("once.not_before", "soon"), ("once.slot", 1))),
    ],
)
def test_what_no_job_has_written_is_refused_and_not_wiped_out(payload: Payload) -> None:
    """Also a mark that is damaged (E6)."""
    with pytest.raises(RecordError, match="no job has left there"):
        finished_in("k", payload)


@pytest.mark.parametrize(
    ("last", "slot", "due"),
    [
        (None, 5, True),
        (4, 5, True),
        (5, 5, False),
        (6, 5, False),
        ("2026-11-21", "2026-11-22", True),
        ("2026-11-22", "2026-11-22", False),
        ("2026-11-23", "2026-11-22", False),
    ],
)
def test_slot_is_due_if_it_lies_after_the_one_that_was_finished(last: Any, slot: Any, due: bool) -> None:
    """One that goes back is never run (I13)."""
    assert is_due("k", Finished(last), slot, 0) is due


def test_job_is_skipped_until_its_wall_clock_time() -> None:
    """``at_least_for``: a courtesy, by wall clocks."""
    assert not is_due("k", Finished(1, None, 1000), 2, 999)
    assert is_due("k", Finished(1, None, 1000), 2, 1000)


@pytest.mark.parametrize(("last", "slot"), [(1, "1"), ("1", 1)])
def test_slot_of_another_type_is_refused(last: Any, slot: Any) -> None:
    """They cannot be compared; who has another schedule, or only texts, as the command has, takes another key."""
    with pytest.raises(ConfigurationError, match=r"cannot be compared.*, or give the job another key$"):
        is_due("k", Finished(last), slot, 0)


@pytest.mark.parametrize(
    "slot", [None, True, 1.5, b"x", "", "x" * 257, 2**63, -(2**63), dt.date(2026, 11, 22), lambda: None]
)
def test_slot_that_is_no_name_is_refused(slot: Any) -> None:
    """Text or a number; a function must return one."""
    with pytest.raises(ConfigurationError, match="neither a text"):
        check_slot("k", slot)

    assert check_slot("k", lambda: 7) == 7
    for longest in ("x" * 256, 2**63 - 1, -(2**63) + 1):
        assert check_slot("k", longest) == longest


def test_a_long_slot_is_not_repeated_in_the_message() -> None:
    """Its length says what is wrong."""
    with pytest.raises(ConfigurationError, match=r"^slot of 257 characters of job 'k' is neither"):
        check_slot("k", "x" * 257)


# ---- slots of schedules


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the wall clock that slots read."""

    def set_to(text: str) -> None:
        present = dt.datetime.fromisoformat(text).astimezone(dt.UTC)
        monkeypatch.setattr(slots, "now", lambda: present)

    return set_to


@pytest.mark.parametrize(
    ("present", "slot"),
    [
        ("2026-11-22T00:59:59+00:00", "2026-11-21"),
        ("2026-11-22T01:00:00+00:00", "2026-11-22"),
        ("2026-11-22T23:30:00+00:00", "2026-11-22"),
        ("2026-11-23T00:30:00+00:00", "2026-11-22"),
    ],
)
def test_daily_slot_is_the_date_of_the_latest_time_in_the_zone(at: Any, present: str, slot: str) -> None:
    """02:00 in Berlin is 01:00 UTC in winter."""
    at(present)

    assert slots.daily("02:00", "Europe/Berlin")() == slot
    assert slots.daily("02:00", ZoneInfo("Europe/Berlin"))() == slot


def test_zone_of_pytz_is_taken_by_its_name(at: Any) -> None:
    """Where it is not localized it has the local mean time of its city: a day began some minutes early."""

    class Shanghai(dt.tzinfo):
        zone = "Asia/Shanghai"

        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(hours=8, minutes=6)

        def dst(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta()

        def tzname(self, _: dt.datetime | None) -> str:
            return "LMT"

        def fromutc(self, moment: dt.datetime) -> dt.datetime:
            return moment + dt.timedelta(hours=8)

    at("2026-11-22T17:55:00+00:00")
    assert slots.daily("02:00", Shanghai())() == "2026-11-22"
    at("2026-11-22T18:00:00+00:00")
    assert slots.daily("02:00", Shanghai())() == "2026-11-23"


@pytest.mark.parametrize(("year", "month", "day"), [(2026, 3, 29), (2026, 10, 25)])
def test_day_on_which_the_clocks_change_has_one_slot(at: Any, year: int, month: int, day: int) -> None:
    """02:30 is skipped on the one and comes twice on the other; slots never go back."""
    slot = slots.daily("02:30", "Europe/Berlin")
    start = dt.datetime(year, month, day, tzinfo=dt.UTC) - dt.timedelta(hours=6)
    seen = []
    for quarter in range(24 * 4):
        at((start + quarter * dt.timedelta(minutes=15)).isoformat())
        seen.append(slot())

    assert seen == sorted(seen)
    assert len(set(seen)) == 2


def test_time_that_is_skipped_has_come_when_the_clocks_change(at: Any) -> None:
    """At 02:00 it is 03:00 in Berlin, and cron starts at once what was to start at 02:30."""
    at("2026-03-29T00:59:59+00:00")
    assert slots.daily("02:30", "Europe/Berlin")() == "2026-03-28"
    at("2026-03-29T01:00:00+00:00")

    assert slots.daily("02:30", "Europe/Berlin")() == "2026-03-29"
    assert slots.weekly("sunday", "02:30", "Europe/Berlin")() == "2026-03-29"


def test_weekly_hourly_and_periodic_slots(at: Any) -> None:
    """Dates of the day, hours in UTC, seconds since 1970."""
    at("2026-11-22T03:10:00+00:00")  # a Sunday

    assert slots.weekly("sunday", "03:00")() == "2026-11-22"
    assert slots.weekly("sunday", "03:30")() == "2026-11-15"
    assert slots.weekly("monday", "03:00")() == "2026-11-16"
    assert slots.hourly()() == "2026-11-22T03Z"
    assert slots.hourly(15)() == "2026-11-22T02Z"
    assert slots.every(600)() == slots.every(dt.timedelta(minutes=10))()
    before = slots.every(600)()
    at("2026-11-22T03:20:00+00:00")
    assert slots.every(600)() == slots.every(1)() == before + 600


def test_periodic_slots_grow_where_the_period_changes(at: Any) -> None:
    """A job that ran every minute, and runs every hour from now on, is due in the next hour, and not never again."""
    at("2026-11-22T03:10:00+00:00")
    last = slots.every(60)()
    at("2026-11-22T04:00:00+00:00")

    assert slots.every(3600)() > last
    assert slots.every(1.5)() - last == 50 * 60


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process is set")
def test_hosts_in_other_time_zones_name_the_same_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose system has another zone would run the same hour again."""
    schedules: list[Any] = [slots.hourly(), slots.daily("02:00"), slots.every(60)]
    named = []
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        named.append([schedule.at(7_200_000) for schedule in schedules])
    monkeypatch.undo()
    time.tzset()

    assert named == [["1970-01-01T02Z", "1970-01-01", 7200]] * 2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: slots.daily("25:00"), "time '25:00'"),
        (lambda: slots.daily("02:00Z"), "time '02:00Z'"),
        (lambda: slots.daily(2), "time 2"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: slots.daily("02:00", "Europe/Nowhere"), "time zone 'Europe/Nowhere'"),
        (lambda: slots.daily("02:00", 7), "time zone 7"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: slots.weekly("Sun", "02:00"), "day 'Sun'"),
        (lambda: slots.hourly(60), "minute 60"),
        (lambda: slots.hourly(True), "minute True"),
        (lambda: slots.every(0.5), "period 0.5 s"),
        (lambda: slots.every(-1), "period: -1 is not a finite number of seconds, 1 or more"),
        (lambda: slots.every("1"), "period: str"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_schedule_that_is_wrong_is_refused_when_it_is_made(make: Any, told: str) -> None:
    """And not at the first run, in the night."""
    with pytest.raises(ConfigurationError, match=told):
        make()


@pytest.mark.parametrize(
    ("schedule", "period"),
    [(slots.daily("02:00"), 86_400), (slots.weekly("monday", "02:00"), 7 * 86_400), (slots.hourly(), 3600)],
)
def test_slots_go_on_with_the_clock_of_the_client(schedule: Any, period: int) -> None:
    """A test of a program's job moves that clock by hand, and the next run is due."""
    with FakeClock() as clock, clock.client() as client:
        due = []
        for pause in (0, period, 0):
            clock.advance(pause)
            with client.once("report", slot=schedule) as job:
                due.append(job.due)

    assert due == [True, True, False]


def test_slots_go_on_with_the_clock_of_an_asyncio_client() -> None:
    """As with that for threads."""

    async def run() -> list[bool]:
        due = []
        async with FakeClock().aclient() as client:
            clock: Any = client._clock
            for pause in (0, 60, 0):
                clock.advance(pause)
                async with client.once("report", slot=slots.every(60)) as job:
                    due.append(job.due)
        return due

    assert asyncio.run(run()) == [True, True, False]


def test_body_of_a_run_is_told_the_slot_that_the_schedule_named() -> None:
    """By the clock of the client, and when the block began: a body that asked the schedule itself could be told the next one."""
    schedule = slots.hourly()
    with FakeClock() as clock, clock.client() as client:
        clock.advance(3600 - clock.wall_ms() // 1000 % 3600 - 5)
        with client.once("report", slot=schedule) as job:
            clock.advance(10)
            assert job.slot == "2023-11-14T22Z"
        with client.once("report", slot=schedule) as job:
            assert (job.due, job.last_slot, job.slot) == (True, "2023-11-14T22Z", "2023-11-14T23Z")
