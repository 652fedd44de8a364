"""Jobs that are refused, in both colours from one text: what was asked for cannot be, or the record is not that of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ConfigurationError, LeaseStateError, RecordError, UnsupportedError
from tests.core.jobs_support import enter
from tests.core.worlds import both_colours, saying

if TYPE_CHECKING:
    from tests.core.worlds import World


@both_colours
async def test_data_of_another_that_the_grant_shows_is_refused_and_kept(world: World) -> None:
    """A plain lock with data came between the read and the claim: the job is given back as it is (E6)."""
    came: list[str] = []

    async def lock_it(other: Any) -> None:
        async with other.lock("k", data=b"precious"):
            came.append("other")

    def before(verb: str, _: Any) -> Any:
        if verb != "claim" or came:
            return None
        if world.colour == "async":
            return lock_it(other)
        from dlock_core.engine.blocking_runtime import run_blocking

        return run_blocking(lock_it(other))

    async with world.client() as other, world.client(world.hooked_store(before)) as client:
        with pytest.raises(RecordError, match="no job has left there"):
            await enter(client, slot=1)

        record = await other.get("k")
        assert record is not None
        assert (came, record.held, record.data) == (["other"], False, b"precious")


@both_colours
async def test_key_that_carries_something_else_is_refused_and_kept(world: World) -> None:
    """A record whose payload is not a job's is refused at the read, before any claim (E6)."""
    async with world.client() as client:
        async with client.lock("k", data=b"precious"):
            pass

        with pytest.raises(RecordError, match="no job has left there"):
            async with client.once("k", slot=1):
                raise AssertionError("it must not run")

        record = await client.get("k")
        assert record is not None
        assert record.data == b"precious"
        assert world.store.requests["claim"] == 1


@both_colours
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slot": 1.5}, "neither a text"),
        ({"slot": "2026-11-\udcff"}, "holds a lone surrogate"),
        ({"slot": 1, "data": b"x"}, "once.. takes no data: the record of a job keeps"),
        ({"slot": 1, "max_hold": 5}, "once.. takes no max_hold: at_most_for bounds the run"),
        ({"slot": 1, "weight": 2}, "once.. takes no weight: one process runs a job, by one call"),
        ({"slot": 1, "renewal": "session"}, "once.. takes no renewal: others tell by the job's own record"),
        ({"slot": 1, "only_if_exists": True}, "once.. takes no only_if_exists"),
        ({"slot": 1, "at_least_for": 5, "at_most_for": 4}, "at_least_for=5 s exceeds at_most_for=4 s"),
        ({"slot": 1, "at_least_for": -1}, "at_least_for: -1"),
        ({"slot": 1, "at_most_for": 2, "stop_grace": 2}, "stop_grace=2 s must be shorter than at_most_for, 2 s"),
        ({"slot": 1, "at_most_for": 0}, "at_most_for: 0 s is too short"),
        ({"slot": 1, "at_most_for": -1}, r"at_most_for: -1 is not a finite number of seconds, 0\.001 or more"),
        ({"slot": 1, "colour": "red"}, "unknown option 'colour'"),
    ],
)
async def test_job_that_cannot_be_is_refused_before_any_request(
    world: World, options: dict[str, Any], told: str
) -> None:
    """Each names what is wrong."""
    async with world.client() as client:
        with pytest.raises(ConfigurationError, match=told):
            client.once("k", **options)
        assert not world.store.requests


@both_colours
async def test_store_without_a_place_for_data_is_refused_before_any_request(world: World) -> None:
    """The result of a job would have none; the first option that is missing is named."""
    store = saying(world, refuses=(("data", "its rows are narrow"),))
    async with world.client(store) as client:
        with pytest.raises(UnsupportedError, match="data cannot be had from this store: its rows are narrow"):
            client.once("k", slot=1)


@both_colours
async def test_job_that_is_never_entered_is_told(world: World) -> None:
    """Asking for a run is not running; nothing was sent."""
    async with world.client() as client:
        with pytest.warns(
            RuntimeWarning, match=r"once\('k'\) was never entered, so nothing was run; write: .*with client"
        ):
            client.once("k", slot=1)

        assert not world.store.requests


@both_colours
async def test_job_that_could_not_be_entered_is_no_job_that_was_forgotten(world: World) -> None:
    """The error of its client is told, and no warning beside it: the suite turns that into an error."""
    client = world.client()
    async with client:
        job = client.once("k", slot=1)
    with pytest.raises(LeaseStateError, match="the client was closed"):
        async with job:
            pass


@both_colours
async def test_body_cannot_write_data_into_the_record_of_its_job(world: World) -> None:
    """It would take the place of the last result; and before any, each later run would find a record that no job has left there."""
    async with world.client() as client:
        async with client.once("k", slot=1) as job:
            assert job.lease is not None
            for write in (job.lease.renew, job.lease.release):
                for data in (b"50 %", None):
                    with pytest.raises(ConfigurationError, match=r"'k' is a job, .* give the result to finish\(\)"):
                        await write(data=data)
            await job.lease.renew()
        async with client.once("k", slot=2) as job:
            assert job.due
            assert job.last_slot == 1
