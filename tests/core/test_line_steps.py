"""A line by itself, asked step by step about what whole clients seldom do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from dlock_core.engine.lines import Lines
from dlock_core.states import Ended, New
from tests.core.worlds import async_only

if TYPE_CHECKING:
    from tests.core.worlds import World


class _Standing:
    """What a line asks of a handle."""

    key = "k"
    line: Any = None
    state: Any = New(cast("Any", None))


async def _asks(lines: Lines, handle: Any) -> bool:
    """Have *handle* enter, and tell whether it may ask at once."""
    entering = asyncio.ensure_future(lines.enter(handle, 2**62))
    await asyncio.sleep(0)
    return entering.done() or entering.cancel() is None


@async_only
async def test_who_leaves_late_leaves_the_line_that_it_stood_in(world: World) -> None:
    """It was taken for gone, since it had ended: another line may stand by then, or none."""
    async with world.client() as client:
        lines = Lines(client._engine.runtime, {})
        late, next_one, newcomer = (_Standing() for _ in range(3))
        assert await _asks(lines, late)
        late.state = Ended(cast("Any", None), cast("Any", None))
        assert await _asks(lines, next_one)
        lines.leave(cast("Any", next_one), failed=False)
        assert "k" not in lines
        assert await _asks(lines, newcomer)

        lines.leave(cast("Any", late), failed=False)
        assert "k" in lines
        lines.leave(cast("Any", late), failed=False)
        lines.leave(cast("Any", newcomer), failed=False)
        assert "k" not in lines


@async_only
async def test_first_in_line_is_told_of_no_release_but_that_which_it_waits_for(world: World) -> None:
    """After so many grants in a row it waits for none: it comes no sooner to the lock than the waiters of other clients."""
    async with world.client() as client:
        holder, other, first = (_Standing() for _ in range(3))
        lines = Lines(client._engine.runtime, {"k": cast("Any", holder)})
        assert await _asks(lines, first)
        pausing = asyncio.ensure_future(lines._lines["k"].pause(cast("Any", first), 100))
        await world.settle()

        lines.note_release(cast("Any", other))
        await world.settle()
        assert not pausing.done()
        lines.note_release(cast("Any", holder))
        await world.settle()
        assert pausing.done()
        assert not lines._lines["k"]._pauses
