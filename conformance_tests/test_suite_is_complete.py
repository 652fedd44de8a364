"""Every store that is installed here is tried by both suites in every colour that it has."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import pytest
from dlock_conformance import WAYS, LockClientConformance, LockStoreConformance
from dlock_conformance.harness import Colour

from dlock_core.backend import installed_schemes

HERE = Path(__file__).parent
# The schemes of each backend that is installed: redis and rediss are one store.
SCHEMES: dict[str, list[str]] = {}
for _scheme, _claims in installed_schemes().items():
    SCHEMES.setdefault(_claims[0].value, []).append(_scheme)


@cache
def suites(backend: str) -> list[type]:
    """Return the classes of the module that tries *backend*, named after one of its schemes."""
    modules = [f"test_{scheme}" for scheme in SCHEMES[backend] if (HERE / f"test_{scheme}.py").is_file()]
    schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES[backend])
    assert modules, (
        f"the store of {schemes} is installed, and conformance_tests/test_{SCHEMES[backend][0]}.py is missing"
    )
    found = vars(importlib.import_module(modules[0]))
    return [each for name, each in found.items() if name.startswith("Test") and isinstance(each, type)]


@pytest.mark.parametrize("suite", [LockStoreConformance, LockClientConformance])
@pytest.mark.parametrize("backend", SCHEMES)
def test_every_store_is_tried_by_every_suite(backend: str, suite: type) -> None:
    """A suite that is not bound to a store says nothing about it."""
    assert [each.__name__ for each in suites(backend) if issubclass(each, suite)], f"{backend} has no {suite.__name__}"


@pytest.mark.parametrize("backend", SCHEMES)
def test_every_client_is_tried_in_both_colours(backend: str) -> None:
    """Users of asyncio get the same promises, native or through threads."""
    for each in suites(backend):
        if issubclass(each, LockClientConformance):
            assert tuple(each.colours) == tuple(Colour)


@pytest.mark.parametrize("backend", SCHEMES)
def test_every_client_is_tried_in_each_way(backend: str) -> None:
    """A term, a run and a permit have to do on each store what a lease does; writers are tried on one."""
    assert all(set(each.ways) >= set(WAYS) for each in suites(backend) if issubclass(each, LockClientConformance))
