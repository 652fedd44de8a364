"""A transfer between two accounts: both are held or none, and two transfers in opposite directions do not wait for each other for ever."""

from __future__ import annotations

import threading

from dlock_core import LockClient, connect

balances = {"anna": 100, "boris": 100}


def transfer(client: LockClient, giver: str, taker: str, amount: int) -> None:
    """Move *amount*."""
    with client.lock_all([f"accounts/{giver}", f"accounts/{taker}"], timeout=30):
        balances[giver] -= amount
        balances[taker] += amount


with connect() as client:
    transfers = [("anna", "boris", 30), ("boris", "anna", 10)]
    threads = [threading.Thread(target=transfer, args=(client, *each)) for each in transfers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(balances)
