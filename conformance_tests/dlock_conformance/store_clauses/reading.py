"""S9, S11 and S12: reads see what was written, nothing of it changes, and keys are kept apart."""

from __future__ import annotations

import secrets
import threading
import zlib
from typing import Any

import pytest

from dlock_conformance.records import fresh, held, next_version, tombstone
from dlock_conformance.store_clauses.claiming import prepare
from dlock_conformance.trial import Trial
from dlock_core.record import (
    DATA_MAX_BYTES,
    KEY_MAX_BYTES,
    LEASE_MAX_MS,
    TOKEN_MAX,
    Broken,
    LockRecord,
    ProcessIdentity,
    Stamp,
)
from dlock_core.store import Claim, Expect, Replace

__all__ = ["ENDS", "EXACT", "PAIRS", "ReadingClauses", "alike", "everywhere"]

READERS = 3
# How stores name what they keep beside a lock.
BETWEEN = (":", ".", "/", "_")
OWN_ENDS = ("counter", "fence", "fencing", "lock", "owner", "queue", "token", "version", "waiters")
STARTS = ("/", "//", " ", ".", "./", "../", "_", "__", "$", "#", "-", ":", "%", "\\", "\ufeff", "\u3000")
ALL_BYTES = bytes(range(256))
INTEGERS = (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63) + 1)
TEXTS = (
    "",
    " ",
    "plain",
    "null",
    "0",
    "true",
    "\u00e9",
    "e\u0301",
    "\U0001f512\U0001f5dd",
    "a\x00b\r\n\t",
    "\u2028",
    "\ufeff",
    "\uffff",
    "{}[]\"'\\",
    "1.50",
    "1e3",
    "2026-11-26T10:00:00.000Z",
)

EXACT: dict[str, dict[str, Any]] = {
    "no data": {"data": None},
    "empty data": {"data": b""},
    "one zero byte": {"data": b"\x00"},
    "every byte": {"data": ALL_BYTES},
    "text as data": {"data": '{"json": "\u00e9"} '.encode()},
    "digits as data": {"data": b"007"},
    "packed data": {"data": zlib.compress(bytes(1000))},
    "lines as data": {"data": b"\xef\xbb\xbf one\r\ntwo \r\n"},
    "64 KiB of data": {"data": ALL_BYTES * (DATA_MAX_BYTES // 256)},
    "64 KiB of zeros": {"data": bytes(DATA_MAX_BYTES)},
    "no attributes": {"attributes": ()},
    "text attributes": {"attributes": tuple((f"t{number:02}", text) for number, text in enumerate(TEXTS))},
    "integer attributes": {"attributes": tuple((f"i{number}", each) for number, each in enumerate(INTEGERS))},
    "truth attributes": {"attributes": (("no", False), ("yes", True))},
    "one is not true": {"attributes": (("false", False), ("one", 1), ("true", True), ("zero", 0))},
    "binary attributes": {"attributes": (("all", ALL_BYTES), ("empty", b""), ("text", b"text"))},
    "text is not bytes": {"attributes": (("bytes", b"x"), ("text", "x"))},
    "strange attribute names": {
        "attributes": tuple(
            (name, 1)
            for name in sorted(
                {"$x", "a.b", "a_b", "state", "STATE", "rvn", "key", "_id", " ", "\u00e9", "e\u0301", "0", "n" * 300}
            )
        )
    },
    "many attributes": {"attributes": tuple((f"name-{number:03}", number) for number in range(200))},
    "60 KiB in an attribute": {"attributes": (("large", "\u00e9" * 30_000),)},
    "an empty owner": {"owner": ""},
    "a strange owner": {
        "owner": " H\u00f4te e\u0301:\U0001f512 \"quoted\" 'too' \\ \\\\ $x {} %41 a|b,c\td\r\n\x0b\x1c\x85\u2028"
    },
    "a long owner": {"owner": "o" * 1000},
    "the shortest lease": {"lease_ms": 1},
    "the longest lease": {"lease_ms": LEASE_MAX_MS},
    "no lease": {"lease_ms": None},
    "a short rvn": {"rvn": "r"},
    "a long rvn": {"rvn": "0123456789abcdef" * 4},
    "an rvn with capitals and spaces": {"rvn": " Rvn of Another "},
    "an rvn that looks like a number": {"rvn": "00012345678901234567890123456789"},
    "a great token": {"fencing_token": TOKEN_MAX},
    "an odd great token": {"fencing_token": 1_795_000_000_123_457},
    "a stamp": {"stamp": Stamp(1_795_000_000_123, "the rvn of its write")},
    "a process": {"process": ProcessIdentity("5ce1\u00e9-boot", 4_026_531_836, 4_194_303, 987_654_321_012)},
    "a process with children": {"process": ProcessIdentity("boot", 1, 2, 3, child_group=4)},
    "a broken mark": {"broken": Broken("an operator \u00e9", 1_795_000_000_123)},
    "all at once": {
        "data": ALL_BYTES,
        "attributes": (("bytes", b"\x00"), ("int", -(2**53) - 1), ("text", "\u00e9"), ("truth", True)),
        "owner": "o",
        "lease_ms": 86_399_999,
        "stamp": Stamp(0, "r"),
        "process": ProcessIdentity("b", 1, 2, 3, child_group=0),
        "broken": Broken("", 0),
    },
}

# How long the start of keys is that are alike: with the longest end that follows it is a key of 1024 bytes.
START_BYTES = 59
_LONG = KEY_MAX_BYTES - START_BYTES - 1
PAIRS: dict[str, tuple[str, str]] = {
    "upper and lower case": ("Key", "key"),
    "case of other letters": ("\u00c9", "\u00e9"),
    "sharp s and ss": ("\u00df", "ss"),
    "dotless i": ("I", "\u0131"),
    "the Kelvin sign and K": ("\u212a", "K"),
    "composed and decomposed": ("\u00e9", "e\u0301"),
    "full width": ("\uff41", "a"),
    "a ligature": ("\ufb01", "fi"),
    "an accent or none": ("e", "\u00e9"),
    "a trailing space": ("key", "key "),
    "a leading space": ("key", " key"),
    "a no-break space": ("a b", "a\u00a0b"),
    "a trailing dot": ("key", "key."),
    "a trailing slash": ("key", "key/"),
    "a double slash": ("a/b", "a//b"),
    "a dot folder": ("a/b", "a/./b"),
    "a parent folder": ("b", "a/../b"),
    "slash and backslash": ("a/b", "a\\b"),
    "slash and colon": ("a/b", "a:b"),
    "one space and two": ("a b", "a  b"),
    "per cent coding": ("a/b", "a%2Fb"),
    "plus and space": ("a b", "a+b"),
    "a zero-width space": ("ab", "a\u200bb"),
    "a zero-width joiner": ("ab", "a\u200db"),
    "a soft hyphen": ("ab", "a\u00adb"),
    "a variation selector": ("\u263a", "\u263a\ufe0f"),
    "the final sigma": ("\u03c3", "\u03c2"),
    "hiragana and katakana": ("\u3042", "\u30a2"),
    "digits of another script": ("/2", "/\u0662"),
    "straight and curly quotes": ("a'", "a\u2019"),
    "a hyphen and a dash": ("a-b", "a\u2013b"),
    "a mark of direction": ("ab", "a\u200eb"),
    "the replacement character": ("ab", "a\ufffdb"),
    "a point of Hebrew": ("\u05d1", "\u05d1\u05bc"),
    "parameters of a URL": ("a?b", "a?c"),
    "parameters of a path": ("a;b", "a;c"),
    "an entity": ("a&b", "a&amp;b"),
    "the end of a helper's key": ("key:lock", "key:token"),
    "leading zeros": ("/1", "/01"),
    "a number and its float": ("/1", "/1.0"),
    "quotes": ("'", "''"),
    "per cent signs": ("a%b", "a%%b"),
    "an escape": ("a", "\\a"),
    "a wildcard": ("a%", "ab"),
    "braces": ("{a}b", "{a}c"),
    "the last byte of 1024": ("k" * _LONG + "1", "k" * _LONG + "2"),
    "the last character of 1024 bytes": ("\u00e9" * (_LONG // 2) + "1", "\u00e9" * (_LONG // 2) + "2"),
    "255 bytes and one more": ("k" * (255 - START_BYTES), "k" * (256 - START_BYTES)),
    "astral letters": ("\U0001d400", "\U0001d401"),
}
ENDS = tuple(dict.fromkeys(end for pair in PAIRS.values() for end in pair))
"""Each end once."""


class ReadingClauses:
    """Clauses of ``read``, ``scan``, stored data and keys."""

    def test_s9_a_read_shows_what_another_connection_wrote_before(self, trial: Trial) -> None:
        """Each answered write is seen by each read that begins after it, also by one that has written itself before."""
        record = trial.hold(trial.key())
        stores = [trial.store, trial.other]
        for number in range(50):
            written = trial.renew(record, store=stores[0], attributes=(("number", number),))

            stores.reverse()
            trial.exactly(written, stores[0].read(record.key), "a read after an answered write does not show it")
            if trial.harness.gives("server_clock"):
                came = stores[0].read_age(record.key)
                trial.exactly(written, came and came[0], "read_age after an answered write does not show it")
            record = written

    @pytest.mark.parametrize("standing", ["held", "free", "gone"])
    def test_s9_a_read_shows_the_record_whatever_its_state(self, trial: Trial, standing: str) -> None:
        """A tombstone is shown as it is: only an absent key reads as None."""
        key, record = prepare(trial, standing, data=b"payload")
        assert record is not None

        trial.exactly(record, trial.store.read(key), f"a read must show a record that is {standing} as it is")

    def test_s9_a_read_of_an_absent_key_is_none(self, trial: Trial) -> None:
        """Nothing is made up, and nothing is created."""
        key = trial.key()

        trial.require(trial.store.read(key) is None, "a read of an absent key must be None")
        trial.require(trial.store.read(key) is None, "a read of an absent key created a record")

    def test_s9_reads_never_go_back(self, trial: Trial) -> None:
        """While one connection writes, the others see each answered write at once, and none of them an older record again."""
        record = trial.hold(trial.key(), attributes=(("number", 0),))
        readers = [trial.open() for _ in range(READERS)]
        answered, done, wrong = [0], threading.Event(), list[str]()

        def look(place: int) -> None:
            last = 0
            while not done.is_set():
                least = max(last, answered[0])
                seen = readers[place].calling_read(record.key)()
                last = int(dict(seen.attributes)["number"]) if seen is not None else -1
                if last < least:
                    wrong.append(f"write {least} was answered, and a read that began later showed write {last}")
                    return

        threads = [threading.Thread(target=look, args=(place,), daemon=True) for place in range(READERS)]
        for thread in threads:
            thread.start()
        standing = record
        for number in range(1, max(50, trial.harness.race_rounds // 10)):
            standing = trial.renew(standing, attributes=(("number", number),))
            answered[0] = number
        done.set()
        for thread in threads:
            thread.join()

        trial.require(not wrong, "; ".join(wrong[:1]))

    @pytest.mark.parametrize("case", EXACT)
    def test_s11_a_record_comes_back_exactly(self, trial: Trial, case: str) -> None:
        """By the grant, by a read, by a scan and by a refusal; written by a claim and by a replace."""
        fields = {"rvn": fresh(), **EXACT[case]}
        asked = held(trial.key(), token=fields.pop("fencing_token", 1), **fields)
        claimed = trial.granted(trial.store.claim(Claim(asked, Expect.ANY)), "a claim of an absent key")
        minted = claimed.fencing_token if trial.harness.token_floor else asked.fencing_token
        right = next_version(asked, rvn=asked.rvn, fencing_token=max(minted, asked.fencing_token))
        everywhere(trial, right, claimed)

        before = trial.hold(trial.key())
        change = next_version(
            before, **{"fencing_token": max(before.fencing_token, asked.fencing_token), "rvn": asked.rvn, **EXACT[case]}
        )
        request = Replace(change, before.version)
        came = trial.granted(trial.store.replace(request), "a replace")
        everywhere(trial, trial.as_given(request, came), came)

    @pytest.mark.parametrize(
        "case", ["no data", "empty data", "every byte", "64 KiB of data", "truth attributes", "a stamp"]
    )
    def test_s11_a_tombstone_comes_back_exactly(self, trial: Trial, case: str) -> None:
        """What a release writes is a record as any other."""
        free = trial.free(trial.hold(trial.key()), **EXACT[case])

        everywhere(trial, tombstone(free, rvn=free.rvn, **EXACT[case]), free)

    def test_s11_a_replace_removes_what_it_does_not_write(self, trial: Trial) -> None:
        """Fields of the record before must not shine through."""
        record = trial.hold(trial.key(), **EXACT["all at once"])
        bare = held(record.key, token=record.fencing_token)

        everywhere(trial, bare, trial.granted(trial.store.replace(Replace(bare, record.version)), "a replace"))

    @pytest.mark.parametrize("pair", PAIRS)
    def test_s12_two_keys_are_two_keys(self, trial: Trial, pair: str) -> None:
        """Whatever a file system, a collation or a URL would make of them."""
        prefix = alike(trial)
        one, two = (f"{prefix}{end}" for end in PAIRS[pair])
        first = trial.hold(one, owner="one")

        reply = trial.store.claim(Claim(held(two, owner="two"), Expect.ABSENT))

        if not reply.applied or reply.record is None:
            trial.fail(
                f"the key {one[START_BYTES:][-20:]!a} was claimed, and then {two[START_BYTES:][-20:]!a} was not free: they are two keys",
                came=reply,
            )
        trial.exactly(
            first,
            trial.store.read(one),
            f"after a claim of {two[START_BYTES:][-20:]!r} the record of {one[START_BYTES:][-20:]!r} changed",
        )
        trial.exactly(
            reply.record, trial.store.read(two), f"the record of {two[START_BYTES:][-20:]!r} is not what was written"
        )
        trial.free(reply.record)
        trial.exactly(
            first,
            trial.store.read(one),
            f"a release of {two[START_BYTES:][-20:]!r} changed {one[START_BYTES:][-20:]!r}",
        )

    def test_s12_the_start_of_a_key_is_the_key_s(self, trial: Trial) -> None:
        """What a path, a URL or a line of text may begin with is not trimmed; nor read as the store's own."""
        key = trial.key()
        records = [trial.hold(start + key) for start in ("", *STARTS)]

        for record in records:
            start = record.key.removesuffix(key)
            trial.exactly(record, trial.store.read(record.key), f"a key that begins with {start!r} is another key")
        for record in records:
            trial.free(record)

    def test_s12_no_end_of_a_key_is_the_store_s_own(self, trial: Trial) -> None:
        """A counter, a queue or whatever it keeps beside a lock has no key that a lock can have, too."""
        key = trial.key()
        records = []
        for other in [f"{key}{between}{end}" for between in BETWEEN for end in OWN_ENDS]:
            came = trial.tried(lambda other=other: trial.store.claim(Claim(held(other), Expect.ABSENT)))  # type: ignore[misc]
            records.append(trial.granted(came, f"a claim of a key that ends in {other[len(key) :]!r}"))

        trial.free(trial.renew(trial.hold(key)))

        for record in records:
            trial.exactly(record, trial.store.read(record.key), f"a lock of {key[-4:]!r} changed {record.key[-12:]!r}")

    def test_s12_keys_of_digits_are_text(self, trial: Trial) -> None:
        """Two of one number are two keys, where a column takes the type of what is put into it."""
        digits = str(10**14 + secrets.randbelow(10**14))
        records = [trial.hold(key) for key in (digits, f"0{digits}", f"{digits}.0")]

        for record in records:
            trial.exactly(record, trial.store.read(record.key), "a key of digits was taken for a number")

    def test_s12_the_longest_key_of_the_widest_characters(self, trial: Trial) -> None:
        """1024 bytes are 256 characters of four bytes."""
        prefix = trial.key()
        key = prefix + "k" * (KEY_MAX_BYTES % 4) + "\U0001f512" * ((KEY_MAX_BYTES - len(prefix) - 3) // 4)

        record = trial.hold(key)

        trial.exactly(record, trial.store.read(key), "the record of a long key is not what was written")
        trial.require(trial.store.read(key[:-1]) is None, "a key and the key without its last character are two keys")


def alike(trial: Trial) -> str:
    """Return the start of keys that differ in their ends alone, which are those of :data:`PAIRS`."""
    return trial.key().ljust(START_BYTES, "-")


def everywhere(trial: Trial, right: LockRecord, granted: LockRecord) -> None:
    """Fail unless the grant, a read, a scan and a refusal all show *right*."""
    trial.exactly(right, granted, "the record in the grant is not what was written")
    trial.exactly(right, trial.store.read(right.key), "the record read is not what was written")
    trial.exactly(right, next(iter(trial.store.scan(right.key)), None), "the record scanned is not what was written")
    if right.held:
        refusal = trial.store.claim(Claim(held(right.key), Expect.ABSENT))
        trial.exactly(right, refusal.record, "the record in a refusal is not what was written")
