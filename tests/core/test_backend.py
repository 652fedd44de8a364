"""From a URL to a store: schemes, adapters and queries."""

from __future__ import annotations

import asyncio
import errno
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any, Self

import pytest

from dlock_core import (
    ConfigurationError,
    MissingDriverError,
    StoreOptions,
    StoreSetupError,
    StoreUnavailableError,
    aconnect,
    backend,
    connect,
)
from dlock_core.backend import backend_for, check_claims, importing, installed_schemes, split_url
from dlock_core.kit import Backend
from dlock_core.memory import AsyncMemoryStore, MemoryOptions, MemoryStore
from dlock_core.store import Guarantees


def claim_schemes(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Have these (scheme, object) be all that is installed."""
    points = [EntryPoint(name, value, "dlock.stores") for name, value in entries]

    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group == "dlock.stores"
        return points

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


def test_scheme_names_the_backend_and_does_not_mind_case() -> None:
    """The part before ``://`` finds the store."""
    assert backend_for("memory://x") is backend_for("MEMORY://x")


@pytest.mark.parametrize(("scheme", "meant"), [("reddis", "redis"), ("valkey", "redis"), ("kafka", "")])
def test_unknown_scheme_lists_the_installed(scheme: str, meant: str) -> None:
    """A misspelt scheme is told with what there is, and with what was probably meant."""
    told = f"; perhaps {meant}://… is meant" if meant else ""
    with pytest.raises(ConfigurationError, match=rf"'{scheme}' in '{scheme}://…'{told}; installed: .*memory.*redis"):
        connect(f"{scheme}://localhost")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "localhost:6379",
        "://x",
        "/var/lib/locks.db",
        "memory:/x",
        "1memory://x",
        "me mory://x",
        "mem\nory://x",
    ],
)
def test_url_without_a_scheme_says_how_to_write_one(url: str) -> None:
    """What is no URL is not guessed at."""
    with pytest.raises(ConfigurationError, match="is not a URL, since it does not begin with scheme://"):
        connect(url)


@pytest.mark.parametrize("url", [5, b"memory://", None.__class__, ["memory://"]])
def test_url_of_another_type_is_refused(url: Any) -> None:
    """A URL is text."""
    with pytest.raises(ConfigurationError, match="url must be a str"):
        connect(url)


def test_two_claims_on_one_scheme_name_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which store is opened is never a matter of installation order."""
    claim_schemes(monkeypatch, ("far", "far.away:backend"), ("far", "other.package:backend"))

    with pytest.raises(ConfigurationError, match=r"'far' is claimed by far.*and other.*uninstall one of them"):
        backend_for("far://")


def test_claim_on_a_scheme_of_ours_never_takes_it_over_and_is_found_by_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening reads our own distribution only, so a second claim cannot change the store; the check that doctor makes names both."""
    claim_schemes(monkeypatch, ("memory", "dlock_core.memory:backend"), ("memory", "other.package:backend"))

    assert backend_for("memory://").options is MemoryOptions
    with pytest.raises(
        ConfigurationError, match=r"'memory' is claimed by dlock_core.*and other.*uninstall one of them"
    ):
        check_claims("memory://")


def test_scheme_of_ours_is_found_without_a_look_into_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a store of ours costs the same however many packages are installed."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("all packages were read"))

    assert backend_for("MEMORY://x").options is MemoryOptions


def test_project_that_is_not_installed_as_a_distribution_looks_into_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy on the path without metadata still finds what others have installed."""
    monkeypatch.setattr(backend, "_DISTRIBUTION", "no-such-distribution-of-ours")

    assert backend_for("memory://").options is MemoryOptions


def test_one_claim_seen_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install may show an entry point twice."""
    claim_schemes(monkeypatch, ("memory", "dlock_core.memory:backend"), ("memory", "dlock_core.memory:backend"))

    assert check_claims("memory://").value == "dlock_core.memory:backend"
    assert list(installed_schemes()) == ["memory"]


def test_adapter_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's broken package is told apart from a missing driver."""
    claim_schemes(monkeypatch, ("broken", "no_such_package_of_ours:backend"))

    with pytest.raises(
        ConfigurationError, match=r"adapter 'no_such_package_of_ours:backend'.*'broken' cannot be imported"
    ) as caught:
        connect("broken://x")

    assert isinstance(caught.value.__cause__, ImportError)
    assert not isinstance(caught.value, MissingDriverError)


WITHOUT_DESCRIPTORS = """
import resource
import dlock_core
dlock_core.connect
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
try:
    dlock_core.connect("memory://")
except dlock_core.StoreUnavailableError as error:
    print(type(error.__cause__).__name__, error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
dlock_core.connect("memory://").close()
"""


def test_process_that_may_open_no_more_files_is_told_what_could_not_be_read() -> None:
    """And with free descriptors it goes on."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=60, check=True
    )

    assert re.match(r"OSError .*cannot be (looked up|read).*Too many open files", done.stdout)


def test_adapter_whose_files_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there the next moment."""
    entry = EntryPoint("far", "far.away:backend", "dlock.stores")

    def unreadable(_: EntryPoint) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(EntryPoint, "load", unreadable)

    with pytest.raises(StoreUnavailableError, match=r"adapter 'far\.away:backend'.*cannot be read.*Input/output error"):
        backend.load_backend(entry)


def test_missing_driver_names_the_exact_install() -> None:
    """The message can be pasted."""
    cause = ImportError("No module named 'redis'")

    with pytest.raises(ImportError) as caught, importing("redis-py", "redis"):
        raise cause

    told = "the redis store needs redis-py, which is not installed: pip install 'dlock-core[redis]'"
    assert (type(caught.value), str(caught.value), caught.value.__cause__) == (MissingDriverError, told, cause)


@pytest.mark.parametrize("scheme", ["redis", "dynamodb", "mongodb"])
def test_missing_driver_of_our_adapters_is_told_with_its_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its driver a store cannot be opened, and everything else works."""
    import subprocess
    import sys

    program = f"""
import sys
for name in ("redis", "boto3", "botocore", "pymongo", "bson"):
    sys.modules[name] = None
from dlock_core import MissingDriverError, connect
try:
    connect("{scheme}://localhost/x")
except MissingDriverError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert f"pip install 'dlock-core[{scheme}]'" in done.stdout


def test_query_keys_of_ours_are_split_off_and_the_rest_stays_as_it_was() -> None:
    """The driver gets its own URL, byte for byte."""
    plain, ours = split_url(
        "redis://u:p%40@h:1/0?a=b%20c&timeout=5&protocol=3&d=&owner=%C3%A9#x", {"timeout": 0, "owner": 0}
    )

    assert plain == "redis://u:p%40@h:1/0?a=b%20c&protocol=3&d="
    assert ours == {"timeout": "5", "owner": "é#x"}


def test_url_whose_whole_query_is_ours_keeps_no_question_mark() -> None:
    """What is left is the plain URL."""
    assert split_url("memory://x?timeout=5", {"timeout": 0}) == ("memory://x", {"timeout": "5"})
    assert split_url("memory://x", {"timeout": 0}) == ("memory://x", {})
    assert split_url("memory://x?", {"timeout": 0}) == ("memory://x", {})
    assert split_url("REDIS://User@Host/0", {}) == ("redis://User@Host/0", {})
    assert split_url("No URL", {}) == ("No URL", {})


def test_query_key_of_ours_given_twice_is_refused() -> None:
    """Two values for one option: neither is guessed to be meant."""
    with pytest.raises(ConfigurationError, match="'timeout' stands twice in 'memory://x"):
        connect("memory://x?timeout=5&timeout=6")


def test_query_key_that_nobody_knows_is_an_error() -> None:
    """It belongs to us or to the store; what neither knows is a mistake."""
    with pytest.raises(ConfigurationError, match="memory://x"):
        connect("memory://x?leas_duration=5")


@pytest.mark.parametrize("url", ["memory://x/path", "memory://x#f", "memory://u@x"])
def test_memory_url_takes_a_name_and_nothing_else(url: str) -> None:
    """What the store does not understand it does not ignore."""
    with pytest.raises(ConfigurationError, match="has more than a name; write memory:// or memory://name"):
        connect(url)


def test_store_options_without_from_url_say_so() -> None:
    """A stranger's adapter that forgot it is told which class."""

    class Forgetful(StoreOptions):
        """Has no parser."""

    with pytest.raises(
        ConfigurationError, match=r"test_backend\..*Forgetful has no from_url; give it that class method"
    ):
        Forgetful.from_url("x://")


class Sound(StoreOptions):
    """Options as they should be."""

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take nothing of the URL."""
        return cls()


class Deaf(Sound):
    """Takes no URL."""

    @classmethod
    def from_url(cls) -> Self:  # type: ignore[override]  # the mistake in question
        """Take nothing at all."""
        return cls()


class Unread(Sound):
    """Reads a part of the URL that may be a secret."""

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> Self:
        """Take a number."""
        int("hunter2")
        return cls()


open_memory: Any = lambda options: MemoryStore()  # noqa: E731  # as authors write it
# What an entry point may name, and what is said of it.
MISTAKES: dict[str, tuple[Any, str]] = {
    "a function": (open_memory, "is no backend: it has no options, options.from_url, open, aopen; have the entry point"),
    "a class": (type("Kind", (), {"options": Sound, "open": open_memory, "aopen": None.__eq__}), "it is a class"),
    "without aopen": (SimpleNamespace(options=Sound, open=open_memory), "is no backend: it has no aopen"),
    "takes no options": (Backend(Sound, open_store=lambda: MemoryStore()), r"failed .* TypeError \(.* takes 0 positional"),  # type: ignore[arg-type, misc]  # noqa: PLW0108
    "takes no URL": (Backend(Deaf, open_store=open_memory), r"failed .* TypeError \(.*from_url\(\) takes 1 positional"),
    "wants a number": (Backend(Unread, open_store=open_memory), "failed on 'far://there' with ValueError; report that"),
    "opens nothing": (Backend(Sound, open_store=lambda options: None), "returned NoneType, which is not a store for threads"),  # type: ignore[arg-type, return-value]
    "opens another colour": (Backend(Sound, open_store=lambda options: AsyncMemoryStore()), "returned AsyncMemoryStore"),  # type: ignore[arg-type, return-value]
}  # fmt: skip


@pytest.mark.parametrize("connected", [connect, lambda url: asyncio.run(opened(aconnect(url)))], ids=["sync", "async"])
@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistake_in_an_adapter_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch, mistake: str, connected: Any
) -> None:
    """Whoever meets another's unfinished adapter learns whose it is, and whoever writes one what it lacks."""
    named, message = MISTAKES[mistake]
    claim_schemes(monkeypatch, ("far", "far.away:backend"))
    monkeypatch.setattr(EntryPoint, "load", lambda _: named)

    with pytest.raises(
        ConfigurationError, match=rf"adapter 'far.away:backend' of the package far.away .*{message}"
    ) as caught:
        connected("far://there")

    assert "hunter2" not in str(caught.value)


async def opened(client: Any) -> None:
    """Open *client*."""
    await client


def test_adapter_may_open_its_store_for_asyncio_in_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver for asyncio connects by coroutines."""
    claim_schemes(monkeypatch, ("far", "far.away:backend"))

    async def aopen_memory(options: StoreOptions) -> AsyncMemoryStore:
        await asyncio.sleep(0)
        return AsyncMemoryStore()

    backend: Any = Backend(Sound, open_store=open_memory, aopen_store=aopen_memory)
    monkeypatch.setattr(EntryPoint, "load", lambda _: backend)

    async def token() -> int:
        async with aconnect("far://there") as client, client.lock("k") as lease:
            return lease.fencing_token

    assert asyncio.run(token()) == 1


def test_misspelt_option_in_a_url_is_told_with_the_one_that_is_meant() -> None:
    """Whatever the store says of a key that it does not know."""
    with pytest.raises(ConfigurationError, match=r"no option; .*; lease_duratoin: perhaps 'lease_duration' is meant$"):
        connect("memory://x?lease_duratoin=5")
    with pytest.raises(ConfigurationError, match=r"key 'ttl' in .*; ttl: lease_duration is how long"):
        connect("sqlite:///x.db?ttl=5&synchronos=full")


@pytest.mark.parametrize(
    "text", ["no table; 'dlock init --url URL' makes it", "name a table, or run 'dlock init --url URL'"]
)
def test_command_that_mends_a_store_stands_in_any_sentence(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The URL is put in; the adapter's sentence goes on, or ends, as it was written."""

    class Bare(MemoryStore):
        def guarantees(self) -> Guarantees:
            raise StoreSetupError(text)

    claim_schemes(monkeypatch, ("far", "far.away:backend"))
    backend = Backend(Sound, open_store=lambda options: Bare())
    monkeypatch.setattr(EntryPoint, "load", lambda _: backend)

    with pytest.raises(StoreSetupError) as caught:
        connect("far://there")

    assert str(caught.value) == text.replace("URL'", "far://there' (or connect(..., provision=True))")


def test_adapter_for_asyncio_that_opens_a_store_for_threads_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its verbs could not be awaited."""
    claim_schemes(monkeypatch, ("far", "far.away:backend"))
    swapped: Any = Backend(Sound, open_store=open_memory, aopen_store=open_memory)
    monkeypatch.setattr(EntryPoint, "load", lambda _: swapped)

    with pytest.raises(ConfigurationError, match=r"far.away .*returned MemoryStore, which is not a store for asyncio"):
        asyncio.run(opened(aconnect("far://there")))


@pytest.mark.parametrize(
    "fault", [AttributeError("no attribute 'backend'"), SyntaxError("invalid"), RuntimeError("not today")]
)
def test_adapter_whose_import_fails_in_any_way_is_named(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    """A name that is not there, and an error in its module, are as good as a package that is missing."""
    claim_schemes(monkeypatch, ("far", "far.away:backend"))

    def fail(_: EntryPoint) -> None:
        raise fault

    monkeypatch.setattr(EntryPoint, "load", fail)

    with pytest.raises(ConfigurationError, match=rf"'far.away:backend' .* cannot be imported: {type(fault).__name__}"):
        backend_for("far://")


def test_entry_point_in_capital_letters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheme of a URL has no case."""
    claim_schemes(monkeypatch, ("Far", "dlock_core.memory:backend"))

    assert backend_for("far://").options is MemoryOptions
