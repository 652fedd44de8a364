"""Every error: its kin, its facts, and that pickle and copy keep them."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import dlock_core
from dlock_core import (
    AcquireTimeoutError,
    Broken,
    ConfigurationError,
    DLockError,
    LeaseStateError,
    LockLostError,
    LockRecord,
    Loss,
    LossReason,
    MissingDriverError,
    OutcomeUnknownError,
    ProcessIdentity,
    RecordError,
    Stamp,
    State,
    StoreError,
    StoreSetupError,
    StoreUnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)

RECORD = LockRecord(
    "k",
    State.HELD,
    "f" * 32,
    7,
    "owner",
    20_000,
    b"data",
    (("a", 1), ("b", True), ("c", b"x"), ("d", "y")),
    Stamp(1, "f" * 32),
    ProcessIdentity("boot", 1, 2, 3, 4),
    Broken("op", 5),
)
LOSS = Loss("k", 7, LossReason.STOLEN, RECORD)

ERRORS: list[DLockError] = [
    DLockError("m"),
    AcquireTimeoutError("m", key="k", timeout=1.5, holder=RECORD, outcome_unknown=True),
    AcquireTimeoutError("m", key="k", timeout=0.0, holder=None, outcome_unknown=False),
    LockLostError("m", loss=LOSS),
    LeaseStateError("m"),
    ConfigurationError("m"),
    MissingDriverError("m"),
    UnsupportedError("m"),
    UnsafeStoreError("m", name="redis-replica"),
    StoreError("m", key="k"),
    StoreUnavailableError("m", key="k"),
    StoreUnavailableError("m"),
    OutcomeUnknownError("m", key="k"),
    StoreSetupError("m", key=None),
    RecordError("m", key="k"),
]
KIN: dict[type[DLockError], tuple[type[BaseException], ...]] = {
    AcquireTimeoutError: (TimeoutError,),
    LeaseStateError: (RuntimeError,),
    ConfigurationError: (ValueError,),
    MissingDriverError: (ConfigurationError, ImportError),
    UnsupportedError: (ConfigurationError,),
    UnsafeStoreError: (ConfigurationError,),
    StoreUnavailableError: (StoreError, ConnectionError),
    OutcomeUnknownError: (StoreError,),
    StoreSetupError: (StoreError,),
    RecordError: (StoreError, ValueError),
}


def again(error: DLockError, way: str) -> Any:
    """Return the error after a journey."""
    if way == "copy":
        return copy.copy(error)
    if way == "deepcopy":
        return copy.deepcopy(error)
    return pickle.loads(pickle.dumps(error, int(way)))  # noqa: S301  # our own bytes


def test_every_error_is_tried() -> None:
    """The list above has each public error."""
    public = {
        value for value in vars(dlock_core).values() if inspect.isclass(value) and issubclass(value, BaseException)
    }

    assert {type(error) for error in ERRORS} == public


@pytest.mark.parametrize("way", ["copy", "deepcopy", *map(str, range(pickle.HIGHEST_PROTOCOL + 1))])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_pickle_and_copy_with_all_facts(error: DLockError, way: str) -> None:
    """An error that comes out of a worker process says what the original said, notes included."""
    error = copy.copy(error)
    error.add_note("a note")

    other = again(error, way)

    assert type(other) is type(error)
    assert str(other) == str(error) == "m"
    assert other.args == error.args
    assert vars(other) == vars(error)
    assert other.__notes__ == ["a note"]
    assert other is not error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_keeps_its_message_where_only_its_args_are_kept(error: DLockError) -> None:
    """As a result of Celery's in JSON."""
    assert str(type(error)(*error.args)) == "m"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_can_be_caught_as_ours_and_as_its_standard_kin(error: DLockError) -> None:
    """``except TimeoutError`` and its like work."""
    assert isinstance(error, (DLockError, *KIN.get(type(error), ())))
    for kin in KIN.get(type(error), ()):
        assert isinstance(error, kin)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_facts_can_only_be_given_by_name(error: DLockError) -> None:
    """The message is what is positional: no fact is mistaken for another."""
    with pytest.raises(TypeError):
        type(error)("m", *vars(error).values(), "one too many") if vars(error) else type(error)(m="m")  # type: ignore[call-arg]


def test_facts_are_attributes() -> None:
    """What a program needs is not in the text alone."""
    timeout, lost, unsafe = ERRORS[1], ERRORS[3], ERRORS[8]

    assert isinstance(timeout, AcquireTimeoutError)
    assert isinstance(lost, LockLostError)
    assert isinstance(unsafe, UnsafeStoreError)
    assert (timeout.key, timeout.timeout, timeout.holder, timeout.outcome_unknown) == ("k", 1.5, RECORD, True)
    assert lost.loss is LOSS
    assert unsafe.name == "redis-replica"
    assert StoreError("m").key is None


def test_store_errors_are_no_timeouts() -> None:
    """Only waiting in vain is one: ``except TimeoutError`` does not catch trouble with the store."""
    assert not any(isinstance(error, TimeoutError) for error in ERRORS if not isinstance(error, AcquireTimeoutError))
