"""One worker process of the demo: moves money between two accounts, again and again, under the locks of both (or, to compare, under none).

It tells what it does in JSON lines on standard output, and takes one command on standard input: ``linger``, to stay in its next section
until something happens to it; the end of input ends it.
"""

from __future__ import annotations

import json
import logging
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

from dlock_core import LockClient, LockLostError, connect
from examples.ledger import ACCOUNTS, Ledger

LEASE_S = 2.0
LINGER_S = 30.0


def tell(**event: Any) -> None:
    """Report one event, with an instant that all processes of this machine share."""
    print(json.dumps({"at": time.monotonic(), **event}), flush=True)


def commanded(timeout_s: float = 0.0) -> str | None:
    """Return a command that has come, "" at the end of input, None for nothing."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return sys.stdin.readline().strip() if ready else None


def unlocked_transfer(ledger: Ledger, dice: random.Random) -> None:
    """Do what everybody does who thinks that it will be fine."""
    giver, taker = dice.sample(ACCOUNTS, 2)
    transfer = ledger.read(giver, taker, dice.randint(1, 20))
    time.sleep(dice.uniform(0.001, 0.005))
    ledger.write(transfer, {})


def locked_transfer(client: LockClient, ledger: Ledger, dice: random.Random, *, linger: bool) -> None:
    """Move money under both accounts' locks, handing the fencing tokens to what is written."""
    giver, taker = dice.sample(ACCOUNTS, 2)
    with client.lock_all([giver, taker], lease_duration=LEASE_S) as leases:
        tokens = {key: lease.fencing_token for key, lease in leases.items()}
        tell(kind="acquired", tokens=tokens)
        transfer = ledger.read(giver, taker, dice.randint(1, 20))
        if linger:
            tell(kind="lingering", tokens=tokens)
            stalled = time.monotonic()
            while commanded(0.01) is None and time.monotonic() - stalled < LINGER_S:
                pass
        time.sleep(dice.uniform(0.001, 0.005))
        # A process that was stopped does not know it: it goes on where it was. Only the fence knows.
        written = ledger.write(transfer, tokens)
        tell(kind="wrote" if written else "refused", tokens=tokens)
    tell(kind="released", tokens=tokens)


def work(url: str, path: Path, seed: int) -> None:
    """Transfer until the input ends."""
    dice = random.Random(seed)
    ledger = Ledger(path)
    linger = False
    with connect(url) as client:
        while (command := commanded()) != "":
            linger = linger or command == "linger"
            try:
                locked_transfer(client, ledger, dice, linger=linger)
                linger = False
            except LockLostError as error:
                linger = False
                tell(kind="lost", error=str(error), reason=error.loss.reason.value)
    ledger.close()


def work_without_locks(path: Path, seed: int) -> None:
    """Transfer until the input ends, with no lock."""
    dice = random.Random(seed)
    ledger = Ledger(path)
    while commanded() != "":
        unlocked_transfer(ledger, dice)
    ledger.close()


if __name__ == "__main__":
    logging.getLogger("dlock").addHandler(logging.NullHandler())  # what is lost is told as an event
    lock_url, ledger_path, number = sys.argv[1:4]
    if lock_url == "none":
        work_without_locks(Path(ledger_path), int(number))
    else:
        work(lock_url, Path(ledger_path), int(number))
