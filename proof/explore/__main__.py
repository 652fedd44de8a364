"""Explore the worlds named on the command line: ``python -m proof.explore``."""

from __future__ import annotations

import sys

from proof.explore.search import main

if __name__ == "__main__":
    sys.exit(main())
