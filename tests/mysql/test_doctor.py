"""``dlock doctor`` on a server that ``connect`` refuses."""

from __future__ import annotations

import pytest

from dlock_mysql import provision
from tests.cli.operator_support import Command
from tests.mysql.support import TABLE


@pytest.mark.parametrize(
    ("setting", "name"), [({"Slaves_connected": "1"}, "mysql-replica"), ({"wsrep_on": "ON"}, "mysql-cluster")]
)
def test_doctor_examines_a_server_that_is_refused(
    setting: dict[str, str],
    name: str,
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the reason, the remedy, and the name that accepts it; the exit code tells."""
    alone = provision._failover
    monkeypatch.setattr(provision, "_failover", lambda settings: alone(settings | setting))

    out = Command(capsys).refused(f"{url}?table={TABLE}&ssl_mode=disabled", name)

    for words in ("remedy: keep locks on a server", "-> C:"):
        assert words in out
