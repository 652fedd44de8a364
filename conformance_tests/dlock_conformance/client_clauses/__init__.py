"""The tests of clients over a store, by what users ask for: each module is a part of :class:`dlock_conformance.LockClientConformance`."""
