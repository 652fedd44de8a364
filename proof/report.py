"""The page of what was run: tables made of the results of the stages, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["histogram", "page", "table"]

_HEAD = """# The proof

What was run to find out whether the promises hold, and what it showed. This page is written by `make proof` from the results of its own
run; nothing in it is typed by hand. Run it again: `make proof` (all), `python -m proof --quick` (a little of everything),
`python -m proof --report` (only this page).
"""
_TITLES = {
    "explore": "Exhaustive exploration of small worlds",
    "mutants": "Named mutants of the protocol",
    "general": "Every comparison, constant and connective changed",
    "simulate": "Seeded simulation",
    "power": "What the simulation must find",
    "faults": "Faults on real processes and stores",
}
_BAR = 50
_BARS_MAX = 30


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [f"{each:,}" if isinstance(each, int) else str(each).replace("|", "\\|") for each in row]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def histogram(counts: Sequence[int], width: float, unit: str) -> list[str]:
    """Return bars of *counts*, each of a step of *width*, without the empty ends."""
    full = [place for place, count in enumerate(counts) if count]
    if not full:
        return ["(none)", ""]
    most = max(counts)
    lines = [
        f"{place * width:5.2f} {unit} {'#' * -(-counts[place] * _BAR // most):{_BAR}} {counts[place]:,}"
        for place in range(full[0], full[-1] + 1)
    ]
    return ["```text", *(line.rstrip() for line in lines), "```", ""]


def page(results: dict[str, dict[str, Any]], codes: dict[str, str]) -> str:
    """Return the page of *results*, by stage; *codes* are the versions that they should be of."""
    lines = _HEAD.splitlines()
    if any(told["quick"] for told in results.values()):
        lines += ["", "**A quick run: it shows that the stages work, and proves little.**"]
    lines += ["", *_summary(results, codes)]
    sections = {
        "explore": _explore,
        "mutants": _mutants,
        "general": _general,
        "simulate": _simulate,
        "power": _power,
        "faults": _faults,
    }
    for name, section in sections.items():
        lines += [f"## {_TITLES[name]}", ""]
        lines += section(results[name]["result"]) if name in results else ["Not run.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(results: dict[str, dict[str, Any]], codes: dict[str, str]) -> list[str]:
    rows = []
    for name, title in _TITLES.items():
        told = results.get(name)
        if told is None:
            rows.append((title, "not run", "", "", "", ""))
            continue
        wrong = told["result"]["wrong"]
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
    problems = [f"- {_TITLES[name]}: {each}" for name, told in results.items() for each in told["result"]["wrong"]]
    return [*lines, *problems, *([""] if problems else [])]


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


def _general(result: dict[str, Any]) -> list[str]:
    noticed = result["changes"] - result["by"].get("nothing", 0)
    lines = [
        f"Of {result['of']:,} possible changes of `lease.py` {result['changes']:,} were made, one at a time:",
        f"{noticed:,} were noticed ({noticed / max(result['changes'], 1):.1%}).",
        "",
        *table(("Noticed by", "changes"), sorted(result["by"].items())),
    ]
    if result["explained"]:
        lines += ["Not noticed, and why that is right:", "", *table(("Change", "why"), result["explained"].items())]
    if result["unexplained"]:
        lines += ["Not noticed, and not explained yet:", "", *(f"- `{each}`" for each in result["unexplained"]), ""]
    return lines


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


def _faults(result: dict[str, Any]) -> list[str]:
    lines = [
        f"Holders (`dlock run`, blocking and asyncio clients) in processes of their own, lease {result['lease_s']} s. *Stale*: effects of",
        "an earlier grant after one of a later one: with the fence in the same transaction, and, as negative controls, by a holder that",
        "looks at nothing, one that asks its lease before it computes, and one that compares the token in a step of its own. *Early*:",
        "grants while the lease before was valid, by the holder's own answers; the *hasty* waiter counts half a lease, and must show.",
        "",
    ]
    rows = []
    for cell in result["cells"]:
        stale = cell["stale"]
        kinds = [stale[kind] for kind in ("fenced", "naive", "checked", "two-step")]
        bound = f"< {3 / cell['trials']:.2%}" if cell["trials"] else "-"
        rows.append(
            (
                f"{cell['store']} {cell['version']}",
                cell["cell"],
                cell["trials"],
                bound,
                cell["grants"],
                cell["effects"],
                *kinds,
                cell["early"],
            )
        )
    head = (
        "Store",
        "fault",
        "trials",
        "none in so many: below (95 %)",
        "grants",
        "effects",
        "stale, fenced",
        "naive",
        "checked",
        "two-step",
        "early",
    )
    lines += table(head, rows)
    for store in dict.fromkeys(cell["store"] for cell in result["cells"]):
        delays = sorted(each for cell in result["cells"] if cell["store"] == store for each in cell["delays"])
        if delays:
            lines += [
                f"From a kill -9 to the next grant on {store}, where another process waited, in leases:{_percentiles(delays)}",
                "",
            ]
            width = max(0.1, delays[-1] / _BARS_MAX)
            counts = [0] * (int(delays[-1] / width) + 1)
            for delay in delays:
                counts[int(delay / width)] += 1
            lines += histogram(counts, width, "L")
    return lines


def _percentiles(delays: Sequence[float]) -> str:
    middle, late = delays[len(delays) // 2], delays[min(int(len(delays) * 0.99), len(delays) - 1)]
    return f" {len(delays):,} takeovers, median {middle:.2f}, p99 {late:.2f}, longest {delays[-1]:.2f}"
