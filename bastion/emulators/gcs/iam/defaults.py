"""The policy of a new bucket: the project's owners, editors and viewers have legacy roles."""

from __future__ import annotations

from bastion.emulators.gcs.iam.policies import Binding, Policy

_OWNERS = ("projectEditor", "projectOwner")
_ROLES = {
    "roles/storage.legacyBucketOwner": _OWNERS,
    "roles/storage.legacyBucketReader": ("projectViewer",),
    "roles/storage.legacyObjectOwner": _OWNERS,
    "roles/storage.legacyObjectReader": ("projectViewer",),
}


def policy_of_new_bucket(project: str) -> Policy:
    return Policy(
        bindings=tuple(
            Binding(role=role, members=tuple(f"{who}:{project}" for who in members)) for role, members in _ROLES.items()
        ),
        changes=1,
    )
