"""From what ``connect`` is given to options and a store."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from pydantic import SecretStr

from dlock_core.backend import StoreOptions, adapter_faults, backend_for, is_own
from dlock_core.engine.client_context import describe
from dlock_core.engine.hints import check_keywords, guessing_keys
from dlock_core.engine.option_sources import STORE, from_query, naming_sources, query_key
from dlock_core.engine.texts import check_traits
from dlock_core.errors import ConfigurationError, StoreSetupError
from dlock_core.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlock_core.backend import StoreBackend
    from dlock_core.engine.client_context import ClientContext
    from dlock_core.keywords import ClientKeywords
    from dlock_core.store import AsyncLockStore, LockStore


def load_options(url: str | ClientOptions | None, keywords: ClientKeywords) -> ClientOptions:
    """Return the options that ``connect`` and ``aconnect`` were given.

    Raises: ConfigurationError: they are wrong, or name no store.
    """
    check_keywords(keywords)
    if isinstance(url, ClientOptions):
        loaded = _with_query(url.with_(**keywords))
    elif url is None:
        loaded = ClientOptions.load(**keywords)
    elif "url" in keywords:
        raise ConfigurationError("two URLs were given, one as the first argument and one as url=")
    else:
        loaded = ClientOptions.load(**cast("ClientKeywords", {**keywords, "url": url}))
    if loaded.url is None:
        raise ConfigurationError(
            "no store is named; give connect() a URL, set DLOCK_URL, or name a TOML file that has url in DLOCK_CONFIG"
        )
    if loaded.allow_unsafe and is_own(loaded.url.get_secret_value()):
        check_traits(loaded.allow_unsafe)  # before anything is opened
    return loaded


def _with_query(options: ClientOptions) -> ClientOptions:
    """Return *options* with those that stand in the query of their URL only."""
    if options.url is None:
        return options
    given = options.url.get_secret_value()
    plain, query = from_query(given, ClientOptions.model_fields)
    if plain == given:
        return options
    found = {name: value for name, value in query.items() if name not in options.model_fields_set}
    with naming_sources({name: query_key(name) for name in found}):
        return options.with_(**cast("ClientKeywords", {**found, "url": SecretStr(plain)}))


def named_store(options: ClientOptions) -> tuple[StoreBackend, StoreOptions]:
    """Return the backend of the store that *options* name, and the store's own options; nothing is opened.

    Raises: ConfigurationError: the URL is wrong, or the driver is not installed.
    """
    assert options.url is not None  # checked where the options were loaded
    url = options.url.get_secret_value()
    backend = backend_for(url)
    in_file = dict.fromkeys(options._store_settings, options._sources.get(STORE, ""))  # the loader's own
    with adapter_faults(url), guessing_keys(url, ClientOptions.model_fields), naming_sources(in_file):
        chosen = backend.options.from_url(url, **options._store_settings)  # the loader's own
    if options.request_timeout is not None and isinstance(chosen, StoreOptions):
        chosen._inspect_timeout_s = float(options.request_timeout)  # type: ignore[arg-type]  # checked: seconds
    return backend, chosen


def open_store(options: ClientOptions, *, as_it_stands: bool = False) -> LockStore:
    """Open the store of *options* for threads, and create what it lacks if they say so.

    *as_it_stands* opens one that creates nothing by itself, which a store may that is made of a file.

    Raises: ConfigurationError: the URL is wrong, or the store is for asyncio alone. StoreError: it cannot be reached.
    """
    backend, store_options = named_store(options)
    with opening_store(options):
        opened = getattr(backend, "look", backend.open) if as_it_stands and not options.provision else backend.open
        store: LockStore = opened(store_options)
        check_face(store, asynchronous=False)
    try:
        if options.provision:
            store.provision()
    except BaseException:
        store.close()
        raise
    return store


@contextmanager
def opening_store(options: ClientOptions) -> Iterator[None]:
    """Have a mistake in the adapter that opens the store of *options* name its package."""
    assert options.url is not None  # checked where the options were loaded
    with adapter_faults(options.url.get_secret_value()):
        yield


def check_face(store: object, *, asynchronous: bool) -> None:
    """Refuse what an adapter has opened if it cannot be used, nor even closed, as a store of that colour."""
    claim = getattr(store, "claim", None)
    # A decorator may hide that a verb is a coroutine.
    awaited = inspect.iscoroutinefunction(inspect.unwrap(claim) if asynchronous and claim is not None else claim)
    if not callable(claim) or not hasattr(store, "close") or awaited is not asynchronous:
        name, colour = ("aopen", "asyncio") if asynchronous else ("open", "threads")
        raise TypeError(f"{name}() of the adapter returned {type(store).__name__}, which is not a store for {colour}")


@contextmanager
def whole_commands(options: ClientOptions) -> Iterator[None]:
    """Have an error name the whole command line that mends it; an adapter does not know the URL that the store was opened with."""
    try:
        yield
    except StoreSetupError as error:
        command = f"'dlock init --url {describe(options)}' (or connect(..., provision=True))"
        raise StoreSetupError(str(error).replace("'dlock init --url URL'", command), key=error.key) from error.__cause__


async def learn_store(context: ClientContext, store: AsyncLockStore, *, is_own: bool) -> None:
    """Let the *context* of an asyncio client learn what the *store* is; its own store first creates what it lacks, if that is wanted."""
    with whole_commands(context.options):
        if is_own and context.options.provision:
            await store.provision()
        context.learn(await store.guarantees(), store)
