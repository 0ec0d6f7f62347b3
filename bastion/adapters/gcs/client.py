"""The connection to Cloud Storage: credentials, endpoint, sockets."""

from __future__ import annotations

import functools
import os

import requests
import requests.adapters
from google.api_core.client_info import ClientInfo
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud.storage import Client
from google.oauth2.credentials import Credentials

import bastion
from bastion.adapters.gcs import library
from bastion.adapters.gcs.errors import LOG_IN
from bastion.adapters.requests_session import read_environment
from bastion.core.errors import AccessDenied, StoreError

# Connections that are kept; more threads work too, on temporary connections.
_CONNECTIONS = 64


def shared_client() -> Client:
    """Return the client of this process: all buckets share its connections and access token.

    `STORAGE_EMULATOR_HOST` names another endpoint, which is used without credentials, or with the access token in
    `GOOGLE_AUTH_TOKEN_FOR_TESTING`, which tensorstore reads, too. Raises AccessDenied without credentials; StoreError
    if the first variable is not a URL.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    token = os.environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING", "") if emulator else ""
    # A forked child must not use its parent's sockets.
    return _client(emulator, token, os.getpid())


@functools.lru_cache(maxsize=16)
def _client(emulator: str, token: str, _process: int) -> Client:
    if emulator and not emulator.startswith(("http://", "https://")):
        raise StoreError(f"STORAGE_EMULATOR_HOST is {emulator!r}; use a full URL such as http://localhost:4443")
    who = ClientInfo(user_agent=f"bastion/{bastion.__version__}")  # type: ignore[no-untyped-call]
    try:
        # No call needs a project, and detecting one may fail. The library appends `/storage/v1` to the URL, so it must
        # not end in a slash.
        options = {"api_endpoint": emulator.rstrip("/")} if emulator else None
        credentials = Credentials(token=token) if token else None  # type: ignore[no-untyped-call]
        client = Client(project=None, client_info=who, client_options=options, credentials=credentials)
    except DefaultCredentialsError as error:
        raise AccessDenied(
            f"there are no credentials for Cloud Storage on this machine ({error}); {LOG_IN}; without a cloud account "
            "use `bastion emulator gcs` and set STORAGE_EMULATOR_HOST as it says"
        ) from error
    except GoogleAuthError as error:
        raise AccessDenied(f"the credentials for Cloud Storage cannot be used ({error}); {LOG_IN}") from error
    return prepared(client)


def prepared(client: Client) -> Client:
    """Set up connections for all threads, turn off unrequested lookups, and read the environment once."""
    library.stop_lookups(client)
    session = library.session_of(client)
    if not session.is_mtls:  # those connections carry a certificate, and are few
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_connections=8, pool_maxsize=_CONNECTIONS))
    read_environment(session, library.base_url(client))
    return client
