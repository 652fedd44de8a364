"""``dlock doctor``: what can be known of a store, of the clock, and of the way between them, without writing anything."""

from __future__ import annotations

import platform
import sys
import time
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dlock_core.backend import backend_for, check_claims
from dlock_core.client import LockClient
from dlock_core.clock import NANOS, now_ns
from dlock_core.engine.client_context import ClientContext, check_accepted, describe
from dlock_core.engine.opening import load_options, named_store, open_store, whole_commands
from dlock_core.errors import UnsupportedError
from dlock_core.options import to_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dlock_core.options import ClientOptions
    from dlock_core.store import Guarantees, LockStore

_READS = 21
_CLOCK_S = 0.25
_PROBE = "dlock-doctor"
_CAN = "can be used, by a user who may write: nothing was written to try that"

_ACCEPT = "if that cannot happen here, or fencing tokens protect the data, accept it with --allow-unsafe {0}, or allow_unsafe={{{0!r}}}"
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


@contextmanager
def standing_store(options: ClientOptions) -> Iterator[LockClient]:
    """Give a client of the store as it stands: a command that looks, or takes away, makes none where the URL is mistyped.

    Raises: DLockError: the options are wrong, as connect finds before it opens anything; the store cannot be opened, or is none yet.
    """
    options = load_options(options, {})
    ClientContext(options, blocking=True)
    with (
        whole_commands(options),
        closing(open_store(options, as_it_stands=True)) as store,
        LockClient(store, options) as client,
    ):
        yield client


def policy(options: ClientOptions) -> object:
    """Return the rights that the store's user needs, as its backend states them: a text, or a document.

    Raises: UnsupportedError: it states none.
    """
    assert options.url is not None  # asked before
    backend = backend_for(options.url.get_secret_value())
    stated: Any = getattr(backend, "policy", None)
    if stated is None:
        raise UnsupportedError(
            f"the store {describe(options)!r} states no policy: it has no users whose rights could be set"
        )
    if callable(stated):
        _, store_options = named_store(options)
        stated = stated(store_options)
    return stated


def examine(options: ClientOptions, *, configuration: str) -> dict[str, Any]:
    """Open the store and return what was found, also where ``connect`` refuses the store as unsafe.

    Raises: DLockError: the store cannot be opened; the message says why.
    """
    assert options.url is not None  # asked before
    check_claims(options.url.get_secret_value())
    backend = backend_for(options.url.get_secret_value())
    standing = options.with_(provision=False)
    with whole_commands(options), closing(open_store(standing, as_it_stands=True)) as store:
        guarantees = store.guarantees()
        check_accepted(options, guarantees, store)
        remedies: Mapping[str, str] = getattr(backend, "remedies", {})
        traits = [
            {"name": name, "reason": reason, "remedy": remedies.get(name), "accepted": name in options.allow_unsafe}
            for name, reason in guarantees.unsafe
        ]
        refused = not all(trait["accepted"] for trait in traits)
        why_unread = "the store is refused" if refused else ""
        if getattr(store, "is_unmade", False):
            why_unread = "the store is made when a program first opens it"
        measured = _measured(options, store, why_unread)
    return {
        **_promises(guarantees, options),
        "configuration": configuration,
        "refused": refused,
        "unsafe": traits,
        **measured,
        "versions": {
            "dlock-core": version("dlock-core"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def _promises(guarantees: Guarantees, options: ClientOptions) -> dict[str, Any]:
    return {
        "url": describe(options),
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
    }


def _measured(options: ClientOptions, store: LockStore, why_unread: str) -> dict[str, Any]:
    """Return what a clock can tell; the *store* is not read where *why_unread* says so."""
    reads_ms: list[float] = []
    if not why_unread:
        with LockClient(store, options) as client:
            reads_ms = sorted(_reads_ms(client))
    lease_s = to_seconds(options.lease_duration)
    request_s = min(lease_s / 6, 10.0, to_seconds(options.request_timeout or 10.0))
    return {
        "clock": "CLOCK_BOOTTIME" if sys.platform == "linux" else "monotonic",
        "clock_rate_ppm": _clock_rate_ppm(),
        "drift_bound_ppm": round(options.drift_bound * 1e6),
        "read_ms_median": reads_ms[_READS // 2] if reads_ms else None,
        "read_ms_max": reads_ms[-1] if reads_ms else None,
        "reads": len(reads_ms),
        "unread": why_unread or None,
        "request_timeout_ms": round(request_s * 1000),
        "lease_s": lease_s,
    }


def in_words(facts: Mapping[str, Any]) -> dict[str, object]:
    """Return what :func:`examine` found, for people."""
    rate, bound = facts["clock_rate_ppm"], facts["drift_bound_ppm"]
    if rate is None:
        clock = f"{facts['clock']}; its rate cannot be checked on this system"
    else:
        verdict = "within" if abs(rate) < bound else "BEYOND"
        clock = f"{facts['clock']}, rate {rate:+.1f} ppm against the raw counter, {verdict} the bound of {bound} ppm"
    return {
        "store": f"{facts['store']} {facts['store_version']} at {facts['url']}",
        "configured by": facts["configuration"],
        "verdict": "REFUSED by connect and dlock run, see unsafe" if facts["refused"] else _CAN,
        "unsafe": [line for trait in facts["unsafe"] for line in _trait(trait)] or "nothing",
        "grade": [
            f"{'->' if grade == facts['grade'] else '  '} {grade}: {meaning}" for grade, meaning in _GRADES.items()
        ],
        "tokens": f"{facts['token']}: {_TOKENS[facts['token']]}{_floor(facts)}",
        "durable": "yes: a restart forgets nothing" if facts["durable"] else "NO: a restart may forget locks",
        "failover": facts["failover"],
        "store's clock": facts["store_clock"],
        "notes": facts["notes"] or "-",
        "our clock": clock,
        "round trip": _round_trip(facts),
        "versions": ", ".join(f"{name} {value}" for name, value in facts["versions"].items()),
    }


def _trait(trait: Mapping[str, Any]) -> list[str]:
    if trait["accepted"]:
        return [f"{trait['name']}, accepted: {trait['reason']}"]
    remedy = [f"  remedy: {trait['remedy']}"] if trait["remedy"] else []
    return [f"{trait['name']}: {trait['reason']}", *remedy, f"  {_ACCEPT.format(trait['name'])}"]


def _round_trip(facts: Mapping[str, Any]) -> str:
    if not facts["reads"]:
        return f"not measured: {facts['unread']}"
    slow = facts["read_ms_max"] > facts["request_timeout_ms"] / 2
    return (
        f"{facts['read_ms_median']:.2f} ms median, {facts['read_ms_max']:.2f} ms at most of {facts['reads']} reads; a renewal may take "
        f"{facts['request_timeout_ms']} ms with a lease of {facts['lease_s']:g} s"
        + ("; TOO SLOW: take a longer lease" if slow else "")
    )


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
