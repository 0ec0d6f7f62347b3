"""From a ROOT to what grants the rights of its inboxes."""

from __future__ import annotations

from bastion.ports import InboxRights
from bastion.wiring.roots import Root


def open_inbox_rights(root: Root, *, role: str = "") -> InboxRights:
    """`role`: which role the user of an inbox gets, on Cloud Storage only; empty: the bastion's own."""
    if root.local:
        from bastion.adapters.folder.inbox_rights import FolderInboxRights

        return FolderInboxRights(root.url)
    bucket, _, folder = root.url.removeprefix(f"{root.scheme}://").partition("/")
    if root.scheme == "s3":
        from bastion.adapters.s3.inbox_rights import S3InboxRights

        return S3InboxRights(bucket, folder)
    from bastion.adapters.gcs.inbox_rights import GcsInboxRights
    from bastion.adapters.gcs.managed_folders import ManagedFolders

    return GcsInboxRights(ManagedFolders(bucket), folder, role=role)
