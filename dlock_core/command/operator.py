"""The commands for people who look after locks: ``ls``, ``show``, ``break``, ``prune``, ``init``, ``doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dlock_core.client import connect
from dlock_core.command import doctor as diagnosis
from dlock_core.command.doctor import standing_store
from dlock_core.command.estimate import estimate_in_words, estimated
from dlock_core.command.listing import (
    aged,
    is_quarantined,
    lease_left,
    print_locks,
    print_sessions,
    read_aged,
    standing,
    state_in_words,
)
from dlock_core.command.options import (
    DURATION,
    client_options,
    configuration_source,
    connection_options,
    output_option,
)
from dlock_core.command.show import (
    Say,
    escape,
    held_in_words,
    in_words,
    print_as,
    print_facts,
    print_json,
    print_text,
    record_facts,
    renewed_in_words,
)
from dlock_core.engine.progress import at_in_words, holder_in_words
from dlock_core.lease import quarantine_ms
from dlock_core.members import members_in_words

if TYPE_CHECKING:
    from dlock_core.client import LockClient
    from dlock_core.record import LockRecord

REFUSED = 1
_TOKEN = click.IntRange(min=0)
_TOKEN.name = "token"  # in the message about one that is none


@click.command("ls", short_help="List the locks that are held.")
@click.argument("prefix_of_key", default="", metavar="[PREFIX]")
@connection_options
@click.option("--all", "everything", is_flag=True, help="Also the locks that are free.")
@click.option("--sessions", is_flag=True, help="The sessions that keep such locks, and how many of them each keeps.")
@output_option
def ls(prefix_of_key: str, output: str, *, everything: bool, sessions: bool, **given: Any) -> None:
    """List the locks that are held and whose key begins with PREFIX. The list may be stale, and a holder may have died."""
    if sessions and everything:
        raise click.UsageError("--sessions does not go with --all: of sessions that are over nothing is shown")
    with standing_store(client_options(**given)) as client:
        if sessions:
            print_sessions(client, prefix_of_key, output)
        else:
            print_locks(client, prefix_of_key, output, everything=everything)


def _with_owners(client: LockClient, members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *members* with the owner of each, whose session may be over."""
    found = [read_aged(client, member["session"]) or (None, None) for member in members]
    return [
        member | {"owner": record.owner if record is not None and record.held else None, "age_ms": age_ms}
        for member, (record, age_ms) in zip(members, found, strict=True)
    ]


def _member_in_words(member: dict[str, Any]) -> str:
    slot = "" if member["slot"] is None else f", slot {member['slot']}, weight {member['weight']}"
    what = "waits to write" if member["mode"] == "want" else member["mode"]
    who = "nobody, its session is over" if member["owner"] is None else repr(member["owner"])
    age = "" if member["age_ms"] is None else f", renewed {in_words(member['age_ms'] / 1000)} ago"
    return f"{what}{slot}, token {member['fencing_token']}: {who}{age}, lease {member['lease_ms'] / 1000:g} s"


@click.command("show")
@click.argument("key")
@connection_options
@output_option
def show(key: str, output: str, **given: Any) -> int:
    """Show what is stored under KEY. A record that says 'held' may be a dead holder's: only time tells."""
    with standing_store(client_options(**given)) as client:
        record, age_ms = aged(client, key) or (None, None)
        seen = None if record is None else record_facts(record, age_ms)
        if seen is not None and seen["members"] is not None:
            seen["members"] = _with_owners(client, seen["members"])
        ref = None if record is None else record.session
        beat = None if ref is None else standing(ref, read_aged(client, ref.key))
        bare = key.removeprefix(client._context.prefix)
    if output == "json":
        print_json(seen)
    elif record is not None and seen is not None:
        facts = seen | {"state": state_in_words(record), "lease": lease_left(record, age_ms, beat)}
        facts["granted at"] = record.times and f"{at_in_words(record.times.granted_at_s)}, by its owner's clock"
        facts["held for"] = held_in_words(record)
        facts["written"] = renewed_in_words(record, age_ms)
        if facts["data"] is None and record.data is not None:
            facts["data"] = f"{len(record.data)} bytes (base64): {facts['data_base64']}"
        if is_quarantined(record):
            facts["owner"] = "nobody, until the lease is over"
        facts["broken"] = None if record.broken is None else f"by {record.broken.by}"
        facts["attributes"] = [f"{name}={value!r}" for name, value in record.attributes]
        if record.members is not None:
            facts |= {"owner": members_in_words(record.members), "lease": None}
            facts["members"] = [_member_in_words(member) for member in facts["members"]]
        if not record.held:
            facts = {("last owner" if name == "owner" else name): value for name, value in facts.items()}
        hidden = ("lease_ms", "data_base64", "granted_at", "written_at", "age_ms")
        print_facts(
            {name: value for name, value in facts.items() if name not in hidden and value not in (None, [], "", "-")}
        )
    if record is None:
        # Messages of the library name a lock by its whole key.
        hint = "lists what is" if bare == key else f"lists what is; without the prefix the key is {bare!r}"
        Say().error(f"nothing is stored under key {key!r}; 'dlock ls --all' {hint}")
        return REFUSED
    return 0


@click.command("break", short_help="Take a lock from its holder.")
@click.argument("key")
@click.option(
    "--token",
    type=_TOKEN,
    metavar="N",
    help="The fencing token of the grant to break, as 'dlock show KEY' says it.",
)
@click.option(
    "--rvn",
    metavar="RVN",
    help="The record version number, as 'dlock show KEY' says it: break exactly what was seen. It changes with each renewal.",
)
@click.option(
    "--session", is_flag=True, help="KEY is a session, as 'dlock show' names it: break it, and all that it keeps."
)
@click.option("--now", is_flag=True, help="Free it at once. Two may then believe that they hold it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --now.")
@connection_options
@output_option
def break_(  # click hands options over by name
    key: str, *, token: int | None, rvn: str | None, session: bool, now: bool, yes: bool, output: str, **given: Any
) -> int:
    """Take the lock KEY from its holder, whose fencing token is N, or whose record has the number RVN.

    The token is raised, and nobody gets the lock for one more lease: by then its holder has noticed, or its lease has run out.
    """
    if session:
        if token is not None or rvn is not None or now:
            raise click.UsageError(
                "--session goes with none of --token, --rvn and --now: nobody gets what it keeps for one lease"
            )
        return _break_session(key, output, given)
    if token is None and rvn is None:
        raise click.UsageError("say which grant is meant: --token N or --rvn RVN, as 'dlock show KEY' says them")
    with standing_store(client_options(**given)) as client:
        record = client.get(key)
        question = f"dlock: free {key!r} at once, although its holder may still be at work?"
        if now and not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
            Say().error(f"nothing was done to {key!r}")
            return REFUSED
        done = _break(client, record, key, token, rvn, now=now)
        standing = record if done else client.get(key)
    if not done:
        Say().error(_not_broken(key, token, rvn, standing))
        return REFUSED
    broken = record.fencing_token if token is None and record is not None else token
    assert broken is not None  # without a token there was a record
    facts = _broken_facts(key, broken, standing, now=now)
    what = f"{key!r}, token {broken} -> {broken + 1}" if broken else f"{key!r}, which has no fencing token"
    print_as(output, facts, {"broken": what, "means": facts["means"], "fence": facts["fence"]})
    return 0


def _break_session(session: str, output: str, given: dict[str, Any]) -> int:
    with standing_store(client_options(**given)) as client:
        done = client.break_session(session)
    if not done:
        Say().error(f"session {session!r} is over, or was broken, already; nothing was done")
        return REFUSED
    means = "all locks that it keeps are lost; nobody gets them for one lease, within which their holder learns of it"
    facts = {"session": session, "broken": True, "means": means}
    print_as(output, facts, facts)
    return 0


def _break(
    client: LockClient, record: LockRecord | None, key: str, token: int | None, rvn: str | None, *, now: bool
) -> bool:
    """Break what was meant; *rvn* may be written as it is shown, with what no terminal prints written out."""
    if rvn is None:
        assert token is not None  # asked by the caller
        return client.break_lock(key, fencing_token=token, now=now)
    if record is None or rvn not in (record.rvn, escape(record.rvn)):
        return False
    return client.break_lock(
        key, fencing_token=record.fencing_token if token is None else token, rvn=record.rvn, now=now
    )


def _not_broken(key: str, token: int | None, rvn: str | None, standing: LockRecord | None) -> str:
    meant = f"token {token} is not its present one" if rvn is None else f"its record is not {rvn} any more"
    if standing is None or not standing.held:
        who = "nobody holds it"
    else:
        who = f"it is {holder_in_words(standing)}, with token {standing.fencing_token}"
        who += "" if rvn is None else f", as {standing.rvn}"
    return f"lock {key!r} was not broken: {meant}: {who}; see 'dlock show'"


def _broken_facts(key: str, token: int, record: LockRecord | None, *, now: bool) -> dict[str, Any]:
    lease_ms = None if record is None else quarantine_ms(record)
    freed = now or lease_ms is None
    owner = "its holder" if record is None else f"the holder {record.owner!r}"
    if record is not None and record.members is not None:
        owner = "each holder"
    if freed:
        until = "is told otherwise" if lease_ms is None else f"next renews, or its lease of {lease_ms / 1000:g} s ends"
        means = (
            f"the lock is free at once. LOST: exclusion. Until {owner} {until}, it still believes that it holds the lock: "
            "two may work at the same time, and only fencing protects what they write to"
        )
    else:
        assert lease_ms is not None  # freed otherwise
        means = (
            f"the lock is quarantined: nobody gets it for one lease ({lease_ms / 1000:g} s), within which {owner} learns of it "
            "at its next renewal, or runs out of lease"
        )
    fence = (  # what follows is for people to read, not for us to run
        f"a resource refuses the old token only once it has seen a higher one. To close it to token {token} now: "  # noqa: S608  # shown, not run
        f"UPDATE resource SET fence = {token + 1} WHERE id = ... AND fence < {token + 1}"
        if token
        else "these records have no fencing token: no resource can refuse the old holder"
    )
    if record is not None and record.members is not None and record.members.kind == "permits":
        fence = "permits have no order: a resource can refuse the old holder only where each slot has one of its own"
    return {
        "key": key,
        "broken": True,
        "fencing_token": token + 1 if token else 0,
        "freed": freed,
        "lease_ms": lease_ms,
        "means": means,
        "fence": fence,
    }


@click.command("prune", short_help="Remove the records of locks that nobody has used for long.")
@click.argument("prefix_of_key", default="", metavar="[PREFIX]")
@click.option(
    "--older-than",
    type=DURATION,
    required=True,
    metavar="TIME",
    help="Remove what was last written so long ago, 25h or more: 30d, 36h.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Count what would go, and remove nothing.")
@connection_options
@output_option
def prune(prefix_of_key: str, *, older_than: float, dry_run: bool, output: str, **given: Any) -> None:
    """Remove the records of free locks whose key begins with PREFIX and that nobody has used for long.

    Records that are held, that carry data, or that hold the last slot of a job stay. Fencing tokens go on above those that were removed.
    """
    with standing_store(client_options(**given)) as client:
        pruned = client.prune(older_than=older_than, prefix=prefix_of_key, dry_run=dry_run)
    facts = {"removed": pruned.removed, "seen": pruned.seen, "dry_run": dry_run}
    print_as(output, facts, {"would remove" if dry_run else "removed": f"{pruned.removed} of {pruned.seen} records"})


@click.command("init")
@connection_options
@output_option
def init(output: str, **given: Any) -> None:
    """Create what the store needs: a table, an index. May be repeated."""
    with connect(client_options(**given, provision=True)) as client:
        guarantees = client.guarantees()
    facts = {"store": guarantees.store, "version": guarantees.version, "provisioned": True}
    print_as(output, facts, {"ready": f"{guarantees.store} {guarantees.version}"})


@click.command("doctor", short_help="Tell what the store promises, and whether it can be used.")
@connection_options
@click.option("--policy", is_flag=True, help="Print the rights that the store's user needs, and do nothing else.")
@click.option(
    "--cost",
    "workload",
    metavar="locks=N,lease=TIME,waiters=N,cycles=N",
    help="Estimate requests and money of a month, for so many held locks, waiters, and acquires a day; do nothing else.",
)
@click.option(
    "--prices", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Prices for --cost, as JSON."
)
@output_option
def doctor(policy: bool, workload: str | None, prices: str | None, output: str, **given: Any) -> int:  # noqa: FBT001  # as ls
    """Look at the store, what it promises, and the clock that leases are measured by. Writes nothing.

    The exit code is 0 if the store can be used, 1 if connect and dlock run refuse it as unsafe, 69 if it can't be reached.
    """
    if policy and workload is not None:
        raise click.UsageError("--policy and --cost exclude each other; give one of the two")
    if prices is not None and workload is None:
        raise click.UsageError("--prices is for --cost; say what it is to estimate, as --cost locks=1000")
    options = client_options(**given)
    if policy:
        stated = diagnosis.policy(options)
        if isinstance(stated, str) and output != "json":
            print_text(stated)
        else:
            print_json({"policy": stated} if output == "json" else stated)
        return 0
    if workload is not None:
        estimate = estimated(options, workload, prices)
        print_as(output, estimate, estimate_in_words(estimate))
        return 0
    facts = diagnosis.examine(options, configuration=configuration_source(given["url"]))
    print_as(output, facts, diagnosis.in_words(facts))
    return REFUSED if facts["refused"] else 0
