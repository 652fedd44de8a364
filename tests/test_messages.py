"""The messages that mistakes of a first use meet are those that a person has read: ``tests/messages/messages.txt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.messages.mistakes import MISTAKES
from tests.messages.table import TABLE, table

if TYPE_CHECKING:
    from pathlib import Path


def test_messages_are_those_that_were_read(tmp_path: Path) -> None:
    """``python -m tests.update_messages`` writes them anew; read the difference."""
    assert table(tmp_path) == TABLE.read_text(encoding="utf-8")


def test_mistakes_are_ninety_or_more_and_none_stands_twice() -> None:
    """Each as a person makes it."""
    mistakes = [mistake for subject in MISTAKES.values() for mistake in subject]

    assert len(mistakes) >= 90
    assert len(set(mistakes)) == len(mistakes)
