"""Predefined roles of Cloud Storage and their permissions, as far as this endpoint checks them.

From Google's page "IAM roles for Cloud Storage". Legacy roles, and `roles/storage.admin`, cannot be granted on managed
folders.
"""

from __future__ import annotations

from collections.abc import Mapping


def _of(resource: str, *verbs: str) -> frozenset[str]:
    return frozenset(f"storage.{resource}.{verb}" for verb in verbs)


_FOLDER_READER = _of("managedFolders", "get", "list")
_FOLDER_USER = _FOLDER_READER | _of("managedFolders", "create", "delete")
_PARTS = _of("multipartUploads", "abort", "create", "list", "listParts")
_OBJECT_VIEWER = _FOLDER_READER | _of("objects", "get", "list")
_OBJECT_USER = _OBJECT_VIEWER | _FOLDER_USER | _PARTS | _of("objects", "create", "delete", "move", "restore", "update")
_OBJECT_ADMIN = _OBJECT_USER | _of(
    "objects", "getIamPolicy", "overrideUnlockedRetention", "setIamPolicy", "setRetention"
)
_FOLDER_ADMIN = _OBJECT_ADMIN | _of("managedFolders", "getIamPolicy", "setIamPolicy")
_LEGACY_READER = _FOLDER_READER | _of("buckets", "get") | _of("multipartUploads", "list") | _of("objects", "list")
_LEGACY_WRITER = _LEGACY_READER | _FOLDER_USER | _PARTS | _of("objects", "create", "delete")

PREDEFINED: Mapping[str, frozenset[str]] = {
    "roles/storage.objectViewer": _OBJECT_VIEWER,
    "roles/storage.objectCreator": _of("managedFolders", "create")
    | _of("multipartUploads", "abort", "create", "listParts")
    | _of("objects", "create"),
    "roles/storage.objectUser": _OBJECT_USER,
    "roles/storage.objectAdmin": _OBJECT_ADMIN,
    "roles/storage.folderAdmin": _FOLDER_ADMIN,
    "roles/storage.bucketViewer": _of("buckets", "get", "list"),
    "roles/storage.admin": _FOLDER_ADMIN
    | _of("buckets", "create", "delete", "get", "getIamPolicy", "list", "setIamPolicy", "update")
    | {"resourcemanager.projects.get"},
    "roles/storage.legacyBucketReader": _LEGACY_READER,
    "roles/storage.legacyBucketWriter": _LEGACY_WRITER,
    "roles/storage.legacyBucketOwner": _LEGACY_WRITER
    | _of("buckets", "getIamPolicy", "setIamPolicy", "update")
    | _of("managedFolders", "getIamPolicy", "setIamPolicy"),
    "roles/storage.legacyObjectReader": _of("objects", "get"),
    "roles/storage.legacyObjectOwner": _of(
        "objects", "get", "getIamPolicy", "overrideUnlockedRetention", "setIamPolicy", "setRetention", "update"
    ),
}


# The others are for buckets and projects only.
FOR_MANAGED_FOLDERS = frozenset(
    f"roles/storage.{name}" for name in ("folderAdmin", "objectAdmin", "objectCreator", "objectUser", "objectViewer")
)
