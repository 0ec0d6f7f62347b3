"""What the adapter uses of google-cloud-storage beside its public API is where it looks for it."""

from __future__ import annotations

import importlib.metadata
import inspect
from pathlib import Path

import requests
import tomli
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Blob, Client
from packaging.requirements import Requirement

from bastion.adapters.gcs import library


def _client() -> Client:
    return Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": "http://localhost:1"}
    )


def test_the_session_is_one_of_requests_and_knows_its_credentials() -> None:
    session = library.session_of(_client())
    assert isinstance(session, requests.Session)
    assert callable(session.credentials.before_request)
    assert isinstance(session.is_mtls, bool)
    assert "timeout" in inspect.signature(library.token_request(session).__call__).parameters


def test_the_base_url_is_the_endpoint_of_the_client() -> None:
    assert library.base_url(_client()) == "http://localhost:1"


def test_the_user_agent_names_the_library() -> None:
    assert "gcloud-python" in library.user_agent(_client()) or "gl-python" in library.user_agent(_client())


def test_a_blob_keeps_the_resource_of_its_last_answer() -> None:
    blob = Blob("a", _client().bucket("b"))
    blob._set_properties({"name": "a", "generation": "7"})
    assert library.resource_of(blob) == {"name": "a", "generation": "7"}


def test_lookups_of_buckets_can_be_turned_off() -> None:
    client = _client()
    library.stop_lookups(client)
    assert client._bucket_metadata_cache is None
    source = inspect.getsource(Client)
    assert "_bucket_metadata_cache" in source or "BucketMetadataCache" not in source


def test_the_installed_version_is_in_the_tested_range() -> None:
    project = tomli.loads(Path("pyproject.toml").read_text())["project"]
    (needed,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "google-cloud-storage")
    assert needed.specifier.contains(importlib.metadata.version("google-cloud-storage"))
