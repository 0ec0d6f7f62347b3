"""Managed folders of a bucket of Cloud Storage, and their IAM policies.

google-cloud-storage has no methods for them. The requests are `managedFolders` of the API's discovery document.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import requests
from google.api_core.exceptions import from_http_response
from google.cloud.storage import Client

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, Transient
from bastion.adapters.bucket_requests.retry import Patience, Retries
from bastion.adapters.gcs import library
from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.errors import FAILURES, explain
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import PreconditionFailed, StoreUnavailable

Json = dict[str, Any]

# The newest version, which shows conditions.
POLICY_VERSION = 3


class ManagedFolders:
    """Folder names end in "/". Every method raises StoreError."""

    def __init__(self, bucket: str, *, client: Client | None = None, patience: Patience | None = None) -> None:
        client = shared_client() if client is None else client
        self.bucket = bucket
        self._session = library.session_of(client)
        self._base = f"{library.base_url(client)}/storage/v1/b/{quote(bucket, safe='')}/managedFolders"
        self._retries = Retries(SystemClock(), random.Random(), patience or Patience())

    def url(self, name: str) -> str:
        return f"gs://{self.bucket}/{name}"

    def names(self, prefix: str) -> Iterator[str]:
        token = ""
        while True:
            query = {"prefix": prefix, **({"pageToken": token} if token else {})}
            page = self._ask("GET", f"?{urlencode(query)}", f"listing managed folders below {self.url(prefix)}")
            yield from (str(item["name"]) for item in page.get("items", ()))
            token = page.get("nextPageToken", "")
            if not token:
                return

    def make(self, name: str) -> None:
        """Make it, if there is none."""
        self._ask("POST", "", f"creating the managed folder {self.url(name)}", {"name": name}, fine=(409,))

    def policy(self, name: str) -> Json | None:
        """Its policy; None without such a folder."""
        path = f"{_path(name)}/iam?optionsRequestedPolicyVersion={POLICY_VERSION}"
        try:
            return self._ask("GET", path, f"reading the policy of {self.url(name)}")
        except NoSuchObject:
            return None

    def held(self, name: str, permissions: Sequence[str]) -> set[str] | None:
        """Which of these permissions this caller has there, also by the bucket's policy; None without such a folder."""
        query = urlencode({"permissions": list(permissions)}, doseq=True)
        path = f"{_path(name)}/iam/testPermissions?{query}"
        try:
            return set(self._ask("GET", path, f"testing permissions on {self.url(name)}").get("permissions", ()))
        except NoSuchObject:
            return None

    def set_policy(self, name: str, policy: Json) -> None:
        """Raises PreconditionFailed if another policy than that of its `etag` is there."""
        document = {**policy, "version": POLICY_VERSION}
        try:
            self._ask("PUT", f"{_path(name)}/iam", f"changing the policy of {self.url(name)}", document)
        except (ConditionNotMet, NoSuchObject) as error:
            raise PreconditionFailed(f"the policy of {self.url(name)} has changed in the meantime") from error

    def _ask(
        self, method: str, path: str, doing: str, document: Json | None = None, fine: tuple[int, ...] = ()
    ) -> Json:
        limit = self._retries.limit()

        def once() -> Json:
            try:
                response = self._session.request(method, self._base + path, json=document, timeout=limit.timeouts())
                if response.status_code in fine:
                    return {}
                if not requests.codes.ok <= response.status_code < requests.codes.multiple_choices:
                    raise from_http_response(response)  # type: ignore[no-untyped-call]
                answer: Json = response.json()
                return answer
            except FAILURES as failure:
                raise explain(failure, bucket=self.bucket, doing=doing) from failure

        try:
            return self._retries.call(once, until=limit.tries_end)
        except Transient as error:
            raise StoreUnavailable(f"{doing} failed: {error}") from error


def _path(name: str) -> str:
    return f"/{quote(name, safe='')}"
