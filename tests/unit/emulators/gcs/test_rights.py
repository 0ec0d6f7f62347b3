"""Policies enforced: every request of both APIs needs exactly the permissions of the table.

A caller gets a custom role on the managed folder `root/` with the permissions under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bastion.emulators.gcs.iam.identities import Identities
from bastion.emulators.gcs.iam.permissions import NEEDS
from bastion.emulators.gcs.iam.policies import Binding
from bastion.net.http1 import Response
from tests.support.gcs_endpoint import Endpoint, body_of, document, reason

OWNER, CALLER = "user:owner@example.com", "user:caller@example.com"
ROLE = "projects/p/roles/tested"
OBJECTS = "/storage/v1/b/lake/o"
UPLOAD = "/upload/storage/v1/b/lake/o?uploadType=media&name=root%2F"

GET, LIST, CREATE, DELETE, UPDATE = (
    f"storage.objects.{verb}" for verb in ("get", "list", "create", "delete", "update")
)


class Guarded(Endpoint):
    """An endpoint with the objects `root/there` and `other/there`; the caller has one role on `root/`."""

    def __init__(self, folder: Path, permissions: set[str], *, condition: str = "") -> None:
        self._permissions = permissions
        table = Identities(
            tokens={"owner": OWNER, "caller": CALLER},
            roles={ROLE: frozenset(permissions)},
            project=(Binding(role="roles/storage.admin", members=(OWNER,)),),
        )
        super().__init__(folder, identities=table)
        for name in ("root/there", "other/there"):
            target = f"/upload/storage/v1/b/lake/o?uploadType=media&name={name}"
            assert self.ask("POST", target, b"text", Authorization="Bearer owner").status == 200
        self.owner("POST", "/storage/v1/b/lake/managedFolders", {"name": "root/"})
        binding: dict[str, Any] = {"role": ROLE, "members": [CALLER]}
        if condition:
            binding["condition"] = {"title": "tested", "expression": condition}
        policy = {"version": 3, "bindings": [binding]}
        self.owner("PUT", "/storage/v1/b/lake/managedFolders/root%2F/iam", policy)

    def owner(self, method: str, target: str, body: object = b"", **headers: str) -> Response:
        response = self.ask(method, target, body, Authorization="Bearer owner", **headers)
        assert response.status < 300, body_of(response)
        return response

    def caller(self, method: str, target: str, body: object = b"", **headers: str) -> Response:
        return self.ask(method, target, body, Authorization="Bearer caller", **headers)


def batched(endpoint: Guarded, method: str, target: str, body: str = "") -> Response:
    """One call in a batch; its answer as if it stood alone."""
    inner = f"{method} {target} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    data = f"--b\r\nContent-Type: application/http\r\n\r\n{inner}\r\n--b--".encode()
    answer = endpoint.caller("POST", "/batch/storage/v1", data, Content_Type="multipart/mixed; boundary=b")
    assert answer.status == 200
    status = int(body_of(answer).split(b"HTTP/1.1 ")[1][:3])
    return Response(status=status)


def resumable(endpoint: Guarded, name: str) -> Response:
    target = f"/upload/storage/v1/b/lake/o?uploadType=resumable&name=root%2F{name}"
    begun = endpoint.caller("POST", target, {})
    if begun.status != 200:
        return begun
    return endpoint.ask("PUT", begun.headers.get("Location").removeprefix("http://storage.test:4443"), b"new")


def xml_resumable(endpoint: Guarded, name: str) -> Response:
    begun = endpoint.caller("POST", f"/lake/root/{name}", **{"x-goog-resumable": "start"})
    if begun.status != 201:
        return begun
    return endpoint.ask("PUT", begun.headers.get("Location").removeprefix("http://storage.test:4443"), b"new")


def multipart(endpoint: Guarded, name: str) -> Response:
    body = (
        b'--b\r\nContent-Type: application/json\r\n\r\n{"name": "root/'
        + name.encode()
        + b'"}\r\n--b\r\n\r\nnew\r\n--b--'
    )
    target = "/upload/storage/v1/b/lake/o?uploadType=multipart"
    return endpoint.caller("POST", target, body, Content_Type="multipart/related; boundary=b")


def parts(endpoint: Guarded, name: str) -> Response:
    """A multipart upload of the XML API; the first refusal, or the answer to its end."""
    begun = endpoint.caller("POST", f"/lake/root/{name}?uploads")
    if begun.status != 200:
        return begun
    upload_id = ElementTree.fromstring(body_of(begun))[2].text
    part = endpoint.caller("PUT", f"/lake/root/{name}?partNumber=1&uploadId={upload_id}", b"new")
    if part.status != 200:
        return part
    listed = f"<Part><PartNumber>1</PartNumber><ETag>{part.headers.get('ETag')}</ETag></Part>"
    ending = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return endpoint.caller("POST", f"/lake/root/{name}?uploadId={upload_id}", ending)


def compose(endpoint: Guarded, name: str) -> Response:
    return endpoint.caller("POST", f"{OBJECTS}/root%2F{name}/compose", {"sourceObjects": [{"name": "root/there"}]})


def copied(way: str) -> Callable[[Guarded, str], Response]:
    return lambda endpoint, name: endpoint.caller("POST", f"{OBJECTS}/root%2Fthere/{way}/b/lake/o/root%2F{name}")


def xml_copy(endpoint: Guarded, name: str) -> Response:
    return endpoint.caller("PUT", f"/lake/root/{name}", **{"x-goog-copy-source": "lake/root/there"})


Way = Callable[[Guarded, str], Response]
PARTS = "storage.multipartUploads.create"

# How an object can be written, and what that needs besides `create`, and `delete` where one is overwritten.
WRITES: dict[str, tuple[Way, set[str]]] = {
    "media": (lambda endpoint, name: endpoint.caller("POST", UPLOAD + name, b"new"), set()),
    "multipart": (multipart, set()),
    "without media": (lambda endpoint, name: endpoint.caller("POST", OBJECTS, {"name": f"root/{name}"}), set()),
    "batch": (lambda endpoint, name: batched(endpoint, "POST", OBJECTS, f'{{"name": "root/{name}"}}'), set()),
    "resumable": (resumable, set()),
    "XML": (lambda endpoint, name: endpoint.caller("PUT", f"/lake/root/{name}", b"new"), set()),
    "XML resumable": (xml_resumable, set()),
    "XML multipart": (parts, {PARTS}),
    "compose": (compose, {GET}),
    "copyTo": (copied("copyTo"), {GET}),
    "rewriteTo": (copied("rewriteTo"), {GET}),
    "XML copy": (xml_copy, {GET}),
}


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("name", ["fresh", "there"])
def test_every_way_to_write_needs_create_and_over_an_object_delete(tmp_path: Path, way: str, name: str) -> None:
    write, more = WRITES[way]
    needed = {CREATE, *more} | ({DELETE} if name == "there" else set())
    assert write(Guarded(tmp_path / "all", needed), name).status in (200, 201)
    for missing in sorted(needed):
        endpoint = Guarded(tmp_path / missing, (needed | {LIST}) - {missing})
        assert write(endpoint, name).status == 403, missing
        kept = endpoint.ask("GET", f"/lake/root/{name}", Authorization="Bearer owner")
        assert kept.status == (200 if name == "there" else 404)
        assert name == "fresh" or body_of(kept) == b"text"


THERE = f"{OBJECTS}/root%2Fthere"
MOVE = f"{THERE}/moveTo/o/root%2Ffresh"
FOLDERS = "/storage/v1/b/lake/managedFolders"


def folders(*verbs: str) -> set[str]:
    return {f"storage.managedFolders.{verb}" for verb in verbs}


# Requests, and what each needs on the managed folder that contains what it names.
REQUESTS: list[tuple[str, str, object, set[str]]] = [
    ("GET", THERE, b"", {GET}),
    ("GET", f"{THERE}?alt=media", b"", {GET}),
    ("GET", f"/download{THERE}?alt=media", b"", {GET}),
    ("GET", "/lake/root/there", b"", {GET}),
    ("HEAD", "/lake/root/there", b"", {GET}),
    ("GET", f"{OBJECTS}?prefix=root%2F", b"", {LIST}),
    ("GET", f"{OBJECTS}?prefix=root%2Fthe", b"", {LIST}),
    ("GET", "/lake?prefix=root/", b"", {LIST}),
    ("GET", "/lake?list-type=2&prefix=root/", b"", {LIST}),
    ("GET", "/storage/v1/b/lake/storageLayout?prefix=root%2F", b"", {LIST}),
    ("PATCH", THERE, {"contentType": "text/x"}, {UPDATE}),
    ("PUT", THERE, {"contentType": "text/x"}, {UPDATE}),
    ("DELETE", THERE, b"", {DELETE}),
    ("DELETE", "/lake/root/there", b"", {DELETE}),
    ("POST", MOVE, b"", {GET, CREATE, DELETE}),
    ("POST", "/lake/root/fresh?uploads", b"", {CREATE, PARTS}),
    ("GET", FOLDERS + "?prefix=root%2F", b"", folders("list")),
    ("POST", FOLDERS, {"name": "root/below/"}, folders("create")),
    ("GET", f"{FOLDERS}/root%2F", b"", folders("get")),
    ("GET", f"{FOLDERS}/root%2F/iam?optionsRequestedPolicyVersion=3", b"", folders("getIamPolicy")),
    ("PUT", f"{FOLDERS}/root%2F/iam", {"bindings": []}, folders("setIamPolicy")),
    ("DELETE", f"{FOLDERS}/root%2F?allowNonEmpty=true", b"", folders("delete", "setIamPolicy")),
]


@pytest.mark.parametrize(("method", "target", "body", "needed"), REQUESTS)
def test_a_request_needs_its_permissions_and_no_others(
    tmp_path: Path, method: str, target: str, body: object, needed: set[str]
) -> None:
    assert Guarded(tmp_path / "all", needed).caller(method, target, body).status < 300
    everything = {permission for need in NEEDS.values() for permission in need.permissions}
    for missing in sorted(needed):
        endpoint = Guarded(tmp_path / missing, everything - {missing})
        assert endpoint.caller(method, target, body).status == 403, missing


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/storage/v1/b?project=p", b""),
        ("POST", "/storage/v1/b?project=p", {"name": "fresh"}),
        ("PUT", "/fresh", b""),
        ("GET", "/", b""),
        ("GET", "/storage/v1/projects/p/serviceAccount", b""),
        ("GET", "/storage/v1/b/lake", b""),
        ("PATCH", "/storage/v1/b/lake", {}),
        ("DELETE", "/storage/v1/b/lake", b""),
        ("DELETE", "/lake", b""),
        ("HEAD", "/lake", b""),
        ("GET", "/lake?location", b""),
        ("GET", "/lake?uploads", b""),
        ("GET", "/lake", b""),
        ("GET", "/storage/v1/b/lake/iam", b""),
        ("PUT", "/storage/v1/b/lake/iam", {}),
        ("GET", FOLDERS, b""),
        ("POST", FOLDERS, {"name": "rooted/"}),
        ("GET", f"{OBJECTS}?prefix=root", b""),
        ("GET", f"{OBJECTS}?prefix=other%2F", b""),
        ("GET", OBJECTS, b""),
        ("GET", f"{OBJECTS}/other%2Fthere", b""),
        ("DELETE", f"{OBJECTS}/other%2Fthere", b""),
        ("POST", f"{OBJECTS}/other%2Fthere/rewriteTo/b/lake/o/root%2Ffresh", b""),
        ("POST", f"{THERE}/rewriteTo/b/lake/o/other%2Ffresh", b""),
        ("POST", f"{OBJECTS}/root%2Ffresh/compose", {"sourceObjects": [{"name": "other/there"}]}),
        ("POST", f"{OBJECTS}/other%2Fthere/moveTo/o/root%2Ffresh", b""),
    ],
)
def test_every_right_on_a_managed_folder_is_none_outside_of_it(
    tmp_path: Path, method: str, target: str, body: object
) -> None:
    endpoint = Guarded(tmp_path, {permission for need in NEEDS.values() for permission in need.permissions})
    assert endpoint.caller(method, target, body).status == 403


def test_deleting_many_objects_tells_of_each_that_is_denied(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {DELETE})
    keys = "".join(f"<Object><Key>{name}</Key></Object>" for name in ("root/there", "other/there"))
    answer = endpoint.caller("POST", "/lake?delete", f"<Delete>{keys}</Delete>".encode())
    text = body_of(answer).decode()
    assert "<Deleted><Key>root/there</Key></Deleted>" in text
    assert "<Key>other/there</Key><Code>AccessDenied</Code>" in text


def test_an_object_that_is_missing_is_found_missing_only_by_those_who_may_list(tmp_path: Path) -> None:
    may_list, may_not = Guarded(tmp_path / "a", {GET, LIST}), Guarded(tmp_path / "b", {GET})
    for target in (f"{OBJECTS}/root%2Fnone", "/lake/root/none", f"{OBJECTS}/root%2Fnone?alt=media"):
        assert may_list.caller("GET", target).status == 404
        assert may_not.caller("GET", target).status == 403


def test_an_upload_that_began_before_the_object_does_not_overwrite_it_without_delete(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {CREATE})
    begun = endpoint.caller("POST", "/upload/storage/v1/b/lake/o?uploadType=resumable&name=root%2Fclaim", {})
    session = begun.headers.get("Location").removeprefix("http://storage.test:4443")
    endpoint.owner("POST", f"{UPLOAD}claim", b"first")
    endpoint.reopen()
    assert endpoint.ask("PUT", session, b"second").status == 403
    assert body_of(endpoint.owner("GET", "/lake/root/claim")) == b"first"


def test_a_session_needs_no_token_but_a_wrong_one_is_refused(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {CREATE})
    begun = endpoint.caller("POST", "/upload/storage/v1/b/lake/o?uploadType=resumable&name=root%2Ffresh", {})
    session = begun.headers.get("Location").removeprefix("http://storage.test:4443")
    assert endpoint.ask("PUT", session, b"x", Authorization="Bearer nobody").status == 401
    assert endpoint.ask("PUT", session, b"x").status == 200


def test_refusals_have_the_words_of_the_service(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {GET})
    said = (
        "storage.objects.delete access to the Google Cloud Storage object. Permission 'storage.objects.delete' denied "
    )
    denied = endpoint.caller("DELETE", THERE)
    assert reason(denied) == (403, "forbidden")
    assert json.loads(body_of(denied))["error"]["message"] == (
        f"caller@example.com does not have {said}on resource (or it may not exist)."
    )
    anonymous = endpoint.ask("DELETE", THERE)
    assert reason(anonymous) == (401, "required")
    assert json.loads(body_of(anonymous))["error"]["message"].startswith(f"Anonymous caller does not have {said}")
    unknown = endpoint.ask("DELETE", THERE, Authorization="Bearer nobody")
    assert reason(unknown) == (401, "authError")
    assert json.loads(body_of(unknown))["error"]["errors"][0]["location"] == "Authorization"
    listing = document(endpoint.caller("GET", f"{OBJECTS}?prefix=root%2F"), 403)["error"]["message"]
    assert "storage.objects.list access to the Google Cloud Storage bucket." in listing


@pytest.mark.parametrize(
    ("authorization", "status", "code"),
    [
        ("Bearer caller", 403, "AccessDenied"),
        ("", 403, "AccessDenied"),
        ("Bearer nobody", 401, "AuthenticationRequired"),
        ("AWS key:signature", 401, "AuthenticationRequired"),
    ],
)
def test_refusals_of_the_xml_api(tmp_path: Path, authorization: str, status: int, code: str) -> None:
    endpoint = Guarded(tmp_path, {GET})
    denied = endpoint.ask("DELETE", "/lake/root/there", Authorization=authorization)
    assert denied.status == status
    tree = ElementTree.fromstring(body_of(denied))
    assert [child.tag for child in tree] == ["Code", "Message", "Details"]
    assert tree[0].text == code


def test_conditions_narrow_a_binding(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {GET, LIST}, condition='resource.name.endsWith("/root/lease")')
    assert endpoint.caller("GET", THERE).status == 403
    endpoint.owner("POST", f"{UPLOAD}lease", b"x")
    assert endpoint.caller("GET", "/lake/root/lease").status == 200
    assert endpoint.caller("GET", f"{OBJECTS}?prefix=root%2F").status == 403


def test_policies_of_bucket_and_nested_folders_add_up(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {LIST})
    endpoint.owner(
        "PUT",
        "/storage/v1/b/lake/iam",
        {"bindings": [{"role": "roles/storage.legacyObjectReader", "members": [CALLER]}]},
    )
    assert endpoint.caller("GET", f"{OBJECTS}/other%2Fthere").status == 200
    assert endpoint.caller("GET", f"{OBJECTS}?prefix=root%2F").status == 200
    endpoint.owner("POST", FOLDERS, {"name": "root/a/"})
    policy = {"bindings": [{"role": "roles/storage.objectCreator", "members": ["allUsers"]}]}
    endpoint.owner("PUT", f"{FOLDERS}/root%2Fa%2F/iam", policy)
    assert endpoint.ask("POST", f"{UPLOAD}a%2Fnew", b"x").status == 200
    assert endpoint.ask("POST", f"{UPLOAD}a%2Fnew", b"x").status == 401
    assert endpoint.ask("POST", f"{UPLOAD}b", b"x").status == 401


def test_permissions_that_a_caller_holds_are_told(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {GET, LIST})
    asked = "permissions=storage.objects.get&permissions=storage.objects.delete"
    held = document(endpoint.caller("GET", f"{FOLDERS}/root%2F/iam/testPermissions?{asked}"))
    assert held["permissions"] == ["storage.objects.get"]
    nothing = document(endpoint.caller("GET", f"/storage/v1/b/lake/iam/testPermissions?{asked}"))
    assert nothing == {"kind": "storage#testIamPermissionsResponse"}


def test_a_custom_role_must_be_in_the_table(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {"storage.managedFolders.setIamPolicy"})
    policy = {"bindings": [{"role": "projects/p/roles/unknown", "members": ["allUsers"]}]}
    assert endpoint.caller("PUT", f"{FOLDERS}/root%2F/iam", policy).status == 400


def test_rules_that_cannot_be_read_give_no_rights(tmp_path: Path) -> None:
    endpoint = Guarded(tmp_path, {GET})
    for text in ("", "{}", '{"policy": {}}', "[]", '{"folders": [], "policy": {"changes": 1, "bindings": [1]}}'):
        (tmp_path / "lake" / ".objects" / "iam" / "rules.json").write_text(text)
        assert endpoint.caller("GET", THERE).status == 500
