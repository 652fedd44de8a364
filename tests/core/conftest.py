"""Fixtures of the tests of the core."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option comes from where the tests happen to run."""
    for name in list(os.environ):
        if name.startswith("DLOCK_") and name != "DLOCK_SEED":
            monkeypatch.delenv(name)
