"""``dlock prune``: remove the records of locks that nobody has used for long."""

from __future__ import annotations

from typing import Any

import click

from dlock_core.command.doctor import standing_store
from dlock_core.command.options import DURATION, client_options, connection_options, output_option
from dlock_core.command.show import print_as


@click.command("prune")
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
