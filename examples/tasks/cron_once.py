"""A job of cron that is started on several hosts at the same minute, and runs on one of them."""

from __future__ import annotations

from dlock_core import connect

with connect() as client:  # the store that DLOCK_URL names
    lease = client.try_acquire("nightly-report")
    if lease is None:
        print("the report is being written elsewhere")
    else:
        with lease:
            print("the report is written")
