"""The rows of the dialects as data: what stands before a transition, what is asked, and what must stand after it, byte for byte."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from dlock_core.record import NO_TOKEN, Broken, LockRecord, State, Version
from dlock_core.store import Claim, Expect, Release, Replace

FOLDER = Path(__file__).parent / "golden"
DIALECTS = ("awslabs", "node-fail-open", "node-fail-closed")
KEY = "billing/42"
# The clock of the tests: what each write of the Node dialect puts down.
CLOCK_MS = 1_795_000_000_123

Row = dict[str, dict[str, Any]]
Verb = Claim | Replace | Release


class Transition(NamedTuple):
    """One write of ours, on the row that stands *before* it (None: no row)."""

    name: str
    dialect: str
    before: Row | None
    asked: Verb
    after: Row | None


class Counted(NamedTuple):
    """One write of ours on a lock's row and on the row of its tokens, each as it stands before and after."""

    name: str
    before: Row | None
    count_before: Row | None
    asked: Verb
    after: Row | None
    count_after: Row | None


def counted() -> list[Counted]:
    """Return the transitions with tokens in rows of their own."""
    return [
        Counted(
            name,
            row(case["before"]),
            row(case["count_before"]),
            verb_of(case["asked"]),
            row(case["after"]),
            row(case["count_after"]),
        )
        for name, case in content("awslabs-token-row")["transitions"].items()
    ]


def transitions(dialect: str) -> list[Transition]:
    """Return the transitions of *dialect*, from its file."""
    return [
        Transition(name, dialect, row(case["before"]), verb_of(case["asked"]), row(case["after"]))
        for name, case in content(dialect)["transitions"].items()
    ]


def readings(dialect: str) -> list[tuple[str, Row, LockRecord]]:
    """Return rows that the other client has written, each with the record that it is."""
    return [
        (name, made, record_of(case["record"]))
        for name, case in content(dialect)["readings"].items()
        if (made := row(case["row"])) is not None
    ]


def strangers(dialect: str) -> list[tuple[str, Row, str]]:
    """Return rows that are none of the dialect, each with what the error must say."""
    return [
        (name, made, case["says"])
        for name, case in content(dialect)["strangers"].items()
        if (made := row(case["row"])) is not None
    ]


def content(dialect: str) -> Any:
    """Return what the file of *dialect* says."""
    return json.loads((FOLDER / f"{dialect}.json").read_text(encoding="utf-8"))


def row(stored: Any) -> Row | None:
    """Return a row as boto3 has it: binary values are base64 in the file."""
    if stored is None:
        return None
    return {
        name: {kind: base64.b64decode(value) if kind == "B" else value for kind, value in typed.items()}
        for name, typed in stored.items()
    }


def record_of(fields: dict[str, Any]) -> LockRecord:
    """Return a record; its data are text in the file, a token of 0 is none."""
    token = fields["fencing_token"] or NO_TOKEN
    data = fields.get("data")
    return LockRecord(
        KEY,
        State(fields["state"]),
        fields["rvn"],
        token,
        fields.get("owner", ""),
        fields.get("lease_ms"),
        None if data is None else data.encode(),
        tuple(sorted((name, value) for name, value in fields.get("attributes", {}).items())),
        broken=Broken(**fields["broken"]) if "broken" in fields else None,
    )


def verb_of(asked: dict[str, Any]) -> Verb:
    """Return the request that a transition sends."""
    record, keep = record_of(asked["record"]), asked.get("keep_payload", False)
    expect = asked["expect"]
    version = Version(expect[0], expect[1] or NO_TOKEN) if isinstance(expect, list) else Expect(expect)
    if asked["verb"] == "claim":
        return Claim(record, version, asked.get("must_exist", False), keep)
    assert isinstance(version, Version)
    return (Replace if asked["verb"] == "replace" else Release)(record, version, keep)
