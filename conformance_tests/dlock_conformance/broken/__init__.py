"""Stores and clients with one fault each, as data, and the clause that must reject each of them. The suite is tried on all of them."""

from dlock_conformance.broken.stores import BROKEN, BROKEN_LINKS, Broken, BrokenLinks

__all__ = ["BROKEN", "BROKEN_LINKS", "Broken", "BrokenLinks"]
