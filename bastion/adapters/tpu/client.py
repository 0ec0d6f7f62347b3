"""The client of the Cloud TPU API v2, for the real service or an emulator.

Every call has a deadline; only reads are retried, within the same deadline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import grpc
import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from bastion.core.errors import GangExists, ProvisionerError, ProvisionerRefused, ProvisionerUnavailable

# For listings.
PAGE_SIZE = 500
_READ_ATTEMPTS = 3
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudTpuSettings:
    """The service, and the settings of all calls to it."""

    project: str
    zone: str  # default zone of gangs
    bastion: str  # the bastion's name, and the label of its nodes
    startup_script: str  # runs on every host at boot; the same constant text for all nodes
    endpoint: str = ""  # `host:port` of an emulator; empty for the real service and its default credentials
    token: str = ""  # the emulator's
    rpc_timeout_seconds: float = 10.0  # deadline of one call, or of one read with its retries

    @property
    def service(self) -> str:
        """The service's name in messages."""
        return f"the local Cloud TPU emulator at {self.endpoint}" if self.endpoint else "the Cloud TPU API"


def make_client(settings: CloudTpuSettings) -> tpu_v2.TpuClient:
    """Connect to the emulator or the real service; raises ProvisionerRefused without credentials."""
    if not settings.endpoint:
        try:
            return tpu_v2.TpuClient()
        except GoogleAuthError as error:
            raise ProvisionerRefused(
                f"there are no credentials for the Cloud TPU API ({error}); give this VM a service account, or run "
                "'gcloud auth application-default login'"
            ) from error
    channel = grpc.insecure_channel(
        settings.endpoint,
        options=[
            ("grpc.enable_http_proxy", 0),
            # Like the client's own channel: a page of nodes, each with its script, exceeds gRPC's 4 MiB.
            ("grpc.max_receive_message_length", -1),
            # Reconnect to a restarted emulator within a second, not gRPC's two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 250),
        ],
    )
    return tpu_v2.TpuClient(
        transport=TpuGrpcTransport(channel=grpc.intercept_channel(channel, _BearerToken(settings.token)))
    )


class Missing(ProvisionerError):
    """The API says that it does not exist."""


@contextlib.contextmanager
def translated(settings: CloudTpuSettings, zone: str, what: str) -> Iterator[None]:
    """Turn the client's exceptions into the port's errors, with the API's message."""
    try:
        yield
    except exceptions.NotFound as error:
        raise Missing(f"{what}: {error.message}") from error
    except (exceptions.AlreadyExists, exceptions.Aborted) as error:
        if isinstance(error, exceptions.Aborted):
            raise ProvisionerUnavailable(f"{what}: {settings.service} is busy with it: {error.message}") from error
        raise GangExists(f"{what}: {error.message}") from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        causes = (
            "its token was refused: the emulator was restarted with another state folder"
            if settings.endpoint
            else f"either the daemon's identity lacks a permission (roles/tpu.admin has them all), or the zone "
            f"{zone} is not open to the project {settings.project}"
        )
        raise ProvisionerRefused(f"{what} is not allowed: {error.message}; {causes}") from error
    except (
        exceptions.ServerError,
        exceptions.TooManyRequests,
        exceptions.RetryError,
        exceptions.Cancelled,
    ) as error:
        raise ProvisionerUnavailable(f"{what}: {settings.service} did not answer properly: {error}") from error
    except exceptions.GoogleAPICallError as error:
        raise ProvisionerRefused(f"{what} was refused by {settings.service}: {error.message}") from error
    except GoogleAuthError as error:
        raise ProvisionerUnavailable(f"{what}: cannot get an access token: {error}") from error


def read(settings: CloudTpuSettings, zone: str, what: str, call: Callable[[], _T]) -> _T:
    """Read with retries while the service is unreachable, within one deadline."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ProvisionerUnavailable),
        stop=tenacity.stop_after_attempt(_READ_ATTEMPTS) | tenacity.stop_after_delay(settings.rpc_timeout_seconds),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )

    def once() -> _T:
        with translated(settings, zone, what):
            return call()

    return retrying(once)


class _Call(NamedTuple):
    """`grpc.ClientCallDetails` with our metadata."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _BearerToken(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc] # grpc has no types
    """Adds the emulator's token to every call; the channel is local, so it needs no TLS."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        call = _Call(
            method=details.method,
            timeout=details.timeout,
            metadata=[*(details.metadata or ()), self._header],
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )
        return continuation(call, request)
