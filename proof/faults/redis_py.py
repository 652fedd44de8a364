"""The same work with redis-py's own Lock: what its cells must show wrong, or they see nothing.

Its value is a random text, not a number, so nothing can be fenced by it; the number of the grant in the book stands for a token.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.exceptions import LockError, RedisError

from proof.faults.cancelled import Interrupted, Point
from proof.faults.party import in_threads, now

if TYPE_CHECKING:
    from proof.faults.book_line import Line
    from proof.faults.party import Scene

__all__ = ["NAME", "peer"]

NAME = "peer:{}"
_POLLS = 10  # in a lease
_POINTS = 4


def peer(scene: Scene) -> None:
    """Work on all keys. ``peer-default`` takes the lock as its defaults are, without an end."""
    if scene.order.kind == "peer-cancelled":
        asyncio.run(_cancelled(scene))
    else:
        # As its own documentation makes one: with its defaults, retries among them.
        server = urlsplit(scene.order.url)
        in_threads(scene, _key, redis.Redis(server.hostname or "", server.port or 0))


def _key(scene: Scene, key: str, client: Any) -> None:
    line, lease_s = scene.line(), scene.order.lease_s
    timeout = None if scene.order.kind == "peer-default" else lease_s
    line.tell("wait", key, now())
    while True:
        value = secrets.token_hex()
        lock = client.lock(NAME.format(key), timeout=timeout, thread_local=False)
        try:
            if lock.acquire(blocking=False, token=value):
                _hold(scene, line, key, lock)
                line.tell("wait", key, now())
            elif client.get(NAME.format(key)) == value.encode():
                line.tell("note", "orphans")  # refused, and it is its own value that stands there
        except RedisError as error:
            line.tell("note", f"errors: {type(error).__name__}")  # of a renewal or a release
        time.sleep(random.random() * 2 * lease_s / _POLLS)


def _hold(scene: Scene, line: Line, key: str, lock: Any) -> None:
    number = line.ask("grant", key, None, now())
    until = scene.holds_until()
    try:
        while (at := now()) < until:
            if lock.timeout is None:
                if not lock.owned():
                    raise LockError("lost")
            else:
                lock.reacquire()  # asks the server whose it is, and renews
            seen = line.ask("fence", key, number)
            time.sleep(scene.computes_s())
            line.tell("use", key, number, at, 0, seen)
        line.tell("end", key, number, "released", now())
        lock.release()
    except LockError:
        line.tell("end", key, number, "lost", now())
        scene.later(line, key, number)


async def _cancelled(scene: Scene) -> None:
    async with redis.asyncio.Redis.from_url(scene.order.url) as client, asyncio.TaskGroup() as tasks:
        for key in scene.order.keys:
            tasks.create_task(_cancelled_key(scene, key, client))


async def _cancelled_key(scene: Scene, key: str, client: Any) -> None:
    line, lease_s = scene.line(), scene.order.lease_s
    while True:
        value = secrets.token_hex()
        lock = client.lock(NAME.format(key), timeout=lease_s, thread_local=False)
        point = Point()
        point.at = random.randint(1, _POINTS)
        turn: Any = Interrupted(lock.acquire(blocking=False, token=value), point)
        try:
            if await asyncio.create_task(turn):
                number = line.ask("grant", key, None, now())
                await asyncio.sleep(scene.computes_s())
                line.tell("end", key, number, "released", now())
                await lock.release()
        except asyncio.CancelledError:
            line.tell("cancel", key, now())
            if await client.get(NAME.format(key)) == value.encode():
                line.tell("note", "orphans")  # nobody knows that it is held
        except LockError:
            line.tell("note", "errors: LockError")
        await asyncio.sleep(random.random() * 2 * lease_s / _POLLS)
