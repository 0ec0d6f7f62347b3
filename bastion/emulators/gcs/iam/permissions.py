"""What each request needs: the permission table.

From Google's pages "IAM permissions for JSON methods" and "for XML requests". A listing's prefix decides the resource
that is asked: the managed folders that contain the whole prefix, and the bucket (`GetStorageLayoutRequest.prefix` in
storage_control.proto).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Kind(enum.Enum):
    """The kind of resource that a permission is asked of."""

    PROJECT = "project"
    BUCKET = "bucket"
    LISTING = "listing"  # what lies below a prefix
    MANAGED_FOLDER = "managed folder"
    OBJECT = "object"

    @property
    def noun(self) -> str:
        """Its name in the service's messages."""
        return "bucket" if self is Kind.LISTING else self.value


class Action(enum.Enum):
    LIST_BUCKETS = enum.auto()
    CREATE_BUCKET = enum.auto()
    GET_BUCKET = enum.auto()
    UPDATE_BUCKET = enum.auto()
    DELETE_BUCKET = enum.auto()
    GET_BUCKET_POLICY = enum.auto()
    SET_BUCKET_POLICY = enum.auto()
    GET_STORAGE_LAYOUT = enum.auto()
    GET_SERVICE_ACCOUNT = enum.auto()
    LIST_MANAGED_FOLDERS = enum.auto()
    CREATE_MANAGED_FOLDER = enum.auto()
    GET_MANAGED_FOLDER = enum.auto()
    DELETE_MANAGED_FOLDER = enum.auto()
    DELETE_NON_EMPTY_MANAGED_FOLDER = enum.auto()
    GET_MANAGED_FOLDER_POLICY = enum.auto()
    SET_MANAGED_FOLDER_POLICY = enum.auto()
    LIST_OBJECTS = enum.auto()
    GET_OBJECT = enum.auto()
    # To be told that an object does not exist, instead of "forbidden".
    MISS_OBJECT = enum.auto()
    CREATE_OBJECT = enum.auto()
    OVERWRITE_OBJECT = enum.auto()
    UPDATE_OBJECT = enum.auto()
    DELETE_OBJECT = enum.auto()
    UPLOAD_PARTS = enum.auto()
    ABORT_PARTS = enum.auto()
    LIST_PARTS = enum.auto()
    LIST_MULTIPART_UPLOADS = enum.auto()


@dataclass(frozen=True, slots=True)
class Need:
    kind: Kind
    permissions: tuple[str, ...]


NEEDS: Mapping[Action, Need] = {
    Action.LIST_BUCKETS: Need(Kind.PROJECT, ("storage.buckets.list",)),
    Action.CREATE_BUCKET: Need(Kind.PROJECT, ("storage.buckets.create",)),
    Action.GET_SERVICE_ACCOUNT: Need(Kind.PROJECT, ("resourcemanager.projects.get",)),
    Action.GET_BUCKET: Need(Kind.BUCKET, ("storage.buckets.get",)),
    Action.UPDATE_BUCKET: Need(Kind.BUCKET, ("storage.buckets.update",)),
    Action.DELETE_BUCKET: Need(Kind.BUCKET, ("storage.buckets.delete",)),
    Action.GET_BUCKET_POLICY: Need(Kind.BUCKET, ("storage.buckets.getIamPolicy",)),
    Action.SET_BUCKET_POLICY: Need(Kind.BUCKET, ("storage.buckets.setIamPolicy",)),
    Action.GET_STORAGE_LAYOUT: Need(Kind.LISTING, ("storage.objects.list",)),
    Action.LIST_MANAGED_FOLDERS: Need(Kind.LISTING, ("storage.managedFolders.list",)),
    Action.CREATE_MANAGED_FOLDER: Need(Kind.MANAGED_FOLDER, ("storage.managedFolders.create",)),
    Action.GET_MANAGED_FOLDER: Need(Kind.MANAGED_FOLDER, ("storage.managedFolders.get",)),
    Action.DELETE_MANAGED_FOLDER: Need(Kind.MANAGED_FOLDER, ("storage.managedFolders.delete",)),
    Action.DELETE_NON_EMPTY_MANAGED_FOLDER: Need(
        Kind.MANAGED_FOLDER, ("storage.managedFolders.delete", "storage.managedFolders.setIamPolicy")
    ),
    Action.GET_MANAGED_FOLDER_POLICY: Need(Kind.MANAGED_FOLDER, ("storage.managedFolders.getIamPolicy",)),
    Action.SET_MANAGED_FOLDER_POLICY: Need(Kind.MANAGED_FOLDER, ("storage.managedFolders.setIamPolicy",)),
    Action.LIST_OBJECTS: Need(Kind.LISTING, ("storage.objects.list",)),
    Action.GET_OBJECT: Need(Kind.OBJECT, ("storage.objects.get",)),
    Action.MISS_OBJECT: Need(Kind.LISTING, ("storage.objects.list",)),
    Action.CREATE_OBJECT: Need(Kind.OBJECT, ("storage.objects.create",)),
    Action.OVERWRITE_OBJECT: Need(Kind.OBJECT, ("storage.objects.create", "storage.objects.delete")),
    Action.UPDATE_OBJECT: Need(Kind.OBJECT, ("storage.objects.update",)),
    Action.DELETE_OBJECT: Need(Kind.OBJECT, ("storage.objects.delete",)),
    Action.UPLOAD_PARTS: Need(Kind.OBJECT, ("storage.multipartUploads.create", "storage.objects.create")),
    Action.ABORT_PARTS: Need(Kind.OBJECT, ("storage.multipartUploads.abort",)),
    Action.LIST_PARTS: Need(Kind.OBJECT, ("storage.multipartUploads.listParts",)),
    Action.LIST_MULTIPART_UPLOADS: Need(Kind.BUCKET, ("storage.multipartUploads.list",)),
}
