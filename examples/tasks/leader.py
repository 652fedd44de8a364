"""One of several processes leads; another one would, if this one died."""

from __future__ import annotations

from dlock_core import Term, connect


def lead(term: Term) -> None:
    """Do the leader's work until it is over, or until the term must end."""
    print("leading")
    while not term.stopping.wait(0.1):
        break  # a service would go on


with connect(lease_duration=15) as client:
    client.election("billing-leader").run(lead, rejoin=False)
print("resigned")
