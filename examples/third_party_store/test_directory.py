"""The directory store keeps every clause of the port; ``pytest test_directory.py`` runs all of it."""

from pathlib import Path

import pytest
from dlock_conformance import LockClientConformance, LockStoreConformance, StoreHarness


@pytest.fixture
def directory(tmp_path: Path) -> StoreHarness:
    """Give each test a directory of its own."""
    return StoreHarness(f"directory://{tmp_path}", several_processes=True, restart=lambda: None)


class TestDirectoryStore(LockStoreConformance):
    """Every clause of the port."""

    colours = ("sync",)

    @pytest.fixture
    def harness(self, directory: StoreHarness) -> StoreHarness:
        """As above."""
        return directory


class TestDirectoryClient(LockClientConformance):
    """What users see, by both clients."""

    @pytest.fixture
    def harness(self, directory: StoreHarness) -> StoreHarness:
        """As above."""
        return directory
