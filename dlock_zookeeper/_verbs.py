"""Every verb as one exchange: which requests it sends, and what their answers mean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency

from dlock_core.errors import RecordError, StoreError
from dlock_core.kit import BatchResults, damaged, in_parts, kept_for_first, matches, outcome, pages, wakes, written
from dlock_core.store import Claim, Reply
from dlock_zookeeper import _wire
from dlock_zookeeper._errors import TROUBLE, error_of, no_root
from dlock_zookeeper.provision import guarantees, participants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dlock_core.kit import Call, Exchange
    from dlock_core.record import LockRecord
    from dlock_core.store import Guarantees, Release, Replace, Version
    from dlock_zookeeper._links import ThreadLink
    from dlock_zookeeper._queue import Queue
    from dlock_zookeeper._wire import Step

_PAGE = 500
_LOOK_S = 2.0
_HINTS_MAX = 2048
_KEPT_MS = 10_000
_BATCH_BYTES = 900_000
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)
_CONFIG = "/zookeeper/config"


def _zxid(answers: Sequence[Any]) -> int:
    """Return the zxid of the transaction that has these *answers*, or 0 where another record stands than it expected.

    Raises: KazooException: it was refused for another reason.
    """
    for answer in answers:
        if isinstance(answer, (NodeExistsError, NoNodeError)):
            return 0
        if isinstance(answer, Exception) and not isinstance(answer, _BYSTANDERS):
            raise answer
    return int(answers[-1].mzxid)


class ZooKeeperVerbs:
    """Everything that the store knows of ZooKeeper.

    A step expects what the store saw last under the key, or nothing where it saw nothing. That is a hint: where it is wrong, the step is
    refused, and the record is read. No hint refuses anything.
    """

    name = "ZooKeeper"

    def __init__(self, root: str, link: ThreadLink, queue: Queue) -> None:
        self._root, self._link, self.queue = root, link, queue
        self._root_seen = False
        self._hints: dict[str, LockRecord] = {}

    def claim(self, request: Claim) -> Exchange[Reply]:
        """One transaction; after a refusal one read."""
        key = request.record.key
        own = self.queue.own(key, request.ticket)
        if own is None and request.ticket is not None and (rvn := self.queue.kept(key)) is not None:
            record = yield from self.read(key)
            if record is not None and record.rvn == rvn:
                return Reply(applied=False, record=kept_for_first(record, _KEPT_MS))
        return (yield from self._step(request, own))

    def replace(self, request: Replace | Release) -> Exchange[Reply]:
        """As :meth:`claim`."""
        return self._step(request)

    release = replace

    def _step(self, request: Claim | Replace | Release, own: str | None = None) -> Exchange[Reply]:
        key, mints = request.record.key, isinstance(request, Claim)
        standing, known = self._hints.get(key), False
        while True:  # ends with the call's time: whenever a step is refused, another client's was applied
            floor = self._link.zxid + 1
            decided = outcome(standing, request, floor=floor)
            record = decided.record
            if not known and (not decided.applied or (mints and record is not None and record.fencing_token > floor)):
                standing, known = (yield from self.read(key)), True
                continue
            if not decided.applied or record is None:
                return decided
            # The zxid of the transaction is the floor at least.
            implied = mints and record.fencing_token == floor
            step = _wire.step(
                _wire.path_of(self._root, key),
                None if standing is None else standing.rvn,
                record,
                None if implied else record.fencing_token,
            )
            if zxid := (yield from self._written(step, own=own, frees=wakes(request))):
                if mints:
                    self.queue.claimed(key, own)
                record = written(record, zxid, None) if implied else record
                self._seen(key, record)
                return Reply(applied=True, record=record)
            was, standing = standing, (yield from self.read(key))
            if known and was == standing:
                raise damaged(key, "its marker is missing", where=self.name)
            known = True

    def _written(self, step: Step, *, own: str | None, frees: bool) -> Exchange[int]:
        """Do *step*; return the transaction's zxid, or 0 where another record stands than it expects."""
        if own is not None:
            [[*answers, left]] = yield _wire.transactions([[step, _wire.Leave(own)]])
            if isinstance(left, NoNodeError):  # the place ended with a session
                self.queue.drop(own)
                return (yield from self._written(step, own=None, frees=frees))
            if not isinstance(left, Exception):
                self.queue.drop(own)
        elif frees and self.queue.may_be_wanted(step.record.key):
            answers, queue = yield _wire.freeing(step, _wire.queue_of(self._root, step.record.key))
            if getattr(queue, "numChildren", 0):
                self.queue.lets_pass(step.record.key, step.record.rvn)
        else:
            [answers] = yield _wire.transactions([[step]])
        if step.rvn is None and isinstance(answers[0], NoNodeError):
            raise no_root(self._root, self._link.chroot) from answers[0]
        return _zxid(answers)

    def replace_many(self, requests: Sequence[Replace]) -> Exchange[Sequence[Reply | StoreError]]:
        """One transaction, more where they are large. Where one request is refused, each has a transaction of its own, all at once."""
        results = BatchResults(requests)
        # Other threads change the hints meanwhile.
        standing = [self._hints.get(each.record.key) for each in requests]
        unseen = [n for n, each in enumerate(requests) if not matches(standing[n], each.expected)]
        yield from self._look_at(unseen, requests, results)
        shown = results.as_list() if unseen else []
        for number in unseen:
            came = shown[number]
            standing[number] = came.record if isinstance(came, Reply) else None
        steps: dict[int, Step] = {}
        for number, request in enumerate(requests):
            decided = outcome(standing[number], request)
            if decided.applied and decided.record is not None:
                path, record = _wire.path_of(self._root, request.record.key), decided.record
                try:
                    steps[number] = _wire.step(path, request.expected.rvn, record, record.fencing_token)
                except RecordError as error:
                    results.fail_by((number,), error, partial(error_of, error, writes=False))
        for numbers in in_parts({number: step.size for number, step in steps.items()}, _BATCH_BYTES):
            try:
                yield from self._batch({number: steps[number] for number in numbers}, requests, results)
            except (StoreError, *TROUBLE) as error:
                results.fail_by(numbers, error, partial(error_of, error, writes=True))
        return results.as_list()

    def _batch(self, steps: dict[int, Step], requests: Sequence[Replace], results: BatchResults) -> Exchange[None]:
        """Do *steps*, by the numbers of the requests."""
        [answers] = yield _wire.transactions([list(steps.values())])
        apart = [answers[first : first + 3] for first in range(0, len(answers), 3)]
        if any(isinstance(answer, Exception) for answer in answers):  # then nothing of it was written
            apart = yield _wire.transactions([step] for step in steps.values())
        refused = []
        for (number, step), each in zip(steps.items(), apart, strict=True):
            try:
                zxid = _zxid(each)
            except TROUBLE as error:
                results.fail_by((number,), error, partial(error_of, error, writes=True))
                continue
            if zxid:
                self._seen(step.record.key, step.record)
                results.settle(number, partial(Reply, applied=True, record=step.record))
            else:
                refused.append(number)
        yield from self._look_at(refused, requests, results, refused=True)

    def _look_at(
        self, numbers: list[int], requests: Sequence[Replace], results: BatchResults, *, refused: bool = False
    ) -> Exchange[None]:
        """Read what stands under the keys of these requests; it is their result, unless they are to be written."""
        if not numbers:
            return
        keys = [requests[number].record.key for number in numbers]
        try:
            _, *nodes = yield _wire.looks([_wire.path_of(self._root, key) for key in keys])
        except TROUBLE as error:  # they were refused, or not sent yet
            results.fail_by(numbers, error, partial(error_of, error, writes=False))
            return
        if not self._root_seen and not any(nodes):
            yield from self._look_for_root()
        for number, key, node in zip(numbers, keys, nodes, strict=True):
            self._hints.pop(key, None)
            expected = requests[number].expected if refused else None
            results.settle(number, partial(self._shown, key, node, expected))

    def _shown(self, key: str, node: Any, refused: Version | None) -> Reply:
        """Return the refusal that a node means. That it has the version of a step that was *refused* cannot be."""
        if node is None:
            return Reply(applied=False, record=None)
        record = _wire.record(key, *node)
        if refused is not None and matches(record, refused):
            raise damaged(key, "its marker is missing", where=self.name)
        self._seen(key, record)
        return Reply(applied=False, record=record)

    def moved_on(self, name: str, seen: LockRecord) -> Exchange[bool]:
        """Whether the record *seen* stands no more, for who waits under its key or at a place; if not, its next change is news.

        Who is behind another in the queue has news of that one's going alone. Who comes forward waits for whatever stands then to change.
        """
        if name in self.queue and not (yield from self.queue.enter(name, _wire.path_of(self._root, seen.key))):
            return False
        came = self.queue.comes_forward(name)
        try:
            record = yield from self.read(seen.key, watch=True)
        except RecordError:
            return True  # the claim says so
        if record is None or not record.held:
            return True
        return not came and record.version != seen.version

    def read(self, key: str, *, watch: bool = False) -> Exchange[LockRecord | None]:
        """Wait until the server has what the leader has, and read; with *watch* the next change is news."""
        self._hints.pop(key, None)
        try:
            _, (value, stat) = yield _wire.read(_wire.path_of(self._root, key), watch=watch)
        except NoNodeError:
            if not self._root_seen:
                yield from self._look_for_root()
            return None
        except StoreError:
            raise
        except TROUBLE as error:
            # Also in a step: what it has sent before, if anything, was certainly refused.
            trouble = error_of(error, key, writes=False)
            assert trouble is not None
            raise trouble from error
        record = _wire.record(key, value, stat)
        self._seen(key, record)
        return record

    def _look_for_root(self) -> Exchange[None]:
        try:
            yield _wire.reads([f"/{self._root}"])
        except NoNodeError as error:
            raise no_root(self._root, self._link.chroot) from error
        self._root_seen = True

    def _seen(self, key: str, record: LockRecord) -> None:
        self._root_seen = True
        if len(self._hints) >= _HINTS_MAX:
            self._hints = {}
        self._hints[key] = record

    def scan(self, prefix: str) -> Iterator[Exchange[Iterable[LockRecord]]]:
        """In the order of keys, which the first page lists."""
        keys: list[str] = []

        def page(after: int | None) -> Exchange[Any]:
            if after is None:
                try:
                    [found] = yield _wire.listing(self._root)
                except NoNodeError as error:
                    raise no_root(self._root, self._link.chroot) from error
                names = (_wire.key_of(name) for name in found if name != _wire.QUEUES)
                keys.extend(sorted(key for key in names if key.startswith(prefix)))
                return [], 0 if keys else None
            part, more = keys[after : after + _PAGE], after + _PAGE
            nodes = yield _wire.page([_wire.path_of(self._root, key) for key in part])
            found = [partial(_wire.listed, key, node) for key, node in zip(part, nodes, strict=True)]
            return found, more if more < len(keys) else None

        return pages(page)

    def guarantees(self) -> Exchange[Guarantees]:
        """Look for the root, and ask the server for itself and its ensemble."""
        yield from self._look_for_root()
        voting: int | None = None
        try:
            [(config, _)] = yield _wire.reads([_CONFIG])
            voting = participants(config) or None
        except (NoNodeError, NoAuthError):
            pass  # below the root of another, or for administrators only
        return guarantees(self._link.looks(_LOOK_S), voting)

    def provision(self) -> Exchange[None]:
        """Make the root, unless it is there; whether its user may use it is seen."""
        yield _wire.making(f"/{self._root}")
        yield _wire.listing(self._root)

    def trouble(self, error: Exception, call: Call) -> StoreError | None:
        """Return dlock's error for one of kazoo's."""
        return error_of(error, call.key, writes=call.writes)
