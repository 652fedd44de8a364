"""The page of what was run: tables made of the results of the stages, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proof import report_jobs, report_mutants
from proof.standing import paragraphs_of, problems_of, row_of, rows_of, section_of
from proof.tables import cell_table, histogram, is_of, shown, table, where

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["page"]

_HEAD = """# The proof

What was run to find out whether the promises hold, and what it showed. This page is written by `make proof` from the results of its own
run; nothing in it is typed by hand. A stage keeps its section until it runs again, with the version of the code that it ran on. Run it
again: `make proof` (all), `python -m proof --quick` (a little of everything), `python -m proof --report` (only this page).
"""
_TITLES = {
    "explore": "Exhaustive exploration of small worlds",
    "records": "Exhaustive exploration of shared locks and of sessions",
    "mutants": "Named mutants of the protocol",
    "slips": "Named mutants of the shell and the adapters",
    "sweep": "General changes of the machine, the shell and the adapters",
    "simulate": "Seeded simulation",
    "power": "What the simulation must find",
    "shrink": "How small what it finds becomes",
    "jobs": "Elections and jobs that run once",
    "faults": "Faults on real processes and stores",
    "bodies": "Leaders and runners of jobs that are killed, stopped and cut off",
    "interrupts": "What runs inside of our code",
}
_HEAD_OF_FAULTS = (
    *("Store", "fault", "trials", "none in so many: below (95 %)", "grants", "effects", "wrong", "unheard"),
    *("naive", "checked", "two-step", "control", "trials/s", "code"),
)
_HEAD_OF_PEERS = ("Store", "fault", "trials", "what showed", "stale: naive", "checked")
_BARS_MAX = 30
# They mint from a clock or from the revisions of the whole cluster: what lies between two tokens tells nothing.
_MINT_WITH_GAPS = ("etcd", "redis", "zookeeper")
# Their rows stand each by itself: a store that is not disturbed in a run keeps its own, and a file that is not changed.
_OF_FILES = ("slips", "sweep")
_OF_ROWS = ("faults", "bodies", *_OF_FILES)


def page(results: dict[str, dict[str, Any]], codes: dict[str, str], standing: str = "") -> str:
    """Return the page of *results*, by stage; *codes* are the versions that they should be of.

    A stage without results keeps what the page *standing* says of it.
    """
    lines = _HEAD.splitlines()
    if any(told["quick"] for told in results.values()):
        lines += ["", "**A quick run: it shows that the stages work, and proves little.**"]
    lines += ["", *_summary(results, codes, standing)]
    sections: dict[str, Callable[..., list[str]]] = {
        "explore": _explore,
        "records": _records,
        "mutants": _mutants,
        "slips": report_mutants.slips,
        "sweep": report_mutants.sweep,
        "simulate": _simulate,
        "power": _power,
        "shrink": _shrink,
        "jobs": report_jobs.jobs,
        "faults": _faults,
        "bodies": report_jobs.bodies,
        "interrupts": _interrupts,
    }
    for name, section in sections.items():
        lines += [f"## {_TITLES[name]}", ""]
        stands = section_of(standing, _TITLES[name])
        if name not in results:
            lines += stands or ["Not run.", ""]
        elif name in _OF_ROWS:
            lines += section(results[name]["result"], stands or [])
        else:
            lines += section(results[name]["result"])
    return "\n".join(lines).rstrip() + "\n"


def _summary(results: dict[str, dict[str, Any]], codes: dict[str, str], standing: str) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for name, title in _TITLES.items():
        told = results.get(name)
        if told is None:
            rows.append(row_of(standing, title, codes.get(name, "")) or (title, "not run", "", "", "", ""))
            continue
        wrong = _wrong(name, told["result"], standing)
        version = told["version"] + ("" if told["version"] == codes[name] else f" (now {codes[name]})")
        held = "yes" if not wrong else f"**no: {len(wrong)}**"
        rows.append(
            (
                title,
                held,
                told["at"],
                f"{told['seconds']:,.0f} s",
                version,
                f"{told['machine']}, load {told['load']:.0f}",
            )
        )
    lines = table(("Stage", "as it must be", "begun", "took", "code version", "machine"), rows)
    problems = [
        f"- {title}: {each}"
        for name, title in _TITLES.items()
        for each in (
            _wrong(name, results[name]["result"], standing) if name in results else problems_of(standing, title)
        )
    ]
    return [*lines, *problems, *([""] if problems else [])]


def _wrong(name: str, result: dict[str, Any], standing: str) -> list[str]:
    """Return what is wrong in the stage *name*, also in rows that stand."""
    wrong: list[str] = result["wrong"]
    if name in _OF_FILES:
        return report_mutants.standing_problems(result, problems_of(standing, _TITLES[name])) + wrong
    return wrong


def _explore(result: dict[str, Any]) -> list[str]:
    lines = [
        "Every interleaving of the shipped machine in worlds of a few clients and ticks: requests that are lost, late or doubled, lost",
        "replies, abandoned attempts, breaks. `complete: yes` means that no further state can be reached. *Reached* counts the kinds of",
        "interesting events that happened, of those that must; the worlds marked * are explored in `make test`.",
        "",
    ]
    rows = []
    for name, world in result["worlds"].items():
        rows.append(
            (
                name + ("*" if world["in_tests"] else ""),
                world["states"],
                world["steps"],
                world["depth"],
                "yes" if world["complete"] else "no",
                f"{len(world['notes'])} (must: {world['must_reach']})",
                f"{world['seconds']:,.0f} s",
                f"{world['states'] / max(world['seconds'], 1e-9):,.0f}",
            )
        )
    return lines + table(("World", "states", "steps", "depth", "complete", "reached", "processor", "states/s"), rows)


def _records(result: dict[str, Any]) -> list[str]:
    rows = [(of, name, worlds, f"{seconds:,.0f} s") for of, name, worlds, seconds in result["rows"]]
    return [
        "Every order of the steps of the members of a shared lock, and of the owner of a session, who waits for its lock, and an operator:",
        "lost answers, late writes, holders that die, rows that are removed and brought back. Each row was visited to its last world.",
        "",
        *table(("Of", "world", "states", "processor"), rows),
    ]


def _mutants(result: dict[str, Any]) -> list[str]:
    verdicts = result["verdicts"]
    seconds = sorted(verdict["seconds"] for verdict in verdicts)
    survived = [verdict["name"] for verdict in verdicts if verdict["by"] is None]
    middle, longest = seconds[len(seconds) // 2], seconds[-1]
    lines = [
        f"{len(verdicts)} mutants, each one line of the protocol changed: {len(survived)} survived. Noticed after",
        f"{middle:.2f} s of processor time in the median, {longest:.2f} s at most.",
        "",
    ]
    rows = [(each["name"], each["rule"], each["by"] or "**survived**", f"{each['seconds']:.2f} s") for each in verdicts]
    return lines + table(("Mutant", "rule", "noticed by", "after"), rows)


def _simulate(result: dict[str, Any]) -> list[str]:
    totals = result["totals"]
    pace = totals["schedules"] / max(totals["cpu_s"], 1e-9)
    lines = [
        f"{totals['schedules']:,} schedules (of {result['asked']:,} asked for) of the shipped machine, seeds from 0, simulator version",
        f"{result['version']}: {totals['violations']} violations of the invariants I1 to I8. {totals['cpu_s']:,.0f} s of processor time,",
        f"{pace:,.0f} schedules/s a processor.",
        "",
        *table(
            ("What happened", "count"),
            (
                ("events", totals["events"]),
                ("simulated hours", round(totals["virtual_s"] / 3600)),
                ("grants", totals["grants"]),
                ("takeovers", totals["takeovers"]),
                ("effects of holders", totals["effects"]),
                ("stale effects on the resource without a fence (the control)", totals["unfenced"]),
                ("effects that the fence refused", totals["refused"]),
                ("schedules that ended with an end of all faults (I7)", totals["settled"]),
            ),
        ),
        *table(("Store", "schedules"), sorted(totals["modes"].items())),
        f"Failovers that lost acknowledged writes: {totals['failovers']:,}. After them, and only after them, this was seen; and of stale",
        f"effects that a fence took, {totals['unfenceable']:,}, each where the store had granted a token twice:",
        "",
        *table(("Broken", "in schedules"), sorted(totals["shown"].items())),
        "How old a record was when it was taken over, in leases of the record, on stores that keep what they acknowledge. Sooner than one",
        "lease only what a client had itself written in an attempt that it gave up:",
        "",
    ]
    return lines + histogram(totals["delays"], 0.1, "L")


def _power(result: dict[str, Any]) -> list[str]:
    rows = [
        (name, each["schedules"], each["broken_in"], "-" if each["first"] is None else each["first"], each["invariant"])
        for name, each in result["found"].items()
    ]
    return [
        "Outside of its assumptions exclusion breaks, and a simulator that does not see that would prove nothing.",
        "",
        *table(("Assumption that is broken", "schedules", "that broke an invariant", "first seed", "must break"), rows),
    ]


def _shrink(result: dict[str, Any]) -> list[str]:
    found = result["found"]
    seconds = sorted(each["seconds"] for each in found)
    events = sorted(each["events"] for each in found if each["events"] is not None)
    rows = [
        (each["mutant"], each["violation"], each["seed"], each["whole"], each["events"], f"{each['seconds']:.1f} s")
        for each in found
    ]
    lines = [
        f"Of {result['mutants']} mutants of the machine {len({each['mutant'] for each in found})} violate an invariant within the first",
        "schedules of the simulation. The first violation of each invariant, with events left out and knobs turned as long as it stays:",
    ]
    if found:
        lines[-1] += (
            f" {events[len(events) // 2]} events in the median, {events[-1]} at most; {seconds[-1]:.1f} s at most."
        )
    head = ("Mutant", "violates", "seed", "events", "of the smallest form", "found in")
    return [*lines, "", *table(head, rows)]


def _faults(result: dict[str, Any], stands: Sequence[str]) -> list[str]:
    done = {(cell["store"], cell["cell"]) for cell in result["cells"]}
    ours = [cell for cell in result["cells"] if not cell["cell"].startswith("peer")]
    peers = [cell for cell in result["cells"] if cell["cell"].startswith("peer")]
    lines = [
        "Holders (`dlock run`, blocking and asyncio clients) are processes that hold many keys at once, and contend for them; each key",
        "that is held while another process waits for it, and that a fault disturbs, is a trial. *Wrong*: tokens granted twice or out of",
        "order, grants while the lease before was valid by the holder's own answers, effects of an earlier grant after one of a later one",
        "and lost updates where the fence was, copies of a lease that were in use in a forked child. *Unheard*: tokens that nobody was",
        "told of, as of a holder killed in between. Controls must fail, or the run does not count: effects that came stale of a holder",
        "that looks at nothing (naive), that asks its lease before it computes (checked), that compares the token in a step of its own",
        "(two-step), and what else is named: grants too early to the *hasty* waiter that counts half a lease, copies that were valid in",
        "the parent, errors told to the holders. On DynamoDB and MySQL, where nothing wakes them, those who wait look ten times in a",
        "lease. etcd and ZooKeeper are clusters of three: *server-kill* kills the leader, *server-stop* stops a majority.",
        "In *session-…* one session keeps all locks of a holder; in *writers-…* each lock is the write lock of a read/write lock.",
        "A row is the newest run of its cell, with the version of the code that it ran on.",
        "",
        *cell_table(_HEAD_OF_FAULTS, stands, done, map(_cell, ours)),
    ]
    if peers or rows_of(stands, _HEAD_OF_PEERS, lambda row: is_of(row, done)):
        lines += [
            "The same faults with redis-py's own Lock instead, made with its defaults. *stuck*: keys of killed holders that nobody got",
            "within five leases, since by default it has no end; *orphans*: keys that it had taken, while the caller was told that it had",
            "not, or was cancelled.",
            "",
            *cell_table(
                _HEAD_OF_PEERS,
                stands,
                done,
                (
                    (
                        where(cell),
                        cell["cell"],
                        cell["trials"],
                        shown(cell),
                        cell["stale"]["naive"],
                        cell["stale"]["checked"],
                    )
                    for cell in peers
                ),
            ),
        ]
    stores = dict.fromkeys(cell["store"] for cell in ours)
    taken = [line for store in stores for line in _takeovers(store, [cell for cell in ours if cell["store"] == store])]
    told = [line.partition(", where")[0] for line in taken if line.startswith("From ")]
    return lines + paragraphs_of(stands, "From ", told) + taken


def _interrupts(result: dict[str, Any]) -> list[str]:
    lines = [
        "At each point of an operation at which Python may run something else a tracer acts once: an exception, a signal handler that uses",
        "the same client, a finalizer, another thread or task. Afterwards at most one lease is valid, what nobody has in hand is free or",
        "lapses within one lease, what somebody has is renewed, and the client can be used and closed.",
        "",
    ]
    head = ("Client, store", "operation", "act", "points", "tried", "failed")
    return lines + table(head, [row[:6] for row in result["rows"]])


def _cell(cell: dict[str, Any]) -> tuple[object, ...]:
    early = 0 if cell["control"] == "early" else cell["early"]
    wrong = cell["repeated"] + cell["disordered"] + early + cell["stale"]["fenced"] + cell["lost"]
    return (
        where(cell),
        cell["cell"],
        cell["trials"],
        f"< {3 / cell['trials']:.2%}" if cell["trials"] else "-",
        cell["grants"],
        cell["effects"],
        wrong + cell["notes"].get("copies in use", 0),
        "-" if cell["store"] in _MINT_WITH_GAPS else cell["unheard"],
        *(cell["stale"][kind] for kind in ("naive", "checked", "two-step")),
        shown(cell),
        f"{cell['trials'] / max(cell['seconds'], 1e-9):.1f}",
        cell.get("code", ""),
    )


def _takeovers(store: str, cells: Sequence[dict[str, Any]]) -> list[str]:
    """Return how long it took until another had the lock, by the way in which the one before had ended."""
    lines = []
    for what, names in (
        ("a kill -9", ("kill", "fork")),
        ("a death in a chain of kills and stops", ("chain",)),
        ("a cancellation", ("cancel",)),
    ):
        delays = sorted(each for cell in cells if cell["cell"] in names for each in cell["delays"])
        if not delays:
            continue
        lines += [
            f"From {what} to the next grant on {store}, where another waited, in leases:{_percentiles(delays)}",
            "",
        ]
        if "kill" in names:
            width = max(0.1, delays[-1] / _BARS_MAX)
            counts = [0] * (int(delays[-1] / width) + 1)
            for delay in delays:
                counts[int(delay / width)] += 1
            lines += histogram(counts, width, "L")
    return lines


def _percentiles(delays: Sequence[float]) -> str:
    middle, late = delays[len(delays) // 2], delays[min(int(len(delays) * 0.99), len(delays) - 1)]
    return f" {len(delays):,} takeovers, median {middle:.2f}, p99 {late:.2f}, longest {delays[-1]:.2f}"
