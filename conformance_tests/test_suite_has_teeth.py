"""The suite rejects every broken store by the clause that it breaks, behind a wire and behind a socket, and accepts the right ones."""

from __future__ import annotations

import gc
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import pytest
from dlock_conformance import LockStoreConformance, StoreHarness
from dlock_conformance.broken import BROKEN, BROKEN_LINKS, Broken, BrokenLinks
from dlock_conformance.clauses import clause_of, clauses
from dlock_conformance.harness import Colour
from dlock_conformance.needs import inapplicable, not_given
from dlock_conformance.store_clauses import closing
from dlock_conformance.trial import Trial
from dlock_conformance.wire.socketed import socket_harness
from dlock_conformance.wire.wired import Wire, wired_harness

from dlock_core.errors import DLockError
from dlock_core.store import Claim, Release, Replace

Base: TypeAlias = Callable[[Wire], AbstractContextManager[StoreHarness]]

BROKEN_MIN = 200
ROUNDS = 200
# On a busy machine those who wait may come too late to be forgotten: then they have more time.
SOON_S, LATER_S = 0.4, 2.0
BASES: dict[str, Callable[..., AbstractContextManager[StoreHarness]]] = {
    "wire": lambda wire, soon_s=SOON_S: nullcontext(wired_harness(wire, race_rounds=ROUNDS, soon_s=soon_s)),
    "socket": lambda wire, soon_s=SOON_S: socket_harness(wire, race_rounds=ROUNDS, soon_s=soon_s),
}
CASES = [
    pytest.param(broken, base, colour, id=f"{broken.clause}-{broken.name.replace(' ', '_')}-{base}-{colour}")
    for broken in BROKEN
    for base in (BASES if broken.on_socket else ("wire",))
    for colour in broken.colours
]
CLIENTS = [
    pytest.param(broken, colour, id=f"{broken.clause}-{broken.name.replace(' ', '_')}-{colour}")
    for broken in BROKEN_LINKS
    for colour in broken.colours
]

# What a broken store leaves open is collected in another test, and its threads may fail in another one.
left_behind = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


@pytest.fixture(autouse=True)
def _ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these stores leave ends at once, or never."""
    monkeypatch.setattr(closing, "ENDED_S", 1.5)


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_to_others() -> Iterator[None]:
    """What broken stores have left open is collected among their own tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Suite(LockStoreConformance):
    """The suite, to be called test by test; the wired store is of this process."""

    lacks = ("several_processes", "busy")


def judges_of(clause: str, colour: Colour) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each test of *clause* that applies to *colour*, with each of its parameters."""
    for name, test in inspect.getmembers(LockStoreConformance, inspect.isfunction):
        if clause_of(name) == clause:
            for case in cases(test):
                if not inapplicable(Suite, test, name, {"colour": colour, **case}):
                    yield name, case


def cases(test: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of *test*, as pytest would multiply them."""
    tables: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        rows = [getattr(row, "values", row) for row in mark.args[1]]
        tables.append([dict(zip(names, row if isinstance(row, tuple) else (row,), strict=True)) for row in rows])
    for picked in itertools.product(*tables):
        yield {name: value for row in picked for name, value in row.items()}


def verdict(patch: Any, clause: str, colour: Colour, on: Base = BASES["wire"]) -> tuple[str, BaseException] | None:
    """Run the tests of *clause* until one fails; return its name and what it raised.

    An error of dlock's that comes out of a test is the store's own doing, and neither a verdict nor a crash: the next test judges.
    """
    for name, case in judges_of(clause, colour):
        wire = Wire()
        patch(wire)
        try:
            with on(wire) as harness, Trial(harness, colour, name) as trial:
                if not_given(harness, getattr(LockStoreConformance, name), {"colour": colour, **case}):
                    continue
                getattr(Suite(), name)(trial, **case)
        except (pytest.skip.Exception, DLockError):
            continue
        except BaseException as error:  # noqa: BLE001  # judged by the caller: a crash is not a verdict
            return name, error
    return None


@left_behind
@pytest.mark.parametrize(("broken", "base", "colour"), CASES)
def test_a_broken_store_is_rejected_by_its_clause(broken: Broken, base: str, colour: Colour) -> None:
    """A failed assertion of a test of that clause, and no crash."""
    rejected(broken, broken.patch, colour, BASES[base])


@left_behind
@pytest.mark.parametrize(("broken", "colour"), CLIENTS)
def test_a_broken_client_is_rejected_by_a_clause_of_stores(broken: BrokenLinks, colour: Colour) -> None:
    """The server is right, and so is each condition; the connections between are not."""
    on = partial(socket_harness, links=broken.clients, race_rounds=ROUNDS)

    rejected(broken, lambda _: None, colour, on)


def rejected(broken: Broken | BrokenLinks, patch: Any, colour: Colour, on: Callable[..., Any]) -> None:
    """Fail unless it is found out, by a message that names a clause."""
    tries = (verdict(patch, broken.clause, colour, partial(on, soon_s=soon_s)) for soon_s in (SOON_S, LATER_S))
    found = next(filter(None, tries), None)
    assert found is not None, f"no test of {broken.clause} noticed that {broken.name}"
    name, error = found
    assert isinstance(error, AssertionError), f"{name} did not judge but crash: {error!r}"
    assert str(error).startswith((broken.clause, "S17", "B1", "the port")), (
        f"{name} failed with a message that names no clause: {error}"
    )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("clause", clauses())
def test_the_correct_store_passes(clause: str, base: str) -> None:
    """So it is the patch that is rejected, and not the store that is patched; each verb is asked what the port says, and nothing else."""
    assert verdict(exacting, clause, Colour.SYNC, BASES[base]) is None


def exacting(wire: Wire) -> None:
    """Take for each verb the request that the port names: a store may read of it what another has not."""
    for verb, kind in {"claim": Claim, "claim_when_free": Claim, "replace": Replace, "release": Release}.items():
        wire.steps[verb] = partial(only, kind, wire.steps[verb])


def only(kind: type, step: Callable[[Any], Any], request: Any) -> Any:
    """Do *step* if *request* is of this *kind*."""
    assert type(request) is kind, (
        f"the suite asked with a {type(request).__name__} where the port has a {kind.__name__}"
    )
    return step(request)


def test_there_are_broken_stores_for_every_clause() -> None:
    """A clause that no broken store breaks might as well not be tested."""
    assert len(BROKEN) >= BROKEN_MIN
    assert len({broken.name for broken in BROKEN}) == len(BROKEN)
    assert {broken.clause for broken in BROKEN} == set(clauses())


@pytest.mark.parametrize("colour", Colour)
def test_an_error_that_no_test_expects_tells_what_was_asked(colour: Colour) -> None:
    """Its author did not write the test, and a step before the fact is none of what the test says."""
    wire = Wire()
    wire.provisioned = False
    harness = wired_harness(wire)

    with Trial(harness, colour, "test_s4_the_payload_of_a_claim") as trial, pytest.raises(DLockError) as raised:
        trial.hold("k")

    [note] = raised.value.__notes__
    assert note.startswith(f"S4 could not be tried for the {colour} store: it raised this\n")
    assert "claim [held rvn=" in note
