"""The settings: the database and the locks are those that the test names."""

from __future__ import annotations

import os

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SITE_DATABASE", ":memory:")}}
INSTALLED_APPS = ["dlock_contrib.django", "tests.contrib.site"]
SECRET_KEY = "of no use"
USE_TZ = True
if "SITE_LOCKS" in os.environ:
    LOCKS = {
        "default": {"URL": os.environ["SITE_LOCKS"], "PREFIX": os.environ.get("SITE_PREFIX", ""), "LEASE_DURATION": 10}
    }
