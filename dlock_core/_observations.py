"""What a client has observed of others' locks: bounded, and kept in a file where an option names one, for the next process.

Losing an observation only delays a takeover, so whatever is wrong with the file is told and otherwise passed over.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlock_core.early import resumed, saved
from dlock_core.lease import observe

if TYPE_CHECKING:
    from dlock_core._handle import Ports
    from dlock_core.record import LockRecord
    from dlock_core.states import Observation

__all__ = ["ObservationFile", "Observations"]

_log = logging.getLogger("dlock.engine")

OBSERVATIONS_MAX = 10_000
SAVED_MAX = 1_000
_OTHERS_WRITE = 0o022


class ObservationFile:
    """The file at *path*, for the processes of one *boot*. Written whole and renamed, so nobody ever reads a half."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self._boot = boot

    def load(self, now: int) -> dict[str, Observation]:
        """Return what it holds that counts at *now*."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid not in (0, os.geteuid()) or status.st_mode & _OTHERS_WRITE:
                    _log.warning("observations %r are not read: other users may write that file", str(self.path))
                    return {}
                return resumed(json.load(file), self._boot, now)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("observations %r cannot be read, and are begun anew: %s", str(self.path), error)
            return {}

    def save(self, seen: dict[str, Observation], now: int) -> None:
        """Put *seen*, and what others have put there meanwhile; of two observations of one version the earlier counts."""
        merged = self.load(now)
        for key, mine in seen.items():
            theirs = merged.get(key)
            merged[key] = theirs if theirs is not None and _is_earlier(theirs, mine) else mine
        newest = sorted(merged, key=lambda key: merged[key].seen_at)[-SAVED_MAX:]
        text = json.dumps(saved({key: merged[key] for key in newest}, self._boot))
        temporary = None
        try:
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, prefix=".dlock-", delete=False) as file:
                temporary = file.name
                file.write(text)
            Path(temporary).replace(self.path)
        except OSError as error:
            _log.warning("observations %r cannot be written: %s", str(self.path), error)
            if temporary is not None:
                with suppress(OSError):
                    Path(temporary).unlink()


def _is_earlier(one: Observation, other: Observation) -> bool:
    return one.version == other.version and one.seen_at < other.seen_at


class Observations:
    """The observations of one client, by full key; the oldest are forgotten."""

    def __init__(self, ports: Ports, file: ObservationFile | None) -> None:
        self._ports = ports
        self._file = file
        self._unsaved: dict[str, Observation] = {}
        self._seen = OrderedDict({} if file is None else file.load(ports.now()))

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, key: str) -> Observation | None:
        """Return what was observed of *key*."""
        return self._seen.get(key)

    def keep(self, key: str, seen: Observation) -> bool:
        """Keep *seen* for the next attempt: tries that never wait take over a dead lock by it. Whether it is another version."""
        before = self._seen.get(key)
        if seen is before:
            return False
        with self._ports.mutex:
            self._seen[key] = seen
            self._seen.move_to_end(key)
            if len(self._seen) > OBSERVATIONS_MAX:
                self._seen.popitem(last=False)
            if self._file is not None:
                self._unsaved[key] = seen
        return before is None or before.version != seen.version

    def note(self, key: str, record: LockRecord | None) -> None:
        """Begin to observe *record*, unless that was begun."""
        seen = self._seen.get(key)
        if record is not None and record.held and (seen is None or seen.version != record.version):
            self.keep(key, observe(record, self._ports.now()))

    def save(self) -> None:
        """Write down what is new, where there is a file."""
        if self._file is None or not self._unsaved:
            return
        with self._ports.mutex:
            unsaved, self._unsaved = self._unsaved, {}
        self._file.save(unsaved, self._ports.now())
