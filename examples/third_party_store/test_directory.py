"""The directory store keeps every clause of the port; ``pytest test_directory.py`` runs all of it."""

from pathlib import Path

import pytest
from dlock_conformance import LockClientConformance, LockStoreConformance, StoreHarness


class _OnDirectory:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StoreHarness:
        """Give each test a directory of its own."""
        return StoreHarness(f"directory://{tmp_path}", several_processes=True, restart=lambda: None)


class TestDirectoryStore(_OnDirectory, LockStoreConformance):
    """Every clause of the port."""

    colours = ("sync",)


class TestDirectoryClient(_OnDirectory, LockClientConformance):
    """What users see, by both clients."""
