"""What holders did, in the order in which it happened, and the check of that history.

The book also is the guarded resource: it takes one message at a time, so what it decides by a message is one atomic step. An effect is
taken only where its fencing token is not older than any before (*fenced*); the others are the negative controls: *naive* looks at nothing,
*checked* asks the lease before it computes, *two-step* compares the token with the resource's, and writes in a later step. Each fenced
effect also adds one to a balance that was read before computing: a balance other than the number of effects has lost some.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

__all__ = ["CONTROLS", "Book", "Effect", "Finding", "Grant", "check"]

CONTROLS = ("naive", "checked", "two-step")


class Grant(NamedTuple):
    """One lock, got by *who*, who began to wait at *began*; *at* is after that. Instants are in ns."""

    key: str
    token: int
    who: str
    began: int
    at: int


class Effect(NamedTuple):
    """Something that a holder did. At the instant *at* its lease was valid, until *deadline*, where it had asked."""

    kind: str
    key: str
    token: int
    at: int | None = None
    deadline: int | None = None


class Book:
    """The history, for all threads of one process; *changed* is notified of each entry."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.ends: dict[tuple[str, int], tuple[str, int]] = {}
        self.effects: list[Effect] = []
        self.notes: Counter[str] = Counter()
        self.cancels: list[tuple[str, int]] = []
        self.children: dict[str, int] = {}
        self.taken: Counter[str] = Counter()
        self.balances: Counter[str] = Counter()
        self.bodies_over: dict[tuple[str, int], int] = {}
        self.pauses: set[tuple[str, int]] = set()
        self.slots_begun: list[tuple[str, int, int]] = []
        self.slots_finished: list[tuple[str, int, int]] = []
        self.changed = threading.Condition()
        self._newest: dict[str, Grant] = {}
        self._of_key: defaultdict[str, list[Grant]] = defaultdict(list)
        self._waits: dict[tuple[str, str], int] = {}
        self._fences: Counter[str] = Counter()
        self._slots: Counter[str] = Counter()

    def waiting(self, key: str, who: str, at: int) -> None:
        """A holder begins to wait for the lock."""
        with self.changed:
            self._waits[key, who] = at
            self.changed.notify_all()

    def granted(self, key: str, token: int | None, who: str, at: int) -> int:
        """A holder has got the lock; *at* is after that. Without a token, the number of the grant stands for it; return that."""
        with self.changed:
            newest = self._newest.get(key)
            token = token if token is not None else (0 if newest is None else newest.token) + 1
            grant = Grant(key, token, who, self._waits.pop((key, who), at), at)
            self.grants.append(grant)
            self._of_key[key].append(grant)
            if newest is None or token > newest.token:
                self._newest[key] = grant
            self.changed.notify_all()
            return token

    def ended(self, key: str, token: int, why: str, at: int) -> None:
        """A holder is about to release, or has learnt of a loss."""
        with self.changed:
            self.ends[key, token] = why, at
            self.changed.notify_all()

    def body_over(self, key: str, token: int, at: int, paused: bool) -> None:  # noqa: FBT001  # called by position
        """The body of a leader, or of a run of a job, has ended; *paused*: before that it did not look at the clock for the stop grace."""
        with self.changed:
            self.bodies_over[key, token] = at
            if paused:
                self.pauses.add((key, token))

    def slot(self, key: str) -> int:
        """Return the slot of the job that is due."""
        with self.changed:
            return self._slots[key] + 1

    def slot_begun(self, key: str, slot: int, token: int) -> None:
        """A run of a job begins."""
        with self.changed:
            self.slots_begun.append((key, slot, token))

    def slot_finished(self, key: str, slot: int, token: int) -> None:
        """A run of a job was finished, and the store has said so."""
        with self.changed:
            self.slots_finished.append((key, slot, token))
        self.slot_done(key, slot)

    def slot_done(self, key: str, slot: int) -> None:
        """The record of the job says that *slot* was finished; the next one is due."""
        with self.changed:
            self._slots[key] = max(self._slots[key], slot)

    def cancelled(self, key: str, at: int) -> None:
        """An operation on the key was cancelled."""
        with self.changed:
            self.cancels.append((key, at))
            self.changed.notify_all()

    def fence(self, key: str, token: int = 0) -> tuple[int, int]:
        """Show *token*; return the newest that the resource had seen before, and its balance."""
        with self.changed:
            seen = self._fences[key]
            self._fences[key] = max(token, seen)
            return seen, self.balances[key]

    def use(self, key: str, token: int, at: int, deadline: int, seen: tuple[int, int]) -> None:
        """Have an effect of each kind. At the instant *at* the lease was valid, until *deadline*; *seen* was the fence before computing."""
        fence, balance = seen
        with self.changed:
            kinds = ["naive", "checked"]
            if token >= self._fences[key]:
                self._fences[key] = token
                self.taken[key] += 1
                self.balances[key] = balance + 1
                kinds.append("fenced")
            if fence <= token:
                kinds.append("two-step")
            self.effects += [Effect(kind, key, token, at, deadline) for kind in kinds]

    def use_naively(self, key: str, token: int) -> None:
        """Have the effect of a holder that looks at nothing."""
        with self.changed:
            self.effects.append(Effect("naive", key, token))

    def note(self, what: str, count: int = 1) -> None:
        """Count something that is worth telling."""
        with self.changed:
            self.notes[what] += count
            self.changed.notify_all()

    def forked(self, who: str, child: int) -> None:
        """A process has forked."""
        with self.changed:
            self.children[who] = child
            self.changed.notify_all()

    def gone(self, who: str) -> None:
        """Nothing more will come from *who*, which waits no longer."""
        with self.changed:
            for place in [place for place in self._waits if place[1] == who]:
                del self._waits[place]
            self.changed.notify_all()

    def newest(self, key: str) -> Grant | None:
        """Return the newest grant, if that is not known to have ended."""
        with self.changed:
            grant = self._newest.get(key)
            return None if grant is None or (key, grant.token) in self.ends else grant

    def last(self, key: str) -> int:
        """Return the newest token, of whatever has become of its grant."""
        with self.changed:
            grant = self._newest.get(key)
            return 0 if grant is None else grant.token

    def waited_for(self, key: str, besides: str) -> bool:
        """Whether somebody else than *besides* waits for the key."""
        with self.changed:
            return any(place[0] == key and place[1] != besides for place in self._waits)

    def held_by(self, who: str) -> list[Grant]:
        """Return the grants that *who* has, as far as is known."""
        with self.changed:
            return [
                grant
                for grant in self._newest.values()
                if grant.who == who and (grant.key, grant.token) not in self.ends
            ]

    def granted_after(self, key: str, token: int) -> Grant | None:
        """Return the first grant after *token*."""
        with self.changed:
            return min(
                (each for each in self._of_key[key] if each.token > token), key=lambda each: each.token, default=None
            )


class Finding(NamedTuple):
    """What a history shows.

    *early*: grants while the lease before was valid; *disordered*: grants whose wait began after a grant with a greater token; *stale*:
    effects of an earlier grant after a later one; *lost*: fenced effects that the balance does not show; *unheard*: tokens that nobody
    was told of; *beside*: bodies that ran on after the next one had begun; *paused*: bodies that did so after they had not looked at the
    clock for longer than the stop grace, since they got no processor; *again*: slots that were begun after they were finished.
    """

    grants: int
    repeated: int
    early: int
    disordered: int
    effects: int
    lost: int
    unheard: int
    beside: int
    paused: int
    again: int
    stale: dict[str, int]


def check(book: Book) -> Finding:
    """Check a history: each token once and in order, no grant before the end of the lease before, and what came stale where."""
    with book.changed:
        grants, effects, ends = list(book.grants), list(book.effects), dict(book.ends)
        lost = sum(abs(count - book.balances[key]) for key, count in book.taken.items())
    stale, valid_until = _effects(effects)
    by_key: defaultdict[str, dict[int, Grant]] = defaultdict(dict)
    repeated = 0
    for grant in grants:
        repeated += grant.token in by_key[grant.key]
        by_key[grant.key][grant.token] = grant
    early = unheard = disordered = beside = paused = 0
    for key, granted in by_key.items():
        for before, after in pairwise(sorted(granted)):
            unheard += after - before - 1
            if (end := valid_until.get((key, before))) is not None:
                why, at = ends.get((key, before), ("", end))
                early += granted[after].at < (min(end, at) if why == "released" else end)
            if book.bodies_over.get((key, before), 0) > granted[after].at:
                paused += (key, before) in book.pauses
                beside += (key, before) not in book.pauses
        disordered += _disordered(list(granted.values()))
    counts = (len(grants), repeated, early, disordered, len(effects), lost, unheard, beside, paused, _again(book))
    return Finding(*counts, stale)


def _again(book: Book) -> int:
    """Count the runs that an earlier grant had finished, by the slot."""
    with book.changed:
        begun, finished = list(book.slots_begun), list(book.slots_finished)
    by_key: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, slot, token in finished:
        by_key[key].append((slot, token))
    return sum(
        any(done >= slot and earlier < token for done, earlier in by_key.get(key, ())) for key, slot, token in begun
    )


def _effects(effects: list[Effect]) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
    """Return how many came stale of each kind, and until when each lease was seen to be valid."""
    stale = dict.fromkeys(("fenced", *CONTROLS), 0)
    newest: Counter[tuple[str, str]] = Counter()
    valid_until: dict[tuple[str, int], int] = {}
    for kind, key, token, _, deadline in effects:
        stale[kind] += token < newest[kind, key]
        newest[kind, key] = max(token, newest[kind, key])
        if deadline:
            valid_until[key, token] = max(deadline, valid_until.get((key, token), 0))
    return stale, valid_until


def _disordered(grants: list[Grant]) -> int:
    """Count the grants that began after another was there, and have a smaller token."""
    found, highest = 0, 0
    ended = sorted(grants, key=lambda each: each.at)
    place = 0
    for grant in sorted(grants, key=lambda each: each.began):
        while place < len(ended) and ended[place].at < grant.began:
            highest = max(highest, ended[place].token)
            place += 1
        found += grant.token < highest
    return found
