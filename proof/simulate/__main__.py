"""Simulate the schedules named on the command line: ``python -m proof.simulate``."""

from __future__ import annotations

import sys

from proof.simulate.runner import main

if __name__ == "__main__":
    sys.exit(main())
