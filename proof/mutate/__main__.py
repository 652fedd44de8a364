"""Judge the mutants named on the command line: ``python -m proof.mutate``."""

from __future__ import annotations

import sys

from proof.mutate.runner import main

if __name__ == "__main__":
    sys.exit(main())
