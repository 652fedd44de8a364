"""The steps of the SQLite store: exact records, tokens, batches and scans."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dlock_core.errors import (
    RecordError,
    StoreUnavailableError,
)
from dlock_core.memory import MemoryStore
from dlock_core.record import TOKEN_MAX, Attributes, Broken, LockRecord, ProcessIdentity, Stamp, State, Version
from dlock_core.store import Claim, Expect, Release, Replace, Reply
from dlock_sqlite import SqliteStore
from dlock_sqlite import _wire as wire
from tests.sqlite.support import SOON_S, free, fresh_rvn, held, read, sql, take


class TestSteps:
    """The conditions and effects of the port."""

    def test_a_thousand_steps_agree_with_the_reference(self, store: SqliteStore, rng: random.Random) -> None:
        """Whatever is asked, the answer and the records are those of the memory store."""
        reference = MemoryStore()
        versions = [Version("rvn-0", 1)]
        granted = 0
        for _ in range(1500):
            request = _request(rng, versions)
            verb = type(request).__name__.lower()

            ours = getattr(store, verb)(request, timeout_s=SOON_S)
            theirs = getattr(reference, verb)(request, timeout_s=SOON_S)

            assert ours[:2] == theirs[:2], request
            assert (ours.age_ms is None) == (theirs.age_ms is None), request
            granted += ours.applied
            if ours.record is not None:
                versions = [*versions[-3:], ours.record.version]
        assert 300 < granted < 1400
        assert list(store.scan("", timeout_s=SOON_S)) == list(reference.scan("", timeout_s=SOON_S))

    @pytest.mark.parametrize("data", [None, b"", b"\0", b"x" * 65536, bytes(range(256))])
    def test_data_is_exact(self, store: SqliteStore, data: bytes | None) -> None:
        """None is not empty, and no byte is special."""
        record = take(store, data=data)

        assert read(store) == record
        assert record.data == data

    def test_every_field_is_exact(self, path: Path, store: SqliteStore) -> None:
        """Each kind of attribute keeps its type, and the optional parts come back."""
        attributes: Attributes = (
            ("a", ""),
            ("b", b""),
            ("c", b"\0\xff"),
            ("d", True),
            ("e", 1),
            ("f", 0),
            ("g", False),
            ("h", 2**63 - 1),
            ("i", -(2**63) + 1),
            ("j", '{"base64": "AA=="}'),
            ("k", "é\0\U0001f600\ud800"),
        )
        written = take(
            store,
            lease_ms=None,
            attributes=attributes,
            stamp=Stamp(1, "r"),
            process=ProcessIdentity("boot", 2, 3, 4, None),
            broken=Broken("é", 5),
        )
        store.close()

        with closing(SqliteStore(path)) as again:
            found = read(again)

        assert found == written
        assert found is not None
        assert [type(value) for _, value in found.attributes] == [type(value) for _, value in attributes]
        assert found.process == ProcessIdentity("boot", 2, 3, 4, None)

    def test_a_child_group_is_exact(self, store: SqliteStore) -> None:
        """The group of a command's child is kept, zero too."""
        for number in (0, 77):
            record = take(store, f"k{number}", process=ProcessIdentity("boot", 2, 3, 4, number))

            assert read(store, f"k{number}") == record

    def test_keys_are_bytes(self, store: SqliteStore) -> None:
        """No two keys that differ in a byte meet, and each is found again."""
        keys = [
            "a",
            "A",
            "a ",
            " a",
            "\u00e1",
            "a\u0301",
            "a%",
            "a_",
            "a*",
            "a'",
            "ß",
            "ss",
            "\U0010ffff",
            "k" * 1024,
            "a\0",
            "1",
            "01",
            "1.0",
        ]

        for key in keys:
            assert take(store, key).fencing_token == 1

        assert [record.key for record in store.scan("", timeout_s=SOON_S)] == sorted(keys, key=str.encode)

    @pytest.mark.parametrize("prefix", ["", "a", "a/", "a%", "a_", "A", "\U0010ffff", "é", "none", "a/0499"])
    def test_scan_compares_bytes(self, path: Path, store: SqliteStore, prefix: str) -> None:
        """Nothing in a prefix is a wildcard, and pages have no seams."""
        keys = [f"a/{number:04d}" for number in range(1203)]
        keys += ["a", "a%b", "aXb", "a_b", "A/1", "b", "é1", "e1", "\U0010ffff", "\U0010ffffz", "\U0010fffe"]
        rows = [wire.encode(held(key)) for key in keys]
        store.provision()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executemany(wire.WRITE, rows)

        found = [record.key for record in store.scan(prefix, timeout_s=SOON_S)]

        assert found == sorted((key for key in keys if key.startswith(prefix)), key=str.encode)

    def test_scan_ends_at_keys_that_are_no_text(self, path: Path, store: SqliteStore) -> None:
        """A row with a key of bytes is nobody's key."""
        take(store)
        sql(
            path,
            "INSERT INTO lock SELECT x'ff', format, state, rvn, fencing_token, owner, 1, '', '', '' FROM lock",
        )

        assert [record.key for record in store.scan("", timeout_s=SOON_S)] == ["k"]

    def test_tokens_survive_everything(self, path: Path, store: SqliteStore) -> None:
        """Release, logical deletion and a restart leave the token where it was."""
        free(store, take(store), State.GONE)
        store.close()
        store.close()

        with closing(SqliteStore(path)) as again:
            assert take(again).fencing_token == 2

    def test_the_last_token_is_the_end(self, store: SqliteStore) -> None:
        """A key whose tokens are used up is never granted again."""
        last = take(store, token=TOKEN_MAX)
        tombstone = free(store, last)

        with pytest.raises(StoreUnavailableError, match="reached its end"):
            take(store)

        assert read(store) == tombstone

    def test_a_batch_is_one_transaction_with_a_result_each(self, path: Path, store: SqliteStore) -> None:
        """Refusals and damage in a batch are results of their own; the rest is written by one commit."""
        records = [take(store, f"k{number}") for number in range(6)]
        sql(path, "UPDATE lock SET state = 'odd' WHERE key = 'k2'")
        requests = [Replace(held(record.key), record.version) for record in records]
        requests[1] = requests[1]._replace(expected=Version("other", 1))
        requests[3] = requests[3]._replace(record=held("absent"))
        requests[4] = requests[4]._replace(record=LockRecord("k4", State.FREE, fresh_rvn(), 1, "", None))
        with closing(sqlite3.connect(path)) as watcher:
            before = watcher.execute("PRAGMA data_version").fetchone()[0]

            results = store.replace_many(requests, timeout_s=SOON_S)

            assert watcher.execute("PRAGMA data_version").fetchone()[0] == before + 1
        assert results[0] == Reply(applied=True, record=requests[0].record)
        assert results[1] == Reply(applied=False, record=records[1])
        assert isinstance(results[2], RecordError)
        assert results[3] == Reply(applied=False, record=None)
        assert [read(store, f"k{number}") for number in (4, 5)] == [requests[4].record, requests[5].record]

    def test_a_batch_of_the_largest_size_goes_through(self, store: SqliteStore) -> None:
        """As many as are promised are renewed at once."""
        claims = [take(store, f"k{number}") for number in range(20)]
        others = [Replace(held(f"x{number}"), Version("r", 1)) for number in range(store.batch_limit - 20)]
        requests = [Replace(held(record.key), record.version) for record in claims] + others

        results = store.replace_many(requests, timeout_s=SOON_S)

        assert [result.applied for result in results if isinstance(result, Reply)] == [True] * 20 + [False] * 480


def _request(rng: random.Random, versions: list[Version]) -> Claim | Replace | Release:
    payload: dict[str, Any] = {
        "data": rng.choice([None, b"", b"x"]),
        "attributes": rng.choice([(), (("a", rng.choice([1, True, b"y"])),)]),
    }
    key, keep = rng.choice(["k1", "k2"]), rng.random() < 0.5
    version = rng.choice(versions)
    match rng.randrange(4):
        case 0 | 1:
            expects: list[Expect | Version] = [Expect.ANY, Expect.ANY, Expect.ABSENT, version]
            return Claim(
                held(key, token=rng.choice([1, 1, 7]), **payload), rng.choice(expects), rng.random() < 0.2, keep
            )
        case 2:
            state = rng.choice([State.HELD] * 4 + [State.FREE])
            return Replace(
                LockRecord(key, state, fresh_rvn(), version.fencing_token + rng.randrange(2), "o", 5, **payload),
                version,
                keep,
            )
        case _:
            state = rng.choice([State.FREE, State.GONE])
            return Release(
                LockRecord(key, state, fresh_rvn(), version.fencing_token, "", None, **payload), version, keep
            )
