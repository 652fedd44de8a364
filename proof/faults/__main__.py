"""Run the fault cells named on the command line: ``python -m proof.faults``."""

from __future__ import annotations

import sys

from proof.faults.runner import main

if __name__ == "__main__":
    sys.exit(main())
