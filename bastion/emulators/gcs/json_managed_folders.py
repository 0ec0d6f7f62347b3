"""The managed folders of the JSON API (`managedFolders` in its discovery document), except their policies."""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass, replace
from urllib.parse import quote

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.iam.policies import Policy
from bastion.emulators.gcs.iam.rules import ManagedFolder, Rules, folder_name
from bastion.emulators.gcs.json_resources import Json, instant
from bastion.emulators.gcs.objects import Bucket
from bastion.emulators.gcs.resources import ManagedFolderExists, ManagedFolderNotEmpty, NoSuchManagedFolder
from bastion.net.http1 import Response
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import invalid, not_allowed, required

_PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class _Versions:
    """What preconditions compare; managed folders have no generation."""

    metageneration: int
    generation: int = 0


def found_folder(rules: Rules, name: str) -> ManagedFolder:
    """Raises NoSuchManagedFolder."""
    folder = rules.folders.get(name)
    if folder is None:
        raise NoSuchManagedFolder(f"The managed folder {name[:200]!r} does not exist.")
    return folder


def folders(call: Call, bucket: str) -> Response:
    """Answer a request for `/b/BUCKET/managedFolders`."""
    opened = call.buckets.open(bucket)
    match call.method:
        case "GET":
            return _list(call, opened)
        case "POST":
            return _insert(call, opened)
        case _:
            raise not_allowed(call.method, call.request.path)


def _list(call: Call, opened: Bucket) -> Response:
    prefix = call.parameters.get("prefix")
    opened.need(Action.LIST_MANAGED_FOLDERS, prefix)
    # The discovery document says pageSize, the reference page maxResults.
    size = call.parameters.number("pageSize") or call.parameters.number("maxResults") or _PAGE_MAX
    after = _decoded(call.parameters.get("pageToken"))
    found = [
        folder for name, folder in sorted(opened.rules().folders.items()) if name.startswith(prefix) and name > after
    ]
    page = found[: min(size, _PAGE_MAX)]
    document: Json = {"kind": "storage#managedFolders"}
    if page:
        document["items"] = [_shown(opened.name, folder, call.base) for folder in page]
    if len(found) > len(page):
        document["nextPageToken"] = base64.urlsafe_b64encode(page[-1].name.encode()).decode()
    return call.answer(document)


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid(f"Invalid page token: {token[:80]!r}") from error


def _insert(call: Call, opened: Bucket) -> Response:
    given = text_field(call.document(), "name")
    if not given:
        raise required("name")
    name = folder_name(given)
    opened.need(Action.CREATE_MANAGED_FOLDER, name)
    now = time.time()
    folder = ManagedFolder(name=name, metageneration=1, created=now, updated=now, policy=Policy())

    def changed(rules: Rules) -> Rules:
        if name in rules.folders:
            raise ManagedFolderExists(name)
        return replace(rules, folders={**rules.folders, name: folder})

    opened.change_rules(changed)
    return call.answer(_shown(opened.name, folder, call.base))


def one_folder(call: Call, bucket: str, given: str) -> Response:
    """Answer a request for `/b/BUCKET/managedFolders/FOLDER`."""
    opened = call.buckets.open(bucket)
    name = given if given.endswith("/") else f"{given}/"
    match call.method:
        case "GET":
            opened.need(Action.GET_MANAGED_FOLDER, name)
            folder = found_folder(opened.rules(), name)
            call.parameters.preconditions().check(_Versions(folder.metageneration))
            return call.answer(_shown(bucket, folder, call.base))
        case "DELETE":
            return _delete(call, opened, name)
        case _:
            raise not_allowed(call.method, call.request.path)


def _delete(call: Call, opened: Bucket, name: str) -> Response:
    also_if_full = call.parameters.flag("allowNonEmpty")
    opened.need(Action.DELETE_NON_EMPTY_MANAGED_FOLDER if also_if_full else Action.DELETE_MANAGED_FOLDER, name)

    def changed(rules: Rules) -> Rules:
        call.parameters.preconditions().check(_Versions(found_folder(rules, name).metageneration))
        others = {key: folder for key, folder in rules.folders.items() if key != name}
        is_empty = opened.is_empty_below(name) and not any(key.startswith(name) for key in others)
        if not (also_if_full or is_empty):
            raise ManagedFolderNotEmpty(name)
        return replace(rules, folders=others)

    opened.change_rules(changed)
    return Response(status=204)


def _shown(bucket: str, folder: ManagedFolder, base: str) -> Json:
    return {
        "kind": "storage#managedFolder",
        "id": f"{bucket}/{folder.name}",
        "selfLink": f"{base}/storage/v1/b/{bucket}/managedFolders/{quote(folder.name, safe='')}",
        "name": folder.name,
        "bucket": bucket,
        "metageneration": str(folder.metageneration),
        "createTime": instant(folder.created),
        "updateTime": instant(folder.updated),
    }
