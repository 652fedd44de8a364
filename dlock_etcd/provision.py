"""What etcd promises, as an exchange, and the rights that its user needs. There is nothing to create."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlock_core.kit import quorum_guarantees
from dlock_etcd import _schema
from dlock_etcd._errors import TROUBLE, is_denied, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlock_core.kit import Exchange
    from dlock_core.store import Guarantees

_OLDEST = (3, 4)
# How long one endpoint may take to tell of itself: it asks nobody else.
_LOOK_S = 2.0
_STATUS = _schema.request("Maintenance", "Status")


def policy(root: str) -> str:
    """Return the rights that the user of the locks needs."""
    return f"etcdctl role grant-permission ROLE --prefix=true readwrite '{root}/'; etcdctl user grant-role NAME ROLE"


def inspection(endpoints: Sequence[str]) -> Exchange[Guarantees]:
    """Look at each of the *endpoints*, and at their cluster. A channel of the user's own has one, which is not known by name.

    Raises: StoreSetupError: a member does not fit, or all are learners. The error of the last endpoint, where no other answers.
    """
    answers: dict[str, Any] = {}
    silent: dict[str, Exception] = {}
    reserved: list[str] = []
    looked_at = endpoints or ("the channel",)
    for number, endpoint in enumerate(looked_at):
        try:
            # It answers alone, also where there is no majority.
            status = yield _STATUS._replace(member=number, within_s=_LOOK_S)
        except TROUBLE as error:
            if is_denied(error):
                reserved.append(endpoint)
            else:
                silent[endpoint] = error
        else:
            _check(endpoint, status)
            answers[endpoint] = status
    learners = [endpoint for endpoint, status in answers.items() if status.learner]
    if len(silent) + len(learners) == len(looked_at):
        if silent:
            raise list(silent.values())[-1]
        raise misfit(f"{', '.join(learners)}: a learner answers no linearizable request", "name voting members")
    yield from _comparing(answers, looked_at)
    voting: int | None
    try:
        voting = sum(not member.learner for member in (yield _schema.request("Cluster", "MemberList")).members)
    except TROUBLE:
        voting = None  # newer servers tell members to administrators only, and to nobody where there is no majority
    return _guarantees(answers, reserved, list(silent), voting)


def _check(endpoint: str, status: Any) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", status.version)[:2])
    if version < _OLDEST:
        raise misfit(f"{endpoint} is etcd {status.version or 'of an unknown version'}", "update it to 3.4 or newer")


def _comparing(answers: Mapping[str, Any], looked_at: Sequence[str]) -> Exchange[None]:
    """Refuse endpoints that are not of one cluster: a client that comes to another one is granted a lock that is held.

    By default servers that were started apart have the same ids, as one server by two names has; but a member's log never gets shorter.
    """
    for endpoint, status in list(answers.items())[1:]:
        first, known = next(iter(answers.items()))
        are_apart = status.header.cluster_id != known.header.cluster_id
        if not are_apart and status.header.member_id == known.header.member_id:
            with suppress(*TROUBLE):
                again = yield _STATUS._replace(member=looked_at.index(first), within_s=_LOOK_S)
                are_apart = not known.raft_index <= status.raft_index <= again.raft_index
        if are_apart:
            raise misfit(
                f"{first} and {endpoint} are of two clusters, and each would grant the same lock",
                "name members of one cluster, which know each other by --initial-cluster",
            )


def _guarantees(
    answers: Mapping[str, Any], reserved: Sequence[str], silent: Sequence[str], voting: int | None
) -> Guarantees:
    notes = [f"answered: {', '.join([*answers, *reserved])}; no answer: {', '.join(silent)}"] if silent else []
    if reserved:  # as etcd 3.5.30 does
        notes.append(f"version and state are told to administrators only: {', '.join(reserved)}")
    notes += [
        f"{endpoint} is a learner, and is passed over until it votes"
        for endpoint, status in answers.items()
        if status.learner
    ]
    notes += [f"{endpoint} reports: {error}" for endpoint, status in answers.items() for error in status.errors]
    notes += [f"{endpoint} knows no leader now" for endpoint, status in answers.items() if not status.leader]
    at = f"at revision {max(status.header.revision for status in answers.values())}; " if answers else ""
    notes.append(
        f"{at}tokens are revisions: if a snapshot of an earlier one is restored, those granted since come again, "
        "so set token_floor above them first"
    )
    notes.append(
        "etcd keeps each renewal until it is compacted, and at its quota all locks are lost: set --auto-compaction-retention"
    )
    notes.append("waiters of all clients stand in one queue; there is no clock, so ages are observed by the clients")
    versions = [status.version for status in answers.values()]
    return quorum_guarantees("etcd", versions[0] if versions else "of a version not told", voting, notes)
