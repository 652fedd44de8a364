"""What a test of the suites needs beyond an open store, and why it may not apply to a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from dlock_conformance.harness import Colour, StoreHarness
from dlock_conformance.parties import NOT_PROMISED, Way
from dlock_core.store import Capability

__all__ = ["inapplicable", "name_of", "needs", "not_given", "verbs_of"]

_CAPABILITIES = {
    "replace_many": ("batch_renew",),
    "read_age": ("server_clock",),
    "claim_many": ("atomic_multi",),
    "claim_when_free": ("claim_wait",),
    "prune": ("prune",),
}
Test = TypeVar("Test", bound=Callable[..., object])


def needs(*names: str) -> Callable[[Test], Test]:
    """Mark a test, or every test of a class, that applies only where the harness gives all of *names*.

    A name is a capability, a fault, a field of the harness, or a colour.
    """

    def mark(marked: Test) -> Test:
        tests = [each for name, each in vars(marked).items() if name.startswith("test_")]
        for test in tests if isinstance(marked, type) else [marked]:
            test.__dict__["needs"] = (*_needs_of(test, {}), *names)
        return marked

    return mark


def inapplicable(suite: type, test: Any, name: str, parameters: Mapping[str, Any]) -> str | None:
    """Return why *test* does not apply to the store that *suite* tries; None if it does.

    The suite's ``lacks`` names what the harness does not give, its ``cannot_carry`` what the records cannot carry, by patterns of names;
    the way in which locks are had may not promise all either.
    """
    for need in _needs_of(test, parameters):
        if need in tuple(Colour) and need != parameters["colour"]:
            return f"only the {need} store is tried in this way"
        if need in getattr(suite, "lacks", ()):
            return f"the harness gives no {need!r}"
    patterns: dict[str, str] = {**getattr(suite, "cannot_carry", {}), **NOT_PROMISED[parameters.get("way", Way.LOCK)]}
    return next((reason for pattern, reason in patterns.items() if re.search(pattern, name)), None)


def name_of(suite: type, parameters: Mapping[str, Any]) -> str:
    """Return what the report calls *suite*: its name, with the way in which locks are had where that is not the plain one."""
    way = parameters.get("way", Way.LOCK)
    return suite.__name__ if way is Way.LOCK else f"{suite.__name__}, {way}"


def not_given(harness: StoreHarness, test: Any, parameters: Mapping[str, Any]) -> list[str]:
    """Return what *test* needs and *harness* does not give; first the capabilities, without which nothing else makes it apply."""
    missing = [need for need in _needs_of(test, parameters) if need not in tuple(Colour) and not harness.gives(need)]
    return sorted(missing, key=lambda need: need not in tuple(Capability))


def _needs_of(test: Any, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    named: tuple[str, ...] = getattr(test, "needs", ())
    fault = (str(parameters["fault"]),) if "fault" in parameters else ()
    asked = (str(parameters.get("what")), str(parameters.get("verb")))
    return (*named, *fault, *(need for each in asked for need in _needed_for(each)))


def verbs_of(harness: StoreHarness, verbs: Iterable[str]) -> list[str]:
    """Return those of *verbs* that the store has."""
    return [verb for verb in verbs if all(harness.gives(need) for need in _needed_for(verb))]


def _needed_for(verb: str) -> tuple[str, ...]:
    """Return the capability that *verb* belongs to, if to any."""
    return next((need for start, need in _CAPABILITIES.items() if verb.startswith(start)), ())
