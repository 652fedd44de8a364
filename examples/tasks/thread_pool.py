"""Threads of one process, and of others, that never work on the same customer at the same time."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from dlock_core import connect

balances = Counter[str]()

with connect() as client, ThreadPoolExecutor(8) as pool:

    def pay_in(customer: str) -> None:
        """Read, think, and write."""
        with client.lock(f"customers/{customer}", timeout=30):
            balance = balances[customer]
            balances[customer] = balance + 1

    list(pool.map(pay_in, ["anna", "boris"] * 10))

print(sorted(balances.items()))
