"""Write ``tests/messages/messages.txt`` anew: ``python -m tests.update_messages``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.messages.table import TABLE, table


def main() -> None:
    """Make the mistakes and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        TABLE.write_text(table(Path(folder)), encoding="utf-8")
    sys.stdout.write(f"wrote {TABLE}\n")


if __name__ == "__main__":
    main()
