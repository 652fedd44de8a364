"""What a client has observed of others' locks: bounded, and kept in a file or a mapping of the user's for the next process.

Losing an observation only delays a takeover, so whatever is wrong with what was kept is told and otherwise passed over.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlock_core.clock import boot
from dlock_core.early import resumed, saved
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import ConfigurationError, UnsupportedError
from dlock_core.lease import observe, observed_version

if TYPE_CHECKING:
    from dlock_core.engine.handle import Runtime
    from dlock_core.record import LockRecord
    from dlock_core.states import Observation

_log = guarded_logger("dlock.engine")

OBSERVATIONS_MAX = 10_000
SAVED_MAX = 1_000
_OTHERS_WRITE = 0o022


def observation_store(
    kept: str | Path | MutableMapping[str, Any] | None,
) -> ObservationFile | ObservationMapping | None:
    """Return what the option ``observations`` names.

    Raises: UnsupportedError: this machine does not tell one boot from another. ConfigurationError: there is no such folder.
    """
    if kept is None:
        return None
    name = boot()
    if name is None:
        raise UnsupportedError(
            "observations need a boot id (Linux): what was seen before a reboot must not count after it"
        )
    if isinstance(kept, MutableMapping):
        return ObservationMapping(kept, name)
    if not Path(kept).parent.is_dir():
        raise ConfigurationError(f"observations: the folder of {str(kept)!r} is not there; make it, or name another")
    return ObservationFile(Path(kept), name)


class ObservationFile:
    """The file at *path*, in which observations outlive a client, for the processes of one *boot*.

    It is written whole and renamed, so nobody ever reads a half.
    """

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
        text = json.dumps(saved(_merged(self.load(now), seen), self._boot))
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


# Clients of one process may share a mapping; one of a signal handler may save while its own thread does.
_mapping_mutex = threading.RLock()


class ObservationMapping:
    """The mapping *kept*, which the user carries from one process of one *boot* to the next.

    Three names of it are used, and what stands under them is replaced, never changed.
    """

    def __init__(self, kept: MutableMapping[str, Any], boot: str) -> None:
        self._kept = kept
        self._boot = boot

    def load(self, now: int) -> dict[str, Observation]:
        """As :meth:`ObservationFile.load`."""
        try:
            return resumed(dict(self._kept), self._boot, now)
        except Exception as error:  # noqa: BLE001  # it is the user's own, and may be anything
            _log.warning("observations cannot be read from their mapping, and are begun anew: %r", error)
            return {}

    def save(self, seen: dict[str, Observation], now: int) -> None:
        """As :meth:`ObservationFile.save`."""
        with _mapping_mutex:
            merged = saved(_merged(self.load(now), seen), self._boot)
            try:
                self._kept.update(merged)
            except Exception as error:  # noqa: BLE001  # as above; the attempt is as it was
                _log.warning("observations cannot be put into their mapping: %r", error)


def _merged(found: dict[str, Observation], seen: dict[str, Observation]) -> dict[str, Observation]:
    """Return the newest of *found* and *seen*, by key."""
    for key, mine in seen.items():
        theirs = found.get(key, mine)
        found[key] = theirs if theirs.version == mine.version and theirs.seen_at < mine.seen_at else mine
    return {key: found[key] for key in sorted(found, key=lambda key: found[key].seen_at)[-SAVED_MAX:]}


class Observations:
    """The observations of one client, by full key; the oldest are forgotten."""

    def __init__(self, runtime: Runtime, kept: ObservationFile | ObservationMapping | None) -> None:
        self._runtime = runtime
        self._kept = kept
        self._unsaved: dict[str, Observation] = {}
        self._seen = OrderedDict({} if kept is None else kept.load(runtime.now()))

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, key: str) -> Observation | None:
        """Return what was observed of *key*."""
        return self._seen.get(key)

    def keep(self, key: str, seen: Observation) -> None:
        """Keep *seen* for the next attempt: tries that never wait take over a dead lock by it."""
        if seen is self._seen.get(key):
            return
        with self._runtime.mutex:
            self._seen[key] = seen
            self._seen.move_to_end(key)
            if len(self._seen) > OBSERVATIONS_MAX:
                self._seen.popitem(last=False)
            if self._kept is not None:
                self._unsaved[key] = seen

    def note(self, key: str, record: LockRecord | None) -> None:
        """Begin to observe *record*, unless that was begun."""
        seen = self._seen.get(key)
        if record is not None and record.held and (seen is None or seen.version != observed_version(record)):
            self.keep(key, observe(record, self._runtime.now()))

    def save(self) -> None:
        """Write down what is new, where there is a place for it."""
        if self._kept is None or not self._unsaved:
            return
        with self._runtime.mutex:
            unsaved, self._unsaved = self._unsaved, {}
        self._kept.save(unsaved, self._runtime.now())
