"""Options: where they come from, which source wins, what is refused and how it is told."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import re
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlock_core import ClientOptions, ConfigurationError, LockClient, LockOptions, UnsupportedError, connect
from dlock_core.memory import MemoryStore
from dlock_core.options import EarlyTakeover, default_owner
from tests import update_options_page

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "S3CRETw0rd"

LOCK_FIELDS = [
    "lease_duration",
    "timeout",
    "timeout_after_lease",
    "retries",
    "poll_period",
    "heartbeat_period",
    "auto_renew",
    "data",
    "replace_data",
    "attributes",
    "only_if_exists",
    "delete_on_release",
    "reentrant",
    "fail_closed",
    "max_hold",
    "cancel_on_loss",
    "clock_skew",
    "server_clock",
    "owner_probe",
]
CLIENT_FIELDS = [
    *LOCK_FIELDS,
    "url",
    "prefix",
    "owner",
    "request_timeout",
    "drift_bound",
    "max_lease_duration",
    "allow_unsafe",
    "token_floor",
    "observations",
]
DURATIONS = [
    "lease_duration",
    "timeout",
    "poll_period",
    "heartbeat_period",
    "max_hold",
    "clock_skew",
    "request_timeout",
    "max_lease_duration",
]
FLAGS = [
    "timeout_after_lease",
    "auto_renew",
    "replace_data",
    "only_if_exists",
    "delete_on_release",
    "reentrant",
    "fail_closed",
    "cancel_on_loss",
]

# A value of each option in the forms of each source, every one different from the default and from the others:
# (keyword, text in a URL query, text in the environment, TOML), and what they become.
SOURCES: dict[str, tuple[tuple[Any, str, str, str], tuple[Any, Any, Any, Any]]] = {
    "lease_duration": ((11, "12", "13.0", "14"), (11, 12, 13, 14)),
    "timeout": ((1, "2", "3", "4.5"), (1, 2, 3, 4.5)),
    "timeout_after_lease": ((True, "yes", "on", "true"), (True, True, True, True)),
    "retries": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "poll_period": ((1, "2", "3", "1.5"), (1, 2, 3, 1.5)),
    "heartbeat_period": ((1, "2", "3", "1.5"), (1, 2, 3, 1.5)),
    "auto_renew": ((False, "0", "no", "false"), (False, False, False, False)),
    "data": ((b"a", "b", "c", '"d"'), (b"a", b"b", b"c", b"d")),
    "replace_data": ((False, "off", "false", "false"), (False, False, False, False)),
    "attributes": (
        ({"a": 1}, "%7B%22b%22:2%7D", '{"c": true}', '{ d = "x" }'),
        ({"a": 1}, {"b": 2}, {"c": True}, {"d": "x"}),
    ),
    "only_if_exists": ((True, "yes", "on", "true"), (True, True, True, True)),
    "delete_on_release": ((True, "1", "TRUE", "true"), (True, True, True, True)),
    "reentrant": ((True, "true", "1", "true"), (True, True, True, True)),
    "fail_closed": ((True, "true", "1", "true"), (True, True, True, True)),
    "max_hold": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "clock_skew": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "server_clock": ((True, "true", "1", "true"), (True, True, True, True)),
    "owner_probe": (("same-host", "same-host", "same-host", '"same-host"'), ("same-host",) * 4),
    "observations": (("a", "b", "c", '"d"'), ("a", "b", "c", "d")),
    "cancel_on_loss": ((True, "true", "1", "true"), (True, True, True, True)),
    "prefix": (("a/", "b%2F", "c/", '"d/"'), ("a/", "b/", "c/", "d/")),
    "request_timeout": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "drift_bound": ((0.02, "0.03", "0.04", "0.05"), (0.02, 0.03, 0.04, 0.05)),
    "max_lease_duration": ((100, "200", "300", "400"), (100, 200, 300, 400)),
    "allow_unsafe": (
        ({"a"}, "b,c", "d, e ,", '["f", "g"]'),
        (frozenset("a"), frozenset("bc"), frozenset("de"), frozenset("fg")),
    ),
    "token_floor": ((2, "3", "4", "5"), (2, 3, 4, 5)),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option comes from where the tests happen to run."""
    import os

    for name in list(os.environ):
        if name.startswith("DLOCK_") and name != "DLOCK_SEED":
            monkeypatch.delenv(name)


def toml(path: Path, text: str) -> Path:
    """Write a configuration file."""
    file = path / "dlock.toml"
    file.write_text(text, encoding="utf-8")
    return file


# ---- what there is


def test_options_are_the_contracts() -> None:
    """Names and defaults are what the contract says."""
    assert list(LockOptions.model_fields) == LOCK_FIELDS
    assert list(ClientOptions.model_fields) == CLIENT_FIELDS
    assert LockOptions().model_dump() == {
        "lease_duration": 20.0,
        "timeout": None,
        "timeout_after_lease": False,
        "retries": None,
        "poll_period": None,
        "heartbeat_period": None,
        "auto_renew": True,
        "data": None,
        "replace_data": True,
        "attributes": {},
        "only_if_exists": False,
        "delete_on_release": False,
        "reentrant": False,
        "fail_closed": False,
        "max_hold": None,
        "cancel_on_loss": False,
        "clock_skew": None,
        "server_clock": False,
        "owner_probe": None,
    }
    own = {name: value for name, value in ClientOptions().model_dump().items() if name not in LOCK_FIELDS}
    assert own == {
        "url": None,
        "prefix": "",
        "owner": None,
        "request_timeout": None,
        "drift_bound": 0.01,
        "max_lease_duration": 86400.0,
        "allow_unsafe": frozenset(),
        "token_floor": 1,
        "observations": None,
    }


@pytest.mark.parametrize("name", CLIENT_FIELDS)
def test_every_option_says_in_one_sentence_what_it_means(name: str) -> None:
    """A new option cannot be without a description, and ``help()`` shows each."""
    description = ClientOptions.model_fields[name].description or ""

    assert re.fullmatch(r"[A-Z][^.]*(\.\d[^.]*)?\.", description)
    assert f"{name}: {description}" in (ClientOptions.__doc__ or "")
    assert "default" in description or name == "url"
    assert (f"{name}: {description}" in (LockOptions.__doc__ or "")) == (name in LOCK_FIELDS)


def test_table_of_the_options_page_is_that_of_the_models() -> None:
    """``python -m tests.update_options_page`` rewrites it."""
    assert update_options_page.PAGE.read_text(encoding="utf-8") == update_options_page.render()


def test_options_of_early_takeover_are_one_model() -> None:
    """What trusts more than observation stands in one place; the fourth kind is of a client as a whole."""
    assert list(EarlyTakeover.model_fields) == ["clock_skew", "server_clock", "owner_probe"]
    assert issubclass(LockOptions, EarlyTakeover)


def test_options_are_frozen() -> None:
    """What a client was made with does not change under it; the error is plain, and not pydantic's report."""
    options = ClientOptions(lease_duration=5)

    with pytest.raises(ConfigurationError, match=r"^lease_duration: ClientOptions is frozen; make a new one$"):
        options.lease_duration = 6  # type: ignore[misc]  # the mistake in question
    assert options == ClientOptions(lease_duration=5)
    assert options != ClientOptions(lease_duration=6)


def test_with_gives_a_checked_copy() -> None:
    """A builder does not bend the rules, and leaves the original alone."""
    options = ClientOptions(lease_duration=5, prefix="a")

    changed = options.with_(lease_duration=timedelta(minutes=1), owner="me")

    assert (changed.lease_duration, changed.prefix, changed.owner) == (60.0, "a", "me")
    assert (options.lease_duration, options.owner) == (5.0, None)
    assert isinstance(changed, ClientOptions)
    assert options.with_() == options
    with pytest.raises(ConfigurationError, match="lease_duration"):
        options.with_(lease_duration=-1)
    with pytest.raises(ConfigurationError, match="unknown option 'colour'"):
        options.with_(colour="red")  # type: ignore[call-arg]  # the mistake in question
    assert LockOptions(timeout=1).with_(timeout=None) == LockOptions(timeout=None)


def test_options_survive_pickle_and_copy() -> None:
    """They are values: a worker process may be sent them, and makes its own client."""
    options = ClientOptions.load(url=f"redis://u:{SECRET}@h/0?timeout=5", attributes={"a": b"1"})

    for other in (pickle.loads(pickle.dumps(options)), copy.copy(options), copy.deepcopy(options)):  # noqa: S301  # our own bytes
        assert other == options
        assert other.url is not None
        assert other.url.get_secret_value() == f"redis://u:{SECRET}@h/0"


def test_default_owner_tells_hosts_processes_and_clients_apart() -> None:
    """A label for people: two clients of one process have two."""
    import os
    import socket

    labels = {default_owner() for _ in range(50)}

    assert len(labels) == 50
    assert all(label.startswith(f"{socket.gethostname()}:{os.getpid()}:") for label in labels)
    with LockClient(MemoryStore()) as a, LockClient(MemoryStore(), owner="me") as b:
        with a.lock("k") as lease:
            assert lease.owner.startswith(socket.gethostname())
        with b.lock("k") as lease:
            assert lease.owner == "me"


# ---- durations


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [7, 7.0, timedelta(seconds=7), timedelta(milliseconds=7000)])
def test_duration_may_be_a_number_or_a_timedelta(name: str, value: Any) -> None:
    """Both mean seconds, and become the same."""
    options = ClientOptions(**{name: value})

    assert getattr(options, name) == 7.0
    assert type(getattr(options, name)) is float


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "bool is not a duration"),
        ("20", "str is not a duration; give seconds as a number, or a timedelta"),
        (b"20", "bytes is not a duration"),
        ([20], "list is not a duration"),
        (20j, "complex is not a duration"),
        (math.nan, "nan is not a finite number of seconds"),
        (math.inf, "inf is not a finite"),
        (-math.inf, "-inf is not a finite"),
        (-1, "-1 is not a finite number of seconds, 0 or more"),
        (-0.001, "-0.001 is not"),
        (timedelta(seconds=-1), "-1 is not"),
        (10**400, "inf is not a finite"),
        (1e300, "1e+300 s is too long; at most 1e+14 seconds are possible"),
    ],
    ids=repr,
)
def test_bad_duration_is_refused_by_name(name: str, value: Any, message: str) -> None:
    """No text, no truth value, nothing without an end, nothing negative: the message has the name and the number."""
    with pytest.raises(ConfigurationError) as caught:
        ClientOptions(**{name: value})

    assert str(caught.value).startswith(f"{name}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(DURATIONS) - {"timeout"}))
@pytest.mark.parametrize("value", [0, 0.0, timedelta(0), 1e-9, 0.0005, 5e-324])
def test_duration_that_is_none_is_refused(name: str, value: Any) -> None:
    """Nothing shorter than the unit of the record: it would round to nothing, and a loop to no pause."""
    with pytest.raises(ConfigurationError, match=rf"{name}: .* s is too short; give 0\.001 seconds or more"):
        ClientOptions(**{name: value})


def test_timeout_may_be_zero_or_none() -> None:
    """One try, or for ever."""
    assert LockOptions(timeout=0).timeout == 0.0
    assert LockOptions(timeout=None).timeout is None


def test_several_faults_are_told_at_once() -> None:
    """Whoever mends a configuration sees the whole of it."""
    with pytest.raises(ConfigurationError) as caught:
        ClientOptions(lease_duration=-1, timeout="x", prefix=5, nonsense=1)  # type: ignore[arg-type,call-arg]  # wrong on purpose

    for name in ("lease_duration: ", "timeout: ", "prefix: ", "unknown option 'nonsense'"):
        assert name in str(caught.value)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "true", None, []])
def test_flag_takes_a_truth_value_only(name: str, value: Any) -> None:
    """What is merely truthy may be a mistake."""
    with pytest.raises(ConfigurationError, match=f"^{name}: "):
        LockOptions(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "text"}, "data: "),
        ({"data": b"x" * 65_537}, "data: 65537 bytes exceed 65536"),
        ({"data": bytearray(b"x")}, "data: "),
        ({"attributes": [("a", 1)]}, "attributes: "),
        ({"attributes": {"a": 1.5}}, "attributes"),
        ({"attributes": {"a": None}}, "attributes"),
        ({"attributes": {1: "a"}}, "attributes"),
        ({"retries": -1}, "retries: -1 is not a number of tries; give a whole number, 0 or more"),
        ({"retries": True}, "retries: True is not"),
        ({"retries": 1.5}, "retries: 1.5 is not"),
        ({"owner_probe": "host"}, "owner_probe: 'host' is no probe; give 'same-host', or a function of a record"),
        ({"observations": 5}, "observations: 5 is neither a path nor a mapping that can be written"),
        ({"observations": MappingProxyType({})}, r"observations: mappingproxy\(\{\}\) is neither"),
        ({"prefix": None}, "prefix: "),
        ({"owner": 5}, "owner: "),
        ({"url": 5}, "url: "),
        ({"drift_bound": -0.1}, r"drift_bound=-0\.1 must be 0 or more and less than 0\.5"),
        ({"drift_bound": 0.5}, r"drift_bound=0\.5 must be"),
        ({"drift_bound": math.nan}, "drift_bound=nan must be"),
        ({"drift_bound": True}, "drift_bound"),
        ({"drift_bound": "0.1"}, "drift_bound: "),
        ({"allow_unsafe": "redis-replica"}, "allow_unsafe: "),
        (
            {"token_floor": 0},
            r"token_floor=0 must be from 1 to \d+; give the highest token of the store that you left, plus 1",
        ),
        ({"token_floor": 2**53 - 1}, "token_floor=9007199254740991 must be from 1 to 9007199254740990"),
        ({"token_floor": True}, "token_floor: "),
        ({"token_floor": 1.5}, "token_floor: "),
        ({"allow_unsafe": [1]}, "allow_unsafe: a name is a text"),
        ({"allow_unsafe": [["a"]]}, "allow_unsafe: a name is a text"),
        ({"allow_unsafe": {"a": 1}}, "allow_unsafe: "),
        ({"leas_duration": 5}, "unknown option 'leas_duration'; options: lease_duration, timeout, "),
    ],
    ids=repr,
)
def test_bad_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    """Each with the name, what is wrong, and what there is."""
    with pytest.raises(ConfigurationError, match=message):
        ClientOptions(**options)


# ---- what does not fit together


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lease_duration": 100_000, "max_lease_duration": 200_000},
            r"100000000 ms; 1 ms to 86400000 ms \(24 h\) are possible",
        ),
        (
            {"lease_duration": 50, "max_lease_duration": 30},
            r"lease_duration=50\.0 s exceeds max_lease_duration=30\.0 s",
        ),
        (
            {"lease_duration": 20, "heartbeat_period": 15},
            r"does not fit lease_duration=20 s: heartbeat_period 15 s \+ lateness 1 s \+ .*heartbeat_period is what breaks it: at most \d",
        ),
        ({"lease_duration": 20, "drift_bound": 0.3}, r"drift_bound=0\.3 is what breaks it: it leaves 8 s of the lease"),
        ({"attributes": {"": 1}}, "attribute name '' is empty"),
        ({"attributes": {"a": 2**70}}, "attribute 'a' exceeds 64 bits"),
        ({"attributes": {"a": "x" * 70_000}}, "attributes of 70001 bytes exceed 65536"),
        ({"attributes": {"a": "\ud800"}}, "lone surrogate at position 0"),
        ({"attributes": {"\ud800": 1}}, "lone surrogate at position 0"),
        ({"owner": "me\udcff"}, "'owner': .*lone surrogate at position 2"),
        ({"prefix": "a\nb"}, "control character"),
        ({"prefix": "x" * 1024}, "1025 bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_options_that_cannot_work_are_refused_before_anything_is_sent(options: dict[str, Any], message: str) -> None:
    """The message names the numbers and the term that breaks the rule; nothing is half-written."""
    space = MemoryStore().space

    with pytest.raises(ConfigurationError, match=message):
        LockClient(MemoryStore(space), **options).acquire("k")

    assert not space.records


@pytest.mark.parametrize("lease", [0.001, 0.01, 0.1, 1, 20, 3600, 86400])
def test_default_shares_of_a_lease_fit_for_every_lease(lease: float) -> None:
    """A shorter or longer lease needs no other setting."""
    with LockClient(MemoryStore(), lease_duration=lease) as client:
        assert client.options.lease_duration == lease


@pytest.mark.parametrize("drift", [0, 0.1, 0.25, 0.3, 0.49])
def test_large_drift_without_renewals_still_gives_a_lease(drift: float) -> None:
    """Less of the lease can be used, and it is handed out all the same."""
    with (
        LockClient(MemoryStore(), drift_bound=drift, auto_renew=False, lease_duration=100) as client,
        client.lock("k") as lease,
    ):
        assert lease.remaining == pytest.approx(100 * (1 - 2 * drift), abs=0.5)


def test_more_kinds_of_calls_than_are_remembered_still_work() -> None:
    """What was checked is remembered up to a bound, and checked anew beyond it."""
    with LockClient(MemoryStore()) as client:
        for number in range(600):
            with client.lock("k", lease_duration=5 + number % 300) as lease:
                assert lease.lease_duration == 5 + number % 300
        assert len(client._session._plans) <= 256


def test_call_options_are_checked_against_the_clients() -> None:
    """A lease of the call and a heartbeat of the client have to fit together too."""
    with LockClient(MemoryStore(), lease_duration=20, heartbeat_period=5) as client:
        with pytest.raises(ConfigurationError, match="heartbeat_period is what breaks it"):
            client.acquire("k", lease_duration=6)
        with client.lock("k", lease_duration=6, heartbeat_period=1) as lease:
            assert lease.lease_duration == 6


# ---- precedence


def resolved(name: str, *, client: LockClient, **call: Any) -> Any:
    """Return what a call of *client* with these keywords works with."""
    return getattr(client._session.resolve(call).options, name)


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_read_and_each_wins_over_the_next(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keywords, then the URL's query, then the environment, then the named file, then the default: each step, for each option."""
    (keyword, query, variable, in_file), (first, second, third, fourth) = SOURCES[name]
    default = getattr(ClientOptions(), name)
    file = toml(tmp_path, f"{name} = {in_file}\n")

    assert getattr(ClientOptions.load(), name) == default
    assert getattr(ClientOptions.load(file), name) == fourth
    monkeypatch.setenv("DLOCK_CONFIG", str(file))
    assert getattr(ClientOptions.load(), name) == fourth
    monkeypatch.setenv(f"DLOCK_{name.upper()}", variable)
    assert getattr(ClientOptions.load(), name) == third
    assert getattr(ClientOptions.load(url=f"memory://x?{name}={query}"), name) == second
    monkeypatch.setenv("DLOCK_URL", f"memory://y?{name}={query}")
    assert getattr(ClientOptions.load(), name) == second
    assert getattr(ClientOptions.load(**{name: keyword}), name) == first


@pytest.mark.parametrize("name", [name for name in SOURCES if name in LOCK_FIELDS and name != "cancel_on_loss"])
def test_call_wins_over_the_client(name: str) -> None:
    """A client's options are the defaults of its locks."""
    (_, _, _, _), (first, second, _, _) = SOURCES[name]
    base: dict[str, Any] = {"lease_duration": 40} if name == "heartbeat_period" else {}
    other = not first if isinstance(first, bool) else second
    own: dict[str, Any] = {**base, name: other}
    with LockClient(MemoryStore(), **own) as client:
        assert resolved(name, client=client) == other
        assert resolved(name, client=client, **{name: first}) == first
        assert getattr(client.options, name) == other


def test_owner_has_no_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """``dlock run`` tells its child who holds the lock; a lock taken inside is not its."""
    monkeypatch.setenv("DLOCK_OWNER", "parent")
    monkeypatch.setenv("DLOCK_KEY", "k")
    monkeypatch.setenv("DLOCK_FENCING_TOKEN", "7")
    monkeypatch.setenv("DLOCK_NONSENSE", "ignored")

    assert ClientOptions.load().owner is None
    assert ClientOptions.load(url="memory://x?owner=me").owner == "me"


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"data", "prefix", "observations"}))
def test_bad_text_is_told_with_its_place(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable, the query key or the file that is wrong is named."""
    bad = "\ud800" if name == "allow_unsafe" else "nonsense"
    if name != "allow_unsafe":
        with pytest.raises(
            ConfigurationError, match=rf"query key '{name}' of the URL: 'nonsense' is not a value of {name}"
        ):
            ClientOptions.load(url=f"memory://x?{name}={bad}")
        monkeypatch.setenv(f"DLOCK_{name.upper()}", bad)
        with pytest.raises(ConfigurationError, match=rf"environment variable DLOCK_{name.upper()}: 'nonsense' is not"):
            ClientOptions.load()
        monkeypatch.delenv(f"DLOCK_{name.upper()}")
    with pytest.raises(ConfigurationError, match=name):
        ClientOptions.load(toml(tmp_path, f'{name} = "{"x" if name != "allow_unsafe" else "y"}"\n'))


@pytest.mark.parametrize("text", ["", "none", "None", "NONE"])
def test_optional_durations_can_be_taken_back(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stronger source may say that there is no limit after all."""
    file = toml(tmp_path, "timeout = 5\nmax_hold = 6\n")
    monkeypatch.setenv("DLOCK_TIMEOUT", text)

    options = ClientOptions.load(file, url=f"memory://x?max_hold={text}")

    assert options.timeout is None
    assert options.max_hold is None


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e400"])
def test_numbers_of_text_obey_the_same_rules(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no duration as a number is none as text."""
    with pytest.raises(ConfigurationError, match="lease_duration"):
        ClientOptions.load(url=f"memory://x?lease_duration={text}")
    monkeypatch.setenv("DLOCK_TIMEOUT", text)
    with pytest.raises(ConfigurationError, match="timeout"):
        ClientOptions.load()


def test_attributes_nested_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text from outside cannot exhaust the stack."""
    monkeypatch.setenv("DLOCK_ATTRIBUTES", "[" * 100_000)

    with pytest.raises(ConfigurationError, match="DLOCK_ATTRIBUTES"):
        ClientOptions.load()


# ---- the file


def test_no_file_is_read_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder one stands in must not choose the store."""
    for name in ("dlock.toml", ".dlock.toml", "pyproject.toml"):
        (tmp_path / name).write_text(
            'lease_duration = 5\nurl = "memory://x"\n[tool.dlock]\nlease_duration = 5\n', encoding="utf-8"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert ClientOptions.load() == ClientOptions()
    with pytest.raises(ConfigurationError, match="no store is named"):
        connect()


def test_named_file_gives_the_url_and_the_settings_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Top level is ours, the table ``[store]`` is the store's."""
    file = toml(tmp_path, 'url = "memory://from-a-file?timeout=3"\nlease_duration = 7\n[store]\n')
    monkeypatch.setenv("DLOCK_CONFIG", str(file))

    with connect() as client:
        assert (client.options.lease_duration, client.options.timeout) == (7.0, 3.0)
        assert "memory://from-a-file" in repr(client)
    toml(tmp_path, 'url = "memory://from-a-file"\n[store]\ncolour = "red"\n')
    with pytest.raises(ConfigurationError, match=r"memory store has no settings; remove 'colour' from \[store\]"):
        connect()


def test_path_given_wins_over_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller names is what is read."""
    monkeypatch.setenv("DLOCK_CONFIG", str(tmp_path / "missing.toml"))

    assert ClientOptions.load(toml(tmp_path, "lease_duration = 7\n")).lease_duration == 7.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lease_duration = ", "is not TOML"),
        ("lease_duration = 5\nlease_duration = 6\n", "is not TOML"),
        ("colour = 5\n", r"unknown option 'colour' in .*dlock\.toml'; options: lease_duration"),
        ("[lease_duration]\nx = 1\n", "lease_duration"),
        ("store = 5\n", r"\[store\] in .* is not a table"),
        ("url = 5\n", "url is int, not str"),
        ("lease_duration = '20'\n", "lease_duration: str is not a duration"),
        ("lease_duration = inf\n", "lease_duration: inf is not a finite"),
        ("lease_duration = true\n", "lease_duration: bool is not"),
        ("auto_renew = 1\n", "auto_renew"),
        ("timeout = 1979-05-27\n", "timeout: date is not a duration"),
    ],
)
def test_bad_file_is_told_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    """Which file, and what in it."""
    with pytest.raises(ConfigurationError, match=message):
        ClientOptions.load(toml(tmp_path, text))


def test_file_that_cannot_be_read_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, a folder, not UTF-8: never silently the defaults."""
    with pytest.raises(ConfigurationError, match=r"missing\.toml' cannot be read: No such file"):
        ClientOptions.load(tmp_path / "missing.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ClientOptions.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'prefix = "\xe9"\n')
    monkeypatch.setenv("DLOCK_CONFIG", str(tmp_path / "latin.toml"))
    with pytest.raises(ConfigurationError, match=r"latin\.toml' is not TOML"):
        ClientOptions.load()


# ---- the URL


def test_connect_takes_its_url_from_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, else ``url=``, else DLOCK_URL; two at once are refused, and none is told with what to do."""
    monkeypatch.setenv("DLOCK_URL", "memory://of-the-environment")
    for client, name in (
        (connect("memory://of-the-argument"), "of-the-argument"),
        (connect(url="memory://of-the-keyword"), "of-the-keyword"),
        (connect(ClientOptions(url="memory://of-the-options")), "of-the-options"),  # type: ignore[arg-type]  # text becomes a secret
        (connect(), "of-the-environment"),
    ):
        with client:
            assert name in repr(client)
    with pytest.raises(ConfigurationError, match="two URLs were given"):
        connect("memory://a", url="memory://b")
    monkeypatch.delenv("DLOCK_URL")
    with pytest.raises(ConfigurationError, match=r"give connect\(\) a URL, set DLOCK_URL, or name a TOML file"):
        connect()


def test_empty_url_is_a_mistake_and_not_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that came out empty must not choose another store."""
    monkeypatch.setenv("DLOCK_URL", "memory://of-the-environment")

    with pytest.raises(ConfigurationError, match="not a store URL"):
        connect("")
    with pytest.raises(ConfigurationError, match="not a store URL"):
        connect(url="")


def test_options_of_connect_are_checked_before_the_store_is_opened() -> None:
    """A configuration that cannot work opens nothing."""
    with pytest.raises(ConfigurationError, match="heartbeat_period is what breaks it"):
        connect("memory://x", heartbeat_period=100)
    with pytest.raises(UnsupportedError, match="cancel_on_loss"):
        connect("memory://x", cancel_on_loss=True)
    with pytest.raises(ConfigurationError, match="unknown option 'colour'"):
        connect("memory://x", colour="red")  # type: ignore[call-arg]  # the mistake in question


def test_client_takes_options_and_keywords_and_the_keywords_win() -> None:
    """Ready-made options can be changed for one client."""
    options = ClientOptions(lease_duration=7, owner="me")

    with LockClient(MemoryStore(), options, owner="you") as client:
        assert (client.options.lease_duration, client.options.owner) == (7.0, "you")
    assert options.owner == "me"


# ---- anything at all

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**308),
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
    st.just(object()),
    st.just(float),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(CLIENT_FIELDS), st.text(max_size=8)), ANYTHING, max_size=4))
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
            assert lease.fencing_token == 1
            lease.release()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(LOCK_FIELDS), st.text(max_size=8)), ANYTHING, max_size=3))
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
    from urllib.parse import quote

    text = "&".join(f"{name}={quote(value)}" for name, value in query.items() if name != "url")
    with contextlib.suppress(ConfigurationError):
        connect(f"memory://fuzz?{text}").close()
