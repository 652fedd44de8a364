"""The vocabulary of the protocol: states, events and effects, all of them small frozen values.

:mod:`dlock_core.lease` is the machine that moves between them.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias

from dlock_core.record import Attributes, BeatNote, Broken, LockRecord, Loss, LossReason, OwnerState, Version
from dlock_core.store import Claim, ClaimExpect, Release, Replace, Reply
from dlock_core.timings import NEVER, Timings

# ---- values ---------------------------------------------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """The constants of one attempt: the full key, the id of the attempt, and the timings that its options amount to.

    *wall_ns* is how far the wall clock was ahead of this machine's clock when the attempt began, for the times in its records; None
    for records without times. *granted_at_s* is known from the grant on.
    """

    key: str
    ticket: str
    timings: Timings
    wall_ns: int | None = None
    granted_at_s: int | None = None


class Verb(Enum):
    """The kind of a request."""

    CLAIM = "claim"
    TAKE = "take"
    RENEW = "renew"
    RELEASE = "release"
    READ = "read"


class Payload(NamedTuple):
    """The data and the attributes of a record."""

    data: bytes | None
    attributes: Attributes


NOTHING = Payload(None, ())  # what most records carry, shared by many locks


class Sent(NamedTuple):
    """A request that was sent and whose outcome is not known. *rvn* is what it writes; of a read, only its id."""

    verb: Verb
    rvn: str
    expected: ClaimExpect
    sent_at: int
    timings: Timings
    payload: Payload | None = None


class Observation(NamedTuple):
    """A held record of somebody else, and since when (after the answer that first showed it) it has stood unchanged."""

    version: Version
    lease_ns: int
    seen_at: int


class Outcome(Enum):
    """How an attempt ended. ``UNREACHABLE``: the store did not answer; ``UNRESOLVED``: a release that nobody acknowledged in time."""

    DENIED = "denied"
    UNREACHABLE = "unreachable"
    ABANDONED = "abandoned"
    RELEASED = "released"
    LOST = "lost"
    UNRESOLVED = "unresolved"


# ---- states ---------------------------------------------------------------------------------------------------------------------------


class New(NamedTuple):
    """Nothing was sent yet."""

    terms: Terms


class Seeking(NamedTuple):
    """Trying to obtain the key. *shown* is the record of the last answer; *pending* are writes of this attempt without a known outcome.

    *extended*: the lease of the first holder seen was added to the wait, where that was asked for. *ends_at*: when the lease of what
    was seen ends by a clock that this attempt trusts (:mod:`dlock_core.early`).
    """

    terms: Terms
    give_up_at: int
    in_flight: Sent | None = None
    pending: tuple[Sent, ...] = ()
    seen: Observation | None = None
    shown: LockRecord | None = None
    polls: int = 0
    immediate_retries: int = 0
    failing_since: int | None = None
    extended: bool = False
    ends_at: int = NEVER


class Held(NamedTuple):
    """Holding the key until *deadline*, or until *hold_until*. *sent_at*: when the current version was sent.

    *hold_until* is the earlier of *overrun_at*, where ``max_hold`` ends, and of the end of ``stall_timeout`` since the last progress.
    *stopping*: the holder was told to stop, since the lock was about to end for this reason. It stays told.
    """

    terms: Terms
    version: Version
    sent_at: int
    timings: Timings
    payload: Payload
    deadline: int
    renew_at: int
    hold_until: int
    in_flight: Sent | None = None
    pending: tuple[Sent, ...] = ()
    at_risk: bool = False
    stopping: LossReason | None = None
    overrun_at: int = NEVER


class Confirming(NamedTuple):
    """The *grant* was seen late, or without its token: it is renewed before it is handed out. If it is gone, *seeking* goes on."""

    grant: Held
    seeking: Seeking

    @property
    def terms(self) -> Terms:
        """What the attempt is about."""
        return self.grant.terms

    @property
    def in_flight(self) -> Sent | None:
        """The renewal under way."""
        return self.grant.in_flight


class Releasing(NamedTuple):
    """Giving the key back, until that is acknowledged or *until*."""

    terms: Terms
    version: Version
    payload: Payload | None
    until: int
    retry_at: int
    in_flight: Sent | None = None
    pending: tuple[Sent, ...] = ()
    tries: int = 0
    loss: Loss | None = None


class Cleaning(NamedTuple):
    """The attempt was given up with writes unresolved: each is found and freed, or proved dead, until *until*."""

    terms: Terms
    outcome: Outcome
    holder: LockRecord | None
    until: int
    retry_at: int
    pending: tuple[Sent, ...]
    in_flight: Sent | None = None
    tries: int = 0


class Lost(NamedTuple):
    """The lock was lost. Absorbing: nothing makes it valid again, even where the record still is ours.

    *leaves_at*: when the key is given back, whatever its user does. A record under a session does not lapse by itself.
    """

    terms: Terms
    version: Version
    loss: Loss
    sent_at: int
    timings: Timings
    pending: tuple[Sent, ...] = ()
    leaves_at: int = NEVER


class Ended(NamedTuple):
    """The attempt is over. *loss*: the key was not given back but lost."""

    terms: Terms
    outcome: Outcome
    holder: LockRecord | None = None
    loss: Loss | None = None


LeaseState: TypeAlias = New | Seeking | Confirming | Held | Releasing | Cleaning | Lost | Ended


# ---- events ---------------------------------------------------------------------------------------------------------------------------
# *new_rvn* is an RVN that was never used: an event may lead to a send, and each send has an RVN of its own.


class Begin(NamedTuple):
    """Start the attempt; *seen* is what this client has observed of the key so far."""

    new_rvn: str
    give_up_at: int
    seen: Observation | None = None


class Answer(NamedTuple):
    """The store answered the request *rvn*. *abandoned*: the record shown was written by an attempt that this client has given up.

    *wall_ms*: this machine's wall clock, and *age_ms*: the record's age by the store's clock, where there is one to ask. *seen*: what this
    client has last observed of the key.
    """

    rvn: str
    reply: Reply
    new_rvn: str
    abandoned: bool = False
    jitter: float = 0.0
    wall_ms: int | None = None
    age_ms: int | None = None
    seen: Observation | None = None


class Probed(NamedTuple):
    """What the owner probe *rvn* knows of the owner."""

    rvn: str
    owner: OwnerState
    new_rvn: str
    jitter: float = 0.0


class Failure(NamedTuple):
    """The request *rvn* failed: with its outcome *unknown*, or certainly not applied."""

    rvn: str
    unknown: bool
    new_rvn: str
    jitter: float = 0.0


class Due(NamedTuple):
    """The instant has come that a ``Wait`` or :func:`~dlock_core.lease.due_at` named."""

    new_rvn: str
    jitter: float = 0.0


class Retry(NamedTuple):
    """Try at once what is to be tried again later: the client is being closed."""

    new_rvn: str


class Woken(NamedTuple):
    """The store said that a claim is worth trying."""

    new_rvn: str


class Renew(NamedTuple):
    """Renew now; with another *timings* or *payload*, change the lease or the data by it."""

    new_rvn: str
    timings: Timings | None = None
    payload: Payload | None = None


class Progress(NamedTuple):
    """The body works: where ``stall_timeout`` bounds the hold, it counts from now on. No request follows."""

    new_rvn: str = ""


class Cease(NamedTuple):
    """The lock, which a session keeps, is lost for *reason*: by the end of the session, or, *alone*, while the session goes on.

    *record*: what stands under the key in its place, where that was seen.
    """

    reason: LossReason
    record: LockRecord | None = None
    alone: bool = False
    new_rvn: str = ""


class Free(NamedTuple):
    """Release; *payload* replaces what the record carries, None keeps it."""

    new_rvn: str
    payload: Payload | None = None


class GiveUp(NamedTuple):
    """The caller no longer wants the key: cancelled, interrupted, closed."""

    new_rvn: str


Event: TypeAlias = Begin | Answer | Probed | Failure | Due | Retry | Woken | Renew | Progress | Cease | Free | GiveUp


# ---- effects: the port's requests, and ------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """Read *key*; *rvn* is the id by which the answer comes back. *aged*: with the record's age by the store's clock."""

    key: str
    rvn: str
    aged: bool = False


class Probe(NamedTuple):
    """Ask whether the owner of *record* lives, or the session that keeps it; *rvn* is the id by which the answer comes back."""

    record: LockRecord
    rvn: str


class Wait(NamedTuple):
    """Wait until *until*; where *record* is given, also for a notification about it."""

    until: int
    record: LockRecord | None = None


class Abandon(NamedTuple):
    """Remember the RVNs of these abandoned writes: a record that shows one of them has no owner."""

    rvns: tuple[str, ...]


class Risk(NamedTuple):
    """The lock came to be at risk, or recovered."""

    at_risk: bool


class Stop(NamedTuple):
    """Tell the holder to stop: the lock ends ``stop_grace`` from now, for *reason*, unless a renewal succeeds."""

    reason: LossReason


class Noted(NamedTuple):
    """Others have left these notes for the locks that the session keeps."""

    notes: tuple[BeatNote, ...]


Effect: TypeAlias = Claim | Replace | Release | Read | Probe | Wait | Abandon | Risk | Stop | Noted


# ---- an operator's break --------------------------------------------------------------------------------------------------------------


class Break(NamedTuple):
    """An operator breaks the grant *fencing_token* of *key*, with *rvn* only that version of it. *sent*: the RVNs that it has written."""

    key: str
    fencing_token: int
    by: Broken
    rvn: str | None = None
    free_now: bool = False
    sent: tuple[str, ...] = ()
