"""What a Redis server says of itself, and what that means for locks. There is nothing to create."""

from __future__ import annotations

from typing import Any

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_redis._resp import pack

__all__ = ["CONFIG", "INFO", "guarantees_of"]

INFO = pack(b"INFO")
CONFIG = pack(b"CONFIG", b"GET", b"append*")
_OLDEST = 6
_CLOCK = (
    "tokens follow the server's clock (microseconds), past lost data too unless it is set back; "
    "with server_clock it measures ages, else no lease is measured by it"
)
_REASONS = {
    "redis-cluster": "a Cluster replicates behind the writes: a failover can grant a held lock again, with any token",
    "redis-sentinel": "a new primary may lack the last writes, and the old one, restarted, is writable and empty for seconds",
    "redis-replica": "replicas follow behind the writes: if one is promoted, or is what the URL names, a held lock can be granted again",
    "redis-evicting-policy": "its maxmemory-policy may drop the record of a held lock; set it to noeviction",
}


def guarantees_of(info: Any, config: Any, unsafe: str) -> Guarantees:
    """Return what INFO and CONFIG amount to; *config* is None where it is forbidden, *unsafe* the kind of topology the client is made for.

    Raises: StoreSetupError: the server is older than Redis 6.
    """
    facts = dict(line.split(":", 1) for line in _text(info).splitlines() if ":" in line)
    version = facts.get("redis_version", "0")
    if not version.partition(".")[0].isdecimal() or int(version.partition(".")[0]) < _OLDEST:
        raise StoreSetupError(
            f"the server calls itself Redis {version}; dlock needs 6.0 or newer, or Valkey: update the server"
        )
    persistence = _pairs(config)
    logged = facts.get("aof_enabled") == "1"
    durable = logged and persistence.get("appendfsync") == "always"
    traits = [unsafe, "redis-cluster" if facts.get("cluster_enabled") == "1" else ""]
    traits += ["redis-replica" if facts.get("connected_slaves", "0") != "0" or facts.get("role") == "slave" else ""]
    policy = facts.get("maxmemory_policy", "unknown")
    traits += ["" if policy in ("noeviction", "unknown") else "redis-evicting-policy"]
    names = tuple(dict.fromkeys(filter(None, traits)))
    sync = (
        persistence.get("appendfsync", "unknown: CONFIG GET is forbidden" if config is None else "unknown")
        if logged
        else "off"
    )
    # A primary that was cut off from its replicas, and does not know of its successor, still answers.
    replicated = bool(set(names) - {"redis-evicting-policy"})
    valkey = facts.get("server_name") == "valkey"
    return Guarantees(
        store="valkey" if valkey else "redis",
        version=facts.get("valkey_version", version) if valkey else version,
        grade=Grade.B if durable and not names else Grade.C,
        token=TokenOrder.ORDERED,
        deletes=False,
        refusal_linearizable=not replicated,
        durable=durable,
        failover=_failover(durable=durable, replicated=replicated),
        clock=_CLOCK,
        notes=(f"append-only file: {sync}", f"maxmemory-policy: {policy}", f"role: {facts.get('role', 'unknown')}"),
        unsafe=tuple(
            (name, f"{_REASONS[name]} ({policy})" if name == "redis-evicting-policy" else _REASONS[name])
            for name in names
        ),
    )


def _failover(*, durable: bool, replicated: bool) -> str:
    if replicated:
        return "a failover can lose acknowledged writes: a held lock can be granted again; its old holder notices at its next renewal"
    if durable:
        return "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
    return "one server that forgets on a crash: a lock held then can be granted again before its lease ends, with a greater token"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _pairs(config: Any) -> dict[str, str]:
    if config is None:
        return {}
    items = config.items() if isinstance(config, dict) else zip(config[::2], config[1::2], strict=True)
    return {_text(name): _text(value) for name, value in items}
