"""Locks by the settings of Django, and management commands under a lock: a real project, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import django
import pytest
from django.conf import settings
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.http import HttpRequest
from django.test import RequestFactory, override_settings
from django.utils.autoreload import get_child_arguments

from dlock_contrib.django import locks
from dlock_core import LockLostError, connect
from dlock_core.fence import FencedWSGI, MemoryTokens, sql_update
from tests.backends import url_for
from tests.documentation import Names, shown

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Site(NamedTuple):
    """A project with a database of its own."""

    folder: Path
    url: str | None

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``manage.py`` with *arguments*."""
        variables = {
            "DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings",
            "SITE_DATABASE": str(self.folder / "site.db"),
            "SITE_EVENTS": str(self.folder / "events"),
            "SITE_PREFIX": str(self.folder),
        } | ({} if self.url is None else {"SITE_LOCKS": self.url})
        return subprocess.Popen(
            [sys.executable, "-m", "django", *arguments],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run ``manage.py``; return its code and what it printed."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_two_pods_migrate_one_after_the_other(store: str, tmp_path: Path) -> None:
    """Both start at once and both succeed: the second finds nothing left to migrate."""
    site = Site(tmp_path, url_for(store, tmp_path))
    started = [site.start("run_locked", "migrate", "--", "migrate", "--noinput") for _ in range(2)]
    printed = [process.communicate(timeout=LIMIT_S) for process in started]

    assert [process.returncode for process in started] == [0, 0], printed
    assert sorted("No migrations to apply" in out for out, _ in printed) == [False, True]
    assert len((tmp_path / "events").read_text(encoding="utf-8").splitlines()) == 2


def test_a_held_lock_is_one_line_and_a_code(tmp_path: Path) -> None:
    """75 where another one holds it, 0 where that is to be skipped; the command has not run."""
    site = Site(tmp_path, url_for("sqlite", tmp_path))
    with connect(url_for("sqlite", tmp_path), prefix=str(tmp_path)) as other, other.lock("migrate"):
        code, out, err = site.run("run_locked", "migrate", "--timeout", "0", "--", "migrate")
        skipped = site.run("run_locked", "migrate", "--skip-if-held", "--", "migrate")

    assert (code, out, err.count("\n")) == (75, "", 1), err
    assert err.startswith("CommandError: could not acquire lock")
    assert err.endswith("; migrate was not run\n")
    assert skipped[:2] == (0, "")
    assert skipped[2].endswith("; migrate was skipped\n")
    assert not (tmp_path / "events").exists()


def test_settings_without_locks_are_one_plain_line(tmp_path: Path) -> None:
    """The check and the command say what to write."""
    expected = 'the settings have no LOCKS; write LOCKS = {"default": {"URL": "redis://host/0"}} into the settings'
    site = Site(tmp_path, None)
    code, out, err = site.run("run_locked", "migrate", "--", "migrate")
    checked = site.run("check")

    assert (code, out, err) == (64, "", f"CommandError: {expected}\n")
    assert checked[0] == 1
    assert f"?: (dlock.E001) {expected}" in checked[2]


def test_a_store_of_this_process_alone_is_told(tmp_path: Path) -> None:
    """The command runs, as in a program that is being written; but no other process is kept out."""
    code, _, err = Site(tmp_path, "memory://").run("run_locked", "k", "--", "check")

    assert (code, err) == (0, "memory:// protects nothing here: no other process sees its locks\n")


def test_the_code_of_the_command_stays(tmp_path: Path) -> None:
    """A command that fails gives the lock back, and its code is the code of all."""
    site = Site(tmp_path, url_for("sqlite", tmp_path))
    code, _, err = site.run("run_locked", "k", "--", "migrate", "nothing")

    assert (code, err) == (1, "CommandError: No installed app with label 'nothing'.\n")
    with connect(url_for("sqlite", tmp_path), prefix=str(tmp_path)) as other, other.lock("k", timeout=0) as lease:
        assert lease.fencing_token == 2


@pytest.fixture(scope="module", autouse=True)
def project() -> Iterator[None]:
    """Set Django up in this process; it cannot be undone, and nothing else here uses it."""
    settings.configure(
        INSTALLED_APPS=["dlock_contrib.django"],
        LOCKS={"default": {"URL": "memory://django"}},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()
    yield
    locks["default"].close()


def test_a_lock_of_the_settings() -> None:
    """``locks[...]`` is a client of the store that the settings name, the same each time, and changes with them."""
    client = locks["default"]
    with client.lock("k") as lease:
        assert lease.is_valid
    assert locks["default"] is client
    assert dict(locks) == {"default": client}
    assert "other" not in locks
    assert locks.get("other", client) is client
    with override_settings(LOCKS={"other": {"URL": "memory://django", "LEASE_DURATION": 7}}):
        assert locks["other"].options.lease_duration == 7
        assert list(locks) == ["other"]
        locks["other"].close()
    assert locks["default"] is client


def test_the_pages_view() -> None:
    """It pays in a transaction, and refuses a second request meanwhile."""
    names: Names = {}
    shown("docs/howto/django.md", "transaction.atomic()").run(names)

    answers = [names["pay"](HttpRequest(), "7")]
    with locks["default"].lock("order/7"):
        answers.append(names["pay"](HttpRequest(), "7"))
    assert [(answer.status_code, answer.content) for answer in answers] == [
        (200, b"paid"),
        (409, b"the order is being paid already"),
    ]


def test_a_cursor_takes_a_fenced_write_in_the_style_that_the_page_names(tmp_path: Path) -> None:
    """Django has one style for all databases: that of sqlite3 itself is an error where DEBUG is on, which formats what was sent."""
    database = DatabaseWrapper({**connections["default"].settings_dict, "NAME": str(tmp_path / "accounts.db")})
    database.force_debug_cursor = True
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE account (name TEXT PRIMARY KEY, balance BIGINT, fencing_token BIGINT)")
        cursor.execute("INSERT INTO account (name, balance) VALUES ('anna', 100)")
        changed = []
        for token in (2, 1):
            cursor.execute(*sql_update("account", {"balance": 80}, {"name": "anna"}, token, paramstyle="format"))
            changed.append(cursor.rowcount)
        with pytest.raises(TypeError, match="not all arguments converted"):
            cursor.execute(*sql_update("account", {"balance": 80}, {"name": "anna"}, 3, paramstyle="qmark"))
    database.close()

    assert changed == [1, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, r"LOCKS is empty; write LOCKS = "),
        ({"other": {}}, r"LOCKS has no 'default'; it has 'other'$"),
        ({"default": {"LEASE_DURATION": 5}}, r"LOCKS\['default'\] has no URL; write LOCKS = "),
        ({"default": "memory://"}, r"LOCKS\['default'\] has no URL; write LOCKS = "),
        (
            {"default": {"URL": "memory://", "LEASE_DURATOIN": 5}},
            r"LOCKS\['default'\]: .*lease_duratoin.*lease_duration",
        ),
        ("memory://", r"LOCKS is a str, not a dict; write LOCKS = "),
        (None, r"the settings have no LOCKS; write LOCKS = "),
    ],
)
def test_wrong_settings_say_what_to_write(value: Any, message: str) -> None:
    """One plain line, from the lookup, the check and the command."""
    with override_settings(LOCKS=value):
        with pytest.raises(ImproperlyConfigured, match=message) as raised:
            locks["default"]
        assert "\n" not in str(raised.value)
        with pytest.raises(CommandError, match=message):
            call_command("run_locked", "k", "check")
        if value != {"other": {}}:
            with pytest.raises(SystemCheckError, match=message.removesuffix("$")):
                call_command("check")


def test_the_timeout_of_the_settings_is_that_of_the_command() -> None:
    """Where the command line names none."""
    with override_settings(LOCKS={"default": {"URL": "memory://django", "TIMEOUT": 0.01}}):
        lease = locks["default"].acquire("busy", handover=True)
        with lease, pytest.raises(CommandError, match=r"within 10 ms: held by") as raised:
            call_command("run_locked", "busy", "check")
    assert raised.value.returncode == 75


def test_the_locks_that_are_named_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """``--using`` names them, with a time-out and without one."""
    named = {name: {"URL": f"memory://django-{name}"} for name in ("default", "other")}
    with override_settings(LOCKS=named), locks["default"].lock("busy"):
        for timeout in ([], ["--timeout", "0"]):
            call_command("run_locked", "busy", "check", "--using", "other", *timeout)
    assert capsys.readouterr().out.count("no issues") == 2


def test_an_application_takes_the_fence_of_http_requests_as_its_page_says() -> None:
    """As any application of WSGI: a request without a token goes no further."""
    fenced = FencedWSGI(get_wsgi_application(), MemoryTokens())
    statuses: list[str] = []
    urls = ModuleType("urls")
    vars(urls)["urlpatterns"] = []

    with override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"]):
        for tokens in ({}, {"HTTP_FENCING_TOKEN": "1"}):
            request = RequestFactory().generic("PUT", "/a")
            b"".join(fenced(request.environ | tokens, lambda status, headers: statuses.append(status)))

    assert statuses == ["428 Precondition Required", "404 Not Found"]


def test_a_lock_that_is_lost_meanwhile_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has run to its end, and the code says that it may have been beside another one."""

    def broken(**_: Any) -> list[Any]:
        record = locks["default"].get("lost")
        assert record is not None
        with connect("memory://django") as operator:
            assert operator.break_lock("lost", fencing_token=record.fencing_token, now=True)
        return []

    monkeypatch.setattr(registry, "registered_checks", {broken})
    broken.tags = ()  # type: ignore[attr-defined]  # as register() does
    with pytest.raises(CommandError, match=r"check may have run beside another one") as raised:
        call_command("run_locked", "lost", "check")
    assert raised.value.returncode == 76


def test_a_lock_that_the_command_itself_loses_is_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock under which it runs was kept: no code says that another command may have run, and the traceback shows the place."""

    def losing(**_: Any) -> list[Any]:
        with locks["default"].lock("own", max_hold=0.001) as own:
            while own.is_valid:
                pass
            own.ensure()
        return []

    monkeypatch.setattr(registry, "registered_checks", {losing})
    losing.tags = ()  # type: ignore[attr-defined]  # as register() does
    with pytest.raises(LockLostError, match="'own'"):
        call_command("run_locked", "kept", "check")


def test_a_command_that_starts_itself_again_does_not_wait_for_its_own_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``runserver`` does to reload: the command alone, which runs under the lock of its parent, and not ``run_locked`` again."""
    seen: list[list[str]] = []

    def note(**_: Any) -> list[Any]:
        seen.append(get_child_arguments())
        return []

    monkeypatch.setattr(registry, "registered_checks", {note})
    note.tags = ()  # type: ignore[attr-defined]  # as register() does
    monkeypatch.setattr(sys, "argv", [__file__, "run_locked", "web", "--", "check"])
    call_command("run_locked", "web", "check")

    assert seen[0][-1] == "check"
    assert "run_locked" not in seen[0]
    assert sys.argv[1] == "run_locked"
