"""Where options come from: calls, keywords, the URL, the environment, a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from dlock_core import ClientOptions, ConfigurationError, LockClient, UnsupportedError, connect
from dlock_core.memory import MemoryStore
from tests.core.options_support import LOCK_FIELDS

if TYPE_CHECKING:
    from pathlib import Path


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
    "reentrant": ((True, "client", "1", '"client"'), (True, "client", True, "client")),
    "handover": ((True, "true", "1", "true"), (True, True, True, True)),
    "fail_closed": ((True, "true", "1", "true"), (True, True, True, True)),
    "max_hold": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "stop_grace": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "stall_timeout": ((1, "2", "3", "4"), (1, 2, 3, 4)),
    "lock_delay": ((1, "2", "3", "4"), (1, 2, 3, 4)),
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

pytestmark = pytest.mark.usefixtures("clean_environment")


def toml(path: Path, text: str) -> Path:
    """Write a configuration file."""
    file = path / "dlock.toml"
    file.write_text(text, encoding="utf-8")
    return file


def resolved(name: str, *, client: LockClient, **call: Any) -> Any:
    """Return what a call of *client* with these keywords works with."""
    return getattr(client._context.resolve(call).options, name)


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


def test_empty_variable_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of nothing would be the working directory."""
    monkeypatch.setenv("DLOCK_OBSERVATIONS", "")

    assert ClientOptions.load().observations is None


def test_words_that_an_option_takes_are_told_in_order() -> None:
    """As words, and the same in each process."""
    with pytest.raises(ConfigurationError, match=r"mode \(write 'exclusive' or 'read' or 'write'\)"):
        ClientOptions.load(url="memory://x?mode=ro")


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


@pytest.mark.parametrize(
    ("text", "told"), [("[" * 100_000, "nested"), ("job=7", 'object, such as {"name"'), ("7", "object")]
)
def test_attributes_that_are_no_object_are_refused(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to write, and not with the words of the parser. Text from outside cannot exhaust the stack."""
    monkeypatch.setenv("DLOCK_ATTRIBUTES", text)

    with pytest.raises(ConfigurationError, match=f"DLOCK_ATTRIBUTES.*{told}"):
        ClientOptions.load()


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
    """What the caller names is what is read; editors of Windows begin a file with a mark, which nobody sees."""
    monkeypatch.setenv("DLOCK_CONFIG", str(tmp_path / "missing.toml"))

    assert ClientOptions.load(toml(tmp_path, "\ufefflease_duration = 7\n")).lease_duration == 7.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20", 20.0), ("500ms", 0.5), ("30s", 30.0), ("1.5m", 90.0), (" 2h ", 7200.0), ("1d", 86400.0)],
)
def test_a_duration_may_name_its_unit(
    text: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, a variable and a URL, as the command has it."""
    by_file = ClientOptions.load(toml(tmp_path, f"lease_duration = '{text}'\ntimeout = 'none'\n"))
    by_url = ClientOptions.load(url=f"memory://?lease_duration={text.strip()}")
    monkeypatch.setenv("DLOCK_LEASE_DURATION", text)

    assert [each.lease_duration for each in (by_file, by_url, ClientOptions.load())] == [seconds] * 3
    assert by_file.timeout is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lease_duration = ", "is not TOML"),
        ("lease_duration = 5\nlease_duration = 6\n", "is not TOML"),
        ("colour = 5\n", r"unknown option 'colour' in .*dlock\.toml'; options: lease_duration"),
        ("[lease_duration]\nx = 1\n", "lease_duration"),
        ("store = 5\n", r"\[store\] in .* is not a table"),
        ('[store]\nurl = "memory://"\n', r"url stands in \[store\] of .*; write it above"),
        ('url = "memory://"\n[store]\nprefix = "a/"\n', r"prefix stands in \[store\] of .*; write it above"),
        ("url = 5\n", "url must be a str, such as 'redis://localhost', not int"),
        ("lease_duration = '20x'\n", "'20x' is not a value of lease_duration .write seconds, or 500ms, 10s, 1m, 2h"),
        ("lease_duration = inf\n", "lease_duration: inf is not a finite"),
        ("lease_duration = true\n", "lease_duration: bool is not"),
        ("auto_renew = 1\n", "auto_renew"),
        ("timeout = 1979-05-27\n", "timeout: date is not a duration"),
    ],
)
def test_bad_file_is_told_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    """Which file, and what in it."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        ClientOptions.load(toml(tmp_path, text))

    assert "dlock.toml" in str(caught.value) or "url" in text


def test_value_that_is_out_of_bounds_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand where nobody thinks of; what a stronger source replaces is not blamed."""
    file = toml(tmp_path, "timeout = -1\nretries = -1\nlease_duration = 0\n")
    monkeypatch.setenv("DLOCK_TIMEOUT", "-2")

    with pytest.raises(ConfigurationError) as caught:
        ClientOptions.load(file, url="memory://x?retries=-3", lease_duration=-4)
    with pytest.raises(ConfigurationError, match=r"^the environment variable DLOCK_TIMEOUT: timeout: -2 is not"):
        connect("memory://x")
    with pytest.raises(ConfigurationError, match=r"^the query key 'retries' of the URL: retries: -3 is not"):
        connect(ClientOptions(url=SecretStr("memory://x?retries=-3")))

    assert str(caught.value).startswith(
        "the environment variable DLOCK_TIMEOUT and the query key 'retries' of the URL: lease_duration: -4 is not"
    )


def test_query_of_ready_made_options_is_read() -> None:
    """It yields to what the options and the keywords say, as the query of any URL does."""
    options = ClientOptions(url=SecretStr("memory://x?lease_duration=7&timeout=8&retries=9"), timeout=1)

    with connect(options, retries=2) as client:
        assert (client.options.lease_duration, client.options.timeout, client.options.retries) == (7.0, 1.0, 2)


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

    with pytest.raises(ConfigurationError, match="not a URL"):
        connect("")
    with pytest.raises(ConfigurationError, match="not a URL"):
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
