"""The session and the credentials that requests are signed with, and how a verb never waits for their refresh."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import botocore.client
import botocore.session
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, CredentialRetrievalError, MetadataRetrievalError

from dlock_core.errors import ConfigurationError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import BeginsAnew, DaemonThread, watch_forks
from dlock_dynamodb._errors import DRIVER_ERRORS

if TYPE_CHECKING:
    from botocore.credentials import RefreshableCredentials

    from dlock_dynamodb.options import DynamoDBStoreOptions

_ACCEPTED = "give a boto3 session or a client made by boto3.client('dynamodb')"
_PARTS = ("access key id", "secret access key", "session token")
_PAUSE_S = 1.0


class SteadyCredentials(BeginsAnew):
    """Credentials that expire, refreshed ahead of time on a thread of their own.

    botocore refreshes them in the request that needs them, which then waits. A request that is signed with these goes on with the old ones
    while they are good, for the 15 minutes from the time when botocore would first refresh them; and waits where there are none.
    """

    def __init__(self, source: RefreshableCredentials) -> None:
        self._source = source
        self._refresh: Future[None] | None = None
        self._again_at = 0.0
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Forget the refresh under way: the parent's thread makes it, and may have had botocore's lock."""
        self._refresh = None
        self._source._refresh_lock = threading.Lock()  # no public way

    def get_frozen_credentials(self) -> Any:
        """Return the credentials to sign with; botocore's signer asks for them by this name."""
        source = self._source
        if source.refresh_needed():
            refresh = self._refreshing()
            if not self.are_good():
                _wait_for(refresh, source.method)
        return source._frozen_credentials  # no public way that does not refresh

    def are_good(self) -> bool:
        """Whether nobody waits for :meth:`get_frozen_credentials`."""
        return self._source._frozen_credentials is not None and not self._source.refresh_needed(0)

    def name_account(self, builtins: dict[str, Any], **_: Any) -> None:
        """Give botocore the account for the server's name, which it would read in each call and wait there for the refresh too."""
        builtins["AWS::Auth::AccountId"] = getattr(self._source._frozen_credentials, "account_id", None)

    def _refreshing(self) -> Future[None]:
        """Return the refresh under way, or the last one if that has just ended; two at once do no harm."""
        refresh = self._refresh
        if refresh is None or (refresh.done() and time.monotonic() >= self._again_at):
            refresh = Future()
            try:
                DaemonThread("dlock-credentials", self._run, refresh).begin()
            except StoreUnavailableError:  # the process gets no more threads
                self._run(refresh)
            self._refresh = refresh
        return refresh

    def _run(self, refresh: Future[None]) -> None:
        try:
            self._source.get_frozen_credentials()
        except BaseException as error:  # noqa: BLE001  # those who wait for it raise it
            refresh.set_exception(error)
        else:
            refresh.set_result(None)
        self._again_at = time.monotonic() + _PAUSE_S


def _wait_for(refresh: Future[None], provider: str) -> None:
    """Return when *refresh* has succeeded.

    It may have failed in any way: botocore raises a RuntimeError for new credentials that are expired by this machine's clock, a source of
    the user's own raises what it likes, and an error of another service of AWS says nothing of DynamoDB.

    Raises: BotoCoreError: one that says that nothing was sent.
    """
    try:
        refresh.result()
    except tuple(DRIVER_ERRORS):
        raise
    except Exception as error:
        raise CredentialRetrievalError(provider=provider, error_msg=repr(error)) from error


def open_session(options: DynamoDBStoreOptions) -> Any:
    """Return the boto3 session of a URL.

    Raises:
        ConfigurationError: the profile does not exist, or what names the credentials cannot be used.
        StoreSetupError: no credentials are found.
        StoreUnavailableError: what gives them out does not.
    """
    try:
        session = boto3.Session(profile_name=options.profile, region_name=options.region)
    except BotoCoreError as error:
        raise _unusable(error) from error
    if options.is_loopback and _found(session) is None:
        # DynamoDB Local takes any credentials, but boto3 sends nothing without.
        return boto3.Session("dlock", "dlock", region_name=options.region)
    return _checked(session)


def _checked(session: Any) -> Any:
    found = _found(session)
    if found is None:
        raise StoreSetupError(
            "boto3 finds no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (profile=…), "
            "or give the machine a role; 'aws sts get-caller-identity' checks them"
        )
    if type(found) is Credentials:
        for name, value in zip(_PARTS, found.get_frozen_credentials(), strict=False):
            if value is not None and any(map(str.isspace, value)):
                # A header would end there, and a gateway before DynamoDB answer with an error that says nothing.
                raise ConfigurationError(
                    f"the AWS {name} has a blank or a line end in it; 'echo -n' and 'printf' write a secret without one"
                )
    return session


def _found(session: Any) -> Any:
    """Return the credentials of *session*, or None; boto3 asks some sources here already, as a program or an endpoint."""
    try:
        return session.get_credentials()
    except (CredentialRetrievalError, MetadataRetrievalError) as error:
        raise StoreUnavailableError(f"boto3 gets no AWS credentials: {error}; nothing was sent") from error
    except Exception as error:  # also of the system: a program or a file that is missing
        raise _unusable(error) from error


def _unusable(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the AWS configuration cannot be used ({type(error).__name__}: {error}); see the variables AWS_… and the files in ~/.aws"
    )


def given(driver: Any) -> tuple[Any, Any, str | None, str | None]:
    """Return the session, the configuration, the region and the endpoint of the user's boto3 session or client.

    Raises: ConfigurationError: it is something else.
    """
    # aiobotocore's are subclasses of botocore's, whose methods have to be awaited.
    core = getattr(driver, "_session", driver) if isinstance(driver, boto3.Session) else driver
    if any(iscoroutinefunction(getattr(type(core), name, None)) for name in ("get_credentials", "_make_api_call")):
        raise ConfigurationError(
            f"{type(driver).__module__}.{type(driver).__qualname__} is for asyncio alone; {_ACCEPTED}: "
            "an asyncio client calls it on threads"
        )
    if isinstance(driver, botocore.session.Session):
        driver = boto3.Session(botocore_session=driver)
    if isinstance(driver, boto3.Session):
        return _checked(driver), None, driver.region_name, None
    if not isinstance(driver, botocore.client.BaseClient):
        raise ConfigurationError(
            f"{type(driver).__module__}.{type(driver).__qualname__} is no driver for DynamoDB; {_ACCEPTED}"
        )
    if (service := driver.meta.service_model.service_name) != "dynamodb":
        raise ConfigurationError(f"a client for {service!r} was given; {_ACCEPTED}")
    core, credentials = botocore.session.Session(), driver._request_signer._credentials  # no public way
    # In the place of botocore's search.
    core.register_component("credential_provider", SimpleNamespace(load_credentials=lambda: credentials))
    session = boto3.Session(botocore_session=core, region_name=driver.meta.region_name)
    return _checked(session), driver.meta.config, driver.meta.region_name, driver.meta.endpoint_url
