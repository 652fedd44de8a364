"""``dlock doctor``: the policy that it prints, and the names of traits that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.operator_support import Command


def test_doctor_policy_of_a_store_without_one_says_so(dlock: Command, url: str) -> None:
    """A file needs no rights that a server would grant."""
    code, out, err = dlock("doctor", "--policy")

    assert (code, out) == (64, "")
    assert "no policy" in err


@pytest.mark.parametrize("policy", ["text", {"Version": 1}, lambda options: f"for {type(options).__name__}"])
def test_doctor_prints_the_policy_of_the_backend(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """Text as it is, a document as JSON, a function of the store's options as what it gives."""
    from dlock_sqlite import backend

    monkeypatch.setattr(backend, "policy", policy)

    code, out, _ = dlock("doctor", "--policy")

    assert code == 0
    assert out in ("text\n", '{\n  "Version": 1\n}\n', "for SqliteOptions\n")
    assert dlock.json("doctor", "--policy")["policy"] in ("text", {"Version": 1}, "for SqliteOptions")


def test_doctor_refuses_a_trait_that_no_store_has(dlock: Command, url: str) -> None:
    """The name is checked where it is first tried."""
    code, _, err = dlock("doctor", "--allow-unsafe", "redis-replcia")

    assert code == 64
    assert "no trait 'redis-replcia'; perhaps 'redis-replica' is meant" in err


def test_doctor_names_the_package_of_an_adapter_that_cannot_open_its_store(
    dlock: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As connect does: the mistake is not the user's."""
    from dlock_sqlite import backend

    monkeypatch.setattr(backend, "look", lambda options: options.no_such_option)

    code, out, err = dlock("doctor")

    assert (code, out) == (64, "")
    assert "the adapter 'dlock_sqlite:backend' of the package dlock-core" in err
    assert err.endswith("report that to its author\n")
