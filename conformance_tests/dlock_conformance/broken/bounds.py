"""Stores that are right up to a number, at their beginning, or while few ask: with what they do wrong beyond that, as data."""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Sequence
from typing import Any

from dlock_conformance.broken.breaking import Fault, Step, around, both, for_threads, put, setting, standing
from dlock_conformance.broken.faulty import keyed
from dlock_conformance.broken.faulty_links import BrokenLinks
from dlock_conformance.broken.faulty_times import OneAtATime
from dlock_conformance.broken.steps import Broken
from dlock_conformance.harness import Colour
from dlock_conformance.wire.errors import NotSentError
from dlock_conformance.wire.links import Links
from dlock_conformance.wire.wired import Wire, WiredStore
from dlock_core.errors import RecordError, StoreError, StoreUnavailableError
from dlock_core.record import LockRecord
from dlock_core.store import Claim, Replace, Reply

__all__ = ["LINKS_OF_BOUNDS", "OF_BOUNDS"]

# ---- batches, several claims, prunes


def held_is_enough_after(count: int) -> Fault:
    """Compare the versions of the first *count* of a batch, and of the others only that they are held."""

    def fault(wire: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        came = list(step(requests[:count]))
        for each in requests[count:]:
            old = standing(wire, each)
            came += [put(wire, each.record, each.record.key)] if old is not None and old.held else step([each])
        return came

    return fault


def dropping_payloads_after(count: int) -> Fault:
    """Keep the payloads of the first *count* of a batch."""

    def fault(_: Wire, step: Step, requests: Sequence[Replace]) -> Any:
        return step([*requests[:count], *(each._replace(keep_payload=False) for each in requests[count:])])

    return fault


def seeing_only(count: int) -> Fault:
    """See what stands under the first *count* of several keys, if it is free, and begin the tokens of the others anew."""

    def fault(wire: Wire, step: Step, requests: Sequence[Claim]) -> Any:
        records = wire.space.records
        free = {each.record.key: standing(wire, each) for each in requests[count:]}
        unseen = {key: record for key, record in free.items() if record is not None and not record.held}
        for key in unseen:
            del records[key]
        came = step([*requests[:count], *(each._replace(must_exist=False) for each in requests[count:])])
        if not came[0].applied:
            records.update(unseen)
        return came

    return fault


def as_the_first(name: str) -> Fault:
    """Do all of several claims with the flag *name* of the first."""
    return lambda _, step, requests: step([each._replace(**{name: getattr(requests[0], name)}) for each in requests])


def floor_of_the_first(count: int) -> Fault:
    """Raise the floor by the first *count* of a page."""

    def fault(wire: Wire, step: Step, asked: Any) -> Any:
        before, came = wire.space._least_token, step(asked)
        if came and not asked[2]:
            wire.space._least_token = max(before, *(record.fencing_token + 1 for record in asked[0][:count]))
        return came

    return fault


def least_age_in_32_bits(_: Wire, step: Step, asked: Any) -> Any:
    """Take the least age as a number with a sign."""
    records, older_than_ms, dry_run = asked
    return step((records, (older_than_ms + 2**31) % 2**32 - 2**31, dry_run))


# ---- scans


def pages_in_utf16(wire: Wire, step: Step, prefix: str) -> Any:
    """Sort the keys as UTF-16 does, and go on after the last key of a page as code points do."""
    last = ""
    while page := sorted(
        (record for record in step(prefix) if record.key > last), key=lambda record: record.key.encode("utf-16-be")
    )[:100]:
        yield from page
        last = page[-1].key


# ---- what a store has of its own


class RemembersTrouble(WiredStore):
    """Tells the trouble of its first call for ever, as where a connection is cached with its failure."""

    asked = False
    trouble: BaseException | None = None

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        if self.trouble is not None:
            raise StoreUnavailableError("there is no connection") from self.trouble
        try:
            came = super()._ask(verb, request, key, timeout_s)
        except StoreError as error:
            self.trouble = None if self.asked else error.__cause__
            raise
        self.asked = True
        return came


class PatientAtFirst(WiredStore):
    """Has an hour for its first call, in which it greets the server."""

    asked = False

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        came = super()._ask(verb, request, key, timeout_s if self.asked else 3600)
        self.asked = True
        return came


class KnowsTheFloor(WiredStore):
    """Reads the floor of new tokens when it is opened, and after its own prunes."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._floor = wire.space._least_token

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        space = self.wire.space
        with space.mutex:
            right = space._least_token
            if verb.startswith("claim"):
                space._least_token = self._floor
            came = super()._ask(verb, request, key, timeout_s)
            if verb == "prune":
                self._floor = space._least_token
            elif verb.startswith("claim"):
                space._least_token = right
        return came


def dying_with_the_server(wire: Wire) -> None:
    """Have a store end with the server that it was opened for, as where that had to be taught its scripts."""
    begun = [0]

    class Dies(WiredStore):
        def __init__(self, wire: Wire) -> None:
            super().__init__(wire)
            self._begun = begun[0]

        def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
            if self._begun != begun[0]:
                raise StoreUnavailableError("there is no such script", key=key) from NotSentError()
            return super()._ask(verb, request, key, timeout_s)

    both(for_threads(Dies), setting(restart=lambda: begun.append(begun.pop() + 1)))(wire)


class LosesConnections(WiredStore):
    """Has ten connections, and one less after each record that is not dlock's."""

    left = 10

    def _ask(self, verb: str, request: Any, key: str | None, timeout_s: float) -> Any:
        if not self.left:
            raise StoreUnavailableError("no connection is free") from TimeoutError()
        try:
            return super()._ask(verb, request, key, timeout_s)
        except RecordError:
            self.left -= 1
            raise


class HearsEight(WiredStore):
    """Hears eight waits at a time; the others have not begun."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._places = threading.Semaphore(8)

    def wait(self, record: LockRecord, *, ticket: str, timeout_s: float) -> None:
        """As its name says."""
        with self._places:
            super().wait(record, ticket=ticket, timeout_s=timeout_s)


class WholeMilliseconds(WiredStore):
    """Waits for so many whole milliseconds, and for ever where there are none."""

    def claim_when_free(self, request: Claim, *, wait_s: float, timeout_s: float) -> Reply:
        """As its name says."""
        return super().claim_when_free(request, wait_s=wait_s if int(wait_s * 1000) else 3600, timeout_s=timeout_s)


class ReadsHoldUp(OneAtATime):
    """Lets others pass when a scan has its page, or a read with the age its answer."""

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if verb in ("scan", "read_age"):
            return super().ask(verb, request, more, timeout_s)
        with self._turn:
            pass
        return Links.ask(self, verb, request, more, timeout_s)


class WaitsUseThemUp(Links):
    """Has ten connections, and each wait needs one to its end."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._places = threading.Semaphore(10)

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if not self._places.acquire(timeout=timeout_s):
            raise NotSentError("no connection is free")
        try:
            return super().ask(verb, request, more, timeout_s)
        finally:
            self._places.release()


class StaysAway(Links):
    """Asks nothing for half a minute when a connection was refused."""

    until = 0.0

    def ask(self, verb: str, request: Any, more: Any, timeout_s: float) -> Any:
        """As its name says."""
        if time.monotonic() < self.until:
            raise NotSentError("the circuit is open")
        try:
            return super().ask(verb, request, more, timeout_s)
        except NotSentError:
            self.until = time.monotonic() + 30
            raise


_SYNC = (Colour.SYNC,)
_TO_HIRAGANA = {code: code - 0x60 for code in range(0x30A1, 0x30F7)}

OF_BOUNDS: tuple[Broken, ...] = (
    Broken("a batch compares its first 30 versions", "B3", around("replace_many", held_is_enough_after(30))),
    Broken("a batch keeps its first 20 payloads", "B3", around("replace_many", dropping_payloads_after(20))),
    Broken("several claims see what stands under 25 keys", "M4", around("claim_many", seeing_only(25))),
    Broken("several claims keep payloads as the first does", "M4", around("claim_many", as_the_first("keep_payload"))),
    Broken("the first of several claims says what must exist", "M2", around("claim_many", as_the_first("must_exist"))),
    Broken("a prune has the floor of its first 100", "P3", around("prune", floor_of_the_first(100))),
    Broken("a prune counts ages in 32 bits", "P1", around("prune", least_age_in_32_bits)),
    Broken("a store knows the floor from its beginning", "P2", for_threads(KnowsTheFloor), _SYNC, on_socket=False),
    Broken("a scan goes on in another order than its pages have", "S10", around("scan", pages_in_utf16)),
    Broken("katakana is hiragana in keys", "S12", keyed(lambda key: key.translate(_TO_HIRAGANA))),
    Broken(
        "keys have no format characters",
        "S12",
        keyed(lambda key: "".join(each for each in key if unicodedata.category(each) != "Cf")),
    ),
    Broken("the trouble of the first call is remembered", "S14", for_threads(RemembersTrouble), _SYNC, on_socket=False),
    Broken("the first call has an hour", "S13", for_threads(PatientAtFirst), _SYNC, on_socket=False),
    Broken("each foreign record costs a connection", "S16", for_threads(LosesConnections), _SYNC, on_socket=False),
    Broken("a store ends with its server", "S18", dying_with_the_server, _SYNC, on_socket=False),
    Broken("eight waits are heard at a time", "N1", for_threads(HearsEight), _SYNC, on_socket=False),
    Broken("a claim waits for ever for less than 1 ms", "W1", for_threads(WholeMilliseconds), _SYNC, on_socket=False),
)
LINKS_OF_BOUNDS: tuple[BrokenLinks, ...] = (
    BrokenLinks("a read that hangs holds up what comes later", "S13", ReadsHoldUp, None),
    BrokenLinks("waits use up a pool of ten", "N1", WaitsUseThemUp, None),
    BrokenLinks("a server that refused is not asked for long", "S14", StaysAway, None),
)
