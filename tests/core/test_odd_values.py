"""Values that no option can have: each is refused by an error of the library, which names the option, and nothing else comes out."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlock_core import ClientOptions, ConfigurationError, LockClient, connect
from dlock_core.backend import backend_for
from dlock_core.memory import MemoryStore
from tests.core.options_support import CLIENT_FIELDS, LOCK_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_UNPRINTABLE = 10**5000  # Python does not turn so many digits into text
_ODD = [
    *(10**400, -(10**400), _UNPRINTABLE, -_UNPRINTABLE, 2**53, 2**64, -1, 0, True, None),
    *(float("nan"), float("inf"), 1e308, 5e-324, Decimal("NaN"), Decimal("1e999"), Fraction(1, 3), 1j),
    *(
        "",
        "a\nb",
        "\x00",
        "\ud800",
        "~dlock/",
        "a" * 5000,
        b"",
        (),
        [],
        {},
        [["a"]],
        {"a": _UNPRINTABLE},
        {1: 2},
        object(),
    ),
]
_ANYTHING = st.one_of(
    # By its place: hypothesis cannot show all of them.
    st.integers(0, len(_ODD) - 1).map(_ODD.__getitem__),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.text(alphabet=st.characters(categories=["Cs", "Lu"]), max_size=5),
    st.binary(max_size=20),
    st.timedeltas(),
    st.dictionaries(
        st.one_of(st.text(max_size=5), st.integers()),
        st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.none()),
        max_size=3,
    ),
    st.lists(st.one_of(st.text(max_size=5), st.integers(), st.lists(st.text(max_size=2), max_size=1)), max_size=3),
    st.sets(st.text(max_size=3), max_size=3),
    st.decimals(),
    st.just(float),
)
_SCHEMES = ("redis", "sqlite", "mongodb", "dynamodb", "etcd", "mysql", "postgres", "zookeeper", "memory")

pytestmark = [pytest.mark.usefixtures("clean_environment"), pytest.mark.filterwarnings("ignore:dlock. lease_duration")]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(CLIENT_FIELDS), st.text(max_size=8)), _ANYTHING, max_size=4))
def test_any_options_are_accepted_or_a_configuration_error(options: dict[str, Any]) -> None:
    """Whatever values are given: a client that works, or ConfigurationError; nothing else, and nothing half-made."""
    options.pop("url", None)
    try:
        client = LockClient(MemoryStore(), **options)
    except ConfigurationError:
        return
    with client:
        try:
            lease = client.try_acquire("k")
        except ConfigurationError:
            return
        if lease is not None:
            assert lease.fencing_token == max(options.get("token_floor", 1), 1)
            lease.release()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(LOCK_FIELDS), st.text(max_size=8)), _ANYTHING, max_size=3))
def test_any_call_options_are_accepted_or_a_configuration_error(options: dict[str, Any]) -> None:
    """The same for one call, which is cached when it is good."""
    options.pop("self", None)
    options.pop("key", None)
    options["timeout"] = 0
    with LockClient(MemoryStore()) as client:
        for _ in range(2):
            try:
                lease = client.acquire("k", **options)
            except (ConfigurationError, TimeoutError):
                continue
            lease.release()


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*CLIENT_FIELDS, "colour"]),
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["nan", "inf", "1e999", "-1", "0", "{}", "[]", "none", "true", "\x00"]),
        ),
        max_size=3,
    )
)
def test_any_query_is_accepted_or_a_configuration_error(query: dict[str, str]) -> None:
    """Text from a URL, whatever it says."""
    text = "&".join(f"{name}={quote(value)}" for name, value in query.items() if name != "url")
    with contextlib.suppress(ConfigurationError):
        connect(f"memory://fuzz?{text}").close()


@pytest.mark.parametrize("value", [10**400, _UNPRINTABLE], ids=["400 digits", "5000 digits"])
def test_lease_of_very_many_digits_is_refused(value: int) -> None:
    """It has no form as a float, and the longer one none as text."""
    with pytest.raises(ConfigurationError, match="lease_duration: inf is not a finite number of seconds"):
        connect("memory://", lease_duration=value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda client: client.get(_UNPRINTABLE),
            "a key must be a str of one character or more, not a int that is too long",
        ),
        (lambda client: list(client.scan(_UNPRINTABLE)), "prefix a int that is too long to be shown is not a text"),
        (
            lambda client: client.once("k", slot=_UNPRINTABLE),
            "slot of more than 64 bits of job 'k' is neither",
        ),
        (lambda client: client.break_lock("k", fencing_token=-_UNPRINTABLE), "fencing_token a int that is too long"),
        (
            lambda client: client.break_session(_UNPRINTABLE),
            "a int that is too long to be shown is not the key of a session",
        ),
        (lambda client: client.lock_all(5), "lock_all takes a collection of keys, not int"),
    ],
    ids=["get", "scan", "once", "break_lock", "break_session", "lock_all"],
)
def test_argument_that_cannot_be_printed_is_refused(call: Callable[[LockClient], object], message: str) -> None:
    """The message says so in place of its digits."""
    with connect("memory://") as client, pytest.raises(ConfigurationError, match=message):
        call(client)


@pytest.mark.parametrize("scheme", _SCHEMES)
@pytest.mark.parametrize(
    "part",
    [
        "\ud800/d",
        "h/\ud800",
        "h/%ff",
        "h/%00",
        "h/\x00",
        "a..b/1",
        f"{'a' * 64}/1",
        "h:99999/1",
        "[::1/d",
        "h/d?x=\ud800",
    ],
)
def test_url_that_no_store_can_have_is_refused_or_taken(scheme: str, part: str) -> None:
    """Whatever the parsers of the drivers make of it."""
    backend = backend_for(f"{scheme}://")
    with contextlib.suppress(ConfigurationError):
        backend.options.from_url(f"{scheme}://{part}")


@pytest.mark.parametrize("scheme", ["redis", "etcd", "zookeeper"])
@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\u00e9" * 80], ids=["empty label", "long label", "long name"])
def test_host_that_no_name_server_can_be_asked_about_is_refused_with_the_url(scheme: str, host: str) -> None:
    """Python raises UnicodeError for it, at the first connection, which no driver expects."""
    backend = backend_for(f"{scheme}://")

    with pytest.raises(ConfigurationError):
        backend.options.from_url(f"{scheme}://{host}:2000")


@pytest.mark.parametrize("text", [f"retries = {'9' * 5000}", f"x = {'[' * 5000}"], ids=["many digits", "deeply nested"])
def test_file_that_python_does_not_read_is_no_toml(tmp_path: Path, text: str) -> None:
    """The reader's own limits are mistakes of the file."""
    (tmp_path / "dlock.toml").write_text(text)

    with pytest.raises(ConfigurationError, match=r"dlock\.toml' is not TOML"):
        ClientOptions.load(tmp_path / "dlock.toml")
