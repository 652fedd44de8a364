"""The ZooKeeper store: what the conformance suite does not ask."""
