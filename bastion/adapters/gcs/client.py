"""The connection to Cloud Storage: whose credentials, which endpoint, how many sockets.

Layer: adapters.
"""

from __future__ import annotations

import functools
import os

import requests
import requests.adapters
import requests.utils
from google.api_core.client_info import ClientInfo
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud.storage import Client

import bastion
from bastion.adapters.gcs import library
from bastion.adapters.gcs.errors import LOG_IN
from bastion.core.errors import AccessDenied, StoreError

# Threads that may ask at the same time; more of them work, too, but their connections are not kept.
_CONNECTIONS = 64


def shared_client() -> Client:
    """The client of this process: every bucket shares its connections and its access token.

    `STORAGE_EMULATOR_HOST` names another endpoint than Google's, which is asked without credentials.

    Raises:
        AccessDenied: there are no credentials.
        StoreError: `STORAGE_EMULATOR_HOST` is not a URL.
    """
    # A forked child must not talk into its parent's sockets.
    return _client(os.environ.get("STORAGE_EMULATOR_HOST", ""), os.getpid())


@functools.lru_cache(maxsize=16)
def _client(emulator: str, _process: int) -> Client:
    if emulator and not emulator.startswith(("http://", "https://")):
        raise StoreError(f"STORAGE_EMULATOR_HOST is {emulator!r}; write a whole URL, like http://localhost:4443")
    who = ClientInfo(user_agent=f"bastion/{bastion.__version__}")  # type: ignore[no-untyped-call]
    try:
        # No call of ours needs a project, and looking for one may fail. The library would put its paths behind a slash
        # at the end of the URL, and no server finds `//storage/v1`.
        options = {"api_endpoint": emulator.rstrip("/")} if emulator else None
        client = Client(project=None, client_info=who, client_options=options)
    except DefaultCredentialsError as error:
        raise AccessDenied(
            f"there are no credentials for Cloud Storage on this machine ({error}); {LOG_IN}; without a cloud account "
            "use `bastion emulator gcs` and set STORAGE_EMULATOR_HOST as it says"
        ) from error
    except GoogleAuthError as error:
        raise AccessDenied(f"the credentials for Cloud Storage cannot be used ({error}); {LOG_IN}") from error
    return prepared(client)


def prepared(client: Client) -> Client:
    """The same client, with connections for all our threads, and making no requests that nobody asked it for.

    The proxies and the authorities that the environment names now hold for all of its requests.
    """
    library.stop_lookups(client)
    session = library.session_of(client)
    if not session.is_mtls:  # those connections carry a certificate, and are few
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_connections=8, pool_maxsize=_CONNECTIONS))
    _read_environment(session, library.base_url(client))
    return client


def _read_environment(session: requests.Session, url: str) -> None:
    """Takes what the environment says about requests to a URL, once: the library would read it for each of them.

    That takes a fifth of the time of a small write. It would look into ~/.netrc, too, and put a password that it finds
    there in the place of the access token.
    """
    session.proxies.update(requests.utils.get_environ_proxies(url))
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.trust_env = False
