"""What was aimed at, before anything was measured, and the report that compares."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks._figures import Part, Section, Shown

__all__ = ["AIMS", "Aim", "inserted", "report"]


class Aim(NamedTuple):
    """A row of the table of aims; *least* is for what should be large."""

    work: str
    bound: float
    unit: str = ""
    digits: int = 2
    least: bool = False

    def met(self, value: float) -> bool:
        """Whether *value*, as precise as it is shown, keeps the bound."""
        shown = round(value, self.digits)
        return shown >= self.bound if self.least else shown <= self.bound


AIMS: dict[str, Aim] = {
    "core-cycle": Aim("Memory, uncontended acquire + release", 45.0, "µs", 1),
    "core-wake": Aim("Memory, wake-up of a lone waiter, p50", 0.3, "ms"),
    "core-held-threads": Aim("Memory, 100,000 held locks: threads", 1.0, digits=0),
    "core-held-kib": Aim("the same: memory a lock", 2.0, "KiB"),
    "start-import": Aim("`import dlock_core` × importing pydantic and building a model of ten fields", 1.2, "×"),
    "start-connect": Aim("`from dlock_core import connect` × the same", 1.2, "×"),
    "start-run": Aim("`dlock run --url sqlite:///… k -- true` × the same", 1.5, "×"),
    "sqlite-cycle": Aim("SQLite, uncontended acquire + release × two bare statements", 1.25, "×"),
    "redis-cycle": Aim("Redis, uncontended acquire + release, same core, × (`client.set` + `client.evalsha`)", 1.0, "×"),
    "redis-cycle-async": Aim("Redis, the same with asyncio, × the floor of `redis.asyncio`", 1.0, "×"),
    "redis-wake": Aim("Redis, wake-up of a lone waiter, p50", 0.9, "ms"),
    "redis-think": Aim("Redis, 16 workers, hold 1 ms, think 2 ms, × BLPOP/LPUSH", 0.97, "×", least=True),
    "redis-think-fair": Aim("the same, worst ÷ best worker", 0.95, least=True),
    "redis-busy": Aim("Redis, 16 workers, hold 1 ms, no think time, × BLPOP/LPUSH", 0.95, "×", least=True),
    "redis-busy-fair": Aim("the same, worst ÷ best worker", 0.9, least=True),
    "redis-commands": Aim("Redis, commands run for a contended acquisition and release, 16 workers", 5.0, digits=1),
    "core-kept-10000": Aim("Memory, 10,000 locks that a session keeps, 20 s lease: CPU", 0.3, "%", 2),
    "core-kept-100000": Aim("the same, 100,000 locks", 1.0, "%", 2),
    "redis-held-cpu": Aim("Redis, 10,000 held locks, 6 s lease: CPU of the client", 4.0, "%", 1),
    "redis-held-threads": Aim("the same: threads", 1.0, digits=0),
    "redis-held-lost": Aim("the same: locks lost", 0.0, digits=0),
    "redis-held-kib": Aim("the same: memory of the client a lock", 2.0, "KiB"),
    "dynamodb-renewals": Aim("DynamoDB Local, 1,000 locks renewed: CPU of the client a round", 0.15, "s", 3),
    "dynamodb-cycle": Aim("DynamoDB Local, cycle × tuned boto3 update + update", 0.5, "×"),
    "dynamodb-requests": Aim("the same, requests a cycle", 2.0, digits=1),
    "etcd-cycle": Aim("etcd, cycle × two bare transactions on the same channel", 1.15, "×"),
    "etcd-renewals": Aim("etcd, 1,000 locks renewed: transactions", 8.0, digits=0),
    "etcd-wake": Aim("etcd, wake-up of a lone waiter, p50 × a bare watch", 1.5, "×"),
    "etcd-contend": Aim("etcd, 16 workers, hold 1 ms, × etcd's own Mutex in Go", 0.9, "×", least=True),
    "etcd-fair": Aim("the same, worst ÷ best worker", 0.9, least=True),
    "mongodb-cycle": Aim("MongoDB's wire, cycle × bare pipeline commands", 1.10, "×"),
    "mongodb-refusal": Aim("MongoDB's wire, requests of a refusal", 1.0, digits=1),
    "mysql-cycle": Aim("MariaDB, cycle × two bare upserts through PyMySQL", 1.15, "×"),
    "postgres-cycle": Aim("PostgreSQL, cycle × two bare upserts through psycopg", 1.15, "×"),
    "postgres-renewals": Aim("PostgreSQL, 1,000 locks renewed: statements", 3.0, digits=0),
    "postgres-wake": Aim("PostgreSQL, wake-up of a lone waiter, p50 × a bare NOTIFY", 2.0, "×"),
    "postgres-bloat": Aim("PostgreSQL, the table after 1,000,000 cycles on 100 keys × fresh", 3.0, "×"),
    "zookeeper-cycle": Aim("ZooKeeper, cycle × two bare transactions on the same session", 1.15, "×"),
    "zookeeper-renewals": Aim("ZooKeeper, 1,000 locks renewed: transactions", 8.0, digits=0),
    "zookeeper-wake": Aim("ZooKeeper, wake-up of a lone waiter, p50 × a bare watch", 1.5, "×"),
    "zookeeper-contend": Aim("ZooKeeper, 16 workers, hold 1 ms, × kazoo's recipe", 0.9, "×", least=True),
    "zookeeper-fair": Aim("the same, worst ÷ best worker", 0.9, least=True),
    "takeover-sqlite": Aim("SQLite, takeover after kill -9, past the lease's end, p99", 100.0, "ms", 0),
    "takeover-redis": Aim("Redis, the same", 100.0, "ms", 0),
    "takeover-dynamodb": Aim("DynamoDB Local, the same", 100.0, "ms", 0),
    "takeover-mongodb": Aim("MongoDB's wire, the same", 100.0, "ms", 0),
    "takeover-mysql": Aim("MariaDB, the same", 100.0, "ms", 0),
    "takeover-postgres": Aim("PostgreSQL, the same", 100.0, "ms", 0),
}  # fmt: skip

_TOP = """\
# Benchmarks

Written by `make bench` from the run itself; nothing here is edited by hand. A figure is the median of the rounds, with the least and the
most in brackets. The sides of a table worked in turn, in rounds of one run, on one machine; a ratio is that of the times of one round, so
what else the machine did met both. The *floor* is the driver by itself doing the least that a lock needs.
"""


def report(machine: str, versions: Iterable[str], parts: list[Part]) -> str:
    """Return the page."""
    shown = [each for part in parts for each in part.shown]
    sections = [section for part in parts for section in part.sections]
    lines = [_TOP, f"{machine}.", "", *(f"- {each}" for each in versions), "", *_aims(shown)]
    for section in sections:
        lines += ["", *_table(section)]
    return "\n".join(lines) + "\n"


def inserted(page: str, told: str, parts: list[Part]) -> str:
    """Return *page* with the sections and aims of *parts* anew, each section with *told*: where and of which code it was measured."""
    for section in [section for part in parts for section in part.sections]:
        heading = f"## {section.title}\n"
        text = "\n".join(_table(section._replace(how=f"{section.how} {told}"))) + "\n"
        before, found, rest = page.partition(heading)
        if found:
            _, next_heading, after = rest.partition("\n## ")
            page = before + text + next_heading + after
        else:
            page = f"{page.rstrip()}\n\n{text}"
    return _with_aims(page, {each.aim: each.values for part in parts for each in part.shown})


def _with_aims(page: str, shown: dict[str, tuple[float, ...]]) -> str:
    """Return *page* with a row for each aim that is *shown*: in the place of the old one, or behind all others."""
    before, found, rest = page.partition(_AIMS_HEAD)
    if not found:
        return page
    table, blank, after = rest.partition("\n\n")
    rows = dict(_after_their_subjects(table.strip("\n").split("\n")))
    subjects = dict(zip(AIMS, _after_their_subjects(f"| {aim.work} |" for aim in AIMS.values()), strict=True))
    for name, values in shown.items():
        rows[subjects[name][0]] = _row(AIMS[name], values)
    return before + found + "\n" + "\n".join(rows.values()) + blank + after


def _after_their_subjects(rows: Iterable[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each of *rows* after what it is about: a row of "the same" is about that of the last one that was not."""
    subject = ""
    for row in rows:
        work = row.split(" | ")[0].strip("| ")
        subject = subject if work.startswith("the same") else work
        yield (subject, work), row


_AIMS_HEAD = "## What was aimed at\n\n| work | aim | measured | |\n|---|---|---|---|"


def _aims(shown: list[Shown]) -> list[str]:
    by_aim = {each.aim: each.values for each in shown}
    return [_AIMS_HEAD, *(_row(aim, by_aim.get(name)) for name, aim in AIMS.items())]


def _row(aim: Aim, values: tuple[float, ...] | None) -> str:
    unit = aim.unit and f" {aim.unit}"
    bound = f"{'≥' if aim.least else '≤'} {aim.bound:g}{unit}"
    if values is None:
        return f"| {aim.work} | {bound} | | not run |"
    middle = statistics.median(values)
    range_ = f" ({min(values):.{aim.digits}f} to {max(values):.{aim.digits}f})" if len(values) > 1 else ""
    return f"| {aim.work} | {bound} | {middle:.{aim.digits}f}{unit}{range_} | {'met' if aim.met(middle) else '**missed**'} |"


def _table(section: Section) -> list[str]:
    rows = [section.head, ("---",) * len(section.head), *section.lines]
    return [f"## {section.title}", "", section.how, "", *(f"| {' | '.join(row)} |" for row in rows)]
