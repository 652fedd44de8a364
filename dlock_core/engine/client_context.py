"""What both clients are made of, colourless: options into timings, keys, the rules of leaving a block, messages."""

from __future__ import annotations

import dataclasses
import inspect
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dlock_core.backend import backend_for, redact
from dlock_core.engine.hints import check_keywords, near, unknown_option
from dlock_core.engine.keeper import check_kept
from dlock_core.engine.membership import check_shared
from dlock_core.engine.observations import observation_store
from dlock_core.engine.option_sources import naming_sources
from dlock_core.engine.owner_probe import SAME_HOST, identity
from dlock_core.engine.process import generation
from dlock_core.engine.texts import check_texts, check_traits, shown
from dlock_core.engine.user_calls import guarded_logger
from dlock_core.errors import ConfigurationError, LeaseStateError, RecordError, UnsafeStoreError, UnsupportedError
from dlock_core.options import ClientOptions, LockOptions, default_owner, to_seconds, trusts_server_clock
from dlock_core.record import DATA_MAX_BYTES, LockRecord, State, check_key
from dlock_core.store import (
    AtomicMulti,
    BatchRenew,
    Capability,
    ClaimWait,
    Grade,
    Guarantees,
    LockStore,
    Notify,
    Prune,
    ServerClock,
    TokenOrder,
)
from dlock_core.timings import NANOS, Early, Timings, Traits, derive_timings, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dlock_core.keywords import ClientKeywords
    from dlock_core.store import AsyncLockStore

_log = guarded_logger("dlock.client")
_PLANS_MAX = 256
# Whatever the locks of the client are, one process leads or runs a job, and others tell by the record itself whether that lives.
EXCLUSIVE: dict[str, Any] = {"reentrant": False, "mode": "exclusive", "permits": None, "weight": 1, "renewal": "lock"}
# The protocols of both colours have the same names, and nothing but names can be looked for.
_VERBS = [name for name in vars(LockStore) if not name.startswith("_")]
_METHODS = {
    Capability.BATCH_RENEW: BatchRenew,
    Capability.NOTIFY: Notify,
    Capability.SERVER_CLOCK: ServerClock,
    Capability.PRUNE: Prune,
    Capability.ATOMIC_MULTI: AtomicMulti,
    Capability.CLAIM_WAIT: ClaimWait,
}


class CallOptions(NamedTuple):
    """A call's options, resolved."""

    options: LockOptions
    timings: Timings


def check_capabilities(store: Any) -> None:
    """Refuse what is no store, or lacks a method, and a store that declares a capability without its methods, or has them undeclared."""
    if not hasattr(store, "capabilities"):
        raise ConfigurationError(
            f"{type(store).__name__} is not a store; a URL goes to connect() or aconnect(), a driver's client into its store: "
            "LockClient(RedisStore(client))"
        )
    for name in _VERBS:
        if not callable(getattr(store, name, None)):
            raise UnsupportedError(
                f"the store {type(store).__name__} has no method {name}(); dlock_core/store.py describes it"
            )
    for capability, protocol in _METHODS.items():
        present, declared = isinstance(store, protocol), capability in store.capabilities
        if present != declared:
            fault = (
                "declares {0!r} but lacks its methods"
                if declared
                else "has the methods of {0!r} but does not declare it"
            )
            raise UnsupportedError(
                f"the store {type(store).__name__} {fault.format(capability.value)}; make the two agree (clause S19)"
            )


class ClientContext:
    """A client's options and what follows from them; the same for both colours."""

    def __init__(self, options: ClientOptions, *, blocking: bool) -> None:
        self.options = options
        self.prefix = options.prefix
        self.owner = options.owner or default_owner()
        self.generation = generation()
        self._blocking = blocking
        self._plans: dict[Any, CallOptions] = {}
        self.may_lose_grants = False
        self._traits = Traits()
        self._capabilities: frozenset[Capability] | None = None
        self._group: int | None = None
        self.audit_ns = nanoseconds(to_seconds(options.audit_period))
        self.observed_in = observation_store(options.observations)
        self._refuses: dict[str, str] = {}
        # Options that cannot work are refused before anything is opened.
        with naming_sources(options._sources):  # the loader's own
            self.default = self._call_options(options)

    def learn(self, guarantees: Guarantees, store: LockStore | AsyncLockStore) -> None:
        """Take note of what the store is.

        Raises:
            UnsafeStoreError: it has an unsafe trait that ``allow_unsafe`` does not name.
            UnsupportedError: it has no place for an option that the client was given, or says nothing of itself.
        """
        if not isinstance(guarantees, Guarantees):
            given = shown(guarantees)
            raise UnsupportedError(
                f"guarantees() of the store returned {given} in place of a Guarantees; dlock_core/store.py describes it"
            )
        for name, reason in guarantees.unsafe:
            if name not in self.options.allow_unsafe:
                given = near(name, self.options.allow_unsafe)
                instead = f" in place of {given!r}" if given else ""
                raise UnsafeStoreError(
                    f"{guarantees.store} store refused: {reason}; to accept that, put {name!r} into allow_unsafe{instead}, or give "
                    f"--allow-unsafe {name} to the command; 'dlock doctor' names a remedy",
                    name=name,
                )
            _log.warning("%s store with the accepted trait %r: %s", guarantees.store, name, reason)
        check_accepted(self.options, guarantees, store)
        if "prefix" not in self.options.model_fields_set:
            self.prefix = getattr(store, "default_prefix", "")
        self._capabilities = capabilities = store.capabilities
        self.may_lose_grants = guarantees.grade is Grade.C
        self._traits = Traits(
            has_tokens=guarantees.token is not TokenOrder.NONE,
            deletes=guarantees.deletes,
            notify=Capability.NOTIFY in capabilities,
            refusals_linearizable=guarantees.refusal_linearizable,
            server_wait=Capability.CLAIM_WAIT in capabilities,
        )
        self._refuses = dict(guarantees.refuses)
        if guarantees.token is not TokenOrder.ORDERED:
            self._refuses |= dict.fromkeys(
                ("mode", "permits", "renewal"), f"its records have {guarantees.token} tokens"
            )
        self._plans.clear()
        self.default = self._call_options(self.options)

    def full_key(self, key: str) -> str:
        """Return *key* with the client's prefix.

        Raises: ConfigurationError: no store could hold it. LeaseStateError: this is a forked child.
        """
        self.check_process()
        if type(key) is not str or not key:
            raise ConfigurationError(f"a key must be a str of one character or more, not {shown(key)}")
        return check_key(self.prefix + key)

    def full_prefix(self, prefix: str) -> str:
        """Return the *prefix* of keys behind the client's; unlike a key it may be empty.

        Raises: ConfigurationError: no key can begin so.
        """
        if type(prefix) is not str:
            raise ConfigurationError(f"prefix {shown(prefix)} is not a text")
        return check_key(self.prefix + prefix) if prefix else self.prefix

    def check_process(self) -> None:
        """Raise LeaseStateError in a forked child."""
        if self.generation != generation():
            raise forked_error("this client")

    def resolve(self, changes: Mapping[str, object]) -> CallOptions:
        """Return the options of one call, checked; the same keywords are checked once.

        Raises: ConfigurationError: a name is unknown, a value is out of bounds, or the values do not fit together.
        """
        if not changes:
            return self.default
        try:
            cached = self._plans.get(
                names := tuple((name, changes[name], type(changes[name])) for name in sorted(changes))
            )
        except TypeError:  # attributes are a dictionary
            return self._call_options(self._changed(changes))
        if cached is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            cached = self._plans[names] = self._call_options(self._changed(changes))
        return cached

    def _changed(self, changes: Mapping[str, object]) -> ClientOptions:
        unknown = sorted(set(changes) - set(LockOptions.model_fields))
        if unknown:
            raise ConfigurationError(
                unknown_option(unknown[0], LockOptions.model_fields, others=ClientOptions.model_fields)
            )
        check_keywords(changes)
        return self.options.with_(**cast("ClientKeywords", changes))

    def _call_options(self, options: ClientOptions) -> CallOptions:
        if self._blocking and options.cancel_on_loss:
            raise UnsupportedError(
                "cancel_on_loss is for asyncio: a thread cannot be cancelled; use on_lost, lost or ensure() instead"
            )
        self._check_probe(options)
        if options.is_shared or options.weight > 1:
            check_shared(options)
        elif options.renewal != "lock":
            check_kept(options, self.prefix, may_lose_grants=self.may_lose_grants)
        if self._refuses:
            self.check_supported(*_used(options))
        timings = derive_timings(options, self.owner, self._traits, self._early(options))
        check_texts({"owner": self.owner, **options.attributes})
        try:
            LockRecord("options", State.HELD, "0", 1, self.owner, timings.lease_ms, timings.data, timings.attributes)
        except RecordError as error:
            raise ConfigurationError(str(error).partition(": ")[2].partition(";")[0]) from None
        return CallOptions(options, timings)

    def include_group(self, group: int) -> None:
        """Have the records say that the process group *group* works under the locks, too: the owner lives as long as any of it does."""
        self._group = group
        self._plans.clear()
        self.default = self._call_options(self.options)

    def _check_probe(self, options: LockOptions) -> None:
        probe = options.owner_probe
        if (
            options.server_clock
            and self._capabilities is not None
            and Capability.SERVER_CLOCK not in self._capabilities
        ):
            why = self._refuses.get("server_clock", "this one does not")
            raise UnsupportedError(
                f"server_clock needs a store that tells the age of a record by its own clock, and {why}; "
                "use clock_skew, owner_probe or observations instead"
            )
        if probe == SAME_HOST and identity() is None:
            raise UnsupportedError(
                "owner_probe='same-host' needs Linux, and a /proc of this process's own pid namespace"
            )
        if self._blocking and inspect.iscoroutinefunction(probe):
            raise UnsupportedError(
                f"owner_probe {probe!r} is a coroutine function, which only the asyncio client can await"
            )

    def _early(self, options: ClientOptions) -> Early:
        skew = options.clock_skew
        return Early(
            process=None if options.owner_probe is None else identity(self._group),
            probes=options.owner_probe is not None,
            server_clock=trusts_server_clock(options, has_one=Capability.SERVER_CLOCK in (self._capabilities or ())),
            skew_ns=None if skew is None else nanoseconds(to_seconds(skew)),
            drift_ppm=math.ceil(options.drift_bound * 1_000_000),
        )

    def check_supported(self, *used: str) -> None:
        """Raise UnsupportedError if the store refuses one of the options *used*."""
        for name in used:
            if name in self._refuses:
                raise UnsupportedError(f"{name} cannot be had from this store: {self._refuses[name]}")

    def with_lease(self, options: LockOptions, lease_duration: Any) -> Timings:
        """Return the timings of *options* with another lease.

        Raises: ConfigurationError: it does not fit.
        """
        changes: dict[str, Any] = {name: getattr(options, name) for name in LockOptions.model_fields} | {
            "lease_duration": lease_duration
        }
        return self._call_options(self.options.with_(**changes)).timings

    def store_timeout_s(self) -> float:
        """Return how long a request about no lock in particular may take."""
        return self.default.timings.idle_timeout_ns / NANOS

    def strip(self, record: LockRecord) -> LockRecord:
        """Return *record* as the caller knows it: under the key without the client's prefix."""
        prefix = self.prefix
        if not prefix:
            return record
        return dataclasses.replace(record, key=record.key[len(prefix) :])

    def ordered(self, keys: Iterable[str]) -> list[str]:
        """Return *keys* in the order in which every client takes them: by the bytes of the full key.

        Raises: ConfigurationError: a key stands twice, there is none, or one text was given.
        """
        if isinstance(keys, str):
            raise ConfigurationError(f"lock_all takes several keys; {keys!r} is one text: write [{keys!r}]")
        try:
            listed = list(keys)
        except TypeError:
            raise ConfigurationError(f"lock_all takes a collection of keys, not {type(keys).__name__}") from None
        if not listed:
            raise ConfigurationError("lock_all needs at least one key")
        listed.sort(key=lambda key: self.full_key(key).encode())
        doubled = next((key for key, following in pairwise(listed) if key == following), None)
        if doubled is not None:
            raise ConfigurationError(f"key {doubled!r} is asked for twice in one lock_all; it would wait for itself")
        return listed


def forked_error(what: str) -> LeaseStateError:
    """Return the error of a use in a forked child."""
    return LeaseStateError(
        f"{what} belongs to the process that was forked; in the child, connect() anew and acquire for yourself, or use shared_client()"
    )


def check_seconds(value: Any, name: str, *, least: float = 0.0) -> float:
    """Return the duration *value* in seconds.

    Raises: ConfigurationError: it is none; the message says *name*, and *least*, as :func:`to_seconds` does.
    """
    try:
        return to_seconds(value, least=least)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def check_bytes(data: Any, name: str) -> None:
    """Raise ConfigurationError where *data* is neither None nor bytes that a record can carry; the message says *name*."""
    if data is not None and (type(data) is not bytes or len(data) > DATA_MAX_BYTES):
        what = f"{len(data)} bytes" if type(data) is bytes else type(data).__name__
        made = ", as text.encode() makes them" if type(data) is str else ""
        raise ConfigurationError(f"{name} is {what}; give at most {DATA_MAX_BYTES} bytes{made}, or None")


def describe(options: ClientOptions) -> str:
    """Name the store for messages, without secrets."""
    return "no URL" if options.url is None else redact(options.url.get_secret_value())


def check_accepted(options: ClientOptions, guarantees: Guarantees, store: object) -> None:
    """Refuse a name in ``allow_unsafe`` of no trait: neither of a store of ours, nor of *store*, by itself or its backend's remedies.

    Raises: ConfigurationError: the message lists the names that there are.
    """
    traits = {name for name, _ in guarantees.unsafe} | set(getattr(store, "unsafe_traits", ()))
    if options.url is not None and not traits.issuperset(options.allow_unsafe):
        traits |= set(getattr(backend_for(options.url.get_secret_value()), "remedies", ()))
    check_traits(options.allow_unsafe, traits)


def _used(options: ClientOptions) -> list[str]:
    """Return the names under which a store may refuse what *options* ask for."""
    asked = {
        "fail_closed": options.fail_closed,
        "lease_duration": not options.fail_closed,
        "data": options.data is not None,
        "attributes": bool(options.attributes),
        "replace_data": not options.replace_data,
        "only_if_exists": options.only_if_exists,
        "delete_on_release": options.delete_on_release,
        "clock_skew": options.clock_skew is not None,
        "owner_probe": options.owner_probe == SAME_HOST,
        "token_floor": options.token_floor > 1,
        "mode": options.mode != "exclusive",
        "permits": options.permits is not None,
        "renewal": options.renewal != "lock",
    }
    return [name for name, wanted in asked.items() if wanted] + [f"attributes.{name}" for name in options.attributes]
