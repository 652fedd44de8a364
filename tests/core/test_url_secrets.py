"""No password of a URL is ever shown."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlock_core import (
    ConfigurationError,
    DLockError,
    aconnect,
    connect,
)
from dlock_core.backend import backend_for, redact, split_url

if TYPE_CHECKING:
    from collections.abc import Callable


SECRET = "S3CRETw0rd"


# A password that a user wrote raw, in the places where raw passwords go wrong.
HAND_MADE = [
    f"redis://user:{SECRET}@localhost:6379/0",
    f"redis://:{SECRET}@localhost",
    f"rediss://user:{SECRET}@localhost:6379/0?ssl_cert_reqs=none",
    f"redis://user:{SECRET}@localhost:notaport/0",
    f"redis://user:{SECRET}",
    f"redis://user:{SECRET}/0",
    f"redis://user:p@{SECRET}@localhost/0",
    f"redis://user:{SECRET}@@localhost/0",
    f"redis://user:a/{SECRET}@localhost/0",
    f"redis://user:a#{SECRET}@localhost/0",
    f"redis://user:a?{SECRET}@localhost/0",
    f"redis://user:{SECRET}?@localhost/0",
    f"redis://user:[{SECRET}@localhost/0",
    f"redis://user:{SECRET}]@localhost/0",
    f"redis://user:[{SECRET}]@localhost/0",
    f"redis://user:{SECRET}@[::1/0",
    f"redis://user:{SECRET}@[nonsense]/0",
    f"redis://user:{SECRET}%zz@localhost/0",
    f"redis://user:{SECRET} @localhost/0",
    f"redis://user:{SECRET}\t@localhost/0",
    f"redis://user:{SECRET}\n@localhost/0",
    f"redis://user:{SECRET}\u2100@localhost/0",
    f"redis://user:{SECRET}@local\u2100host/0",
    f"redis://user:{SECRET}@localhost/0?unknown_key=1",
    f"redis://user:{SECRET}@localhost/0?timeout=x",
    f"redis://user:{SECRET}@localhost/0?timeout=1&timeout=2",
    f"redis://user:{SECRET}@localhost/0?lease_duration=-1",
    f"redis://localhost/0?password={SECRET}",
    f"redis://localhost/0?username=u&password={SECRET}&password={SECRET}",
    f"reddis://user:{SECRET}@localhost/0",
    f"reddis://user:{SECRET}",
    f"user:{SECRET}@localhost",
    f"user:{SECRET}@localhost://x",
    f"://user:{SECRET}@localhost",
    f"//user:{SECRET}@localhost",
    f"redis:/user:{SECRET}@localhost",
    f"redis:user:{SECRET}@localhost://",
    f" redis://user:{SECRET}@localhost",
    f"memory://user:{SECRET}@x",
    f"memory://user:{SECRET}@[::1",
    f"memory://user:{SECRET}@x/path?y=1",
    f"memory://x?password={SECRET}",
    f"memory://user:{SECRET}@x?lease_duration=nan",
    f"memory://user:{SECRET}@x?drift_bound=7",
    f"memory://user:{SECRET}@x?attributes=[]",
    f"sqlite://user:{SECRET}@host/x.db",
    f"mongodb://user:{SECRET}@h1:1,h2:2/db?replicaSet=x&nonsense=1",
    f"mongodb+srv://user:{SECRET}@/",
    f"mongodb://user:{SECRET}@localhost:99999999/",
    f"dynamodb://key:{SECRET}@eu-west-1/locks",
    f"dynamodb://key:{SECRET}@/",
    f"dynamodb://eu-west-1/locks?aws_secret_access_key={SECRET}",
    f"redis://user:12/{SECRET}@localhost",
    f"redis://user:12?{SECRET}@localhost",
    f"user:{SECRET}",
]


def told(call: Callable[[], object]) -> str:
    """Return all that a person could come to see of the error of *call*."""
    try:
        call()
    except DLockError as error:
        chain = "".join(traceback.format_exception(error))
        return f"{error!r} {error} {vars(error)} {chain}"
    except Exception as error:  # noqa: BLE001  # what a driver may raise for want of a server is not the point
        return "".join(traceback.format_exception(error))
    return ""


def test_there_are_fifty_hand_made_urls() -> None:
    """The list is long enough to have the odd cases."""
    assert len(set(HAND_MADE)) >= 50


@pytest.mark.parametrize(
    "url",
    [
        url
        for url in HAND_MADE
        if url.startswith(("memory", "sqlite", "reddis", "user", ":", "/", "redis:/u", "redis:u", " "))
    ],
)
def test_password_in_a_url_is_never_told_by_connecting(url: str) -> None:
    """In no message, repr or traceback, whatever is wrong with the URL."""
    assert SECRET not in told(lambda: connect(url))
    assert SECRET not in told(lambda: aconnect(url))


def test_no_part_of_a_password_is_shown() -> None:
    """Its beginning stands where a port may, and its end in the fragment."""
    assert redact("redis://user:12#34@localhost") == "redis://…"


@pytest.mark.parametrize("url", HAND_MADE)
def test_password_in_a_url_is_never_shown_by_redacting(url: str) -> None:
    """What is shown of a URL has no user information and no values of its query."""
    assert SECRET not in redact(url)


@pytest.mark.parametrize("url", HAND_MADE)
def test_password_in_a_url_is_never_told_by_its_options(url: str) -> None:
    """Loading, showing, changing and comparing options tells nothing of it."""
    from dlock_core import ClientOptions

    def use() -> None:
        options = ClientOptions.load(url=url)
        shown = (
            f"{options!r} {options} {options.model_dump()} {options.model_dump_json()} {options.with_(prefix='x')!r}"
        )
        assert SECRET not in shown
        options.with_(timeout=-1)

    assert SECRET not in told(use)


@pytest.mark.parametrize("url", [url for url in HAND_MADE if "://" in url and url[0].isalpha()])
def test_password_in_a_url_is_never_told_by_the_adapters(url: str) -> None:
    """Each adapter's own parser keeps it to itself too."""

    def parse() -> object:
        found = backend_for(url)
        return repr(found.options.from_url(split_url(url, {"timeout": 0, "lease_duration": 0})[0]))

    assert SECRET not in told(parse)


@given(
    scheme=st.sampled_from(["memory", "redis", "reddis", "mongodb", "sqlite", "dynamodb", ""]),
    user=st.text(max_size=8),
    before=st.text(max_size=6),
    after=st.text(max_size=6),
    host=st.text(max_size=10),
    tail=st.text(alphabet="/?#&=@:[]%,;abc019 ", max_size=16),
)
def test_password_before_the_last_at_is_never_shown(  # noqa: PLR0917  # the parts of a URL
    scheme: str, user: str, before: str, after: str, host: str, tail: str
) -> None:
    """However mangled the URL is around it, what stands between ``//`` and the last ``@`` is not shown."""
    url = f"{scheme}://{user}:{before}{SECRET}{after}@{host}{tail}"

    assert SECRET not in redact(url)
    if scheme in ("memory", "reddis", ""):
        assert SECRET not in told(lambda: connect(url))


@given(st.text(max_size=60))
def test_redact_takes_any_text(text: str) -> None:
    """It is used in error paths, so it has none of its own; it is short where it cannot be sure."""
    assert isinstance(redact(text), str)
    assert isinstance(redact("redis://" + text), str)


@given(st.text(max_size=40))
def test_any_text_as_a_url_is_a_store_or_a_configuration_error(text: str) -> None:
    """Nothing else comes out of parsing."""
    for url in (text, "memory://" + text):
        with contextlib.suppress(ConfigurationError):
            connect(url).close()


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://app:***@h/app", "mysql://app:***@h/app?table=x", "redis://:***@h/0"]
)
def test_a_password_that_was_hidden_is_told(url: str) -> None:
    """So does str() show the URL of an engine of SQLAlchemy: the server would refuse it as a wrong one."""
    with pytest.raises(ConfigurationError, match=r"is \*\*\*, which stands for a hidden one.*hide_password=False"):
        connect(url)


def test_a_scheme_with_an_underscore_is_a_scheme() -> None:
    """As SQLAlchemy has one: it was told to be no URL at all."""
    with pytest.raises(
        ConfigurationError, match=r"unknown store scheme 'postgresql\+psycopg_async'.*write postgresql://…"
    ):
        connect("postgresql+psycopg_async://app@h/app")
