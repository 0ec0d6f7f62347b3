"""The connection to S3: credentials, region, endpoint and sockets, all as boto3 finds them."""

from __future__ import annotations

import functools
import os
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.parsers
import botocore.session
from botocore import exceptions as errors
from botocore.config import Config

import bastion
from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.s3.timestamps import timestamp
from bastion.core.errors import AccessDenied, StoreError

# Connections that are kept; more threads work too, on temporary connections.
_CONNECTIONS = 64
_making = threading.Lock()


def shared_client() -> Any:
    """Return the S3 client of this process: all buckets share its connections and credentials.

    Raises AccessDenied if a profile's credentials cannot be loaded; StoreError if the settings are wrong.
    """
    # A forked child must not use its parent's sockets. `lru_cache` may call twice at once; sessions are for one thread.
    with _making:
        return _client(os.getpid(), os.environ.get("AWS_PROFILE", ""), *_endpoints())


def _endpoints() -> tuple[str, str]:
    return os.environ.get("AWS_ENDPOINT_URL_S3", ""), os.environ.get("AWS_ENDPOINT_URL", "")


@functools.lru_cache(maxsize=16)
def _client(_process: int, _profile: str, _own: str, _all: str) -> Any:
    return new_client()


def new_client(patience: Patience | None = None, **settings: Any) -> Any:
    """A client; `settings` are boto3's (`endpoint_url`, `aws_access_key_id`, ...)."""
    patience = patience or Patience()
    try:
        core = botocore.session.get_session()
        # The default parses with dateutil, at four times the time of all else in a listing.
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=timestamp)
        client = boto3.Session(botocore_session=core).client(
            "s3",
            config=Config(
                # Retries are ours.
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=patience.connect_seconds,
                read_timeout=patience.read_seconds,
                max_pool_connections=_CONNECTIONS,
                user_agent_extra=f"bastion/{bastion.__version__}",
                # We send and compare CRC32 ourselves: not every service knows the trailers of the default.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                tcp_keepalive=True,
            ),
            **settings,
        )
        _check_authorities(client, core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE", ""))
    except errors.ProfileNotFound as error:
        raise AccessDenied(f"{error}; set AWS_PROFILE to a profile of ~/.aws/config, or unset it") from error
    except (errors.BotoCoreError, ValueError) as error:
        raise StoreError(f"S3 cannot be used: {error}; check AWS_* and ~/.aws/config") from error
    return client


def _check_authorities(client: Any, path: str) -> None:
    """Raise StoreError for a file of certificates that no connection could use.

    botocore reads it only when it connects, and calls what is wrong with it an error of the connection.
    """
    if not path or not client.meta.endpoint_url.startswith("https:"):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:  # SSLError, too
        why = error.strerror if not isinstance(error, ssl.SSLError) else "it has no certificate in PEM"
        raise StoreError(
            f"S3 cannot be used: the certificates in {path} cannot be read ({why}); correct AWS_CA_BUNDLE "
            "(or REQUESTS_CA_BUNDLE, or ca_bundle in ~/.aws/config), or unset it"
        ) from error


def endpoint_of(client: Any) -> str:
    """The URL of a service other than Amazon's; empty for Amazon S3."""
    url: str = client.meta.endpoint_url
    host = urlsplit(url).hostname or ""
    return "" if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else url
