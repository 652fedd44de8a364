"""The tables of docs/coming-from-other-clients.md: complete, and true of every store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.migration import command_exercised, methods_exercised, options_exercised, shared_exercised
from tests.migration.conftest import EMBEDDED, STORES
from tests.migration.inventory import THEIRS
from tests.migration.shop import ANY_STORE, EXERCISES, Shop

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-other-clients.md"
_CODE = re.compile(r"`([^`]+)`")
_DASH = "–"


class Row(NamedTuple):
    """A row of a table, under the heading of its client."""

    client: str
    theirs: str
    ours: str
    why: str


def rows() -> list[Row]:
    """Return the rows of all tables."""
    found, client = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            client = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("theirs", "---"):
            found.append(Row(client, *cells))
    return found


ROWS = rows()
OURS = sorted({name for row in ROWS for name in _CODE.findall(row.ours)})


@pytest.mark.parametrize("heading", THEIRS)
def test_nothing_of_theirs_is_missing(heading: str) -> None:
    """Each option and method of the client has a row."""
    told = {name for row in ROWS if row.client.startswith(heading) for name in _CODE.findall(row.theirs)}

    assert [name for name in THEIRS[heading] if name not in told] == []


def test_each_name_of_ours_is_tried_out() -> None:
    """A name that no exercise reaches would be a promise that nobody looks at; an exercise that no row needs is a leftover."""
    assert {options_exercised, methods_exercised, shared_exercised, command_exercised}
    assert sorted(EXERCISES) == OURS
    assert len(OURS) > 50


def test_each_row_names_ours_or_says_why_not() -> None:
    """A dash alone would leave the reader with nothing."""
    assert [row.theirs for row in ROWS if row.ours == _DASH and not row.why] == []
    assert [row.theirs for row in ROWS if row.ours != _DASH and not _CODE.search(row.ours)] == []


TRIED = [(store, name) for store in STORES for name in OURS if store in EMBEDDED or name not in ANY_STORE]


@pytest.mark.parametrize(("opened", "name"), TRIED, indirect=["opened"], ids=lambda part: part)
def test_ours_does_what_the_table_says(name: str, shop: Shop) -> None:
    """Whatever a store could get wrong is tried on every store."""
    EXERCISES[name](shop)
