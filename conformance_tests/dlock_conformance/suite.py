"""The suite: subclass it, give it a harness, and pytest runs every clause of the port against your store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from dlock_conformance.clauses import clause_of
from dlock_conformance.harness import Colour, Opening, StoreHarness, missing_harness
from dlock_conformance.needs import inapplicable, not_given
from dlock_conformance.report import PROPERTY
from dlock_conformance.store_clauses.aging import AgeClauses
from dlock_conformance.store_clauses.batches import BatchClauses
from dlock_conformance.store_clauses.calling import CallingClauses
from dlock_conformance.store_clauses.changing import ChangingClauses
from dlock_conformance.store_clauses.claim_waiting import ClaimWaitClauses
from dlock_conformance.store_clauses.claiming import ClaimingClauses
from dlock_conformance.store_clauses.claiming_many import AtomicMultiClauses
from dlock_conformance.store_clauses.closing import ClosingClauses
from dlock_conformance.store_clauses.connecting import ConnectionClauses
from dlock_conformance.store_clauses.costs import CostClauses
from dlock_conformance.store_clauses.freeing import FreeingClauses
from dlock_conformance.store_clauses.granting import GrantingClauses
from dlock_conformance.store_clauses.lasting import LastingClauses
from dlock_conformance.store_clauses.living import LivingClauses
from dlock_conformance.store_clauses.pruning import PruneClauses
from dlock_conformance.store_clauses.racing import RacingClauses
from dlock_conformance.store_clauses.reading import ReadingClauses
from dlock_conformance.store_clauses.reconnecting import ReconnectingClauses
from dlock_conformance.store_clauses.records import RecordClauses
from dlock_conformance.store_clauses.scanning import ScanningClauses
from dlock_conformance.store_clauses.sending import SendingClauses
from dlock_conformance.store_clauses.sessions import SessionClauses
from dlock_conformance.store_clauses.trouble import TroubleClauses
from dlock_conformance.store_clauses.waiting import WaitingClauses
from dlock_conformance.store_clauses.waking import NotifyClauses
from dlock_conformance.store_clauses.whole import WholeClauses
from dlock_conformance.subject import Loop, Subject, Transcript
from dlock_conformance.trial import Trial
from dlock_core.errors import DLockError
from dlock_core.store import Guarantees

__all__ = ["LockStoreConformance", "overridden", "skip_inapplicable", "story_of"]

_known: dict[type, dict[str, Any]] = {}


def story_of(suite: type, harness: StoreHarness) -> dict[str, Any]:
    """Return what the report says of the store that *suite* tries; the store is asked in the first test."""
    if suite not in _known:
        story: dict[str, Any] = {"store": harness.name, "version": harness.version, "found": harness.found, "grade": ""}
        story["capabilities"] = sorted(harness.capabilities)
        opening = Opening(harness.url, open_store=harness.open_store, aopen_store=harness.aopen_store)
        told = next(filter(None, (_told(opening, colour) for colour in Colour)), None)
        if told is None:
            return story  # the tests will say what is wrong
        story["store"] = harness.name or told.store
        story["version"] = harness.version or told.version
        story["grade"] = str(told.grade)
        _known[suite] = story
    return _known[suite]


def _told(opening: Opening, colour: Colour) -> Guarantees | None:
    """Return what the store says of itself, if it has this *colour* and says it."""
    loop = Loop()
    try:
        store = Subject("asked", opening, colour, loop, Transcript())
        told = store.guarantees()
        store.close()
    except (DLockError, AssertionError):
        return None
    finally:
        loop.close()
    return told


def overridden(subclass: type, base: type) -> list[str]:
    """Return the tests of *base* that *subclass* replaces or drops; an expected failure, strict and with a reason, is allowed."""
    return [
        name
        for name in dir(base)
        if name.startswith("test_")
        and getattr(subclass, name) is not getattr(base, name)
        and not _expected_to_fail(getattr(subclass, name))
    ]


def _expected_to_fail(test: Any) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("strict") and mark.kwargs.get("reason") for mark in marks)


def skip_inapplicable(suite: object, harness: StoreHarness, request: pytest.FixtureRequest) -> None:
    """Skip a test that does not apply to the store, where no plugin has deselected it.

    Raises: AssertionError: *lacks* of the suite names something that the harness gives; its tests would be left out for nothing.
    """
    given = [name for name in getattr(suite, "lacks", ()) if harness.gives(name)]
    assert not given, f"{type(suite).__name__}.lacks names what its harness gives: {', '.join(given)}"
    test, parameters = request.function, request.node.callspec.params
    reason = inapplicable(type(suite), test, request.node.name, parameters)
    missing = not_given(harness, test, parameters)
    if reason or missing:
        name = clause_of(test.__name__) or test.__name__
        pytest.skip(f"{name} does not apply: {reason or f'the harness gives no {missing[0]!r}'}")


class LockStoreConformance(
    ClaimingClauses,
    ChangingClauses,
    RacingClauses,
    ReadingClauses,
    ScanningClauses,
    RecordClauses,
    GrantingClauses,
    FreeingClauses,
    SessionClauses,
    WholeClauses,
    TroubleClauses,
    SendingClauses,
    ConnectionClauses,
    ReconnectingClauses,
    CallingClauses,
    ClosingClauses,
    LastingClauses,
    LivingClauses,
    CostClauses,
    BatchClauses,
    NotifyClauses,
    ClaimWaitClauses,
    WaitingClauses,
    AtomicMultiClauses,
    AgeClauses,
    PruneClauses,
):
    """Every clause of :mod:`dlock_core.store`, for each colour that the store has.

    A subclass gives the fixture ``harness``, of any scope. It may not override a test, unless by a strict ``xfail`` with a reason.

    *lacks* names what the harness does not give: capabilities, faults, fields. *cannot_carry* says what the store's records cannot carry by
    their format, as {pattern of test names: reason}. The plugin deselects the tests that need it, and the report says why.
    """

    colours: ClassVar[tuple[str, ...]] = tuple(Colour)
    lacks: ClassVar[Collection[str]] = ()
    cannot_carry: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """To be overridden: how to open the store."""
        raise missing_harness(type(self))

    @pytest.fixture
    def trial(self, harness: StoreHarness, colour: str, request: pytest.FixtureRequest) -> Iterator[Trial]:
        """One test's stores and keys."""
        facts: dict[str, Any] = {"suite": type(self).__name__, "colour": colour, "test": request.function.__name__}
        facts.update(story_of(type(self), harness))
        request.node.user_properties.append((PROPERTY, facts))
        skip_inapplicable(self, harness, request)
        with Trial(harness, Colour(colour), request.function.__name__) as trial:
            trial.facts = facts  # the test may add to them
            yield trial

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every test once for each colour."""
        if "trial" in metafunc.fixturenames:
            metafunc.parametrize("colour", [str(Colour(colour)) for colour in self.colours])

    def test_no_overrides(self) -> None:
        """A subclass that replaces a test would pass without keeping the clause."""
        found = overridden(type(self), LockStoreConformance)
        message = f"{type(self).__name__} overrides {', '.join(found)}; mark each @pytest.mark.xfail(strict=True, reason=...) or remove it"
        assert not found, message
