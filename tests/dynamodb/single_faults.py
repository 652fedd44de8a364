"""Trials of one delayed or half reply each, to a lock whose token is in a row of its own.

``python -m tests.dynamodb.single_faults URL ROUNDS`` prints how many locks were lost.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from dlock_core import LockClient
from dlock_core.record import Loss
from dlock_dynamodb import DynamoDBStore
from tests.dynamodb.support import session

__all__ = ["OneFault", "Trials"]

TABLE = "dlock-tests-single-faults"
LEASE_S = 6.0
HELD_S = 1.2 * LEASE_S
CLIENTS = 15
# A key's first requests are those of its acquire and of its first renewals.
REQUESTS = 6
DELAY_MAX_S = 2.0


class _Plan(NamedTuple):
    """What happens to the reply to a request of one key: it is cut into halves, or comes so much later."""

    number: int
    delay_s: float | None


class OneFault:
    """A session whose clients meet one fault for each key."""

    def __init__(self, rng: random.Random) -> None:
        self.session = session()
        self.struck = 0
        self._rng, self._mutex, self._here = rng, threading.Lock(), threading.local()
        self._plans: dict[str, _Plan] = {}
        self._counts: dict[str, int] = {}
        self.session.events.register("before-send.dynamodb", self._sending)
        self.session.events.register("response-received.dynamodb", self._received)

    def plan(self, key: str) -> None:
        """Draw the fault of *key*."""
        delay_s = self._rng.uniform(0, DELAY_MAX_S) if self._rng.random() < 0.5 else None
        self._plans[key] = _Plan(self._rng.randrange(REQUESTS), delay_s)

    def told(self, key: str) -> str:
        """Say what was planned for *key*, and how many requests it had."""
        return f"{self._plans[key]} of {self._counts[key] + 1} requests"

    def _sending(self, request: Any, **_: Any) -> None:
        key = json.loads(request.body).get("Key", {}).get("key", {}).get("S", "").removeprefix("dlock-token:")
        with self._mutex:
            number = self._counts[key] = self._counts.get(key, -1) + 1
        plan = self._plans.get(key)
        self._here.plan = plan if plan is not None and plan.number == number else None

    def _received(self, response_dict: dict[str, Any] | None = None, **_: Any) -> None:
        plan, self._here.plan = self._here.plan, None
        if plan is None or response_dict is None:
            return
        with self._mutex:
            self.struck += 1
        if plan.delay_s is None:
            response_dict["body"] = response_dict["body"][: len(response_dict["body"]) // 2]
        else:
            time.sleep(plan.delay_s)  # the reply is on its way


class Trials:
    """Clients that meet their faults one at a time, each on a store of its own: so no fault delays another lock's renewals."""

    def __init__(self, endpoint: str, rng: random.Random, clients: int) -> None:
        self._faults, self._run = OneFault(rng), rng.randrange(10**9)
        self._stores = [
            DynamoDBStore(self._faults.session, table=TABLE, endpoint_url=endpoint, dialect="awslabs", token_row=True)
            for _ in range(clients)
        ]
        self._stores[0].provision()

    def run(self, rounds: int) -> list[str]:
        """Run so many trials with each client; return how those ended whose lock was lost."""
        with ThreadPoolExecutor(len(self._stores)) as pool:
            ended = list(pool.map(partial(self._rounds, rounds), range(len(self._stores))))
        return [each for lost in ended for each in lost]

    @property
    def struck(self) -> int:
        """How many faults there were."""
        return self._faults.struck

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def _rounds(self, rounds: int, number: int) -> list[str]:
        lost = []
        with LockClient(self._stores[number], lease_duration=LEASE_S) as client:
            self._hold(client, f"{self._run}/{number}/warm-up")  # boto3's clients are slow to make
            for turn in range(rounds):
                key = f"{self._run}/{number}/{turn}"
                self._faults.plan(key)
                loss = self._hold(client, key)
                if loss is not None:
                    lost.append(f"{key}: {loss}, {self._faults.told(key)}")
        return lost

    @staticmethod
    def _hold(client: LockClient, key: str) -> Loss | None:
        lease = client.acquire(key, timeout=3 * LEASE_S)
        threading.Event().wait(HELD_S)
        if lease.is_valid:
            lease.release()
        return lease.loss


def main(endpoint: str, rounds: int) -> None:
    """Run *rounds* of trials with each of the clients."""
    trials = Trials(endpoint, random.Random(), CLIENTS)
    lost = trials.run(rounds)
    sys.stdout.write(f"{rounds * CLIENTS} trials, {trials.struck} faults, {len(lost)} lost {lost}\n")
    trials.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
