"""``dlock doctor`` on a server that ``connect`` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dlock_mongodb import provision
from tests.cli.operator_support import Command
from tests.mongodb.support import COLLECTION, DATABASE

if TYPE_CHECKING:
    from dlock_core import Guarantees


@pytest.mark.usefixtures("raw")
def test_doctor_examines_a_standalone(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, the remedy, and the name that accepts it; the exit code tells."""
    told = provision._guarantees

    def as_standalone(hello: dict[str, Any], build: dict[str, Any], *, notifies: bool) -> Guarantees:
        without = {name: value for name, value in hello.items() if name not in ("setName", "hosts", "msg")}
        return told(without, build, notifies=notifies)

    monkeypatch.setattr(provision, "_guarantees", as_standalone)
    address = url.partition("://")[2].partition("/")[0]
    ours = f"mongodb://{address}/{DATABASE}?directConnection=true&collection={COLLECTION}"

    assert "--replSet" in Command(capsys).refused(ours, "mongodb-standalone")
