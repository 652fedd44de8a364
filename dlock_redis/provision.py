"""What a Redis server says of itself, and what that means for locks. There is nothing to create."""

from __future__ import annotations

from dlock_core.errors import StoreSetupError
from dlock_core.store import Grade, Guarantees, TokenOrder
from dlock_redis._resp import pack

INFO = pack(b"INFO")
CONFIG = pack(b"CONFIG", b"GET", b"*append*")
_OLDEST = 6
_CLOCK = (
    "tokens follow the server's clock (microseconds), past lost data too unless it is set back; "
    "with server_clock, and for waits below a lease, it measures ages, and must not step ahead"
)
_REASONS = {
    "redis-cluster": "a Cluster replicates behind the writes: a failover can grant a held lock again, with any token",
    "redis-sentinel": "a new primary may lack the last writes, and the old one, restarted, is writable and empty for seconds",
    "redis-replica": "replicas follow behind the writes: if one is promoted, or is what the URL names, a held lock can be granted again",
    "redis-allkeys-policy": "its maxmemory-policy may drop the record of a held lock",
}
_ONE_NODE = "; a client of one server, such as that of a URL, reaches and lists the locks of one node only"
_NO_STORE = "; the server at this URL is itself a Sentinel, and keeps no locks: accepting it does not help"
_DURABLE = "with appendonly yes, appendfsync always and no-appendfsync-on-rewrite no"
_ALONE = f"keep locks on a server that has no replica, {_DURABLE}"
REMEDIES = {
    "redis-cluster": f"keep locks on one server outside of the Cluster, {_DURABLE}; "
    "locks on a Cluster need a client that you bring: LockClient(RedisStore(redis.RedisCluster(...)))",
    "redis-sentinel": f"{_ALONE}; locks behind a Sentinel need a client that you bring: LockClient(RedisStore(sentinel.master_for(NAME)))",
    "redis-replica": _ALONE,
    "redis-allkeys-policy": "CONFIG SET maxmemory-policy noeviction; volatile-lru is safe, too, since records of locks have no expiry",
}


def guarantees_of(info: bytes, config: list[bytes] | None, unsafe: str) -> Guarantees:
    """Return what INFO and CONFIG amount to; *config* is None where it is forbidden, *unsafe* the kind of topology the client is made for.

    Raises: StoreSetupError: the server is older than Redis 6.
    """
    facts = dict(line.split(":", 1) for line in _text(info).splitlines() if ":" in line)
    version = facts.get("redis_version", "0")
    if not version.partition(".")[0].isdecimal() or int(version.partition(".")[0]) < _OLDEST:
        raise StoreSetupError(
            f"the server calls itself Redis {version}; dlock needs 6.0 or newer, or Valkey: update the server"
        )
    sync = _sync_of(config) if facts.get("aof_enabled") == "1" else "off"
    durable = sync == "always"
    traits = [unsafe, "redis-cluster" if facts.get("cluster_enabled") == "1" else ""]
    traits += ["redis-sentinel" if facts.get("redis_mode") == "sentinel" else ""]
    traits += ["redis-replica" if facts.get("connected_slaves", "0") != "0" or facts.get("role") == "slave" else ""]
    policy = facts.get("maxmemory_policy", "unknown")
    traits += ["redis-allkeys-policy" if policy.startswith("allkeys-") else ""]
    names = tuple(dict.fromkeys(filter(None, traits)))
    # A primary that was cut off from its replicas, and does not know of its successor, still answers.
    replicated = bool(set(names) - {"redis-allkeys-policy"})
    valkey = facts.get("server_name") == "valkey"
    more = {"redis-allkeys-policy": f" ({policy})", "redis-cluster": _ONE_NODE, "redis-sentinel": _NO_STORE} | {
        unsafe: ""
    }
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
        unsafe=tuple((name, _REASONS[name] + more.get(name, "")) for name in names),
    )


def _sync_of(config: list[bytes] | None) -> str:
    """Return when the append-only file is synced; "always" where each write is."""
    if config is None:
        return "unknown: CONFIG GET is forbidden"
    settings = dict(zip(map(_text, config[::2]), map(_text, config[1::2]), strict=True))
    sync = settings.get("appendfsync", "unknown")
    if sync == "always" and settings.get("no-appendfsync-on-rewrite") == "yes":
        return "always, but never while a child process writes (no-appendfsync-on-rewrite yes)"
    return sync


def _failover(*, durable: bool, replicated: bool) -> str:
    if replicated:
        return "a failover can lose acknowledged writes: a held lock can be granted again; its old holder notices at its next renewal"
    if durable:
        return "one server: while it is down nobody gets a lock; what it acknowledged it remembers, unless its disk is lost"
    return "one server that forgets on a crash: a lock held then can be granted again before its lease ends, with a greater token"


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
