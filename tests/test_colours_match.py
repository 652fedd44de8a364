"""The blocking and the asyncio API are twins: equal names, parameters, defaults; async where it may reach a store."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, get_type_hints

import pytest

import dlock_core
from dlock_core import (
    AcquireKeywords,
    AsyncElection,
    AsyncLease,
    AsyncLockClient,
    AsyncLockStore,
    AsyncOnce,
    AsyncTerm,
    ClientKeywords,
    ClientOptions,
    Election,
    Lease,
    LockClient,
    LockOptions,
    LockStore,
    Once,
    Term,
    store,
)
from tests.update_public_api import member_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

TWINS = [
    (LockClient, AsyncLockClient),
    (Lease, AsyncLease),
    (Election, AsyncElection),
    (Term, AsyncTerm),
    (Once, AsyncOnce),
    (LockStore, AsyncLockStore),
]

CLIENT_COROUTINES = {
    "acquire",
    "try_acquire",
    "get",
    "break_lock",
    "break_session",
    "prune",
    "guarantees",
    "provision",
    "close",
}
LEASE_COROUTINES = {"ensure", "renew", "release", "downgrade", "try_upgrade"}
ELECTION_COROUTINES = {"campaign", "try_campaign", "leader", "run"}
ONCE_COROUTINES = {"finish"}
STORE_COROUTINES = {"claim", "replace", "release", "read", "guarantees", "provision", "close"}
CONTEXT = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
COROUTINES = {
    LockClient: CLIENT_COROUTINES | set(CONTEXT),
    Lease: LEASE_COROUTINES | set(CONTEXT),
    Election: ELECTION_COROUTINES,
    Term: LEASE_COROUTINES | {"proclaim", "resign"} | set(CONTEXT),
    Once: ONCE_COROUTINES | set(CONTEXT),
    LockStore: STORE_COROUTINES,
}
# Used with `async with` or `async for`, so called without `await`: what they return says so.
ASYNC_RESULTS = {
    "lock": "AsyncContextManager",
    "lock_all": "AsyncContextManager",
    "scan": "AsyncIterator",
    "observe": "AsyncIterator",
}

# A keyword is what a caller writes, a field is what the model makes of it.
KEYWORD_DIFFERS = {"url": "a keyword is text, the model keeps it as a secret"}


def members(subject: type) -> set[str]:
    """Return the public names of a class, context manager included, in the spelling of the blocking twin."""
    blocking = {twin: name for name, twin in CONTEXT.items()}
    names = {blocking.get(name, name) for name in {*dir(subject), *member_names(subject.__name__)}}
    return {name for name in names if not name.startswith("_") or (name in CONTEXT and not is_port(subject))}


def is_port(subject: type) -> bool:
    """Tell whether *subject* is a protocol, which is implemented and never entered."""
    return bool(getattr(subject, "_is_protocol", False))


def methods(subject: type) -> list[str]:
    """Return those of the members that are called."""
    return sorted(name for name in members(subject) if inspect.isroutine(getattr(subject, name, None)))


def parameters(function: Callable[..., object]) -> list[tuple[str, inspect._ParameterKind, object]]:
    """Return what a caller has to know of a function's parameters."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


METHODS = [(twin, other, name) for twin, other in TWINS for name in methods(twin)]
METHOD_IDS = [f"{twin.__name__}.{name}" for twin, _, name in METHODS]


def test_methods_are_found() -> None:
    """A comparison of nothing would always agree."""
    assert {name for twin, _, name in METHODS if twin is LockClient} >= CLIENT_COROUTINES | {
        "lock",
        "lock_all",
        "scan",
        "holds",
    }
    assert {name for twin, _, name in METHODS if twin is Lease} >= LEASE_COROUTINES | {"on_lost", "on_risk"}
    assert {name for twin, _, name in METHODS if twin is LockStore} >= STORE_COROUTINES | {"scan"}


@pytest.mark.parametrize(("twin", "other"), TWINS, ids=lambda subject: subject.__name__)
def test_twins_have_the_same_names(twin: type, other: type) -> None:
    """Who changes colour finds every name again."""
    assert members(other) == members(twin)


@pytest.mark.parametrize(("twin", "other", "name"), METHODS, ids=METHOD_IDS)
def test_twins_take_the_same_parameters(twin: type, other: type, name: str) -> None:
    """Names, kinds, order and defaults of the parameters agree."""
    assert parameters(getattr(other, CONTEXT.get(name, name))) == parameters(getattr(twin, name))


@pytest.mark.parametrize(("twin", "other", "name"), METHODS, ids=METHOD_IDS)
def test_a_call_is_async_where_it_may_reach_the_store(twin: type, other: type, name: str) -> None:
    """A call that does no I/O is not awaited, and every other one is."""
    function = getattr(other, CONTEXT.get(name, name))

    assert inspect.iscoroutinefunction(function) == (name in COROUTINES[twin])
    assert not inspect.iscoroutinefunction(getattr(twin, name))
    if expected := ASYNC_RESULTS.get(name):
        result = str(inspect.signature(function).return_annotation)
        assert inspect.isasyncgenfunction(function) or expected in result


@pytest.mark.parametrize("subject", [LockClient, AsyncLockClient], ids=lambda subject: subject.__name__)
def test_a_client_is_made_from_the_same_things(subject: type) -> None:
    """A client takes a store, options and keywords."""
    kinds = [kind for _, kind, _ in parameters(subject)]

    positional, keywords = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD
    assert kinds == [positional, positional, keywords]


def test_connecting_is_the_same_and_never_a_coroutine() -> None:
    """``aconnect`` returns the unopened client, to be entered or awaited."""
    assert parameters(dlock_core.aconnect) == parameters(dlock_core.connect)
    assert not inspect.iscoroutinefunction(dlock_core.aconnect)


@pytest.mark.parametrize(
    ("keywords", "options"),
    [(AcquireKeywords, LockOptions), (ClientKeywords, ClientOptions)],
    ids=["AcquireKeywords", "ClientKeywords"],
)
def test_keywords_are_the_options(keywords: type, options: type[BaseModel]) -> None:
    """What can be set on the model can be given as a keyword, with the same type, and none has to be."""
    offered = get_type_hints(keywords)
    fields = {name: hint for name, hint in get_type_hints(options).items() if name in options.model_fields}

    assert set(offered) == set(fields)
    assert vars(keywords)["__required_keys__"] == frozenset()
    assert {name for name in offered if offered[name] != fields[name]} <= set(KEYWORD_DIFFERS)


@pytest.mark.parametrize("name", ["AtomicMulti", "BatchRenew", "ClaimWait", "Notify", "Prune", "ServerClock"])
def test_a_capability_has_the_same_names_in_both_colours(name: str) -> None:
    """A store of either colour is asked for the names of the blocking one."""
    blocking, asynchronous = (
        {each for each in (*dir(port), *get_type_hints(port)) if not each.startswith("_")}
        for port in (getattr(store, name), getattr(store, f"Async{name}"))
    )

    assert blocking
    assert asynchronous == blocking
