"""S10: a scan finds all records whose keys begin with a prefix, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from dlock_conformance.needs import needs
from dlock_conformance.store_clauses.connecting import ENDS_OF_PAGES, caught, many
from dlock_conformance.store_clauses.pruning import OLD_MS, grow_old
from dlock_conformance.store_clauses.reading import PAIRS, alike
from dlock_conformance.trial import Trial
from dlock_core.errors import StoreError
from dlock_core.record import DATA_MAX_BYTES, RESERVED, LockRecord, State

__all__ = ["ScanningClauses"]

WILDCARDS = [
    " ",
    "%",
    "_",
    "*",
    "?",
    "[a-z]",
    ".",
    "^",
    "$",
    "\\",
    "\\%",
    "{a}",
    "'",
    '"',
    "`",
    "(",
    "+",
    "|",
    "#",
    "\N{FULLWIDTH PERCENT SIGN}",
]
# Characters that are the last of some kind: what ends a range may lie before them, or be no character.
LAST = ("\u007f", "\ud7ff", "\uffff", "\U0010fffe", "\U0010ffff")
# More scans than a pool has connections, here and there.
LEFT = 24
# Time-outs of a page; a slow server may need the second one.
SLOWLY_S = (0.2, 2.0)


class ScanningClauses:
    """Clauses of ``scan``."""

    def test_s10_a_scan_gives_the_records_under_its_prefix_and_no_others(self, trial: Trial) -> None:
        """Held, free and gone; each once; and each exactly as it stands."""
        prefix = trial.key("scan")
        held_one = trial.hold(f"{prefix}/a", data=b"x")
        free = trial.free(trial.hold(f"{prefix}/b"))
        gone = trial.free(trial.hold(f"{prefix}/c"), State.GONE)
        session = trial.hold(f"{prefix}/{RESERVED}session/d")  # a key of dlock's own is a key as any
        for other in (f"{prefix[:-1]}", f"x{prefix}/a", f"{prefix.upper()}/a"):
            trial.hold(other)

        found = trial.store.scan(f"{prefix}/")

        same_records(trial, [held_one, free, gone, session], found)
        for record in (held_one, free, gone, session):
            trial.exactly(record, trial.store.read(record.key), "a scan changed a record")

    @pytest.mark.parametrize("character", WILDCARDS)
    def test_s10_nothing_in_a_prefix_is_a_wildcard(self, trial: Trial, character: str) -> None:
        """The prefix is compared character by character."""
        prefix = trial.key()
        found = trial.hold(f"{prefix}{character}b")
        for end in {"ab", "b", "\\b", "aab", ""} - {f"{character}b"}:
            trial.hold(f"{prefix}{end}")

        same_records(trial, [found], trial.store.scan(f"{prefix}{character}"))

    def test_s10_a_prefix_is_compared_by_code_points(self, trial: Trial) -> None:
        """No folding, no normalising, and no upper end that some character lies beyond."""
        prefix = trial.key()
        ends = ("a", "A", "\u00e9", "e\u0301", "\uffff", "\U0001f512", "\U0010fffe", "zz\U0010ffff", "z\uffffz")
        records = {end: trial.hold(f"{prefix}{end}") for end in ends}

        same_records(trial, list(records.values()), trial.store.scan(prefix))
        same_records(trial, [records["e\u0301"]], trial.store.scan(f"{prefix}e"))
        same_records(trial, [records["\u00e9"]], trial.store.scan(f"{prefix}\u00e9"))
        same_records(trial, [records["z\uffffz"], records["zz\U0010ffff"]], trial.store.scan(f"{prefix}z"))

    def test_s10_the_prefix_may_be_the_whole_key(self, trial: Trial) -> None:
        """A key starts with itself."""
        record = trial.hold(trial.key("whole"))
        longer = trial.hold(f"{record.key}r")

        same_records(trial, [record, longer], trial.store.scan(record.key))

    def test_s10_scans_that_are_not_read_to_their_end_use_nothing_up(self, trial: Trial) -> None:
        """Whoever has found what he looked for leaves the loop: its connection, or what the server keeps for it, is free then."""
        prefix = many(trial)

        def begin() -> None:
            scan = trial.store.scanning(prefix)
            next(scan)
            scan.close()

        for _ in range(LEFT):
            came = trial.tried(begin)
            trial.require(
                came is None, f"of {LEFT} scans that were not read to their end one found no place", came=came
            )

    def test_s10_a_page_may_be_the_last_though_it_is_full(self, trial: Trial) -> None:
        """Of as many records as a page holds, of one more and of one less, none is missed."""
        begins = many(trial)
        for end, count in ENDS_OF_PAGES.items():
            found = {record.key for record in trial.store.scan(begins + end)}
            right = trial.harness.page + count
            wrong = f"of {right} records a scan gave {len(found)}; a page holds {trial.harness.page}"
            trial.require(len(found) == right, wrong)

    def test_s10_a_scan_may_be_read_slowly(self, trial: Trial) -> None:
        """Its time-out is that of each page: what its reader does between two of them takes as long as it likes."""
        prefix, came = many(trial), object()
        for timeout_s in SLOWLY_S:
            scan = trial.store.scanning(prefix, timeout_s=timeout_s)

            came = caught(partial(read_slowly, scan, timeout_s))  # on a busy machine the first page may be late, too

            if isinstance(came, list):
                wrong = "a scan that is read slowly ended before its end"
                trial.require(len(came) == trial.harness.page + 19, wrong, came=came)
                return
        wrong = f"a scan with timeout_s={timeout_s:g}, whose reader paused as long after the first record, must go on"
        trial.fail(wrong, came=came)

    @needs("sync")
    def test_s10_a_scan_may_go_on_in_another_thread(self, trial: Trial) -> None:
        """As it does where tasks use the store through threads: each page may be read by another of them."""
        scan, came = trial.store.scanning(many(trial)), list[object]()
        next(scan)

        for ask in (lambda: next(scan), lambda: list(scan)):
            reader = threading.Thread(target=lambda ask=ask: came.append(caught(ask)), daemon=True)
            reader.start()
            reader.join()

        whole = isinstance(came[1], list) and len(came[1]) == trial.harness.page + 18
        trial.require(whole, "a scan that goes on in another thread must give the records that are left", came=came)

    def test_s17_a_scan_whose_store_is_closed_lets_nothing_out(self, trial: Trial) -> None:
        """It ends by an error of the store, or gives all that it had read."""
        prefix, store = many(trial), trial.open()
        scan = store.scanning(prefix)
        next(scan)
        store.close()

        came = caught(lambda: list(scan))

        whole = isinstance(came, list) and len(came) == trial.harness.page + 19
        wrong = "a scan whose store was closed meanwhile must raise a StoreError, or give all"
        trial.require(whole or isinstance(came, StoreError), wrong, came=came)

    def test_s10_a_prefix_may_be_as_long_as_a_key(self, trial: Trial) -> None:
        """It is compared to its last byte."""
        prefix = alike(trial)
        first, _ = (trial.hold(f"{prefix}{end}") for end in PAIRS["the last byte of 1024"])

        same_records(trial, [first], trial.store.scan(first.key))

    def test_s10_an_empty_prefix_gives_every_record(self, trial: Trial) -> None:
        """Other users' records too, so only ours are looked for."""
        mine = [trial.hold(trial.key()) for _ in range(3)]

        found = {record.key: record for record in trial.store.scan("")}

        for record in mine:
            trial.exactly(record, found.get(record.key), f"a scan of everything missed {record.key!r}")

    @pytest.mark.parametrize("pages", ["many_small", "24_large"])
    def test_s10_a_scan_of_several_pages_misses_and_repeats_nothing(self, trial: Trial, pages: str) -> None:
        """More records than two pages hold, and more bytes than a page holds; the second time others write in between."""
        prefix = trial.key()
        count, size = (2 * trial.harness.page + 20, 0) if pages == "many_small" else (24, DATA_MAX_BYTES)
        written = [trial.hold(f"{prefix}/{number:04}", data=bytes(size) or None) for number in range(count)]

        same_records(trial, written, trial.store.scan(f"{prefix}/"))

        scan = trial.store.scanning(f"{prefix}/")
        found = [next(scan) for _ in range(10)]
        seen = {record.key for record in found}
        later = [record for record in written if record.key not in seen]
        changed = [*(record for record in written if record.key in seen), *later[:3], *later[-3:]]
        for record in changed:
            trial.renew(record, store=trial.other, keep=True)
        for beside in ("/ before", "/~ after"):
            came = trial.tried(lambda beside=beside: trial.free(trial.hold(f"{prefix}{beside}")))  # type: ignore[misc]
            wrong = "a store whose scan has begun must do its writes, as who frees what he finds asks for"
            trial.require(isinstance(came, LockRecord), wrong, came=came)
        # The page that is open is no snapshot for what else this store reads.
        standing_now = trial.other.read(changed[0].key)
        assert standing_now is not None
        trial.exactly(standing_now, trial.store.read(changed[0].key), "a read beside an open scan shows an old record")
        found += [record for record in scan if not record.key.endswith((" before", " after"))]
        standing = {record.key: record for record in found}
        keys_only = [standing.get(record.key, record) if record in changed else record for record in written]
        same_records(trial, keys_only, found)

    def test_s10_pages_end_also_between_keys_that_are_alike(self, trial: Trial) -> None:
        """Wherever a page ends, the next one goes on with the next key, though it differs in case only, or sorts otherwise elsewhere."""
        begins = trial.key()
        prefix = f"{begins}_%"
        for number in range(3):
            trial.hold(f"{begins}!!/{number}")  # it is of the page where the prefix has wildcards
        written = [trial.hold(f"{prefix}/")]
        written += [
            # Of these two characters UTF-16 has the second one first.
            trial.hold(f"{prefix}/{start}{number:04}{end}")
            for start in "\uffee\U0001f512"
            for number in range(trial.harness.page // 4 + 5)
            for end in "aA"
        ]

        same_records(trial, written, trial.store.scan(f"{prefix}/"))

    @needs("prune")
    def test_s10_a_scan_misses_nothing_as_others_are_pruned(self, trial: Trial) -> None:
        """What the pages before had, or the next ones would have had, may be gone when those are read."""
        prefix = many(trial)
        scan = trial.store.scanning(prefix)
        found = [next(scan) for _ in range(10)]
        seen = {record.key for record in found}
        later = [record for record in trial.other.scan(prefix) if record.key not in seen]
        going = [*found[:5], later[0], later[len(later) // 2], later[-1]]
        gone = [trial.free(record, store=trial.other) for record in going]
        grow_old()

        trial.other.prune(gone, older_than_ms=OLD_MS)

        keys = {record.key for record in (*found, *scan)}
        for record in gone:
            trial.hold(record.key)
        missed = {record.key for record in (*found, *later)} - {record.key for record in gone} - keys
        wrong = f"{len(missed)} records that stood all the time were missed, as others were pruned between two pages"
        trial.require(not missed, wrong)

    @pytest.mark.parametrize("last", LAST, ids=[f"U+{ord(last):04X}" for last in LAST])
    def test_s10_a_prefix_may_end_with_the_last_character(self, trial: Trial, last: str) -> None:
        """Of all, or of a range: it has no successor that could end the keys that begin with it."""
        prefix = f"{trial.key()}{last}"
        records = [trial.hold(prefix + end) for end in ("", "x", "\U0010ffff")]
        trial.hold(f"{trial.key()}a")

        same_records(trial, records, trial.store.scan(prefix))


def read_slowly(scan: Iterator[LockRecord], pause_s: float) -> list[LockRecord]:
    """Return what *scan* gives after its first record, read after a pause."""
    next(scan)
    time.sleep(pause_s)
    return list(scan)


def same_records(trial: Trial, written: list[LockRecord], found: list[LockRecord]) -> None:
    """Fail unless *found* are exactly the records *written*, in any order, each once."""
    keys = [record.key for record in found]
    missing, foreign = {record.key for record in written} - set(keys), set(keys) - {record.key for record in written}
    trial.require(
        not missing, f"the scan missed {len(missing)} of {len(written)} records, for example {sorted(missing)[:1]}"
    )
    trial.require(
        not foreign,
        f"the scan gave {len(foreign)} records that do not start with the prefix, for example {sorted(foreign)[:1]}",
    )
    trial.require(len(keys) == len(set(keys)), "the scan gave a record twice")
    by_key = {record.key: record for record in found}
    for record in written:
        trial.exactly(record, by_key[record.key], "the record scanned is not what was written")
