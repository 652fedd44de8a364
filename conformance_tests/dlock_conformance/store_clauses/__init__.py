"""The tests of a store, by clause of the port: each module is a part of :class:`dlock_conformance.LockStoreConformance`."""
