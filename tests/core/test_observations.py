"""Observations in a mapping that the user keeps: carried as JSON from one run to the next."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections import ChainMap, UserDict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from dlock_conformance.records import held

from dlock_core import AcquireTimeoutError, ClientOptions, ConfigurationError, RecordError
from dlock_core.engine.observations import SAVED_MAX, ObservationMapping, Observations
from dlock_core.memory import MemoryStore
from dlock_core.record import State, Version
from dlock_core.states import Observation
from dlock_core.timings import NANOS
from tests.core.early_support import dies
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from pathlib import Path

    from dlock_core.record import LockRecord
    from tests.core.worlds import World


async def sight(world: World, key: str = "k") -> dict[str, Any]:
    """Return what is kept of one look at *key*, which somebody holds who is dead."""
    state: dict[str, Any] = {}
    await dies(world, key)
    async with world.client(observations=state) as client:
        assert await client.try_acquire(key) is None
    return state


@both_colours
async def test_run_continues_what_the_last_has_put_down_as_json(world: World) -> None:
    """Runs that try once each, over one lease of 10 s: only together have they seen it all."""
    token, text, granted = await dies(world), "{}", []
    for _ in range(21):
        state = json.loads(text)
        async with world.client(observations=state) as client:
            lease = await client.try_acquire("k")
            if lease is not None:
                granted.append(lease.fencing_token)
                await lease.release()
        text = json.dumps(state)
        await world.jump(0.5)
        assert not granted or len(granted) == 1

    assert granted == [token + 1]


@both_colours
async def test_run_whose_state_is_lost_begins_anew(world: World) -> None:
    """The negative control: nobody takes over by what nobody has kept."""
    await dies(world)
    for _ in range(50):
        async with world.client(observations={}) as client:
            assert await client.try_acquire("k") is None
        await world.jump(0.5)


@both_colours
async def test_mapping_is_filled_when_an_attempt_ends_without_the_lock(world: World) -> None:
    """Before the client is closed: a function of a cloud may be frozen and never go on."""
    state: dict[str, Any] = {"mine": 1}
    await dies(world)
    async with world.client(observations=state) as client:
        assert state == {"mine": 1}
        with pytest.raises(AcquireTimeoutError):
            await client.acquire("k", timeout=0)

        assert sorted(state) == ["boot", "format", "mine", "seen"]
        assert [*state["seen"]] == ["k"]
        assert json.loads(json.dumps(state)) == state


@both_colours
async def test_mapping_is_filled_when_an_attempt_ends_with_an_error(world: World) -> None:
    """What it has seen before counts all the same."""
    state: dict[str, Any] = {}
    await dies(world)

    looks: list[str] = []

    def refuse(verb: str, _: object) -> None:
        looks.append(verb)
        if len(looks) > 1:
            raise RecordError("something else is stored there")

    async with world.client(world.hooked_store(refuse), observations=state) as client:
        waiting = world.spawn(client.acquire("k"))
        await world.live(2)
        with pytest.raises(RecordError):
            await waiting.result()

        assert [*state["seen"]] == ["k"]


@both_colours
async def test_clients_share_one_mapping(world: World) -> None:
    """Each keeps what the other has seen; of one record the earlier sight counts."""
    state: dict[str, Any] = {}
    await dies(world, "a")
    await dies(world, "b")
    async with world.client(observations=state) as one, world.client(observations=state) as two:
        assert await one.try_acquire("a") is None
        await world.jump(5)
        assert await two.try_acquire("a") is None
        assert await two.try_acquire("b") is None
    await world.jump(5)

    async with world.client(observations=state) as three:
        lease = await three.try_acquire("a")
        assert lease is not None
        assert await three.try_acquire("b") is None


@both_colours
@pytest.mark.parametrize("make", [UserDict, ChainMap], ids=["UserDict", "ChainMap"])
async def test_any_mapping_that_can_be_written_will_do(world: World, make: Any) -> None:
    """The very object is used, not a copy."""
    state = make(await sight(world))
    await world.jump(10)

    async with world.client(observations=state) as client:
        lease = await client.try_acquire("k")
        assert lease is not None
        assert client.options.observations is state


@both_colours
@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"boot": "another"},
        {"boot": None},
        {"seen": []},
        {"seen": {"k": ["x", 1, 10_000]}},
        {"seen": {"k": ["x", 1, "10000", 0]}},
    ],
    ids=repr,
)
async def test_what_is_damaged_or_of_another_boot_is_begun_anew(world: World, damage: dict[str, Any]) -> None:
    """Validated as the file is; it only delays."""
    state = await sight(world) | damage
    await world.jump(10)

    async with world.client(observations=state) as client:
        assert await client.try_acquire("k") is None
    await world.jump(10)
    async with world.client(observations=state) as client:
        lease = await client.try_acquire("k")
        assert lease is not None


@both_colours
async def test_sight_of_the_future_is_dropped(world: World) -> None:
    """As of a machine that was set back to a snapshot."""
    state = await sight(world)
    state["seen"]["k"][-1] += 10**12
    await world.jump(20)

    async with world.client(observations=state) as client:
        assert await client.try_acquire("k") is None


class Broken(UserDict[str, Any]):
    """A mapping whose place is gone."""

    def __iter__(self) -> Any:
        """Fail."""
        raise OSError("gone")

    def __setitem__(self, key: str, item: Any) -> None:
        """Fail."""
        raise OSError("gone")


@both_colours
async def test_mapping_that_fails_is_told_and_changes_nothing_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt is what it is without one."""
    await dies(world)

    async with world.client(observations=Broken()) as client:
        assert await client.try_acquire("k") is None

    assert "observations cannot be read from their mapping" in caplog.text
    assert "observations cannot be put into their mapping" in caplog.text


@both_colours
async def test_mapping_is_bounded(world: World) -> None:
    """The oldest are dropped."""
    state = await sight(world, "new")
    [sent] = state["seen"].values()
    state["seen"] |= {f"old/{number}": [*sent[:-1], number] for number in range(SAVED_MAX)}
    await dies(world, "newer")
    async with world.client(observations=state) as client:
        assert await client.try_acquire("newer") is None

    assert len(state["seen"]) == SAVED_MAX
    assert {"new", "newer"} <= state["seen"].keys()
    assert {"old/0", "old/1"}.isdisjoint(state["seen"])


def test_table_in_a_file_is_no_mapping_that_is_kept(tmp_path: Path) -> None:
    """Nobody would ever see what is put into it."""
    file = tmp_path / "dlock.toml"
    file.write_text("[observations]\nformat = 1\n")

    with pytest.raises(ConfigurationError, match="write a path, a mapping is for Python only"):
        ClientOptions.load(file)


@both_colours
async def test_answers_that_say_absent_do_not_begin_the_observation_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that was cut, or is stale, hides the record of a dead holder now and then; its waiter has seen it long enough."""
    token, read, calls = await dies(world), MemoryStore.read, itertools.count()

    def cut(store: MemoryStore, key: str, *, timeout_s: float) -> LockRecord | None:
        return None if next(calls) % 3 == 1 else read(store, key, timeout_s=timeout_s)

    monkeypatch.setattr(MemoryStore, "read", cut)
    async with world.client(lease_duration=10) as client:
        waiter = world.spawn(client.acquire("k"))
        await world.live(10.25)

        assert waiter.done
        lease = await waiter.result()
        assert lease.fencing_token == token + 1
        await lease.release()


def test_sight_of_the_next_holder_replaces_that_of_the_last() -> None:
    """The earlier of two sights counts where both are of one version, and of that alone."""
    kept = ObservationMapping({}, "boot")
    for rvn, seen_at in (("last", 1 * NANOS), ("next", 3 * NANOS), ("next", 2 * NANOS), ("next", 3 * NANOS)):
        kept.save({"k": Observation(Version(rvn, 1), 60 * NANOS, seen_at)}, 4 * NANOS)

    found = kept.load(4 * NANOS)["k"]

    assert (found.version.rvn, found.seen_at) == ("next", 2 * NANOS)


def ticking() -> Any:
    """Return a runtime whose clock counts up from 1."""
    clock = itertools.count(1)
    return SimpleNamespace(now=lambda: next(clock), mutex=threading.Lock())


def test_of_too_many_observations_those_that_were_not_renewed_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that looks at ever new keys needs no more memory for that."""
    monkeypatch.setattr("dlock_core.engine.observations.OBSERVATIONS_MAX", 2)
    seen = Observations(ticking(), None)

    for key in ("a", "b"):
        seen.note(key, held(key))
    seen.note("a", held("a", rvn="renewed"))
    seen.note("c", held("c"))

    assert len(seen) == 2
    assert seen.get("b") is None


def test_what_is_free_is_not_observed() -> None:
    """Nor what is not there."""
    seen = Observations(ticking(), None)

    seen.note("k", None)
    seen.note("k", dataclasses.replace(held("k"), state=State.FREE))

    assert len(seen) == 0


def test_what_was_saved_is_not_saved_again() -> None:
    """Another client may have put down something newer since."""
    saved: list[set[str]] = []
    kept: Any = SimpleNamespace(load=lambda _: {}, save=lambda seen, _: saved.append(set(seen)))
    seen = Observations(ticking(), kept)

    for key in ("a", "b"):
        seen.note(key, held(key))
        seen.save()
    seen.save()

    assert saved == [{"a"}, {"b"}]


def test_what_has_not_changed_is_not_saved_again_and_nothing_is_gathered_without_a_place_for_it() -> None:
    """A client that looks twice a second would write as often, or gather for ever what nobody asks for."""
    saved: list[set[str]] = []
    kept: Any = SimpleNamespace(load=lambda _: {}, save=lambda seen, _: saved.append(set(seen)))
    same = Observation(Version("a", 1), 60 * NANOS, 1)
    for place in (kept, None):
        seen = Observations(ticking(), place)
        for _ in range(2):
            seen.keep("k", same)
            assert bool(seen._unsaved) == (place is not None and not saved)
            seen.save()

    assert saved == [{"k"}]


def test_answers_that_show_one_record_do_not_begin_its_observation_anew() -> None:
    """The time of a dead holder runs from the first of them."""
    seen, record = Observations(ticking(), None), held("k")

    for _ in range(3):
        seen.note("k", record)

    found = seen.get("k")
    assert found is not None
    assert found.seen_at == 1
