"""What a run of the suite found, by store and colour."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dlock_conformance.clauses import clause_of, clauses

__all__ = ["PROPERTY", "Report"]

# The name under which a test hands its facts over, as a user property of its result.
PROPERTY = "dlock"
_ORDER = ("failed", "xfailed", "passed", "not_applicable")
_MISSING = re.compile(r"the harness gives no '(\w+)'")
_PROXY = "faults=FaultProxy(host, port), and open the store through it"
# What the author of a store can add to the harness, to have more checked. A capability that the store does not have is no gap.
_GIVE = {
    "restart": "restart=…, which kills the server and starts it again; until then the store's word alone says what survives",
    "expires": "expires=…, which asks the server whether it will remove a record by itself",
    "lose_reply": _PROXY,
    "hang": _PROXY,
    "refuse": _PROXY,
    "trickle": _PROXY,
    "cut": _PROXY,
    "drop": _PROXY,
    "slow_connect": "faults=FaultProxy(host, port, greeted=True), where a connection begins with words of its own, as a login is",
    "busy": "faults=… that can leave a write of somebody else open",
    "count_requests": "count_requests=proxy.requests",
    "several_processes": "several_processes=True, with a url",
    "plant_foreign": "plant_foreign=…, which writes what no dlock wrote",
    "plant_newer": "plant_newer=…, which writes a held record of format 2",
    "unprovisioned": "unprovisioned=Opening(…) where the table is missing",
    "own_client": "own_client=Opening(…) of stores on one client of yours",
}


@dataclass
class Tried:
    """One suite over one store in one colour. *clauses*: for each the worst that happened to one of its tests."""

    facts: dict[str, Any] = field(default_factory=dict)
    clauses: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    requests: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def note(self, clause: str, outcome: str, reason: str) -> None:
        """Add the result of a test of *clause*."""
        self.counts[outcome] += 1
        if not clause:
            return
        before = self.clauses.get(clause, outcome)
        self.clauses[clause] = min(before, outcome, key=_ORDER.index)
        if reason:
            self.reasons[clause].add(reason)

    def not_checked(self) -> dict[str, list[str]]:
        """Return the clauses that were not, or not wholly, checked, by the part of the harness that is missing."""
        found: dict[str, list[str]] = {}
        for clause in self._sorted(self.reasons):
            needs = {missing[1] for reason in self.reasons[clause] if (missing := _MISSING.fullmatch(reason))}
            for need in sorted(needs & _GIVE.keys()):
                found.setdefault(need, []).append(clause)
        return found

    def of(self, outcome: str) -> list[str]:
        """Return the clauses with *outcome*, in the order of the port."""
        return self._sorted(clause for clause, each in self.clauses.items() if each == outcome)

    def _sorted(self, found: Iterable[str]) -> list[str]:
        return sorted(found, key=[*clauses(), *self.clauses].index)


class Report:
    """All that was tried in one run."""

    def __init__(self) -> None:
        self._tried: dict[tuple[str, str], Tried] = {}
        self._left_out: list[tuple[str, str, str, str]] = []

    def add(self, results: Iterable[pytest.TestReport]) -> None:
        """Take what the results say; each test has one for its set-up, its call and its end."""
        for result in results:
            facts = dict(result.user_properties).get(PROPERTY)
            if not isinstance(facts, dict) or "colour" not in facts:
                continue
            if result.when != "call" and result.outcome == "passed":
                continue
            tried = self._tried.setdefault((str(facts["suite"]), str(facts["colour"])), Tried())
            requests = facts.pop("requests", {})
            tried.requests.update(requests)
            tried.facts.update({name: value for name, value in facts.items() if name != "test" and value})
            outcome = {"skipped": "not_applicable"}.get(result.outcome, result.outcome)
            if result.skipped and hasattr(result, "wasxfail"):
                outcome = "xfailed"  # a clause that the author says is not kept
            reason = str(result.longrepr[2]) if isinstance(result.longrepr, tuple) else ""
            tried.note(clause_of(str(facts["test"])), outcome, reason.partition(": ")[2].partition(": ")[2])

    def leave_out(self, left_out: Iterable[tuple[str, str, str, str]]) -> None:
        """Take the tests that were deselected, each as its suite, colour, name and the reason; each worker tells the same."""
        self._left_out = self._left_out or list(left_out)

    def missing(self, required: Sequence[str]) -> list[str]:
        """Return those of *required* of which no test has passed."""
        names = {tried.facts.get("store") for tried in self._tried.values() if tried.counts.get("passed")}
        return [name for name in required if name not in names]

    def close(self) -> None:
        """Add what was left out to the suites that ran."""
        for suite, colour, test, reason in self._left_out:
            if tried := self._tried.get((suite, colour)):
                tried.note(clause_of(test), "not_applicable", reason)
        self._left_out.clear()

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "port": clauses(),
            "tried": [
                {
                    "suite": suite,
                    "colour": colour,
                    **tried.facts,
                    "not_checked": tried.not_checked(),
                    "clauses": {outcome: tried.of(outcome) for outcome in _ORDER},
                    "reasons": {clause: sorted(reasons) for clause, reasons in sorted(tried.reasons.items())},
                    "requests": dict(sorted(tried.requests.items())),
                    "tests": dict(sorted(tried.counts.items())),
                }
                for (suite, colour), tried in sorted(self._tried.items())
            ],
        }

    def lines(self) -> list[str]:
        """Return the summary for a terminal."""
        lines: list[str] = []
        for (suite, colour), tried in sorted(self._tried.items()):
            facts = tried.facts
            store = f"{facts.get('store', '?')} {facts.get('version', '')}".strip()
            lines.append(f"{suite} ({colour}): {store}, grade {facts.get('grade', '?')}, {facts.get('found', '?')}")
            missing = tried.not_checked()
            lines += [
                f"    not checked without {need}: {' '.join(found)}; add {_GIVE[need]}"
                for need, found in missing.items()
            ] or ["    not checked: nothing that the suite could check"]
            told = facts.get("capabilities")
            lines.append(f"    capabilities: {', '.join(told) if told else 'none'}")
            lines += [
                f"    {outcome.replace('_', ' ')}: {len(found)} clauses ({' '.join(found)})"
                for outcome in _ORDER
                if (found := tried.of(outcome))
            ]
            lines.append(f"    tests: {', '.join(f'{count} {each}' for each, count in sorted(tried.counts.items()))}")
            if tried.requests:
                lines.append(
                    f"    requests: {', '.join(f'{verb} {cost}' for verb, cost in sorted(tried.requests.items()))}"
                )
        return lines
