"""Random walks through larger worlds of two records; ``python -m proof.simulate.walks`` goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dlock_core import lease, members
from proof.simulate.walks import WALKS, main, walk_members, walk_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlock_core.members import Wish
    from dlock_core.record import LockRecord, SessionRef

_WALKS = 60


@pytest.mark.parametrize("kind", WALKS)
def test_no_walk_breaks_a_rule(kind: str) -> None:
    """Whatever is late, lost, dropped, broken or removed."""
    walks = [WALKS[kind](seed) for seed in range(_WALKS)]

    assert [walk for walk in walks if walk.violation is not None] == []
    assert sum(len(walk.way) for walk in walks) > 20 * _WALKS


def test_walks_see_a_session_whose_end_is_believed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is absent proves nothing before it was absent for a lease."""

    def at_once(ref: SessionRef, record: LockRecord | None, now: int, absent_at: int | None) -> bool | None:
        return True if record is None else right(ref, record, now, absent_at)

    right = lease.is_session_over
    monkeypatch.setattr(lease, "is_session_over", at_once)

    assert {walk_sessions(seed).violation for seed in range(300)} == {None, "two leases are valid (I1)"}


def test_walks_see_a_writer_beside_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who joins must wait for whoever is in the way."""

    def nobody(wish: Wish, record: LockRecord | None, over: Sequence[str]) -> tuple[SessionRef, ...] | None:
        return None if wish.mode == members.WRITE else right(wish, record, over)

    right = members.in_the_way
    monkeypatch.setattr(members, "in_the_way", nobody)

    assert "a writer beside another holder" in {walk_members(seed).violation for seed in range(_WALKS)}


def test_command_tells_what_it_walked(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 0 where no rule was broken."""
    assert main(["members", "--first", "7", "--count", "3"]) == 0

    assert capsys.readouterr().out.startswith("members: 3 walks, ")
