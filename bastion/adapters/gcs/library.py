"""Everything private of google-cloud-storage that the adapter uses, in one place.

The public API cannot send a request of ours over the client's authorized session, or return the resource that a write
answered. `tests/unit/test_gcs_library.py` fails if a version of the library moved one of these. `pyproject.toml` has
the range of tested versions (ADR 38).
"""

from __future__ import annotations

from typing import Any

from google.cloud.storage import Blob, Client


def session_of(client: Client) -> Any:
    """The client's authorized `requests` session."""
    return client._http


def base_url(client: Client) -> str:
    """The URL before the paths of the API: the service's, or an emulator's."""
    url: str = client._connection.get_api_base_url_for_mtls()
    return url


def user_agent(client: Client) -> str:
    agent: str = client._connection.user_agent
    return agent


def token_request(session: Any) -> Any:
    """The transport with which the session fetches access tokens."""
    return session._auth_request


def resource_of(blob: Blob) -> dict[str, Any]:
    """The resource that the last answer about a blob had."""
    resource: dict[str, Any] = blob._properties
    return resource


def stop_lookups(client: Client) -> None:
    """Turn off bucket lookups for tracing.

    Recent versions look up every bucket in a thread, for traces that are off. That needs a permission that the roles
    for objects lack, and is repeated after each 404.
    """
    client._bucket_metadata_cache = None
