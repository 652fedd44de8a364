"""What people write who come from another library, or mistype, is answered by what to write instead."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import re
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlock_core import ClientOptions, ConfigurationError, LeaseStateError, LockClient, LockOptions, UnsafeStoreError
from dlock_core.engine import hints
from dlock_core.memory import MemoryStore
from tests.core.worlds import both_colours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core import Guarantees
    from tests.core.worlds import World

pytestmark = pytest.mark.usefixtures("clean_environment")


@contextlib.contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of a block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _plain(block: Any) -> Any:
    """Return the client's own object, which the world wraps for threads."""
    return getattr(block, "_inner", block)


# ---- lock() that is no lease


@both_colours
async def test_lock_as_a_condition_is_an_error(world: World) -> None:
    """It would always be true, and lock nothing."""
    async with world.client() as client:
        for block, name in ((client.lock("k"), "lock('k')"), (client.lock_all(["k"]), "lock_all(['k'])")):
            message = re.escape(f"{name} is neither true nor false") + ".*client.try_acquire"
            with pytest.raises(LeaseStateError, match=message):
                bool(_plain(block))
        assert not world.store.requests


@both_colours
async def test_acquire_of_a_lock_names_the_clients(world: World) -> None:
    """As a threading.Lock has it."""
    async with world.client() as client:
        wait = "await " if world.colour == "async" else ""
        with pytest.raises(LeaseStateError, match=rf"lease = {wait}client\.acquire\(key\)"):
            _plain(client.lock("k")).acquire(timeout=5)


@both_colours
async def test_lock_that_is_never_entered_warns_where_it_was_made(world: World) -> None:
    """The line reads as if it locked; a block that was entered, also in vain, says nothing."""
    async with world.client() as client:
        with told() as caught:
            client.lock("k")
            gc.collect()
        with told() as silent:
            async with client.lock("k"):
                assert await client.try_acquire("k") is None
                with pytest.raises(LeaseStateError):
                    async with client.lock("k"):
                        pytest.fail("entered")
            with pytest.raises(LeaseStateError):
                _plain(client.lock("k")).acquire()
            gc.collect()

    assert len(caught) == 1, [str(each.message) for each in caught]
    warning = caught[0]
    assert str(warning.message) == (
        "dlock: lock('k') was never entered, so nothing was locked; write: "
        f"{'async with' if world.colour == 'async' else 'with'} client.lock('k') as …"
    )
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    assert not silent


# ---- options


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("blocking", "timeout is how long to wait: None for ever, 0 for one try"),
        ("blocking_timeout", "timeout is how long to wait"),
        ("ttl", "lease_duration is how long the lock of a holder that died stays taken"),
        ("expire", "lease_duration is"),
        ("sleep", "poll_period is"),
        ("thread_local", "leave it out: any thread may use a lease"),
        ("lease_duraton", "perhaps 'lease_duration' is meant"),
        ("retrys", "perhaps 'retries' is meant"),
    ],
)
def test_option_of_another_library_gets_a_hint(name: str, hint: str) -> None:
    """In a call, in connect(), in a model: one table."""
    given: dict[str, Any] = {name: 1}
    message = re.escape(f"unknown option {name!r}: {hint}")
    with LockClient(MemoryStore()) as client, pytest.raises(ConfigurationError, match=message):
        client.acquire("k", **given)
    with pytest.raises(ConfigurationError, match=message):
        LockClient(MemoryStore(), **given)
    with pytest.raises(ConfigurationError, match=message):
        LockOptions(**given)


def test_option_that_nothing_resembles_gets_the_list_only() -> None:
    """A wrong guess is worse than none."""
    given: dict[str, Any] = {"colour": 1}
    with pytest.raises(ConfigurationError, match=r"^unknown option 'colour'; options: lease_duration, "):
        LockOptions(**given)


def test_timeout_of_minus_one_says_what_waits_for_ever() -> None:
    """As of ``threading.Lock.acquire``."""
    with pytest.raises(ConfigurationError, match=r"timeout: -1 is .*; None waits for ever, 0 tries once"):
        LockOptions(timeout=-1)


def test_lease_in_milliseconds_warns_at_the_callers_line() -> None:
    """30000 are 8 hours; who means them says so by a timedelta, and hours below one are no mistake."""
    with told() as caught, LockClient(MemoryStore(), lease_duration=30_000):
        pass
    with told() as silent, LockClient(MemoryStore(), lease_duration=timedelta(hours=8)) as client:
        client.acquire("k", timeout=5).release()
        client.acquire("k", lease_duration=3600).release()
    with told() as in_call, LockClient(MemoryStore()) as client:
        client.acquire("k", lease_duration=30_000.0).release()

    (warning,) = caught
    assert "lease_duration=30000 is 8.3 hours" in str(warning.message)
    assert warning.filename == __file__
    assert not silent
    assert len(in_call) == 1


def test_misspelt_variable_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would read it; those of other programs, and those that ``dlock run`` sets, say nothing."""
    monkeypatch.setenv("DLOCK_OWNER", "somebody")
    monkeypatch.setenv("DLOCK_FENCING_TOKEN", "5")
    monkeypatch.setenv("DLOCK_KEY", "k")
    monkeypatch.setenv("DLOCK_SOMETHING_ELSE", "1")
    monkeypatch.setenv("DLOCK_NAME", "a variable of the user's own")
    monkeypatch.setenv("DLOCK_PREFIX", "p")
    with told() as silent:
        ClientOptions.load()
    monkeypatch.setenv("DLOCK_LEASE_DURATON", "5")
    monkeypatch.setenv("DLOCK_reentrant", "true")
    with told() as caught:
        ClientOptions.load()

    assert not silent
    messages = [str(warning.message) for warning in caught]
    assert ["DLOCK_LEASE_DURATON; did you mean DLOCK_LEASE_DURATION?" in messages[0], len(messages)] == [True, 2]
    assert "DLOCK_reentrant; did you mean DLOCK_REENTRANT?" in messages[1]


def test_variable_that_other_programs_would_read_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that nothing reads is said to be so, and which option has it; the command's own ``--lease`` is such a name."""
    for name in ("DLOCK_LEASE", "DLOCK_WAIT"):
        monkeypatch.setenv(name, "5")
    with told() as caught:
        ClientOptions.load()

    [lease, wait] = sorted(str(warning.message) for warning in caught)
    assert "nothing reads the environment variable DLOCK_LEASE; lease_duration is how long" in lease
    assert "nothing reads the environment variable DLOCK_WAIT; timeout is how long" in wait


def test_no_variable_of_the_project_looks_like_a_misspelling() -> None:
    """Those of its own scripts and tests are set where clients are made, and a warning would fail whatever makes one."""
    root = Path(__file__).parents[2]
    scripts = [
        root / "Makefile",
        root / ".ci" / "run",
        *(root / "tools").rglob("*.sh"),
        *root.glob("conformance_tests/**/*.py"),
    ]
    options = {name.upper() for name in ClientOptions.model_fields}

    ours = {name for script in scripts for name in re.findall(r"DLOCK_([A-Z_]+)", script.read_text(encoding="utf-8"))}

    assert {"TEST_DATA", "TEST_CACHE", "TEST_SERVERS"} <= ours
    assert {name: like for name in ours - options if (like := hints.near(name, options))} == {}


def test_fail_closed_lock_with_a_lease_is_refused() -> None:
    """In one call; the client's own lease stays the default of its other locks."""
    with LockClient(MemoryStore(), lease_duration=5) as client:
        with pytest.raises(ConfigurationError, match="fail_closed and lease_duration exclude each other"):
            client.acquire("k", fail_closed=True, lease_duration=5)
        client.acquire("k", fail_closed=True).release()
        client.acquire("k", fail_closed=False, lease_duration=5).release()
    with pytest.raises(ConfigurationError, match="exclude each other"):
        LockClient(MemoryStore(), fail_closed=True, lease_duration=5)


@pytest.mark.parametrize(
    "use",
    [
        lambda: ClientOptions.model_validate({"x": 1}),
        lambda: LockOptions.model_validate({"timeout": "a"}),
        lambda: LockOptions.model_validate_json('{"timeout": "a"}'),
        lambda: LockOptions.model_validate_strings({"timeout": "a"}),
        lambda: LockOptions(timeout=1).__delattr__("timeout"),
    ],
)
def test_report_of_pydantic_never_comes_out(use: Any) -> None:
    """Also not from the methods that a model has from pydantic."""
    with pytest.raises(ConfigurationError) as caught:
        use()

    assert "validation error" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


# ---- unsafe traits


@pytest.mark.parametrize("names", [{"a"}, ["a"], ("a",), frozenset("a"), {"a": 1}.keys()], ids=repr)
def test_allow_unsafe_takes_any_collection_of_names(names: Any) -> None:
    """But not one text, whose letters would be the names."""
    assert ClientOptions(allow_unsafe=names).allow_unsafe == frozenset("a")
    with pytest.raises(
        ConfigurationError, match=r"allow_unsafe: it takes several names; 'ab' is one text: write \['ab'\]"
    ):
        ClientOptions(allow_unsafe="ab")


def test_misspelt_trait_is_named_in_the_refusal() -> None:
    """Whoever wrote it finds the letter."""

    class Unsafe(MemoryStore):
        def guarantees(self) -> Guarantees:
            return dataclasses.replace(super().guarantees(), unsafe=(("redis-replica", "it may grant twice"),))

    with pytest.raises(UnsafeStoreError, match="put 'redis-replica' into allow_unsafe in place of 'redis-replcia'"):
        LockClient(Unsafe(), allow_unsafe={"redis-replcia"})


# ---- event loops


def test_blocking_call_in_an_event_loop_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in the loop stands still meanwhile; a thread beside the loop may block."""
    monkeypatch.setattr(hints, "_told", set[str]())

    async def main() -> None:
        with LockClient(MemoryStore()) as client:
            await asyncio.to_thread(lambda: client.acquire("a").release())
            assert not caught
            client.acquire("k").release()
            client.acquire("k").release()

    with told() as caught:
        asyncio.run(main())

    (warning,) = caught
    assert "a blocking client is used inside of an event loop" in str(warning.message)
    assert warning.filename == __file__
