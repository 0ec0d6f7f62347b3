"""What a bucket of Cloud Storage says of itself: settings, policies, what this caller may do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import requests
from google.api_core.exceptions import from_http_response
from google.cloud.storage import Client

from bastion.adapters.bucket_requests.answers import NoSuchObject, Transient
from bastion.adapters.gcs import library
from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.errors import FAILURES, explain
from bastion.adapters.gcs.managed_folders import POLICY_VERSION
from bastion.core.errors import AccessDenied, StoreError, StoreUnavailable
from bastion.core.model.bucket_settings import BucketSettings

Json = dict[str, Any]
T = TypeVar("T")

_PROJECTS = "https://cloudresourcemanager.googleapis.com"
# gcloud's own variable for another endpoint of that API.
PROJECTS_ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER"
_SECONDS = 30.0


class BucketFacts:
    """Every method raises StoreError; AccessDenied for what the caller may not read."""

    def __init__(self, bucket: str, *, client: Client | None = None) -> None:
        client = shared_client() if client is None else client
        self.name = bucket
        self._bucket = client.bucket(bucket)
        self._session = library.session_of(client)
        self._project = ""

    def settings(self) -> BucketSettings:
        def read() -> BucketSettings:
            found = self._bucket
            found.reload(timeout=_SECONDS)
            self._project = "" if found.project_number is None else str(found.project_number)
            access = found.iam_configuration
            return BucketSettings(
                uniform_access=bool(access.uniform_bucket_level_access_enabled),
                public_access_prevented=access.public_access_prevention == "enforced",
                versioned=bool(found.versioning_enabled),
                retention_seconds=int(found.retention_period or 0),
                held_by_default=bool(found.default_event_based_hold),
                soft_delete_seconds=int(found.soft_delete_policy.retention_duration_seconds or 0),
                lifecycle=tuple(dict(rule) for rule in found.lifecycle_rules),
            )

        return self._explained("reading the settings of", read)

    def bindings(self) -> list[Json]:
        """The bindings of the bucket's own policy."""

        def read() -> list[Json]:
            policy = self._bucket.get_iam_policy(requested_policy_version=POLICY_VERSION, timeout=_SECONDS)
            return list(policy.bindings)

        return self._explained("reading the policy of", read)

    def held(self, permissions: Sequence[str]) -> set[str]:
        """Which of these permissions this caller has on the whole bucket."""
        return set(
            self._explained(
                "testing permissions on",
                lambda: self._bucket.test_iam_permissions(list(permissions), timeout=_SECONDS),
            )
        )

    def project_bindings(self) -> tuple[str, list[Json]]:
        """The bucket's project, by its number, and the bindings of its policy; call `settings` before."""
        url = os.environ.get(PROJECTS_ENDPOINT, "").rstrip("/")
        if not url and os.environ.get("STORAGE_EMULATOR_HOST"):
            raise StoreError("an emulated bucket is in no project")
        if not self._project:
            raise AccessDenied(f"the project of gs://{self.name} is not known")

        def read() -> list[Json]:
            response = self._session.post(
                f"{url or _PROJECTS}/v1/projects/{self._project}:getIamPolicy",
                json={"options": {"requestedPolicyVersion": POLICY_VERSION}},
                timeout=_SECONDS,
            )
            if response.status_code != requests.codes.ok:
                raise from_http_response(response)  # type: ignore[no-untyped-call]
            return list(response.json().get("bindings", ()))

        try:
            return self._project, self._explained("reading the policy of the project of", read)
        except StoreUnavailable as error:  # another service than the bucket's, which some networks do not reach
            raise StoreError(str(error)) from error

    def _explained(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except FAILURES as failure:
            told = f"{doing} gs://{self.name}"
            found = explain(failure, bucket=self.name, doing=told)
            if isinstance(found, Transient):
                raise StoreUnavailable(f"{told} failed: {found}") from failure
            if isinstance(found, NoSuchObject):
                raise StoreError(f"{told}: {found}") from failure
            raise found from failure
