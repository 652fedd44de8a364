"""A migration that two processes at once would spoil: it waits in the middle for the other one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django.db import migrations

MEETING_S = 0.5


def _meet(*_: Any) -> None:
    with Path(os.environ["SITE_EVENTS"]).open("a", encoding="utf-8") as events:
        events.write(f"in {os.getpid()}\n")
        events.flush()
        time.sleep(MEETING_S)  # a second process has the time to come
        events.write(f"out {os.getpid()}\n")


class Migration(migrations.Migration):  # type: ignore[misc]  # django is published without types
    """The migration."""

    operations = [migrations.RunPython(_meet)]  # noqa: RUF012  # so it is written in Django
