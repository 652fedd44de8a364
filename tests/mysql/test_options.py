"""URLs of the store: where each part comes from, and what is refused without a secret in the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlock_core.backend import backend_for
from dlock_core.errors import ConfigurationError
from dlock_mysql import MySQLStore, MySQLStoreOptions

URL = "mysql://app:hunter2@db.example:3307/shop?table=locks&ssl_mode=verify_identity"


def test_every_part_has_its_place() -> None:
    """And the defaults are MySQL's."""
    found = MySQLStoreOptions.from_url(URL)

    assert (found.host, found.port, found.user, found.database) == ("db.example", 3307, "app", "shop")
    assert (found.password.get_secret_value(), found.table, found.ssl_mode) == ("hunter2", "locks", "verify_identity")
    least = MySQLStoreOptions.from_url("mysql:///shop")
    assert (least.host, least.port, least.user, least.table) == ("localhost", 3306, "root", "dlock")


def test_percent_signs_are_for_what_a_url_can_not_hold() -> None:
    """In the user and the password."""
    found = MySQLStoreOptions.from_url("mysql://a%40b:p%2Fq@h/d")

    assert (found.user, found.password.get_secret_value()) == ("a@b", "p/q")


@pytest.mark.parametrize("url", ["mysql://app@h", "mysql://app@h/"])
def test_a_url_without_a_database_is_told_where_it_goes(url: str) -> None:
    """Another source may name it."""
    with pytest.raises(
        ConfigurationError,
        match=r"names no database; write mysql://USER:PASSWORD@HOST/DATABASE, special characters of a password percent-encoded",
    ):
        MySQLStoreOptions.from_url(url)

    assert MySQLStoreOptions.from_url(url, database="shop").database == "shop"


@pytest.mark.parametrize("scheme", ["mariadb", "mysql+pymysql", "mariadb+pymysql"])
def test_schemes_of_sqlalchemy_and_mariadb_are_the_same(scheme: str) -> None:
    """Each is a name of the one store."""
    url = URL.replace("mysql", scheme)

    assert backend_for(url) is backend_for(URL)
    assert MySQLStoreOptions.from_url(url) == MySQLStoreOptions.from_url(URL)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://app:hunter2@h",
        "mysql://app:hunter2@h/a/b",
        "mysql://app:hunter2@h/d`x",
        "mysql://app:hunter2@h:0/d",
        "mysql://app:hunter2@h:port/d",
        "mysql://app:hunter2@h/d?table=no%20name",
        "mysql://app:hunter2@h/d?colour=red",
        "mysql://app:hunter2@h/d?ssl_mode=perhaps",
        "mysql://app:hunter2@h/d?ssl_ca=/etc/ssl/ca.pem",
        "mysql://app:hunter2@h/d?ssl_ca=/etc/ssl/ca.pem&ssl_mode=required",
        "mysql://app:hunter2@h/d?table=a&table=b",
        "mysql://app:hunter2@[h/d",
    ],
)
def test_a_wrong_url_is_a_configuration_error_without_a_secret(url: str) -> None:
    """Nothing is opened."""
    with pytest.raises(ConfigurationError) as caught:
        MySQLStoreOptions.from_url(url)

    assert "hunter2" not in str(caught.value)


def test_a_missing_authority_is_a_configuration_error(tmp_path: Path) -> None:
    """When the store is made, not in its first call."""
    with pytest.raises(ConfigurationError, match="ssl_ca"):
        MySQLStore(database="d", ssl_mode="verify_identity", ssl_ca=str(tmp_path / "none.pem"))
