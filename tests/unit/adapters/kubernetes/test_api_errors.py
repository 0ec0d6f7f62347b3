"""Each answer of an API server becomes the error that says what is to follow.

The documents are worded as the sources that `api_errors` names write them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.adapters.kubernetes.api_errors import (
    Conflict,
    Expired,
    NoSuchObject,
    NoSuchType,
    Overloaded,
    explain,
    explain_event,
)
from bastion.adapters.kubernetes.operations import operation
from bastion.core.errors import (
    CredentialsRefused,
    GangExists,
    MissingPermission,
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
    Stockout,
)

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"
PODS = "/api/v1/namespaces/training/pods"
CREATE = operation("west", "create", JOBSETS, name="b-x-1")
DELETE = operation("west", "delete", f"{JOBSETS}/b-x-1")
GET = operation("west", "get", f"{JOBSETS}/b-x-1")
LIST = operation("west", "list", PODS)
WATCH = operation("west", "watch", PODS)


def _status(code: int, reason: str, message: str, **details: Any) -> bytes:
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return json.dumps(document | {"code": code, "reason": reason, "message": message, "details": details}).encode()


def _jobset(**more: Any) -> dict[str, Any]:
    return {"name": "b-x-1", "group": "jobset.x-k8s.io", "kind": "jobsets"} | more


FORBIDDEN = 'jobsets.jobset.x-k8s.io "b-x-1" is forbidden: '
RBAC = (
    'jobsets.jobset.x-k8s.io is forbidden: User "system:serviceaccount:training:bastion" cannot create resource '
    '"jobsets" in API group "jobset.x-k8s.io" in the namespace "training"'
)
EXISTS = 'jobsets.jobset.x-k8s.io "b-x-1" already exists'
ABSENT = 'jobsets.jobset.x-k8s.io "b-x-1" not found'
QUOTA = (
    "exceeded quota: sets, requested: count/jobsets.jobset.x-k8s.io=1, used: count/jobsets.jobset.x-k8s.io=4, limited"
)
WEBHOOK = 'admission webhook "vjobset.kb.io" denied the request: replicatedJobs[0].name is too long'
UID = "Operation cannot be fulfilled on jobsets: Precondition failed: UID in precondition: 1, UID in object meta: 2"
INVALID = 'JobSet.jobset.x-k8s.io "b-x-1" is invalid: spec.replicatedJobs[0].template: Required value'


TABLE = [
    (CREATE, 409, _status(409, "AlreadyExists", EXISTS, **_jobset()), GangExists, "already exists"),
    (CREATE, 422, _status(422, "Invalid", INVALID, **_jobset()), ProvisionerRefused, "Required value"),
    (CREATE, 400, _status(400, "BadRequest", 'strict decoding error: unknown field "x"'), ProvisionerRefused, "field"),
    (CREATE, 403, _status(403, "Forbidden", FORBIDDEN + WEBHOOK, **_jobset()), ProvisionerRefused, "too long"),
    (CREATE, 500, _status(500, "InternalError", f"Internal error occurred: {WEBHOOK}"), ProvisionerRefused, "too long"),
    (CREATE, 403, _status(403, "Forbidden", FORBIDDEN + QUOTA, **_jobset()), Stockout, "exceeded quota: sets"),
    (
        CREATE,
        403,
        _status(403, "Forbidden", FORBIDDEN + "failed quota: c: must specify limits.cpu", **_jobset()),
        ProvisionerRefused,
        "must specify limits.cpu",
    ),
    (
        CREATE,
        422,
        _status(422, "Invalid", FORBIDDEN + "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
        ProvisionerRefused,
        "denied request: no",
    ),
    (
        CREATE,
        500,
        _status(500, "InternalError", 'Internal error occurred: failed calling webhook "vjobset.kb.io": timed out'),
        ProvisionerUnavailable,
        "failed calling webhook",
    ),
    (
        CREATE,
        403,
        _status(
            403,
            "Forbidden",
            FORBIDDEN + "unable to create new content in namespace training because it is being terminated",
            **_jobset(causes=[{"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}]),
        ),
        ProvisionerUnavailable,
        "create it again",
    ),
    (
        CREATE,
        404,
        _status(404, "NotFound", 'namespaces "training" not found', name="training", kind="namespaces"),
        ProvisionerUnavailable,
        "kubectl create namespace training",
    ),
    (CREATE, 409, _status(409, "Conflict", "quota was changed meanwhile"), Conflict, "tried again"),
    (CREATE, 403, _status(403, "Forbidden", RBAC, **_jobset()), MissingPermission, "grant system:serviceaccount:train"),
    (CREATE, 401, _status(401, "Unauthorized", "Unauthorized"), CredentialsRefused, "renew the token"),
    (CREATE, 501, _status(501, "NotImplemented", "hostPath is not emulated"), ProvisionerRefused, "not emulated"),
    (CREATE, 404, b"404 page not found\n", NoSuchType, "install JobSet"),
    (
        CREATE,
        404,
        _status(404, "NotFound", "the server could not find the requested resource"),
        NoSuchType,
        "install JobSet",
    ),
    (CREATE, 400, b"Client sent an HTTP request to an HTTPS server.\n", ProvisionerUnavailable, "HTTPS server"),
    (CREATE, 503, b"<html>upstream connect error</html>", ProvisionerUnavailable, "not a Kubernetes API server's"),
    (CREATE, 302, b"", ProvisionerUnavailable, "not a Kubernetes API server's"),
    (GET, 404, _status(404, "NotFound", ABSENT, **_jobset()), NoSuchObject, "not found"),
    (GET, 404, _status(404, "NotFound", ABSENT, **_jobset(name="other")), ProvisionerUnavailable, "something else"),
    (GET, 404, b"<html>no such page</html>", ProvisionerUnavailable, "not a Kubernetes API server's"),
    (GET, 404, b'{"error": "not found"}', ProvisionerUnavailable, "not a Kubernetes API server's"),
    (DELETE, 409, _status(409, "Conflict", UID, **_jobset()), Conflict, "UID in precondition"),
    (DELETE, 409, _status(409, "AlreadyExists", EXISTS, **_jobset()), Conflict, "already exists"),
    (LIST, 410, _status(410, "Expired", "The provided continue parameter is too old"), Expired, "too old"),
    (LIST, 400, _status(400, "BadRequest", "unable to parse requirement"), ProvisionerUnavailable, "unable to parse"),
    (LIST, 403, _status(403, "Forbidden", "pods is forbidden: by a gateway"), MissingPermission, "list pods in names"),
    (LIST, 429, _status(429, "TooManyRequests", "too many", retryAfterSeconds=7), Overloaded, "429"),
    (LIST, 504, _status(504, "Timeout", "request did not complete"), ProvisionerUnavailable, "504"),
    (LIST, 200, b"", ProvisionerUnavailable, "not a Kubernetes API server's"),
]


@pytest.mark.parametrize(("doing", "code", "body", "kind", "words"), TABLE)
def test_an_answer_says_what_is_to_follow(
    doing: Any, code: int, body: bytes, kind: type[ProvisionerError], words: str
) -> None:
    error = explain(code, body, doing)
    assert type(error) is kind, error
    assert words in str(error)
    assert str(error).startswith(f"cannot {doing.verb} ")


@pytest.mark.parametrize("body", [b"", b"x", b"null", b"[]", b'{"kind": "Error"}', b"\xff\xfe"])
def test_nothing_but_a_status_document_can_end_a_job_or_mean_gone(body: bytes) -> None:
    for code in range(200, 600):
        for doing in (CREATE, DELETE, GET, LIST):
            error = explain(code, body, doing)
            assert isinstance(error, ProvisionerUnavailable), (code, doing)
            assert not isinstance(error, (NoSuchObject, Conflict, Expired)), (code, doing)


@pytest.mark.parametrize("doing", [GET, LIST, WATCH])
def test_a_read_is_never_refused_for_good(doing: Any) -> None:
    for code in range(400, 600):
        error = explain(code, _status(code, "Any", "denied the request"), doing)
        assert isinstance(error, ProvisionerUnavailable), code


def test_a_missing_permission_is_named_as_a_role_grants_it() -> None:
    error = explain(403, _status(403, "Forbidden", RBAC, **_jobset()), CREATE)
    assert isinstance(error, MissingPermission)
    assert error.permission == "create jobsets.jobset.x-k8s.io in namespace training"


def test_rbac_is_recognized_in_the_plain_text_of_an_old_server() -> None:
    said = b'User "bastion" groups [system:authenticated] cannot list pods in the namespace "training".'
    error = explain(403, said, LIST)
    assert isinstance(error, MissingPermission)
    assert error.permission == "list pods in namespace training"


def test_a_request_without_credentials_is_not_called_a_missing_role() -> None:
    said = RBAC.replace("system:serviceaccount:training:bastion", "system:anonymous")
    error = explain(403, _status(403, "Forbidden", said, **_jobset()), CREATE)
    assert "carried no credentials" in str(error)


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [("3", {}, 3.0), ("", {"retryAfterSeconds": 9}, 9.0), ("2", {"retryAfterSeconds": 9}, 2.0)],
)
def test_the_pause_that_a_server_names_is_kept(header: str, details: dict[str, Any], seconds: float) -> None:
    error = explain(429, _status(429, "TooManyRequests", "slow", **details), LIST, retry_after=header)
    assert isinstance(error, Overloaded)
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize("header", ["", "0", "-1", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_pause_that_makes_no_sense_is_none(header: str) -> None:
    error = explain(429, _status(429, "TooManyRequests", "slow"), LIST, retry_after=header)
    assert type(error) is ProvisionerUnavailable


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}, Expired),
        ({"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd"}, ProvisionerUnavailable),
        ({"kind": "Status", "code": "x"}, ProvisionerUnavailable),
        ({}, ProvisionerUnavailable),
    ],
)
def test_an_error_event_is_read_like_an_answer(document: dict[str, Any], kind: type[Exception]) -> None:
    assert type(explain_event(document, WATCH)) is kind
