"""Conformance tests for stores of dlock: pytest classes that a store author subclasses. See ``conformance_tests/README.md``."""

from dlock_conformance.client_suite import LockClientConformance
from dlock_conformance.faults import Fault, Faults
from dlock_conformance.harness import Opening, StoreHarness
from dlock_conformance.parties import WAYS, Way
from dlock_conformance.suite import LockStoreConformance

__all__ = [
    "WAYS",
    "Fault",
    "Faults",
    "LockClientConformance",
    "LockStoreConformance",
    "Opening",
    "StoreHarness",
    "Way",
]
