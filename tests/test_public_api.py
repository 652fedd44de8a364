"""The public API changes only on purpose: what the source offers is what the snapshot says."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

import pytest

import dlock_core
from tests.update_public_api import PACKAGE, PUBLIC_MODULES, SNAPSHOT, exported, render

NAMES_MIN = 40
ADAPTERS = (
    "dlock_dynamodb",
    "dlock_etcd",
    "dlock_mongodb",
    "dlock_mysql",
    "dlock_postgres",
    "dlock_redis",
    "dlock_zookeeper",
)


def test_the_public_api_is_that_of_the_snapshot() -> None:
    """A change of the API shows in the diff of one file (``python -m tests.update_public_api``)."""
    assert render().splitlines() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


# Their drivers have no asyncio: the core serves them through threads, and takes a store of theirs in both clients.
SYNC_ONLY = {"dlock_dynamodb", "dlock_mysql", "dlock_zookeeper"}


def test_the_snapshot_covers_the_package() -> None:
    """A renderer that finds nothing would find no change either."""
    assert len(exported(PACKAGE)) >= NAMES_MIN


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_exported_name_exists(module: str) -> None:
    """``__all__`` promises nothing that isn't there."""
    loaded = importlib.import_module(module)

    assert [name for name in exported(module) if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_offers_its_store_in_both_colours_and_its_options(adapter: str) -> None:
    """Who knows the names of one adapter can guess those of all."""
    offered = set(importlib.import_module(adapter).__all__) - {"backend"}
    [store] = [name.removesuffix("Options") for name in offered if name.endswith("Options")]

    asynchronous = set() if adapter in SYNC_ONLY else {f"Async{store}"}
    assert offered == {store, f"{store}Options"} | asynchronous


@pytest.mark.parametrize("name", exported(PACKAGE))
def test_every_public_class_and_function_has_a_docstring(name: str) -> None:
    """What is public is explained where it is defined."""
    subject = getattr(importlib.import_module(PACKAGE), name)

    if isinstance(subject, type):
        assert vars(subject).get("__doc__")
    elif inspect.isroutine(subject):
        assert subject.__doc__


def test_the_package_says_its_version() -> None:
    """What programs and bug reports look for first."""
    assert dlock_core.__version__ == importlib.metadata.version("dlock-core")
