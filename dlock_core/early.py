"""Early takeover: what proves, beside a record unchanged for a lease, that a holder's lease has ended.

The default is observation, which trusts nothing but the rate of one's own clock, and costs whoever comes to a dead holder's lock one lease.
Each way here is asked for by name, and each trusts something more:

- *bounded wall clock*: the record says when it was written, by its holder's wall clock, and two wall clocks are at most *skew* apart;
- *server clock*: the store measures the age of the record by its own clock, which makes no step of more than :data:`STEP_NS`;
- *owner probe*: somebody can tell that a holder is dead, and a dead holder does nothing any more;
- *resumed observation*: what an earlier process of the same boot has seen counts as if this one had.

A takeover is a conditional write on the version that was judged, whatever proved that its lease had ended. So a holder that is alive after
all and renews in time keeps its lock; and the token is raised, so that a fenced resource refuses a holder that should not have been taken
for dead. Pure functions of their arguments, as all of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlock_core.record import LEASE_MAX_MS, NO_TOKEN, TOKEN_MAX, LockRecord, Stamp, State, Version
from dlock_core.states import Observation
from dlock_core.store import Claim, Replace
from dlock_core.timings import NANOS, NEVER, Early

__all__ = ["STEP_NS", "ends_at", "is_probed", "resumed", "saved", "stamped"]

STEP_NS = NANOS
_MILLI = 1_000_000


def ends_at(record: LockRecord, early: Early, now: int, *, wall_ms: int | None, age_ms: int | None) -> int:
    """Return the instant from which the lease of the held *record* has ended by a clock that *early* trusts; NEVER if none tells.

    *wall_ms* is this machine's wall clock and *age_ms* the age of the record by the store's clock, both of no later than *now*.
    """
    if record.lease_ms is None:
        return NEVER
    by_server = NEVER if age_ms is None or not early.server_clock else now - age_ms * _MILLI + STEP_NS
    by_wall = NEVER if wall_ms is None else _written_at(record, early, now, wall_ms)
    return min(NEVER, min(by_server, by_wall) + record.lease_ms * _MILLI)


def _written_at(record: LockRecord, early: Early, now: int, wall_ms: int) -> int:
    """Return the latest instant at which *record* can have been written, by its stamp."""
    stamp, skew_ns = record.stamp, early.skew_ns
    # A stamp that another write has left there says nothing of this one.
    if skew_ns is None or stamp is None or stamp.rvn != record.rvn:
        return NEVER
    # A stamp from the future means that a clock is wrong.
    if stamp.at_ms > wall_ms:
        return NEVER
    # Both instants were rounded to a millisecond. The rest is for the rates of the two clocks, during the lease.
    drift_ns = (record.lease_ms or 0) * early.drift_ppm
    return now - (wall_ms - stamp.at_ms - 1) * _MILLI + skew_ns + drift_ns


def is_probed(record: LockRecord, early: Early) -> bool:
    """Whether its owner's death would end the lease of the held *record*: not that of a lock without one, nor a quarantine."""
    return early.probes and record.lease_ms is not None and record.broken is None


def stamped(request: Any, early: Early, wall_ms: int) -> Any:
    """Return *request* with the time on what it writes, where others may judge by it: *wall_ms* is from before the first send."""
    if early.skew_ns is None or type(request) not in (Claim, Replace):
        return request
    record = request.record
    if record.state is not State.HELD or record.lease_ms is None:
        return request
    return request._replace(record=replace(record, stamp=Stamp(wall_ms, record.rvn)))


# ---- observations that outlive a process ----------------------------------------------------------------------------------------------


def saved(seen: Mapping[str, Observation], boot: str) -> dict[str, Any]:
    """Return observations as JSON can carry them; *boot* names the clock that they were made by."""
    kept = {
        key: [*each.version, each.lease_ns // _MILLI, each.seen_at]
        for key, each in seen.items()
        if each.lease_ns < NEVER
    }
    return {"format": 1, "boot": boot, "seen": kept}


def resumed(found: object, boot: str, now: int) -> dict[str, Observation]:
    """Return what *found*, once :func:`saved`, is worth in this *boot* at *now*: what another clock, or the future, has seen is dropped."""
    if not isinstance(found, dict) or found.get("format") != 1 or found.get("boot") != boot:
        return {}
    entries = found.get("seen")
    if not isinstance(entries, dict):
        return {}
    seen = {str(key): _observation(entry, now) for key, entry in entries.items()}
    return {key: each for key, each in seen.items() if each is not None}


def _observation(entry: object, now: int) -> Observation | None:
    if not isinstance(entry, list) or [type(part) for part in entry] != [str, int, int, int]:
        return None
    rvn, token, lease_ms, seen_at = entry
    if not 0 <= token <= TOKEN_MAX or not 0 < lease_ms <= LEASE_MAX_MS or seen_at > now:
        return None
    return Observation(Version(rvn, token or NO_TOKEN), lease_ms * _MILLI, seen_at)
