"""``dlock doctor``: what can be known of a store, of the clock, and of the way between them, without writing anything."""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dlock_core.backend import backend_for, check_claims
from dlock_core.client import connect
from dlock_core.clock import NANOS, now_ns
from dlock_core.engine.client_context import describe
from dlock_core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlock_core.client import LockClient
    from dlock_core.options import ClientOptions

__all__ = ["examine", "in_words", "policy"]

_READS = 21
_CLOCK_S = 0.25
_PROBE = "dlock-doctor"

_GRADES = {
    "A": "the promises hold in the documented failure model",
    "B": "the promises hold unless a disk is lost",
    "C": "a failover can grant a lock twice; only fencing protects then",
}
_TOKENS = {
    "ordered": "every grant has a greater token than all before",
    "timed": "tokens are ordered as far as clock rates are bounded",
    "none": "there is no token; nothing can be fenced",
}


def policy(options: ClientOptions) -> str:
    """Return the rights that the store's user needs, as its backend states them.

    Raises: UnsupportedError: it states none.
    """
    assert options.url is not None  # asked before
    url = options.url.get_secret_value()
    backend = backend_for(url)
    stated: Any = getattr(backend, "policy", None)
    if stated is None:
        raise UnsupportedError(f"the store {describe(options)!r} states no policy; it needs none that dlock knows of")
    if callable(stated):
        stated = stated(backend.options.from_url(url, **options._store_settings))  # the loader's own
    return stated if isinstance(stated, str) else json.dumps(stated, indent=2)


def examine(options: ClientOptions, *, configuration: str) -> dict[str, Any]:
    """Open the store and return what was found.

    Raises: DLockError: it cannot be opened; the message says why.
    """
    assert options.url is not None  # asked before
    check_claims(options.url.get_secret_value())
    with connect(options) as client:
        guarantees = client.guarantees()
        reads_ms = _reads_ms(client)
        lease_s = float(options.lease_duration)  # type: ignore[arg-type]  # checked: seconds
        request_s = min(lease_s / 6, 10.0, float(options.request_timeout or 10.0))  # type: ignore[arg-type]  # as above
        return {
            "url": describe(options),
            "configuration": configuration,
            "store": guarantees.store,
            "store_version": guarantees.version,
            "grade": guarantees.grade.value,
            "token": guarantees.token.value,
            "token_floor": options.token_floor,
            "durable": guarantees.durable,
            "deletes": guarantees.deletes,
            "failover": guarantees.failover,
            "store_clock": guarantees.clock,
            "notes": list(guarantees.notes),
            "accepted_unsafe": [{"name": name, "reason": reason} for name, reason in guarantees.unsafe],
            "clock": "CLOCK_BOOTTIME" if sys.platform == "linux" else "monotonic",
            "clock_rate_ppm": _clock_rate_ppm(),
            "drift_bound_ppm": round(options.drift_bound * 1e6),
            "read_ms_median": sorted(reads_ms)[_READS // 2],
            "read_ms_max": max(reads_ms),
            "reads": len(reads_ms),
            "request_timeout_ms": round(request_s * 1000),
            "lease_s": lease_s,
            "versions": {
                "dlock-core": version("dlock-core"),
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()}",
            },
        }


def in_words(facts: Mapping[str, Any]) -> dict[str, object]:
    """Return what :func:`examine` found, for people."""
    slow = facts["read_ms_max"] > facts["request_timeout_ms"] / 2
    rate, bound = facts["clock_rate_ppm"], facts["drift_bound_ppm"]
    if rate is None:
        clock = f"{facts['clock']}; its rate cannot be checked on this system"
    else:
        verdict = "within" if abs(rate) < bound else "BEYOND"
        clock = f"{facts['clock']}, rate {rate:+.1f} ppm against the raw counter, {verdict} the bound of {bound} ppm"
    return {
        "store": f"{facts['store']} {facts['store_version']} at {facts['url']}",
        "configured by": facts["configuration"],
        "grade": f"{facts['grade']}: {_GRADES[facts['grade']]}",
        "tokens": f"{facts['token']}: {_TOKENS[facts['token']]}{_floor(facts)}",
        "durable": "yes: a restart forgets nothing" if facts["durable"] else "NO: a restart may forget locks",
        "failover": facts["failover"],
        "store's clock": facts["store_clock"],
        "notes": facts["notes"] or "-",
        "accepted": [f"{each['name']}: {each['reason']}" for each in facts["accepted_unsafe"]] or "no unsafe trait",
        "our clock": clock,
        "round trip": (
            f"{facts['read_ms_median']:.2f} ms median, {facts['read_ms_max']:.2f} ms at most of {facts['reads']} reads; a renewal may take "
            f"{facts['request_timeout_ms']} ms with a lease of {facts['lease_s']:g} s"
            + ("; TOO SLOW: take a longer lease" if slow else "")
        ),
        "versions": ", ".join(f"{name} {value}" for name, value in facts["versions"].items()),
    }


def _floor(facts: Mapping[str, Any]) -> str:
    """Say where tokens begin: a fenced resource that has seen those of another store refuses every lower one."""
    if facts["token_floor"] > 1:
        return f", from {facts['token_floor']} on (token_floor)"
    return "; another store's begin anew: set token_floor above its highest before you move"


def _reads_ms(client: LockClient) -> list[float]:
    times = []
    for _ in range(_READS):
        began = now_ns()
        client.get(_PROBE)
        times.append((now_ns() - began) / 1e6)
    return times


def _clock_rate_ppm() -> float | None:
    """Return by how much the clock that decides runs faster than the unadjusted counter, in millionths."""
    raw: int | None = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    if raw is None:
        return None
    ours, theirs = now_ns(), time.clock_gettime_ns(raw)
    time.sleep(_CLOCK_S)
    elapsed, counted = now_ns() - ours, time.clock_gettime_ns(raw) - theirs
    return round((elapsed - counted) / (_CLOCK_S * NANOS) * 1e6, 1)
