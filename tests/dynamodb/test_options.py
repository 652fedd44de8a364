"""The options of the DynamoDB store: what a URL may say, and what is told where it may not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.client
import botocore.session
import pytest

from dlock_core.backend import backend_for
from dlock_core.errors import ConfigurationError, MissingDriverError, StoreSetupError, StoreUnavailableError
from dlock_dynamodb import DynamoDBStore, DynamoDBStoreOptions, backend
from dlock_dynamodb.provision import is_aws, policy
from tests.dynamodb.support import session

_KEY_ID, _SECRET, _CONTAINER = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_FULL_URI"
KEYS_OF_AWS = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"]


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Hide whatever boto3 could find on this machine."""
    for name in KEYS_OF_AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_a_url_names_region_and_table() -> None:
    """All else has a default."""
    options = DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks")

    assert (options.region, options.table, options.partition_key, options.sort_key) == (
        "eu-west-1",
        "locks",
        "key",
        None,
    )
    assert (options.endpoint_url, options.profile) == (None, None)


def test_a_url_may_name_everything_in_its_query() -> None:
    """Percent-encoded values are decoded; a slash at the end does no harm."""
    options = DynamoDBStoreOptions.from_url(
        "dynamodb://eu-west-1/locks/?endpoint_url=http%3A%2F%2F127.0.0.1:8000&profile=ops&partition_key=PK"
        "&sort_key=SK&sort_key_value=a%20lock"
    )

    assert (options.endpoint_url, options.profile) == ("http://127.0.0.1:8000", "ops")
    assert (options.partition_key, options.sort_key, options.sort_key_value) == ("PK", "SK", "a lock")


def test_settings_yield_to_the_url() -> None:
    """The table ``[store]`` of the TOML file is weaker than what the URL says."""
    options = DynamoDBStoreOptions.from_url(
        "dynamodb://eu-west-1/locks?profile=ops", profile="other", sort_key="SK", table="x"
    )

    assert (options.table, options.profile, options.sort_key) == ("locks", "ops", "SK")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("dynamodb:///locks", "names no region"),
        ("dynamodb://[eu-west-1/locks", "malformed"),
        ("dynamodb://eu-west-1", "no table name"),
        ("dynamodb://eu-west-1/", "no table name"),
        ("dynamodb://eu-west-1/a-table/b-table", "2 table names, 'a-table' and 'b-table'"),
        ("dynamodb://eu-west-1/ab", "3 to 255"),
        ("dynamodb://eu-west-1/lo%20cks", "3 to 255"),
        ("dynamodb://EU_west/locks", "not the name of a region"),
        ("dynamodb://localhost:8000/locks", "not the name of a region"),
        ("dynamodb://eu-west-1/locks?retries=3", "not known; known are dialect, endpoint_url"),
        ("dynamodb://eu-west-1/locks?region=eu-west-2", "not known"),
        ("dynamodb://eu-west-1/locks?profile=a&profile=b", "stands twice"),
        ("dynamodb://eu-west-1/locks#x", "fragment"),
        ("dynamodb://AKIA:hunter2@eu-west-1/locks", "holds credentials"),
        ("dynamodb://AKIA:a/hunter2@eu-west-1/locks", "holds credentials"),
        ("dynamodb://eu-west-1/locks?endpoint_url=localhost:8000", "no endpoint"),
        ("dynamodb://eu-west-1/locks?endpoint_url=http://AKIA:hunter2@host", "no endpoint"),
        ("dynamodb://eu-west-1/locks?partition_key=owner", "attribute of the record"),
        ('dynamodb://eu-west-1/locks?sort_key=a"b', "no attribute name"),
        ("dynamodb://eu-west-1/locks?sort_key=key", "the same name"),
        ("dynamodb://eu-west-1/locks?sort_key=SK&sort_key_value=", "1 to 256 characters"),
    ],
)
def test_a_wrong_url_is_told_without_its_secrets(url: str, told: str) -> None:
    """Each fault has its own words."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        DynamoDBStoreOptions.from_url(url)

    assert "hunter2" not in str(caught.value)


def test_an_unknown_setting_is_told() -> None:
    """A typing error in the TOML file is not overlooked."""
    with pytest.raises(ConfigurationError, match="tabel"):
        DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks", tabel="x")


def test_the_scheme_leads_to_this_backend() -> None:
    """By the same way as a stranger's."""
    found: object = backend_for("dynamodb://eu-west-1/locks")

    assert found is backend


class AsyncClient(botocore.client.BaseClient):  # type: ignore[misc]  # botocore has no types
    """A client of aiobotocore's, as far as it is one of botocore's."""

    def __init__(self) -> None:
        """Leave all that is not looked at."""

    async def _make_api_call(self) -> None: ...


class AsyncSession(botocore.session.Session):  # type: ignore[misc]  # as above
    """A session of aiobotocore's, as far as it is one of botocore's."""

    async def get_credentials(self) -> None:
        """Look for them."""


@pytest.mark.parametrize("driver", [AsyncClient, AsyncSession, lambda: boto3.Session(botocore_session=AsyncSession())])
def test_a_driver_for_asyncio_alone_is_told(driver: Callable[[], Any]) -> None:
    """The classes of aiobotocore and aioboto3 are subclasses of botocore's and boto3's, and have to be awaited."""
    with pytest.raises(ConfigurationError, match="is for asyncio alone; give a boto3 session"):
        DynamoDBStore(driver(), table="locks")


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials_are_told_at_open() -> None:
    """Not by the first lock."""
    options = DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks")

    with pytest.raises(StoreSetupError, match="AWS_ACCESS_KEY_ID"):
        backend.open(options)


@pytest.mark.usefixtures("no_credentials")
def test_a_local_endpoint_needs_no_credentials() -> None:
    """DynamoDB Local takes any."""
    options = DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks?endpoint_url=http://localhost:1")

    backend.open(options).close()


@pytest.mark.usefixtures("no_credentials")
def test_an_unknown_profile_is_told_at_open() -> None:
    """With its name."""
    with pytest.raises(ConfigurationError, match="nobody"):
        backend.open(DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks?profile=nobody"))


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ("credential_process = /no/such/program", {}, (ConfigurationError, "No such file.*/no/such/program")),
        ("credential_process = /bin/echo hello", {}, (ConfigurationError, "JSONDecodeError")),
        ("credential_process = /bin/false", {}, (StoreUnavailableError, "gets no AWS credentials.*custom-process")),
        ("", {_CONTAINER: "http://example.com/x"}, (ConfigurationError, "Unsupported host")),
        ("", {_CONTAINER: "http://127.0.0.1:9/x"}, (StoreUnavailableError, "container-role")),
        ("", {_KEY_ID: "key\n", _SECRET: "hunter2"}, (ConfigurationError, "access key id has a blank or a line end")),
        ("", {_KEY_ID: "key", _SECRET: "hunter2\n"}, (ConfigurationError, "secret access key has a blank")),
    ],
)
def test_credentials_that_cannot_be_had_are_told_at_open(
    config: str,
    environment: dict[str, str],
    expected: tuple[type[Exception], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Whatever boto3 raises of their source: wrong settings are told from a source that may answer later."""
    (tmp_path / "config").write_text(f"[default]\n{config}\n")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def open_by_session(_: DynamoDBStoreOptions) -> object:
        return DynamoDBStore(boto3.Session(), table="locks", region="eu-west-1")

    kind, told = expected
    for open_store in (backend.open, open_by_session):
        with pytest.raises(kind, match=told) as raised:
            open_store(DynamoDBStoreOptions.from_url("dynamodb://eu-west-1/locks"))
        assert "hunter2" not in str(raised.value)


def test_what_is_no_session_or_client_is_refused_with_the_reason() -> None:
    """A resource, a client of another service, anything else."""
    queue = session().client("sqs")
    for driver, told in [
        (session().resource("dynamodb"), "is no driver"),
        (queue, "a client for 'sqs'"),
        ("dynamodb://eu-west-1/locks", "builtins.str is no driver"),
    ]:
        with pytest.raises(ConfigurationError, match=told):
            DynamoDBStore(driver, table="locks")
    queue.close()


@pytest.mark.parametrize("region", ["eu-west-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1"])
def test_each_part_of_aws_is_known(region: str) -> None:
    """By the end of its servers' names; its policy names it."""
    client = boto3.client("dynamodb", region_name=region, aws_access_key_id="key", aws_secret_access_key="secret")
    [statement] = policy(DynamoDBStoreOptions.from_url(f"dynamodb://{region}/locks"))["Statement"]
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    client.close()

    assert is_aws(host)
    assert not is_aws(f"{host}.example")
    assert statement["Resource"] == f"arn:{client.meta.partition}:dynamodb:{region}:*:table/locks"


def test_an_endpoint_of_the_environment_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 takes it from there where the URL names none."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "nonsense")

    with pytest.raises(ConfigurationError, match=r"cannot make a client for region 'eu-west-1'.*nonsense"):
        DynamoDBStore(session(), table="locks")


def test_a_session_without_a_region_is_told() -> None:
    """Unless the caller names one."""
    with pytest.raises(ConfigurationError, match="region"):
        DynamoDBStore(boto3.Session("key", "secret"), table="locks", region="")


def test_importing_it_without_boto3_names_the_install_line() -> None:
    """The adapter is installed with the core, its driver is not."""
    program = "import sys; sys.modules['boto3'] = None; import dlock_dynamodb"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert MissingDriverError.__name__ in done.stderr
    assert "pip install 'dlock-core[dynamodb]'" in done.stderr
