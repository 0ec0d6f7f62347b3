"""Managed folders and policies of the JSON API, without enforcement.

What the service answers was compared with answers recorded from it, as far as there are any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.gcs_endpoint import Endpoint, document, reason

FOLDERS = "/storage/v1/b/lake/managedFolders"
VIEWERS = {"role": "roles/storage.objectViewer", "members": ["user:alice@example.com"]}
CONDITION = {"title": "lease", "expression": 'resource.name.endsWith("/lease")'}


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path / "buckets")


def make(endpoint: Endpoint, name: str) -> dict[str, Any]:
    return document(endpoint.ask("POST", FOLDERS, {"name": name}))


def address(name: str, rest: str = "") -> str:
    return f"{FOLDERS}/{quote(name, safe='')}{rest}"


def test_a_managed_folder_is_shown_as_the_service_shows_it(endpoint: Endpoint) -> None:
    made = make(endpoint, "a/b")
    assert made == document(endpoint.ask("GET", address("a/b/"))) == document(endpoint.ask("GET", address("a/b")))
    times = made.pop("createTime"), made.pop("updateTime")
    assert times[0] == times[1]
    assert made == {
        "kind": "storage#managedFolder",
        "id": "lake/a/b/",
        "selfLink": "http://storage.test:4443/storage/v1/b/lake/managedFolders/a%2Fb%2F",
        "name": "a/b/",
        "bucket": "lake",
        "metageneration": "1",
    }


@pytest.mark.parametrize("name", ["", "/", "a\nb", "x" * 1024, "a/" * 16, ".well-known/acme-challenge/x", ".", ".."])
def test_names_that_a_managed_folder_cannot_have(endpoint: Endpoint, name: str) -> None:
    assert endpoint.ask("POST", FOLDERS, {"name": name}).status == 400


def test_a_managed_folder_exists_once(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    assert reason(endpoint.ask("POST", FOLDERS, {"name": "a/"})) == (409, "conflict")
    assert reason(endpoint.ask("GET", address("b/"))) == (404, "notFound")
    assert reason(endpoint.ask("GET", "/storage/v1/b/none/managedFolders/a%2F")) == (404, "notFound")


def test_managed_folders_are_listed_in_pages(endpoint: Endpoint) -> None:
    for name in ("b", "a/c", "a"):
        make(endpoint, name)
    first = document(endpoint.ask("GET", f"{FOLDERS}?pageSize=2"))
    assert [item["name"] for item in first["items"]] == ["a/", "a/c/"]
    rest = document(endpoint.ask("GET", f"{FOLDERS}?pageSize=2&pageToken={first['nextPageToken']}"))
    assert [item["name"] for item in rest["items"]] == ["b/"]
    assert "nextPageToken" not in rest
    below = document(endpoint.ask("GET", f"{FOLDERS}?prefix=a%2Fc"))
    assert [item["name"] for item in below["items"]] == ["a/c/"]
    assert document(endpoint.ask("GET", f"{FOLDERS}?prefix=z")) == {"kind": "storage#managedFolders"}
    assert endpoint.ask("GET", f"{FOLDERS}?pageToken=%21").status == 400


def test_a_managed_folder_with_something_below_it_is_deleted_only_on_request(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    make(endpoint, "a/b")
    endpoint.put("a/b/object")
    for name in ("a/", "a/b/"):
        assert reason(endpoint.ask("DELETE", address(name))) == (409, "conflict")
    assert endpoint.ask("DELETE", address("a/b/", "?allowNonEmpty=true&ifMetagenerationMatch=2")).status == 412
    assert endpoint.ask("DELETE", address("a/b/", "?allowNonEmpty=true&ifMetagenerationMatch=1")).status == 204
    assert endpoint.exists("a%2Fb%2Fobject")
    assert endpoint.ask("DELETE", "/storage/v1/b/lake/o/a%2Fb%2Fobject").status == 204
    assert endpoint.ask("DELETE", address("a/")).status == 204
    assert reason(endpoint.ask("DELETE", address("a/"))) == (404, "notFound")


def test_a_bucket_with_managed_folders_is_not_deleted(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    assert reason(endpoint.ask("DELETE", "/storage/v1/b/lake")) == (409, "conflict")
    assert endpoint.ask("DELETE", address("a/")).status == 204
    assert endpoint.ask("DELETE", "/storage/v1/b/lake").status == 204


def test_a_new_managed_folder_has_no_policy_and_keeps_the_one_that_it_gets(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    resource = "projects/_/buckets/lake/managedFolders/a/"
    fresh = document(endpoint.ask("GET", address("a/", "/iam?optionsRequestedPolicyVersion=3")))
    assert fresh == {"kind": "storage#policy", "resourceId": resource, "etag": "CAA="}
    given = document(endpoint.ask("PUT", address("a/", "/iam"), {"bindings": [VIEWERS], "etag": "CAA="}))
    assert given == {
        "kind": "storage#policy", "resourceId": resource, "etag": "CAE=", "version": 1, "bindings": [VIEWERS],
    }  # fmt: skip
    endpoint.reopen()
    assert document(endpoint.ask("GET", address("a/", "/iam"))) == given


def test_a_policy_that_changed_in_the_meantime_is_not_replaced(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    for where in ("/storage/v1/b/lake/iam", address("a/", "/iam")):
        etag = document(endpoint.ask("GET", where))["etag"]
        assert endpoint.ask("PUT", where, {"bindings": [VIEWERS], "etag": etag}).status == 200
        assert reason(endpoint.ask("PUT", where, {"bindings": [], "etag": etag})) == (412, "conditionNotMet")
        assert endpoint.ask("PUT", where, {"bindings": []}).status == 200


@pytest.mark.parametrize(("where", "unstated"), [(address("a/", "/iam"), 200), ("/storage/v1/b/lake/iam", 400)])
def test_policies_with_conditions_have_version_three(endpoint: Endpoint, where: str, unstated: int) -> None:
    make(endpoint, "a")
    bindings = [{**VIEWERS, "condition": CONDITION}]
    assert endpoint.ask("PUT", where, {"bindings": bindings}).status == 400
    assert document(endpoint.ask("PUT", where, {"bindings": bindings, "version": 3}))["version"] == 3
    assert endpoint.ask("GET", where).status == unstated
    assert endpoint.ask("GET", f"{where}?optionsRequestedPolicyVersion=1").status == 400
    assert document(endpoint.ask("GET", f"{where}?optionsRequestedPolicyVersion=3"))["bindings"] == bindings


@pytest.mark.parametrize(
    ("binding", "on_bucket", "on_folder"),
    [
        (VIEWERS, 200, 200),
        ({"role": "projects/p/roles/mine", "members": ["allUsers"]}, 200, 200),
        ({"role": "roles/storage.legacyBucketReader", "members": ["allUsers"]}, 200, 400),
        ({"role": "roles/storage.admin", "members": ["allUsers"]}, 200, 400),
        ({"role": "roles/pubsub.viewer", "members": ["allUsers"]}, 400, 400),
        ({"role": "roles/storage.objectViewer", "members": ["alice"]}, 400, 400),
        ({"role": "roles/storage.objectViewer", "members": "allUsers"}, 400, 400),
        ({"members": ["allUsers"]}, 400, 400),
        ({**VIEWERS, "condition": {"title": "x", "expression": "request.time > 1"}}, 400, 400),
        ({**VIEWERS, "condition": {"title": "x"}}, 400, 400),
    ],
)
def test_what_a_policy_may_bind(endpoint: Endpoint, binding: object, on_bucket: int, on_folder: int) -> None:
    make(endpoint, "a")
    policy = {"bindings": [binding], "version": 3}
    assert endpoint.ask("PUT", "/storage/v1/b/lake/iam", policy).status == on_bucket
    assert endpoint.ask("PUT", address("a/", "/iam"), policy).status == on_folder


def test_without_identities_everybody_holds_every_permission(endpoint: Endpoint) -> None:
    make(endpoint, "a")
    where = address("a/", "/iam/testPermissions")
    held = document(endpoint.ask("GET", f"{where}?permissions=storage.objects.get&permissions=storage.objects.list"))
    assert held["permissions"] == ["storage.objects.get", "storage.objects.list"]
    assert reason(endpoint.ask("GET", f"{where}?permissions=storage.buckets.get")) == (400, "invalid")
    assert reason(endpoint.ask("GET", where)) == (400, "required")
    assert endpoint.ask("GET", address("b/", "/iam/testPermissions?permissions=storage.objects.get")).status == 404


def test_a_bucket_made_in_a_project_has_the_policy_of_new_buckets(endpoint: Endpoint) -> None:
    assert endpoint.ask("POST", "/storage/v1/b?project=p", {"name": "fresh"}).status == 200
    policy = document(endpoint.ask("GET", "/storage/v1/b/fresh/iam"))
    assert {binding["role"]: binding["members"] for binding in policy["bindings"]} == {
        "roles/storage.legacyBucketOwner": ["projectEditor:p", "projectOwner:p"],
        "roles/storage.legacyBucketReader": ["projectViewer:p"],
        "roles/storage.legacyObjectOwner": ["projectEditor:p", "projectOwner:p"],
        "roles/storage.legacyObjectReader": ["projectViewer:p"],
    }


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", FOLDERS),
        ("PATCH", f"{FOLDERS}/a%2F"),
        ("DELETE", f"{FOLDERS}/a%2F/iam"),
        ("POST", "/storage/v1/b/lake/iam"),
        ("POST", f"{FOLDERS}/a%2F/iam/testPermissions"),
    ],
)
def test_other_methods_are_not_allowed(endpoint: Endpoint, method: str, target: str) -> None:
    make(endpoint, "a")
    assert reason(endpoint.ask(method, target)) == (405, "methodNotAllowed")
