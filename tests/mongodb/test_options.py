"""The URL: pymongo's own, with our collection in it; every mistake has an error of its own, and no secret is in it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import dns.asyncresolver
import dns.resolver
import pytest
from dns.exception import Timeout
from dns.resolver import NXDOMAIN, NoNameservers
from pymongo import MongoClient

from dlock_core import aconnect, connect
from dlock_core.backend import backend_for
from dlock_core.errors import ConfigurationError, DLockError, StoreSetupError, StoreUnavailableError
from dlock_mongodb import MongoDBStoreOptions, backend
from dlock_mongodb.store import _client

SECRET = "hunter2"


@pytest.mark.parametrize("scheme", ["mongodb", "mongodb+srv"])
def test_both_schemes_are_ours(scheme: str) -> None:
    """They are found as anybody's would be."""
    assert backend_for(f"{scheme}://host/") is backend


@pytest.mark.parametrize(
    ("url", "database", "collection", "rest"),
    [
        ("mongodb://h", "dlock", "locks", "mongodb://h"),
        ("mongodb://h:1/", "dlock", "locks", "mongodb://h:1/"),
        ("mongodb://a,b:2/app?replicaSet=rs&collection=l", "app", "l", "mongodb://a,b:2/app?replicaSet=rs"),
        ("mongodb://h/?database=app&collection=a.b", "app", "a.b", "mongodb://h/"),
        ("mongodb://h/app?database=app", "app", "locks", "mongodb://h/app"),
        (
            "mongodb://u:p%40@h/app?w=1&retryWrites=true&tls=true",
            "app",
            "locks",
            "mongodb://u:p%40@h/app?w=1&retryWrites=true&tls=true",
        ),
        ("mongodb+srv://h.example.org/app?readPreference=secondary", "app", "locks", None),
        ("mongodb://%2Ftmp%2Fmongodb-27017.sock/app", "app", "locks", None),
    ],
)
def test_a_url_is_the_drivers_but_for_our_keys(url: str, database: str, collection: str, rest: str | None) -> None:
    """What pymongo knows passes; names default."""
    options = MongoDBStoreOptions.from_url(url)

    assert (options.database, options.collection) == (database, collection)
    assert options.url is not None
    assert options.url.get_secret_value() == (rest or url)


def test_settings_yield_to_the_url() -> None:
    """A table of TOML says what the URL does not."""
    options = MongoDBStoreOptions.from_url("mongodb://h/app", database="other", collection="mine")

    assert (options.database, options.collection) == ("app", "mine")


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("mongodb://h/one/two", "two database names, 'one' and 'two'"),
        ("mongodb://h/one?database=two", "two database names, 'one' and 'two'"),
        ("mongodb://h/db.collection", "names a collection in its path"),
        ("mongodb://h/?colection=x", "(?i)colection.*unknown option"),
        ("mongodb://h/?collection=a&collection=b", "stands twice"),
        ("mongodb://h/?collection=$x", "collection: '\\$x' is no collection name"),
        ("mongodb://h/?collection=", "no collection name"),
        ("mongodb://h/?collection=system.users", "no collection name"),
        ("mongodb://h/a%20b", "no database name"),
        ("mongodb://h/?database=", "no database name"),
        ("mongodb:///db", "no host"),
        ("mongodb://h/db#x", "fragment"),
        ("mongodb://[::1/db", "malformed|no host"),
        ("mongodb://h/?connectTimeoutMS=soon", "connectTimeoutMS"),
        ("mongodb://h/?replicaSet", "takes so"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, match: str) -> None:
    """Each mistake has its own words."""
    with pytest.raises(ConfigurationError, match=match):
        MongoDBStoreOptions.from_url(url)


def test_an_unknown_setting_is_an_error() -> None:
    """Of the TOML table, too."""
    with pytest.raises(ConfigurationError, match="ttl"):
        MongoDBStoreOptions.from_url("mongodb://h/", ttl=5)


@pytest.mark.parametrize(
    "url",
    [
        f"mongodb://user:{SECRET}@h/a/b",
        f"mongodb://user:a/{SECRET}@h/db",
        f"mongodb://user:{SECRET}@h/?nonsense={SECRET}",
        f"mongodb://user:{SECRET}@h/?connectTimeoutMS={SECRET}",
        f"mongodb://h/?authMechanismProperties={SECRET}",
        f"mongodb://user:{SECRET}@h/?authMechanismProperties={SECRET}:x",
        f"mongodb://user:{SECRET}@h/?tlsCAFile=/no/{SECRET}.pem",
        f"mongodb://h/?authMechanism={SECRET}",
        f"mongodb://h:{SECRET}/",
    ],
)
def test_no_error_repeats_a_secret(url: str) -> None:
    """Neither the message, nor its causes, nor the options' own text."""
    with pytest.raises(ConfigurationError) as caught:
        _client(MongoClient, MongoDBStoreOptions.from_url(url))

    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("told", [Timeout, NoNameservers, NXDOMAIN])
def test_name_server_that_does_not_answer_is_no_mistake_in_the_url(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be asked again; it is waited for as long as the look at a store may take. That there is no such name stays so."""
    asked = list[float]()

    def resolve(*_: Any, lifetime: float) -> Any:
        asked.append(lifetime)
        raise told()

    async def aresolve(*_: Any, lifetime: float) -> Any:
        return resolve(lifetime=lifetime)

    async def aopened() -> None:
        await aconnect("mongodb+srv://locks.example.org/app")

    monkeypatch.setattr(dns.resolver, "resolve", resolve)
    monkeypatch.setattr(dns.asyncresolver, "resolve", aresolve)
    wrong: tuple[type[DLockError], ...] = (ConfigurationError, StoreSetupError)

    with pytest.raises(wrong if told is NXDOMAIN else StoreUnavailableError):
        connect("mongodb+srv://locks.example.org/app")
    with pytest.raises(wrong if told is NXDOMAIN else StoreUnavailableError):
        asyncio.run(aopened())

    assert set(asked) == {10.0}


def test_options_do_not_show_their_url() -> None:
    """They may be logged."""
    assert SECRET not in repr(MongoDBStoreOptions.from_url(f"mongodb://user:{SECRET}@h/db"))


def test_without_a_url_there_is_nothing_to_open() -> None:
    """Options of a user's own client have none."""
    with pytest.raises(ConfigurationError, match="no URL"):
        backend.open(MongoDBStoreOptions())


@pytest.mark.parametrize("driver", ["None", "type(sys)('pymongo', '')"])
def test_without_its_driver_the_import_names_the_install(driver: str) -> None:
    """Missing, or too old for the asyncio client."""
    program = (
        f"import sys; driver = {driver}\n"
        "if driver is not None: driver.version_tuple, driver.version = (4, 13, 1), '4.13.1'\n"
        "sys.modules['pymongo'] = driver\n"
        "from dlock_core.errors import MissingDriverError\n"
        "try: import dlock_mongodb\n"
        "except MissingDriverError as error: print(error)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "pip install 'dlock-core[mongodb]'" in done.stdout
    assert "pymongo>=4.13.2" in done.stdout
