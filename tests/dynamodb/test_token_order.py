"""The order of the steps that give a grant its token: every interleaving of small fleets, and why no other order is right.

Clients pause anywhere and leases end at any moment, so nothing here rests on a clock. A Java client takes and deletes the row in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

import pytest


class Stage(Enum):
    """How far one acquire has come."""

    IDLE = auto()
    GRANTED = auto()  # the row shows our grant
    DRAWN = auto()  # and a token was drawn
    HOLDING = auto()  # and was handed out


class Client(NamedTuple):
    """One client of ours; *grant* counts the grants of all."""

    stage: Stage = Stage.IDLE
    grant: int = 0
    token: int = 0
    left: int = 2


class World(NamedTuple):
    """*row*: whose grant it shows (0: none stands, -1: Java's). *given*: the token that each grant handed out, in order; 0 for none."""

    clients: tuple[Client, ...]
    row: int = 0
    drawn: int = 0
    given: tuple[int, ...] = ()
    java: int = 2


DRAW_FIRST, HAND_OUT_AT_ONCE, SHIPPED = "drawn before the grant", "handed out at once", "shipped"


def moves(world: World, order: str) -> Iterator[World]:
    """Yield what may happen next."""
    for place, client in enumerate(world.clients):
        for moved, changed in steps(client, world, order):
            yield changed._replace(clients=(*world.clients[:place], moved, *world.clients[place + 1 :]))
    if world.java:
        yield world._replace(row=0 if world.row == -1 else -1, java=world.java - 1)


def steps(client: Client, world: World, order: str) -> Iterator[tuple[Client, World]]:
    """Yield the next step of *client*: a claim or a takeover, a draw, the writing of the token, or a release that deletes."""
    match client.stage:
        case Stage.IDLE if client.left and order == DRAW_FIRST and not client.token:
            yield client._replace(token=world.drawn + 1), world._replace(drawn=world.drawn + 1)
        case Stage.IDLE if client.left:
            grant = len(world.given) + 1
            taken = world._replace(row=grant, given=(*world.given, client.token))
            stage = Stage.HOLDING if order == DRAW_FIRST else Stage.GRANTED
            yield Client(stage, grant, client.token, client.left - 1), taken
        case Stage.GRANTED:
            yield (
                client._replace(stage=Stage.DRAWN, token=world.drawn + 1),
                world._replace(drawn=world.drawn + 1),
            )
        case Stage.DRAWN if order == SHIPPED and world.row != client.grant:
            yield Client(left=client.left), world
        case Stage.DRAWN:
            at = client.grant - 1
            given = (*world.given[:at], client.token, *world.given[at + 1 :])
            yield client._replace(stage=Stage.HOLDING), world._replace(given=given)
        case Stage.HOLDING:
            yield Client(left=client.left), world._replace(row=0 if world.row == client.grant else world.row)
        case _:
            return


def in_order(world: World) -> bool:
    """Whether each grant that handed a token out has a greater one than those before it."""
    given = [token for token in world.given if token]
    return given == sorted(set(given))


def explored(order: str, clients: int) -> tuple[bool, int]:
    """Return whether all worlds are in order, and how many there are; it ends at the first that is not."""
    start = World((Client(),) * clients)
    seen, ahead = {start}, [start]
    while ahead:
        world = ahead.pop()
        if not in_order(world):
            return False, len(seen)
        for following in moves(world, order):
            if following not in seen:
                seen.add(following)
                ahead.append(following)
    return True, len(seen)


def test_tokens_of_the_shipped_order_rise_in_every_interleaving() -> None:
    """Granted, drawn, and written where the row still shows that grant: then the draws come in the order of the grants."""
    ordered, worlds = explored(SHIPPED, 2)

    assert ordered
    assert worlds > 1000


@pytest.mark.parametrize("order", [DRAW_FIRST, HAND_OUT_AT_ONCE])
def test_tokens_of_another_order_do_not(order: str) -> None:
    """A slow client brings a smaller token to a later grant, or a paused one a greater token to an earlier grant."""
    ordered, _ = explored(order, 2)

    assert not ordered
