"""A client for one AWS service that sends each request once, and the meaning of its errors.

It uses botocore directly, because boto3's transfers and resources take time to load.
"""

from __future__ import annotations

import inspect
from copy import copy
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import botocore.exceptions
import botocore.loaders
import botocore.parsers
import botocore.session
import botocore.utils
from botocore.config import Config
from botocore.hooks import HierarchicalEmitter

from lockkit.protocol.outcome import Unknown
from lockkit.stores import StoreOptions, tokens
from lockkit.stores.connections import keep_deadlines
from lockkit.stores.deadline import DeadlinePassed, current
from lockkit.stores.endpoint import (
    CONNECTIONS_MAX,
    Endpoint,
    ErrorResponse,
    agent,
    epoch_ms,
    is_loopback,
    seconds,
    server_of,
    service_of,
    timeouts_s,
)
from lockkit.stores.tokens import Awaited, TokenRenewal

NONSENSE = (botocore.parsers.ResponseParserError, ValueError)
"""What the SDK raises for an answer that it cannot read."""
SDK_ERRORS = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    DeadlinePassed,
    OSError,
    *NONSENSE,
)
# Raised by botocore before anything is sent: the cause and the cure.
UNSENT: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.CredentialRetrievalError,
            botocore.exceptions.TokenRetrievalError,
            botocore.exceptions.SSOError,
        ),
        "no usable AWS credentials",
        "log in, choose a profile_name=..., or set AWS_ACCESS_KEY_ID and its secret",
    ),
    (
        (botocore.exceptions.ParamValidationError,),
        "not a valid name of a bucket, a table or a key",
        "correct it",
    ),
    (
        (botocore.exceptions.NoRegionError, botocore.exceptions.InvalidRegionError),
        "no valid region is configured",
        "pass region_name=...",
    ),
    (
        (botocore.exceptions.ProfileNotFound, botocore.exceptions.ConfigParseError),
        "the AWS profile cannot be used",
        "check profile_name=... and ~/.aws/config",
    ),
)


def refusal(error: Exception, endpoint: Endpoint, doing: str) -> ErrorResponse | Unknown:
    """What the service answered, or `Unknown` without an answer; raises what was never sent."""
    if isinstance(error, botocore.exceptions.ClientError):
        return _said(error)
    for kinds, why, cure in UNSENT:
        if isinstance(error, kinds):
            raise endpoint.unusable(
                f"cannot {doing}, {why} ({type(error).__name__})", cure
            ) from None
    if isinstance(error, NONSENSE):
        return endpoint.nonsense(error, doing)
    return endpoint.silence(error, doing)


def _said(error: botocore.exceptions.ClientError) -> ErrorResponse:
    said = error.response.get("Error", {})
    about = error.response.get("ResponseMetadata", {})
    headers = about.get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or said.get("Region")
    code = str(said.get("Code", ""))
    status = int(about.get("HTTPStatusCode", 0))
    is_redirect = status in (301, 307) or code in ("AuthorizationHeaderMalformed",)
    return ErrorResponse(
        status=status,
        code=code,
        retry_after_s=seconds(headers.get("retry-after")),
        date_ms=epoch_ms(headers.get("date")),
        hint=f"wrong region: pass region_name={region!r}" if region and is_redirect else "",
    )


def keywords() -> frozenset[str]:
    """The names that `options.extra` may hold: botocore's parameters, and a profile's name."""
    taken = inspect.signature(botocore.session.Session.create_client).parameters
    return frozenset(taken) - {"self", "service_name", "endpoint_url"} | {"profile_name"}


def client(
    service: str, options: StoreOptions, endpoint: str | None, own: Config = Config(), *,
    elsewhere: Config = Config(),
) -> Any:  # fmt: skip
    """`options.extra` may name profile, region and credentials; `own` is specific to the service.

    A loopback endpoint is reached without a proxy and with any credentials. `elsewhere` is added
    for a server that is not Amazon's, wherever its address was configured.
    """
    extra = dict(options.extra)
    opening = tokens.opening(options.timeout_s)
    profile = extra.pop("profile_name", None)
    session = botocore.session.Session(None, copy(_handlers()), False, profile)
    _share_loader(session)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=time_of)
    endpoint = endpoint or _configured(session, service, extra)
    if endpoint:
        own = own.merge(elsewhere)
    connect_s, read_s = timeouts_s(options.timeout_s)
    config = Config(
        # One attempt: a hidden retry of a write that landed gets a 412 (aws-sdk-java-v2 #6580).
        retries={"mode": "standard", "total_max_attempts": options.attempts},
        connect_timeout=connect_s,
        read_timeout=read_s,
        max_pool_connections=CONNECTIONS_MAX,
        # The complete User-Agent: botocore builds its own from 16 parts, twice per request.
        user_agent=agent(options.client),
    ).merge(own)
    if endpoint and is_loopback(endpoint):
        config = config.merge(Config(proxies={}))  # HTTP_PROXY leads to another machine
    config = config.merge(own_config) if (own_config := extra.pop("config", None)) else config
    if endpoint and not (extra.get("region_name") or session.get_config_variable("region")):
        extra["region_name"] = "us-east-1"
    if endpoint and is_loopback(endpoint) and "aws_access_key_id" not in extra:
        # The embedded server accepts any credentials, and a laptop may have none. Requesting some
        # from a cloud's metadata service takes seconds and is useless for a loopback server.
        session.get_component("credential_provider").remove("iam-role")
        if Awaited(session.get_credentials).within(opening) is None:
            extra |= {"aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit"}
    made = Awaited(
        lambda: session.create_client(service, endpoint_url=endpoint, config=config, **extra)
    ).within(opening)
    signer = made._request_signer
    if hasattr(signer._credentials, "refresh_needed"):
        signer._credentials = _TimedAwsCredentials(signer._credentials)
    keep_deadlines(made._endpoint.http_session._pool_classes_by_scheme)
    return made


class _TimedAwsCredentials:
    """A client's credentials, renewed within the time of the call that needs them.

    botocore renews them while it signs a request, by requests (STS, SSO, IMDS) or a program
    (credential_process) that may never end. For some minutes before they must be renewed, a call
    continues with the old ones while the new ones are fetched.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._renewal: TokenRenewal[Any] = TokenRenewal()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_frozen_credentials(self) -> Any:
        call = current()
        if call is None or not self._inner.refresh_needed():
            return self._inner.get_frozen_credentials()
        renewal = self._renewal.begin(self._inner.get_frozen_credentials)
        if self._inner.refresh_needed(self._inner._mandatory_refresh_timeout):
            return renewal.within(call)
        return self._inner._frozen_credentials


@lru_cache(maxsize=1024)
def time_of(text: Any) -> datetime:
    """As botocore's own parser, which took two thirds of a listing's time (60 us a key)."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else botocore.utils.parse_timestamp(text)
    except (TypeError, ValueError):  # a header's time, or a number
        parsed: datetime = botocore.utils.parse_timestamp(text)
        return parsed


@cache
def _handlers() -> HierarchicalEmitter:
    """botocore's own handlers: to register them takes most of a client's creation."""
    handlers = HierarchicalEmitter()
    botocore.session.Session(event_hooks=handlers)
    return handlers


def _share_loader(session: botocore.session.Session) -> None:
    """Read and parse the service's description once per process: it takes 0.2 s of CPU each time.

    The loader caches what it read, and nobody changes it, so all clients of a session share it.
    """
    path = session.get_config_variable("data_path") or ""
    session.register_component("data_loader", _loader(path))


@cache
def _loader(path: str) -> botocore.loaders.Loader:
    made = botocore.loaders.create_loader(path or None)
    # Before it reads one service's folder, botocore lists those of all 400.
    made.list_available_services = lambda type_name: _Every()
    return made


class _Every(list[str]):
    """Claims to contain every service: the loader fails anyway if a service has no folder."""

    def __contains__(self, name: object) -> bool:
        return True


def _configured(
    session: botocore.session.Session, service: str, extra: dict[str, Any]
) -> str | None:
    """The server that the environment or ~/.aws/config names; None: Amazon's own.

    A client is created to find out, because botocore's rules have many parts: AWS_ENDPOINT_URL and
    its variants, `endpoint_url`, `services`, and the settings that switch those off. It sends
    nothing. Its dummy credentials keep botocore from searching for real ones.
    """
    region = extra.get("region_name") or session.get_config_variable("region") or "us-east-1"
    unused = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
    scout = session.create_client(service, **{**extra, **unused, "region_name": region})
    scout.close()
    found: str = scout.meta.endpoint_url
    return None if service_of(server_of(found)) == service else found
