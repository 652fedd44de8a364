"""The proof of the shipped protocol, one room for each method. It is not in the wheel.

``explore`` visits every state of small worlds; ``simulate`` runs random schedules from seeds; ``mutate`` breaks the protocol and sees that
somebody notices; ``faults`` disturbs real processes and stores. ``python -m proof`` runs all four and writes ``docs/proof.md``.
"""
