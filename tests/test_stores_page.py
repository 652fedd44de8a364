"""What ``docs/stores.md`` says of rights and refusals is what the code asks for and refuses."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from dlock_core import ClientOptions
from dlock_core.backend import backend_for
from dlock_core.command.doctor import policy as policy_of
from dlock_core.engine.texts import TRAITS
from dlock_core.kit import Backend
from dlock_core.memory import MemoryStore
from dlock_core.store import ServerClock
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions
from dlock_dynamodb.provision import policy
from dlock_etcd import EtcdStore, EtcdStoreOptions
from dlock_mongodb import MongoDBStore, MongoDBStoreOptions
from dlock_mysql import MySQLStore, MySQLStoreOptions
from dlock_postgres import PostgresStore, PostgresStoreOptions
from dlock_redis import RedisStore
from dlock_redis._errors import ACL_RULES
from dlock_sqlite.store import SqliteStore
from dlock_zookeeper import ZooKeeperStore, ZooKeeperStoreOptions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
STORES = ("sqlite", "redis", "dynamodb", "etcd", "mongodb", "mysql", "postgres", "zookeeper")
_TRAIT = re.compile(rf"(?:{'|'.join(STORES)})-[a-z-]+")


def refused_names() -> set[str]:
    """Return the traits that the stores' code names: what ``allow_unsafe`` may hold."""
    paths = ROOT.glob("dlock_*/provision.py")
    texts = [node.value for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    return {text for text in texts if _TRAIT.fullmatch(text)}


def test_each_refused_topology_is_named() -> None:
    """Whoever meets an UnsafeStoreError finds its name on the page, and no name that is not refused stands there."""
    found = refused_names()

    assert len(found) >= 8, found
    assert {name for name in _TRAIT.findall(PAGE) if f"`{name}`" in PAGE} == found


def test_core_knows_the_traits_of_all_stores() -> None:
    """A name in ``allow_unsafe`` that is none of these is a mistake, whichever store is opened."""
    assert set(TRAITS) == refused_names() | {"session-rollback"}


def test_doctor_has_a_remedy_for_each_refused_topology() -> None:
    """Whoever is refused learns what to do about it, and not only how to accept it."""
    remedies: dict[str, str] = {}
    for store in STORES:
        backend = backend_for(f"{store}://")
        assert isinstance(backend, Backend)
        remedies |= backend.remedies

    assert remedies.keys() == refused_names()
    assert all(remedies.values())


def test_the_rights_on_redis_are_those_that_the_tests_lock_with() -> None:
    """The ACL line of the page is the one of the error message, rule by rule."""
    assert re.findall(r"(?<= )(?:\+[a-z|]+|&[a-z]+:\*)", PAGE) == ACL_RULES.split()


@pytest.mark.parametrize("provision", [False, True])
def test_the_rights_on_dynamodb_are_those_of_the_policy(provision: bool) -> None:
    """Each action of the policies, our own rows' and a dialect's, stands in the table, and no other, but that of ``dlock init``."""
    ours = DynamoDBStoreOptions(region="eu-west-1", table="locks")
    shared = DynamoDBStoreOptions(region="eu-west-1", table="locks", dialect="awslabs")

    actions = {
        action
        for options in (ours, shared)
        for action in policy(options, provision=provision)["Statement"][0]["Action"]
    }

    assert set(re.findall(r"`(dynamodb:[A-Za-z]+)`", PAGE)) - {"dynamodb:CreateTable"} == actions - {
        "dynamodb:CreateTable"
    }


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis://h/0", "~PREFIX*"),
        ("mongodb://h/app", '"db": "app"'),
        ("etcd://h/app", "--prefix=true readwrite 'app/'"),
        ("zookeeper://app:secret@h/app", "setAcl -R /app auth:app:cdrw"),
        ("postgresql://h/app", 'GRANT SELECT, INSERT, UPDATE ON "public"."dlock" TO'),
        ("mysql://app@h/app", "GRANT SELECT, INSERT, UPDATE ON `app`.`dlock` TO 'app'@'%';"),
    ],
)
def test_a_server_with_users_has_a_policy_to_print(url: str, part: str) -> None:
    """``dlock doctor --policy`` states the rights without asking the server."""
    stated = policy_of(ClientOptions(url=SecretStr(url)))

    assert part in (stated if isinstance(stated, str) else json.dumps(stated))


def test_stores_with_a_clock_are_those_of_the_table() -> None:
    """``server_clock`` is said to work where the store has the methods for it, and nowhere else."""
    [heading, _, *rows] = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("|")][:11]
    column = heading.index("`server_clock`")

    said = {re.findall(r"`(\w+)://", row[0])[0]: row[column].startswith("yes") for row in rows}

    kinds = {
        "memory": MemoryStore,
        "sqlite": SqliteStore,
        "redis": RedisStore,
        "dynamodb": DynamoDBStore,
        "etcd": EtcdStore,
        "mongodb": MongoDBStore,
        "mysql": MySQLStore,
        "postgresql": PostgresStore,
        "zookeeper": ZooKeeperStore,
    }
    assert said == {name: issubclass(kind, ServerClock) for name, kind in kinds.items()}


def test_each_option_in_a_url_is_named() -> None:
    """What a store's URL takes beyond the driver's own options has its place on the page."""
    options = {name: set(backend_for(f"{name}://x").options.model_fields) for name in ("sqlite", "dynamodb")}
    options["sqlite"] -= {"path"}
    options["dynamodb"] -= {"region", "table"}
    options["mysql"] = set(MySQLStoreOptions.model_fields) - {"host", "port", "user", "password", "database"}
    options["postgres"] = set(PostgresStoreOptions.model_fields) - {"conninfo"}
    options["etcd"] = set(EtcdStoreOptions.model_fields) - {"endpoints", "root", "user", "password"}
    options["zookeeper"] = set(ZooKeeperStoreOptions.model_fields) - {"endpoints", "root", "user", "password"}
    options["mongodb"] = set(MongoDBStoreOptions.model_fields) - {"url", "database"}

    assert [name for names in options.values() for name in names if f"`{name}`" not in PAGE] == []
