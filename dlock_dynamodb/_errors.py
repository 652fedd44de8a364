"""What an error of boto3 or DynamoDB says about the request: not applied, unknown, or something to set up. One table. Pure."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    EndpointProviderError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
    SSOError,
    UnsupportedSignatureVersionError,
)

from dlock_core.errors import OutcomeUnknownError, StoreSetupError, StoreUnavailableError
from dlock_core.kit import meanings

if TYPE_CHECKING:
    from dlock_core.errors import StoreError

Verdict: TypeAlias = "tuple[type[StoreError], str]"

_FAILED: Verdict = (OutcomeUnknownError, "DynamoDB failed; the write may have been applied")
THROTTLED = "ProvisionedThroughputExceeded Throttling ThrottlingError RequestLimitExceeded"
# Codes without their ending "Exception", which a batch leaves out. What is not here, such as InternalServerError, is unknown.
CODES: dict[str, Verdict] = meanings(
    {
        StoreSetupError: {
            "ItemCollectionSizeLimitExceeded LimitExceeded": "a limit is reached; nothing was written; "
            "'aws service-quotas list-service-quotas --service-code dynamodb' lists them",
            "AccessDenied": "the credentials lack a right; 'dlock doctor --policy' prints what dlock needs",
            "ExpiredToken InvalidClientTokenId MissingAuthenticationToken OptInRequired UnrecognizedClient": "the credentials have expired "
            "or were revoked, or are not for this region; 'aws sts get-caller-identity' checks them; boto3 reads those of the environment "
            "or of a file once, so open the client anew when they are renewed",
            "IncompleteSignature InvalidSignature RequestExpired SignatureDoesNotMatch": "the secret access key is wrong, this machine's "
            "clock is off by minutes, or endpoint_url is of another region; 'aws sts get-caller-identity' fails too for the first two",
            "ResourceNotFound TableNotFound": "there is no such table in this region, or not yet; 'dlock init --url URL' creates it",
            "Validation ValidationError": "the table has other keys than partition_key and sort_key say; "
            "'dlock init --url URL' creates one that fits",
            "UnknownOperation": "the server does not know this operation; 'dlock doctor' shows what it is",
        },
        StoreUnavailableError: {
            THROTTLED: "DynamoDB throttled the request; nothing was written",
            "ReplicatedWriteConflict": "another region was writing the item; nothing was written",
            "TransactionConflict TransactionInProgress": "a transaction was under way on the item; nothing was written",
        },
    }
)

_UNSENT: Verdict = (StoreUnavailableError, "no connection; nothing was sent")
_STALE: Verdict = (
    StoreUnavailableError,
    "boto3 gets no new credentials, or expired ones by this clock; nothing was sent; 'aws sts get-caller-identity' says more",
)
_KEYLESS: Verdict = (
    StoreSetupError,
    "boto3 finds no usable credentials (environment, profile, role); 'aws sts get-caller-identity' checks them",
)
_MISCONFIGURED: Verdict = (
    StoreSetupError,
    "boto3 makes no request as it is set up (AWS_ACCOUNT_ID_ENDPOINT_MODE, AWS_USE_FIPS_ENDPOINT, signature_version); nothing was sent",
)
_UNTRUSTED: Verdict = (
    StoreSetupError,
    "the endpoint's certificate is not trusted; AWS_CA_BUNDLE names another authority",
)
_NO_ANSWER: Verdict = (OutcomeUnknownError, "no answer that can be read; the write may have been applied")
# All that boto3 raises of a request; any other error is a mistake in dlock, which nothing may hide.
TROUBLE = (BotoCoreError, ClientError, OSError)
# What is not here may have been sent.
DRIVER_ERRORS: dict[type[Exception], Verdict] = {
    EndpointConnectionError: (_UNSENT[0], f"{_UNSENT[1]}; check the region, endpoint_url and the network"),
    ConnectTimeoutError: _UNSENT,
    ProxyConnectionError: _UNSENT,
    CredentialRetrievalError: _STALE,
    MetadataRetrievalError: _STALE,
    NoCredentialsError: _KEYLESS,
    PartialCredentialsError: _KEYLESS,
    SSOError: _KEYLESS,
    EndpointProviderError: _MISCONFIGURED,
    UnsupportedSignatureVersionError: _MISCONFIGURED,
}


NOT_DYNAMODBS = "the answer is not DynamoDB's"


class StrangeAnswerError(Exception):
    """DynamoDB, or a gateway before it, gave an answer that says nothing."""


def code_of(error: BaseException | None) -> str:
    """Return the code of an answer of AWS, without its ending; "" for another error."""
    return (
        str(error.response["Error"].get("Code", "")).removesuffix("Exception") if isinstance(error, ClientError) else ""
    )


def translate(error: Exception, what: str, *, key: str | None, writes: bool) -> StoreError:
    """Return our error for one of the driver's, whose message it leaves out: that may hold secrets."""
    if not isinstance(error, ClientError):
        return _judged(_verdict(error), f"{what}: {type(error).__name__}{_about(error)}", key, writes=writes)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = code_of(error)
    if code in {"", str(status)}:  # botocore takes the status for the code where the body has none
        return strange(f"{what}: an error (HTTP {status}): {NOT_DYNAMODBS}", key=key, writes=writes)
    return _judged(CODES.get(code, _FAILED), f"{what}: {code} (HTTP {status})", key, writes=writes)


def strange(what: str, *, key: str | None, writes: bool) -> StoreError:
    """Return our error for an answer that says nothing."""
    kind = OutcomeUnknownError if writes else StoreUnavailableError
    unknown = "; the write may have been applied" if writes else ""
    return kind(
        f"{what}; perhaps a proxy or a gateway before DynamoDB gave it (HTTPS_PROXY, endpoint_url){unknown}", key=key
    )


def statement_error(code: str, what: str, *, key: str) -> StoreError:
    """Return our error for the *code* of one statement of a batch."""
    return _judged(CODES.get(code, _FAILED), f"{what}: {code}", key, writes=True)


def _about(error: Exception) -> str:
    """Return the host and port that *error* is about, or the source of credentials and what failed there, if it says so.

    Of a URL and of a message nothing else is shown.
    """
    if isinstance(error, CredentialRetrievalError):
        cause = error.__cause__
        code, file = code_of(cause), getattr(cause, "filename", None)
        what = f"{cause.operation_name}: {code}" if isinstance(cause, ClientError) else type(cause).__name__
        told = "" if cause is None else f" ({what}{f': {file}' if file else ''})"
        return f" of {error.kwargs['provider']}{told}"
    url = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
    return f" at {url.netloc.rpartition('@')[2]}" if url.netloc else ""


def _verdict(error: Exception) -> Verdict:
    if isinstance(error, SSLError) and _is_untrusted(error.kwargs.get("error")):
        return _UNTRUSTED
    return next((verdict for kind, verdict in DRIVER_ERRORS.items() if isinstance(error, kind)), _NO_ANSWER)


def _is_untrusted(cause: object) -> bool:
    if isinstance(cause, BaseException) and not isinstance(cause, ssl.SSLCertVerificationError):
        return any(_is_untrusted(inner) for inner in (cause.__cause__, *cause.args))
    return isinstance(cause, ssl.SSLCertVerificationError)


def _judged(verdict: Verdict, what: str, key: str | None, *, writes: bool) -> StoreError:
    kind, told = verdict
    if kind is OutcomeUnknownError and not writes:
        # Whatever became of it, nothing was written.
        return StoreUnavailableError(f"{what}: no usable answer", key=key)
    return kind(f"{what}: {told}", key=key)
