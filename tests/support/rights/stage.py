"""The storage endpoint with a deployment's buckets, managed folders and bindings, and callers with tokens.

Everything is done with google-cloud-storage, or as requests where that library has no method (managed folders).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

from google.api_core.exceptions import Forbidden
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import InvalidOperation
from google.cloud.storage import Client
from google.oauth2.credentials import Credentials

from bastion.emulators.gcs.iam.identities import Identities
from bastion.emulators.gcs.iam.policies import Binding
from bastion.emulators.gcs.server import StorageEndpoint
from tests.support.rights.bindings import Granted, policy

OWNER = "user:owner@example.com"

READ, LIST, CREATE, OVERWRITE, DELETE = "read", "list", "create", "overwrite", "delete"


class Stage:
    """An open endpoint.

    Args:
        folder: Of the buckets.
        buckets: Made in the project, so that they have the policy of new buckets.
        callers: Their names, which are their tokens too, and principals; "" is anonymous and needs none.
        groups: Members that stand for several principals.
        roles: Custom roles.
    """

    def __init__(
        self,
        folder: Path,
        *,
        buckets: Sequence[str],
        callers: Mapping[str, str],
        groups: Mapping[str, Sequence[str]],
        roles: Mapping[str, Sequence[str]],
    ) -> None:
        identities = Identities(
            tokens={**callers, "owner": OWNER},
            groups={name: frozenset(members) for name, members in groups.items()},
            roles={name: frozenset(permissions) for name, permissions in roles.items()},
            project=(Binding(role="roles/storage.admin", members=(OWNER,)),),
        )
        self._folder = folder
        self._endpoint = StorageEndpoint(folder, identities=identities)
        self._endpoint.open()
        self.client = cache(self._client)
        for bucket in buckets:
            self.client("owner").create_bucket(bucket)

    @property
    def url(self) -> str:
        return self._endpoint.url

    def close(self) -> None:
        self._endpoint.close()

    def _client(self, caller: str) -> Client:
        credentials = Credentials(token=caller) if caller else AnonymousCredentials()  # type: ignore[no-untyped-call]
        return Client(
            project="my-project", credentials=credentials, client_options={"api_endpoint": self._endpoint.url}
        )

    def grant(self, folders: Sequence[tuple[str, str]], granted: Sequence[Granted]) -> None:
        """Make managed folders and set their policies, as the owner."""
        for bucket, name in folders:
            self.ask("POST", f"b/{bucket}/managedFolders", {"name": name})
        for where in dict.fromkeys((one.bucket, one.folder) for one in granted):
            of_one = policy([one for one in granted if (one.bucket, one.folder) == where])
            self.ask("PUT", f"b/{where[0]}/managedFolders/{quote(where[1], safe='')}/iam", of_one)

    def take_away(self, bucket: str, bindings: Sequence[tuple[str, str]]) -> None:
        """Take members (the second of each pair) out of roles in a bucket's policy."""
        found = self.client("owner").bucket(bucket)
        changed = found.get_iam_policy(requested_policy_version=3)
        for binding in changed.bindings:
            gone = {member for role, member in bindings if role == binding["role"]}
            assert gone <= set(binding["members"])
            binding["members"] = set(binding["members"]) - gone
        found.set_iam_policy(changed)

    def ask(self, method: str, path: str, document: object, *, missing_is_fine: bool = False) -> None:
        """A request of the owner to the JSON API."""
        request = urllib.request.Request(
            f"{self._endpoint.url}/storage/v1/{path}",
            method=method,
            data=json.dumps(document).encode(),
            headers={"Authorization": "Bearer owner", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            if not (missing_is_fine and error.code == 404):
                raise

    def rights(self, caller: str, bucket: str, name: str) -> set[str]:
        """What a caller may do with an object, each tried; afterwards the object is there as before."""
        file = self._folder / bucket / name
        blob = self.client(caller).bucket(bucket).blob(name)
        folder = name.rpartition("/")[0] + "/"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"there")
        found = set()
        if _allowed(blob.download_as_bytes):
            found.add(READ)
        if _allowed(lambda: list(self.client(caller).list_blobs(bucket, prefix=folder, max_results=1))):
            found.add(LIST)
        if _allowed(lambda: blob.upload_from_string(b"changed", retry=None)):
            found.add(OVERWRITE)
        assert (file.read_bytes() == b"changed") is (OVERWRITE in found)
        if _allowed(lambda: blob.delete(retry=None)):
            found.add(DELETE)
        assert file.exists() is (DELETE not in found)
        file.unlink(missing_ok=True)
        if _allowed(lambda: blob.upload_from_string(b"new", if_generation_match=0, retry=None)):
            found.add(CREATE)
        assert file.exists() is (CREATE in found)
        file.unlink(missing_ok=True)
        return found


def _allowed(call: Callable[[], object]) -> bool:
    """Whether a call succeeds; False if it is denied, and nothing else."""
    try:
        call()
    except (Forbidden, InvalidOperation):
        # After a 401, the library wants to refresh credentials, which anonymous ones refuse.
        return False
    return True
