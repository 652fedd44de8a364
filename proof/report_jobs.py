"""The sections of the page about elections and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proof.faults.stores import STORES
from proof.tables import cell_table, shown, table, where

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bodies", "jobs"]

_HEAD_OF_BODIES = (
    *("Store", "fault", "trials", "none in so many: below (95 %)", "bodies", "beside", "paused", "again", "other"),
    *("control", "trials/s", "code", "load", "keys, where fewer or more"),
)


def jobs(result: dict[str, Any]) -> list[str]:
    """Return the section about the worlds."""
    deviations = result["deviations"]
    rows = [
        (
            name,
            f"every schedule with at most {deviations} deviations" if kind == "explored" else "seeds from 0",
            found["schedules"],
            len(found["broken"]),
            ", ".join(f"{what}: {count:,}" for what, count in found["counts"].items()),
            f"{found['seconds']:,.0f} s",
        )
        for kind in ("simulated", "explored")
        for name, found in result[kind].items()
    ]
    controls = [(name, each["rule"], each["schedules"], each["broken"]) for name, each in result["controls"].items()]
    return [
        "The shipped asyncio client under virtual time, on a store in memory: nothing of an election or of a job is modelled. Elections:",
        "candidates that are cut off, lose replies and die, bodies that end within the stop grace, observers with old answers. At most",
        "one body runs; the lock is held while its body runs; the terms that an observer tells never fall (I12). Jobs: processes whose",
        "requests and bodies wait for each other in any order, requests and replies that are lost, late and doubled, processes that are",
        "cut off and die. No slot is begun after it was finished (I13); at most one body runs; the mark never falls; every slot is",
        "finished in the end. An exploration takes the usual option at each choice, and deviates from it at a few choices, in every",
        "possible way: it is complete up to so many deviations, and says nothing of more.",
        "",
        *table(("World", "schedules played", "count", "broke a rule", "what happened", "processor"), rows),
        "Controls, each a rule that the user has to keep; they must show it broken, or the run proves nothing:",
        "",
        *table(("Control", "must break", "schedules", "that broke a rule"), controls),
    ]


def bodies(result: dict[str, Any], stands: Sequence[str]) -> list[str]:
    """Return the section about the fault cells."""
    return [
        "Candidates of elections and runners of jobs, blocking and asyncio, are processes with many keys at once. Each key that is held",
        "while another process waits for it, and that a fault disturbs, is a trial. *Beside*: bodies that ran on beside the next one.",
        "*Paused*: bodies that did so after they had stood still for longer than the stop grace, a quarter of the lease, or that began",
        "with less than that left, since their process stood still after the grant, and that ended within a lease after that. Nothing can",
        "tell a body to stop while it stands still, so they are counted apart, and are not wrong: the fence refuses what they write. Each",
        "body measures that by its own looks at the clock. *Again*: slots of a job that were begun after they were finished. *Other*:",
        "what is *wrong* in the table above. The controls must fail, or the run does not count: *deaf* bodies, which do not look at the",
        "end of their lease, run beside the next; *forgetful* jobs, which release without the mark of their slot, are begun again;",
        "effects without a fence come stale (naive).",
        "",
        "A row is the newest run of its cell, with the version of the code that it ran on; where a column is empty, that version did not",
        "count it. A lease of 0.6 s leaves a body 0.15 s to stop, and a machine that has far too much to do can keep it from running for",
        "as long, so leases that short are for tests only. Earlier runs with them counted such bodies as *beside*: 2, 7 and 11 in three",
        "cells before pauses were measured, and 1 with version ada0190a, which gave a body that had stood still a grace, and not a lease,",
        "to notice it, and did not see that a process had stood still between the grant and the body. *Stutter* looks for both: two",
        "leases after it was stopped, a process runs for 4 ms and stands still for 30 ms, twenty times. Since then no body begins whose",
        "lease is over.",
        "",
        *cell_table(
            _HEAD_OF_BODIES,
            stands,
            {(cell["store"], cell["cell"]) for cell in result["cells"]},
            map(_body_cell, result["cells"]),
        ),
    ]


def _body_cell(cell: dict[str, Any]) -> tuple[object, ...]:
    wrong = cell["repeated"] + cell["disordered"] + cell["early"] + cell["stale"]["fenced"] + cell["lost"]
    return (
        where(cell),
        cell["cell"],
        cell["trials"],
        f"< {3 / cell['trials']:.2%}" if cell["trials"] else "-",
        cell["grants"],
        *(cell.get(kind, "") for kind in ("beside", "paused", "again")),
        wrong,
        shown(cell),
        f"{cell['trials'] / max(cell['seconds'], 1e-9):.1f}",
        cell.get("code", ""),
        f"{cell['load']:.0f}" if "load" in cell else "",
        cell["keys"] if cell.get("keys", STORES[cell["store"]].keys) != STORES[cell["store"]].keys else "",
    )
