"""Play the worlds of elections and of jobs: ``python -m proof.jobs``."""

from __future__ import annotations

import sys

from proof.jobs.runner import main

if __name__ == "__main__":
    sys.exit(main())
