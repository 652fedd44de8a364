"""What the tests of elections share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlock_core import Leader
    from tests.core.worlds import World


async def nothing(term: Any) -> None:
    """Do nothing."""


def without_cancellation(world: World) -> dict[str, Any]:
    """Return the options with which no body is cancelled, in the colour that can."""
    return {"cancel_on_loss": False} if world.colour == "async" else {}


def reported(leader: Leader | None) -> Leader:
    """Return the leader that was found."""
    assert leader is not None
    return leader
