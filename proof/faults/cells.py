"""The faults: what is done to a holder or to its store in one round, on all keys that are held then.

Each key that is held while another party waits for it, and that a round disturbs, is a trial.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dlock_conformance.faults import Fault as Cut

from proof.faults.party import Order, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlock_core.keywords import ClientKeywords
    from proof.faults.book import Grant
    from proof.faults.book_server import Resource
    from proof.faults.nursery import Nursery, Party
    from proof.faults.stores import Disturbed, Size

__all__ = ["CELLS", "Cell", "Stage"]

_LIMIT_S = 240.0  # a busy machine may take long
_PATIENCE_LEASES = 3.0
_CROWD = ("sync", "async")
_FILE_BYTES = 16_384
_STANDARD_STREAMS = 3
_ASLEEP_MAX = 1  # parties that stand still between two deaths of a chain, so that others are left to wait
_STUTTERS, _RUNS_LEASES = 20, 1 / 150  # how often a holder runs within a lease, and for what part of one
_LOSSES = 3  # of replies, of each key in a round


class Stage:
    """One cell on one store: the parties, the book that they write, and what was found beside it."""

    def __init__(
        self, cell: Cell, store: Disturbed, size: Size, *, source: Resource, nursery: Nursery, rng: random.Random
    ) -> None:
        self.cell, self.store, self.size, self.book, self.resource = cell, store, size, source.book, source
        self.nursery, self.rng, self.lease_s = nursery, rng, size.lease_s
        self.trials = 0
        self.delays: list[float] = []
        self.asleep: list[Party] = []
        count = -(-size.keys // cell.keys_part)
        runs = size.run_keys if cell.commands else 0
        self.keys = tuple(f"{cell.name}/{number}" for number in range(count + runs))
        kinds = [kind or rng.choice(_CROWD) for kind in cell.kinds]
        self.parties = [self.party(kind, self.keys) for kind in kinds]
        self.parties += [self.party("run", (key,)) for key in self.keys[count:]]

    def party(self, kind: str, keys: tuple[str, ...]) -> Party:
        """Start a party."""
        url = self.store.proxied if self.cell.proxied else self.store.url
        poll_s = self.lease_s / self.size.polls if self.size.polls else None
        return self.nursery.party(Order(kind, url, keys, self.resource.path, self.lease_s, poll_s, self.cell.options))

    def end(self, *, at_once: bool = False) -> None:
        """End the parties; *at_once*: whatever they have told."""
        for party in self.parties:
            party.kill()
            if not at_once:
                self.resource.settle_of(party.who)

    def wait_for(self, ready: Callable[[], object], what: str) -> None:
        """Return when *ready* is true.

        Raises: RuntimeError: it does not become so, or a party has ended.
        """
        until = time.monotonic() + _LIMIT_S
        with self.book.changed:
            while not ready():
                self.check()
                if time.monotonic() > until:
                    raise RuntimeError(f"{what} for {_LIMIT_S:g} s")
                self.book.changed.wait(0.1)

    def check(self) -> None:
        """Raise RuntimeError if a party has ended by itself."""
        if self.resource.trouble is not None:
            raise RuntimeError(f"a party ended: {self.resource.trouble}")

    def victims(self) -> list[Party]:
        """Wait until a party holds its share, for a while, and then anything; return it, with the commands that hold just then."""
        crowd = [party for party in self.parties if party.kind in self.cell.may_fall]
        share, patient_until = len(self.keys) // (len(crowd) + 1), time.monotonic() + _PATIENCE_LEASES * self.lease_s

        def ready() -> bool:
            most = max(len(self.held([party])) for party in crowd)
            return most >= share or (most > 0 and time.monotonic() > patient_until)

        self.wait_for(ready, "nobody has held anything that another waits for")
        chosen = max(crowd, key=lambda party: len(self.held([party])))
        time.sleep(self.rng.random() * self.lease_s / 2)  # at a random point
        return [chosen, *(party for party in self.parties if party.kind == "run" and self.held([party]))]

    def held(self, parties: Sequence[Party]) -> list[Grant]:
        """Return the grants of *parties* for whose keys somebody else waits."""
        return [
            grant
            for party in parties
            for grant in self.book.held_by(party.who)
            if self.book.waited_for(grant.key, besides=party.who)
        ]

    def pass_leases(self, leases: float) -> None:
        """Let time pass: the length of a fault."""
        time.sleep(leases * self.lease_s)

    def next_grant(self, key: str, token: int) -> Grant:
        """Wait for the first grant of *key* after *token*."""
        self.wait_for(lambda: self.book.last(key) > token, f"{key} was not granted again")
        found = self.book.granted_after(key, token)
        assert found is not None
        return found

    def taken_over(self, held: Sequence[Grant], since: int) -> None:
        """Wait until each of *held* was taken over, and keep after how many leases."""
        for grant in held:
            found = self.next_grant(grant.key, grant.token)
            self.delays.append((found.at - since) / 1e9 / self.lease_s)
        self.trials += len(held)

    def replace(self, party: Party) -> None:
        """Let another party do the work of one that was killed."""
        kind = self.rng.choice(_CROWD) if party.kind in _CROWD else party.kind
        self.parties[self.parties.index(party)] = self.party(kind, party.keys)


# ---- rounds


def _kill(stage: Stage) -> None:
    stage.pass_leases(stage.cell.leases)  # in which bodies come to their end
    victims = stage.victims()
    at = now()
    for party in victims:
        party.kill()
    for party in victims:
        stage.resource.settle_of(party.who)
    held = stage.held(victims)
    for party in victims:
        stage.replace(party)
    stage.taken_over(held, at)


def _stop(stage: Stage, wake: Callable[[Stage, Sequence[Party]], None] | None = None) -> None:
    victims = stage.victims()
    for party in victims:
        party.stop()
    stage.resource.settle()
    held = stage.held(victims)
    stage.pass_leases(stage.cell.leases)
    if wake is not None:
        wake(stage, victims)
    for party in victims:
        party.go_on()
    stage.pass_leases(0.25)  # the holder goes on, and has its stale effects
    stage.trials += len(held)


def _stutter(stage: Stage) -> None:
    """Stop the holder, and then let it run for a moment only, again and again, for a lease: as a machine does that has far too much to do.

    None of the later pauses is as long as the stop grace. A process is caught between its grant and its body, too.
    """
    _stop(stage, _wake_for_moments)


def _wake_for_moments(stage: Stage, stopped: Sequence[Party]) -> None:
    for _ in range(_STUTTERS):
        for party in stopped:
            party.go_on()
        stage.pass_leases(_RUNS_LEASES)
        for party in stopped:
            party.signal(signal.SIGSTOP)
        stage.pass_leases(1 / _STUTTERS)


def _chain(stage: Stage) -> None:
    """Kill or stop the holder, and the one that takes over from it, and so on; one that was stopped goes on some deaths later."""
    [party, *_] = stage.victims()
    at = now()
    kills = stage.rng.random() < 0.5
    if kills:
        party.kill()
        stage.resource.settle_of(party.who)
    else:
        party.stop()
        stage.resource.settle()
    held = stage.held([party])
    if kills:
        stage.replace(party)
    else:
        stage.asleep.append(party)
    stage.taken_over(held, at)
    if len(stage.asleep) > _ASLEEP_MAX:
        stage.asleep.pop(0).go_on()


def _hog(stage: Stage) -> None:
    [party, *_] = stage.victims()
    os.kill(party.pid, signal.SIGUSR1)
    stage.resource.settle()
    held = stage.held([party])
    stage.pass_leases(stage.cell.leases + 0.25)
    stage.trials += len(held)


def _fork(stage: Stage) -> None:
    [party, *_] = stage.victims()
    os.kill(party.pid, signal.SIGUSR2)
    stage.wait_for(lambda: party.who in stage.book.children, "no child was heard of")
    at = now()
    party.kill()
    stage.resource.settle_of(party.who)
    held = stage.held([party])
    stage.replace(party)
    try:
        stage.taken_over(held, at)  # while the child is alive
    finally:
        with suppress(ProcessLookupError):
            os.kill(stage.book.children[party.who], signal.SIGKILL)


def _cancel(stage: Stage) -> None:
    before = len(stage.book.cancels)
    stage.wait_for(lambda: len(stage.book.cancels) >= before + len(stage.keys), "nothing was cancelled")
    stage.trials += len(stage.keys)


def _limit(stage: Stage) -> None:
    """Take space or descriptors away from a process, and give them back."""
    [party, *_] = stage.victims()
    if stage.cell.name == "disk-full":
        kind, left = resource.RLIMIT_FSIZE, stage.rng.randint(0, _FILE_BYTES)
    else:
        kind, left = resource.RLIMIT_NOFILE, _STANDARD_STREAMS
    before = resource.prlimit(party.pid, kind)
    resource.prlimit(party.pid, kind, (left, before[1]))
    stage.resource.settle()
    held = stage.held([party])
    stage.pass_leases(stage.cell.leases)
    stage.check()
    resource.prlimit(party.pid, kind, before)
    stage.pass_leases(0.25)
    stage.trials += len(held)


def _server(stage: Stage) -> None:
    """Disturb the store once, while keys are held, and see each of those granted again."""
    stage.victims()
    before = [(key, stage.book.last(key)) for key in stage.keys if stage.book.newest(key) is not None]
    if stage.cell.name == "server-stop":
        stage.store.stop()
        stage.pass_leases(stage.cell.leases)
        stage.store.go_on()
    elif stage.cell.name == "server-kill":
        stage.store.restart()
    elif stage.cell.name == "all-servers-kill":
        stage.store.restart_all()
    elif stage.cell.proxied:
        stage.store.proxy.begin(Cut.HANG)
        stage.pass_leases(stage.cell.leases)
        stage.store.proxy.heal()
    for key, token in before:
        stage.next_grant(key, token)
    stage.trials += len(before)


def _cut(stage: Stage) -> None:
    """Lose some replies for each key, each after its request was applied; each is a trial."""
    stage.wait_for(lambda: stage.held(stage.parties), "nobody has held anything")
    time.sleep(stage.rng.random() * stage.lease_s / 2)  # at a random point
    before = [(key, stage.book.last(key)) for key in stage.keys if stage.book.newest(key) is not None]
    stage.store.proxy.lose_replies(_LOSSES * len(stage.keys))
    until = time.monotonic() + _LIMIT_S
    while stage.store.proxy.replies_to_lose:
        if time.monotonic() > until:
            raise RuntimeError(f"nobody has asked the store anything for {_LIMIT_S:g} s")
        time.sleep(0.01)
    for key, token in before:
        stage.next_grant(key, token)
    stage.trials += _LOSSES * len(stage.keys)


def _kill_peer(stage: Stage) -> None:
    """Kill a holder of locks that have no end, and count those that nobody got within five leases."""
    import redis

    from proof.faults.redis_py import NAME

    [party, *_] = stage.victims()
    party.kill()
    stage.resource.settle_of(party.who)
    held = stage.held([party])
    stage.replace(party)
    stage.pass_leases(stage.cell.leases)
    stuck = [grant.key for grant in held if stage.book.last(grant.key) == grant.token]
    stage.book.note("stuck", len(stuck))
    with redis.Redis.from_url(stage.store.url) as client:
        for key in stuck:
            client.delete(NAME.format(key))
    stage.trials += len(held)


class Cell(NamedTuple):
    """A fault. *control*: what must show for the run to count; *kinds*: the parties, None for any; *may_fall*: which are disturbed.

    *lease_s* is the lease, where it is not that of the store's other cells; *options* are those of the parties' clients beside it.
    """

    name: str
    round: Callable[[Stage], None]
    leases: float = 0.0
    control: str | None = None
    kinds: tuple[str | None, ...] = (None, None)
    may_fall: tuple[str, ...] = _CROWD
    commands: bool = False
    server: bool = False
    proxied: bool = False
    only: str | None = None
    lease_s: float | None = None
    options: ClientKeywords | None = None

    @property
    def keys_part(self) -> int:
        """By what the keys of the store are divided, for time to answer: the proxy has threads by connection, and writers look first."""
        if self.name == "chain":
            return 6  # twice as many parties, and how soon they take over counts
        return 3 if self.proxied or self.options == _KINDS_OF_LOCKS["writers"] else 1

    @property
    def of_bodies(self) -> bool:
        """Whether leaders or runners of jobs are disturbed."""
        return bool(set(self.kinds) & {*_LEADERS, *_RUNNERS, "deaf", "deaf-runner", "forgetful"})

    @property
    def peer(self) -> bool:
        """Whether another library does the work."""
        return self.name.startswith("peer")


_LEADERS = ("leader", "aleader")
_RUNNERS = ("runner", "arunner")
# These faults also come to holders whose locks are renewed by a session, and to writers that are members of a record.
_KINDS_OF_LOCKS: dict[str, ClientKeywords] = {"session": {"renewal": "session"}, "writers": {"mode": "write"}}
_OF_EACH_KIND = ("kill", "stop-2", "fork", "cancel", "cut-replies", "black-hole")
_SHORT_S = 0.6
_PEERS: tuple[str | None, ...] = ("peer", "peer")

CELLS = {
    cell.name: cell
    for cell in (
        Cell("kill", _kill, commands=True),
        Cell("chain", _chain, kinds=(None,) * 4),
        Cell("stop-0.5", _stop, 0.5, commands=True),
        Cell("stop-1.1", _stop, 1.1, "naive", commands=True),
        Cell("stop-2", _stop, 2, "naive", commands=True),
        Cell("stop-5", _stop, 5, "naive", commands=True),
        Cell("hasty", _stop, 0.8, "early", kinds=("sync", "hasty"), may_fall=("sync",)),
        Cell("gil-hog", _hog, 2, "naive"),
        Cell("fork", _fork, control="copies that were valid in the parent"),
        Cell("leader-kill", _kill, kinds=_LEADERS, may_fall=_LEADERS),
        Cell("leader-stop-2", _stop, 2, "naive", kinds=_LEADERS, may_fall=_LEADERS),
        Cell("leader-cut-off", _server, 2, kinds=_LEADERS, may_fall=_LEADERS, server=True, proxied=True),
        Cell("deaf-leader", _server, 2, "beside", ("deaf", "deaf"), ("deaf",), server=True, proxied=True),
        Cell("deaf-leader-stop", _stop, 2, "beside", ("deaf", "deaf"), ("deaf",)),
        Cell("runner-kill", _kill, 2, kinds=_RUNNERS, may_fall=_RUNNERS),
        Cell("runner-stop-2", _stop, 2, "naive", kinds=_RUNNERS, may_fall=_RUNNERS),
        Cell("runner-stop-2-short", _stop, 2, "naive", _RUNNERS, _RUNNERS, only="redis", lease_s=_SHORT_S),
        Cell("runner-stutter-short", _stutter, 2, "naive", _RUNNERS, _RUNNERS, only="redis", lease_s=_SHORT_S),
        Cell("deaf-runner-stop", _stop, 2, "beside", ("deaf-runner",) * 2, ("deaf-runner",)),
        Cell("forgetful-runner", _kill, 2, "again", ("forgetful",) * 2, ("forgetful",)),
        Cell("cancel", _cancel, control="naive", kinds=("cancelled", None)),
        Cell("disk-full", _limit, 2, "naive", only="sqlite"),
        Cell("no-descriptors", _limit, 2, "errors of the store", ("reopening", None), ("reopening",), only="sqlite"),
        Cell("server-stop", _server, 1.5, "naive", server=True),
        Cell("server-kill", _server, server=True),
        Cell("all-servers-kill", _server, server=True, only="etcd zookeeper"),
        Cell("cut-replies", _cut, server=True, proxied=True),
        Cell("black-hole", _server, 2, "naive", server=True, proxied=True),
        Cell("peer-stop-2", _stop, 2, "checked", kinds=_PEERS, may_fall=("peer",), only="redis"),
        Cell("peer-kill", _kill_peer, 5, "stuck", ("peer-default",) * 2, ("peer-default",), only="redis"),
        Cell("peer-cut-replies", _cut, 0, "orphans", kinds=_PEERS, server=True, proxied=True, only="redis"),
        Cell("peer-cancel", _cancel, 0, "orphans", kinds=("peer-cancelled",), only="redis"),
    )
}
CELLS |= {
    f"{kind}-{name}": CELLS[name]._replace(name=f"{kind}-{name}", commands=False, options=options)
    for kind, options in _KINDS_OF_LOCKS.items()
    for name in _OF_EACH_KIND
}
