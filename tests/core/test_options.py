"""The options: what there is, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
import re
import subprocess
import sys
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest

from dlock_core import ClientOptions, ConfigurationError, LockClient, LockOptions
from dlock_core.memory import MemoryStore
from dlock_core.options import EarlyTakeover, default_owner
from tests import update_options_page
from tests.core.options_support import CLIENT_FIELDS, LOCK_FIELDS

pytestmark = pytest.mark.usefixtures("clean_environment")


SECRET = "S3CRETw0rd"


DURATIONS = [
    "lease_duration",
    "timeout",
    "poll_period",
    "heartbeat_period",
    "max_hold",
    "stop_grace",
    "stall_timeout",
    "lock_delay",
    "clock_skew",
    "request_timeout",
    "max_lease_duration",
    "audit_period",
]


FLAGS = [
    "timeout_after_lease",
    "auto_renew",
    "replace_data",
    "only_if_exists",
    "delete_on_release",
    "handover",
    "fail_closed",
    "cancel_on_loss",
]


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
        "server_wait": True,
        "heartbeat_period": None,
        "auto_renew": True,
        "renewal": "lock",
        "data": None,
        "replace_data": True,
        "attributes": {},
        "only_if_exists": False,
        "delete_on_release": False,
        "reentrant": False,
        "handover": False,
        "fail_closed": False,
        "max_hold": None,
        "stop_grace": None,
        "stall_timeout": None,
        "lock_delay": 0.0,
        "cancel_on_loss": False,
        "mode": "exclusive",
        "permits": None,
        "weight": 1,
        "clock_skew": None,
        "server_clock": None,
        "owner_probe": None,
    }
    own = {name: value for name, value in ClientOptions().model_dump().items() if name not in LOCK_FIELDS}
    assert own == {
        "url": None,
        "prefix": "",
        "provision": False,
        "owner": None,
        "request_timeout": None,
        "drift_bound": 0.01,
        "max_lease_duration": 86400.0,
        "allow_unsafe": frozenset(),
        "audit_period": 900.0,
        "session_locks_max": 10_000,
        "token_floor": 1,
        "observations": None,
        "on_event": None,
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


def test_text_below_each_keyword_is_that_of_its_option() -> None:
    """As above."""
    assert update_options_page.KEYWORDS.read_text(encoding="utf-8") == update_options_page.render_keywords()


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


FIRST_USE = """
import threading
from dlock_core import ClientOptions, LockOptions
barrier = threading.Barrier(16)
made = []
def make(kind):
    barrier.wait()
    made.append(kind(lease_duration=5))
threads = [threading.Thread(target=make, args=(kind,)) for kind in [ClientOptions, LockOptions] * 8]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(made), {type(each).__name__: each.lease_duration for each in made}["ClientOptions"])
"""


def test_threads_that_make_the_first_options_at_once_all_get_theirs() -> None:
    """A model is completed at its first use, by one thread; the others wait for it."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60, check=True)

    assert (done.stdout, done.stderr) == ("16 5.0\n", "")


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
        (-1, "-1 is not a finite number of seconds, 0"),
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


@pytest.mark.parametrize("name", sorted(set(DURATIONS) - {"timeout", "stop_grace", "lock_delay"}))
@pytest.mark.parametrize("value", [0, 0.0, timedelta(0), 1e-9, 0.0005, 5e-324, -1])
def test_duration_that_is_none_is_refused(name: str, value: Any) -> None:
    """Nothing shorter than the unit of the record: it would round to nothing, and a loop to no pause."""
    with pytest.raises(ConfigurationError, match=rf"{name}: .* 0\.001 (seconds )?or more"):
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
        ({"data": "text"}, "^data: give bytes$"),
        ({"data": b"x" * 65_537}, "data: 65537 bytes exceed 65536"),
        ({"data": bytearray(b"x")}, "data: "),
        ({"attributes": [("a", 1)]}, "attributes: "),
        ({"attributes": {"a": 1.5}}, "^attributes: give a str or an int or True or False or bytes$"),
        ({"attributes": {"a": None}}, "attributes"),
        ({"attributes": {1: "a"}}, "attributes"),
        ({"retries": -1}, "retries: -1 is not a number of tries; give a whole number, 0 or more"),
        ({"retries": True}, "retries: True is not"),
        ({"retries": 1.5}, "retries: 1.5 is not"),
        ({"owner_probe": "host"}, "owner_probe: 'host' is not a probe; give 'same-host', or a function of a record"),
        ({"observations": 5}, "observations: 5 is neither a path nor a mapping that can be written"),
        ({"observations": MappingProxyType({})}, r"observations: mappingproxy\(\{\}\) is neither"),
        ({"prefix": None}, "^prefix: give a str$"),
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
        ({"allow_unsafe": [1]}, "allow_unsafe: each name must be a str, such as 'redis-replica'"),
        ({"allow_unsafe": [["a"]]}, "allow_unsafe: each name must be a str, such as 'redis-replica'"),
        ({"allow_unsafe": {"a": 1}}, "allow_unsafe: "),
        (
            {"leas_duration": 5},
            "unknown option 'leas_duration': perhaps 'lease_duration' is meant; options: lease_duration, timeout, ",
        ),
    ],
    ids=repr,
)
def test_bad_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    """Each with the name, what is wrong, and what there is."""
    with pytest.raises(ConfigurationError, match=message):
        ClientOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lease_duration": timedelta(seconds=100_000), "max_lease_duration": 200_000},
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
        ({"owner": "me\udcff"}, "owner: .*lone surrogate at position 2"),
        ({"owner": "me\x1b[2J"}, r"owner: .* holds the control character '\\x1b' at position 2"),
        ({"prefix": "a\nb"}, r"prefix: .* holds the control character '\\n' at position 1"),
        ({"prefix": "a\ud800"}, "prefix: .*lone surrogate at position 1"),
        ({"prefix": "~dlock/"}, "prefix: .* is reserved"),
        ({"prefix": "x" * 1024}, "prefix: 1024 bytes leave no room for a key"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_options_that_cannot_work_are_refused_before_anything_is_sent(options: dict[str, Any], message: str) -> None:
    """The message names the numbers and the term that breaks the rule; nothing is half-written."""
    space = MemoryStore().space

    with pytest.raises(ConfigurationError, match=message):
        LockClient(MemoryStore(space), **options).acquire("k")

    assert not space.records


@pytest.mark.filterwarnings("ignore:dlock. lease_duration=86400 is 24.0 hours")
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
        assert len(client._context._plans) <= 256


def test_call_options_are_checked_against_the_clients() -> None:
    """A lease of the call and a heartbeat of the client have to fit together too."""
    with LockClient(MemoryStore(), lease_duration=20, heartbeat_period=5) as client:
        with pytest.raises(ConfigurationError, match="heartbeat_period is what breaks it"):
            client.acquire("k", lease_duration=6)
        with client.lock("k", lease_duration=6, heartbeat_period=1) as lease:
            assert lease.lease_duration == 6
