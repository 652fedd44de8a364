"""boto3 clients that send once and end in time: one for each order of magnitude of time-out, made when first needed.

boto3's time-outs and retries belong to a client, a verb's time-out to the call. So calls are sorted into buckets by powers of two; a client
has a quarter of its bucket to connect (and again for TLS) and half to read, so that a call ends within what it was given.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import boto3
import botocore
import botocore.client
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from dlock_core.errors import ConfigurationError, StoreSetupError, StoreUnavailableError

if TYPE_CHECKING:
    from dlock_dynamodb._wire import DynamoDBClient
    from dlock_dynamodb.options import DynamoDBStoreOptions

_SHORTEST, _LONGEST = -6, 4  # powers of two: 1/64 s to 16 s
_CONNECTIONS_MAX = 64
_ACCEPTED = "give a boto3 session or a client made by boto3.client('dynamodb')"


class _Given:
    """Stands in for botocore's search: the credentials of the client that was given, refreshed as there."""

    def __init__(self, credentials: Any) -> None:
        self.credentials = credentials

    def load_credentials(self) -> Any:
        return self.credentials


class Clients:
    """The clients of a store, derived from what it was given; that itself is never used to send, changed or closed.

    Whatever retries, time-outs and validation it was set up with, ours have: one attempt, times from the call, keep-alive.
    """

    def __init__(self, options: DynamoDBStoreOptions, session: Any, config: Any = None) -> None:
        self._options, self._session, self._config = options, session, config or Config()
        self._clients: dict[int, DynamoDBClient] = {}
        self._mutex = threading.Lock()
        self._open = True

    def fit(self, timeout_s: float, *, key: str | None = None) -> DynamoDBClient:
        """Return a client whose calls end within *timeout_s*."""
        if timeout_s < 2.0**_SHORTEST:
            raise StoreUnavailableError(
                f"{timeout_s:.3g} s are too short for a request to DynamoDB; nothing was sent", key=key
            )
        power = min(math.frexp(timeout_s)[1] - 1, _LONGEST)
        return self._clients.get(power) or self._made(power, key)

    def close(self) -> None:
        """Close the clients; what is under way ends, what comes after is refused."""
        with self._mutex:
            self._open = False
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _made(self, power: int, key: str | None) -> DynamoDBClient:
        with self._mutex:
            if not self._open:
                raise StoreUnavailableError("the DynamoDB store was closed; open a new one", key=key)
            if power not in self._clients:
                self._clients[power] = self._create(2.0**power)
            return self._clients[power]

    def _create(self, seconds: float) -> DynamoDBClient:
        ours = Config(
            # The mode too: "adaptive", which the environment may ask for, holds requests back and sends them late.
            retries={"total_max_attempts": 1, "mode": "legacy"},
            connect_timeout=seconds / 4,
            read_timeout=seconds / 2,
            tcp_keepalive=True,
            parameter_validation=False,
            endpoint_discovery_enabled=False,
            max_pool_connections=_CONNECTIONS_MAX,
            # A name of its own spares botocore from composing one in each call.
            user_agent=f"dlock Botocore/{botocore.__version__}",
        )
        try:
            client: DynamoDBClient = self._session.client(
                "dynamodb",
                region_name=self._options.region,
                endpoint_url=self._options.endpoint_url,
                config=self._config.merge(ours),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                f"boto3 cannot make a client for region {self._options.region!r}: {error}"
            ) from error
        # Nobody is asked whether to try again: that is surer than the setting, and saves 3 % of a call.
        client.meta.events.unregister("needs-retry.dynamodb", unique_id="retry-config-dynamodb")
        return client


def open_session(options: DynamoDBStoreOptions) -> Any:
    """Return the boto3 session of a URL.

    Raises:
        ConfigurationError: the profile does not exist.
        StoreSetupError: no credentials are found.
    """
    try:
        session = boto3.Session(profile_name=options.profile, region_name=options.region)
        found = session.get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(
            f"the AWS configuration cannot be used (profile {options.profile!r}): {error}"
        ) from error
    if found is None and options.is_loopback:
        # DynamoDB Local takes any credentials, but boto3 sends nothing without.
        return boto3.Session("dlock", "dlock", region_name=options.region)
    return checked_session(session)


def checked_session(session: Any) -> Any:
    """Return *session* if it has credentials."""
    if session.get_credentials() is None:
        raise StoreSetupError(
            "boto3 finds no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (profile=…), "
            "or give the machine a role; 'aws sts get-caller-identity' checks them"
        )
    return session


def given(driver: Any) -> tuple[Any, Any, str | None, str | None]:
    """Return the session, the configuration, the region and the endpoint of a boto3 session or client that the user has.

    Raises: ConfigurationError: it is something else.
    """
    if isinstance(driver, botocore.session.Session):
        driver = boto3.Session(botocore_session=driver)
    if isinstance(driver, boto3.Session):
        return checked_session(driver), None, driver.region_name, None
    if not isinstance(driver, botocore.client.BaseClient):
        raise ConfigurationError(
            f"{type(driver).__module__}.{type(driver).__qualname__} is no driver for DynamoDB; {_ACCEPTED}"
        )
    if (service := driver.meta.service_model.service_name) != "dynamodb":
        raise ConfigurationError(f"a client for {service!r} was given; {_ACCEPTED}")
    core = botocore.session.Session()
    core.register_component("credential_provider", _Given(driver._request_signer._credentials))  # no public way
    session = boto3.Session(botocore_session=core, region_name=driver.meta.region_name)
    return checked_session(session), driver.meta.config, driver.meta.region_name, driver.meta.endpoint_url
