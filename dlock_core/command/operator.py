"""The commands for people who look after locks: ``ls``, ``show``, ``break``, ``init``, ``doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dlock_core.client import connect
from dlock_core.command import doctor as diagnosis
from dlock_core.command.options import client_options, configuration_source, connection_options, output_option
from dlock_core.command.show import Say, escape, print_facts, print_json, print_rows, print_text, record_facts
from dlock_core.engine.client_context import open_store
from dlock_core.errors import RecordError

if TYPE_CHECKING:
    from dlock_core.client import LockClient
    from dlock_core.record import LockRecord

__all__ = ["break_", "doctor", "init", "ls", "show"]

REFUSED = 1


@click.command("ls")
@click.argument("prefix_of_key", default="", metavar="[PREFIX]")
@connection_options
@click.option("--held", is_flag=True, help="Only what is held.")
@output_option
def ls(prefix_of_key: str, held: bool, output: str, **given: Any) -> None:  # noqa: FBT001  # click hands options over by name
    """List the locks whose key begins with PREFIX. The list may be stale."""
    records, foreign = [], None
    with connect(client_options(**given)) as client:
        try:
            for record in client.scan(prefix_of_key):
                if record.held or not held:
                    records.append(record)  # noqa: PERF401  # what came before an error is kept
        except RecordError as error:
            foreign = error
    records.sort(key=lambda record: record.key)
    if output == "json":
        print_json([record_facts(record) for record in records])
    else:
        rows = [(each.key, _state(each), each.fencing_token, each.owner or "-", _lease(each)) for each in records]
        print_rows(("KEY", "STATE", "TOKEN", "OWNER", "LEASE"), rows)
    if foreign is not None:
        what = f"{foreign}; the list ends before it and is NOT complete: narrow the PREFIX to see the others"
        raise RecordError(what, key=foreign.key) from foreign


def _state(record: LockRecord) -> str:
    return "quarantined" if record.held and record.broken is not None else record.state.value


def _lease(record: LockRecord) -> str:
    if record.lease_ms is None:
        return "none" if record.held else "-"
    return f"{record.lease_ms / 1000:g} s"


@click.command("show")
@click.argument("key")
@connection_options
@output_option
def show(key: str, output: str, **given: Any) -> int:
    """Show what is stored under KEY. A record that says 'held' may be a dead holder's: only time tells."""
    with connect(client_options(**given)) as client:
        record = client.get(key)
    if output == "json":
        print_json(None if record is None else record_facts(record))
    elif record is not None:
        facts = record_facts(record) | {"state": _state(record), "lease": _lease(record)}
        if facts["data"] is None and record.data is not None:
            facts["data"] = f"{len(record.data)} bytes (base64): {facts['data_base64']}"
        facts["broken"] = None if record.broken is None else f"by {record.broken.by}"
        facts["attributes"] = [f"{name}={value!r}" for name, value in record.attributes]
        hidden = ("lease_ms", "data_base64")
        print_facts(
            {name: value for name, value in facts.items() if name not in hidden and value not in (None, [], "")}
        )
    if record is None:
        Say().error(f"nothing is stored under key {key!r}; 'dlock ls' lists what is")
        return REFUSED
    return 0


@click.command("break")
@click.argument("key")
@click.option(
    "--token",
    type=click.IntRange(min=0),
    metavar="N",
    help="The fencing token of the grant to break, as 'dlock show KEY' says it.",
)
@click.option(
    "--rvn",
    metavar="RVN",
    help="The record version number, as 'dlock show KEY' says it: break exactly what was seen. It changes with each renewal.",
)
@click.option("--now", is_flag=True, help="Free it at once. Two may then believe that they hold it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --now.")
@connection_options
@output_option
def break_(key: str, *, token: int | None, rvn: str | None, now: bool, yes: bool, output: str, **given: Any) -> int:
    """Take the lock KEY from its holder, whose fencing token is N, or whose record has the number RVN.

    The token is raised, and nobody gets the lock for one more lease: by then its holder has noticed, or its lease has run out.
    """
    if token is None and rvn is None:
        raise click.UsageError("say which grant is meant: --token N or --rvn RVN, as 'dlock show KEY' says them")
    with connect(client_options(**given)) as client:
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
    if output == "json":
        print_json(facts)
    else:
        what = f"{key!r}, token {broken} -> {broken + 1}" if broken else f"{key!r}, which has no fencing token"
        print_facts({"broken": what, "means": facts["means"], "fence": facts["fence"]})
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
        who = f"{standing.owner!r} holds it with token {standing.fencing_token}"
        who += "" if rvn is None else f", as {standing.rvn}"
    return f"lock {key!r} was not broken: {meant}: {who}; see 'dlock show'"


def _broken_facts(key: str, token: int, record: LockRecord | None, *, now: bool) -> dict[str, Any]:
    lease_ms = None if record is None else record.lease_ms
    freed = now or lease_ms is None
    owner = "its holder" if record is None else f"the holder {record.owner!r}"
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
    return {
        "key": key,
        "broken": True,
        "fencing_token": token + 1 if token else 0,
        "freed": freed,
        "lease_ms": lease_ms,
        "means": means,
        "fence": fence,
    }


@click.command("init")
@connection_options
@output_option
def init(output: str, **given: Any) -> None:
    """Create what the store needs: a table, an index. May be repeated."""
    options = client_options(**given)
    # A client asks the store for its guarantees first, which needs what is to be created here.
    store = open_store(options)
    try:
        store.provision()
    finally:
        store.close()
    with connect(options) as client:
        guarantees = client.guarantees()
    if output == "json":
        print_json({"store": guarantees.store, "version": guarantees.version, "provisioned": True})
    else:
        print_facts({"ready": f"{guarantees.store} {guarantees.version}"})


@click.command("doctor")
@connection_options
@click.option("--policy", is_flag=True, help="Print the rights that the store's user needs, and do nothing else.")
@output_option
def doctor(policy: bool, output: str, **given: Any) -> None:  # noqa: FBT001  # as ls
    """Look at the store, what it promises, and the clock that leases are measured by. Writes nothing."""
    options = client_options(**given)
    if policy:
        print_text(diagnosis.policy(options))
        return
    facts = diagnosis.examine(options, configuration=configuration_source(given["url"]))
    if output == "json":
        print_json(facts)
    else:
        print_facts(diagnosis.in_words(facts))
