"""Classify answers of a Kubernetes API server into the port's errors; pure.

An answer counts as the API server's word only if it is a `Status` document: a load balancer's or a proxy's 404 must
never mean "gone", nor its 400 "refused". Only writes can be refused for good; a failed read may be repeated.

Sources in kubernetes/kubernetes below staging/src/k8s.io: apimachinery/pkg/api/errors/errors.go (reasons),
apiserver/pkg/endpoints/handlers/responsewriters/errors.go (RBAC's words), apiserver/pkg/admission/plugin/webhook/
errors/statuserror.go (a webhook's words; it may choose the code), apiserver/pkg/admission/plugin/resourcequota/
controller.go (quota's words), apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bastion.adapters.kubernetes.operations import Operation
from bastion.core.errors import (
    CredentialsRefused,
    GangExists,
    MissingPermission,
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
    Stockout,
)

_TEXT_MAX = 600
# Without "resource" in old API servers.
_RBAC = re.compile(r'User "(?P<user>[^"]*)"(?: groups \[.*\])? cannot \S+ (?:resource |path )?\S')
# ValidatingAdmissionPolicy writes "denied request".
_DENIED = re.compile(r"denied (the )?request")
_QUOTA = "exceeded quota:"
_ENDING_NAMESPACE = "NamespaceTerminating"
_INSTALL = {
    "jobset.x-k8s.io": "install JobSet: https://jobset.sigs.k8s.io/docs/installation/",
    "kueue.x-k8s.io": "install Kueue: https://kueue.sigs.k8s.io/docs/installation/ (the local bastion's cluster: "
    "`bastion local up --kubernetes --kueue`), or remove `queue` from the cluster's settings",
}


class NoAnswer(ProvisionerUnavailable):
    """There was no answer, or none in time."""


class NoSuchObject(ProvisionerUnavailable):
    """404: the API server says that the named object does not exist."""


class NoSuchType(ProvisionerUnavailable):
    """404: the API server does not know that type of object."""


class Conflict(ProvisionerUnavailable):
    """409 that is no AlreadyExists: another version, or another uid."""


class Expired(ProvisionerUnavailable):
    """410: the API server no longer has that version of the resource; list again."""


class Overloaded(ProvisionerUnavailable):
    """429, or another answer that names a pause."""

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


def parse_status(body: bytes) -> Mapping[str, Any] | None:
    """Return the `Status` document in a body; None if it is something else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == "Status" else None


def explain(code: int, body: bytes, operation: Operation, *, retry_after: str = "") -> ProvisionerError:
    """Return the error for an answer that is no success; `retry_after` is the header's value."""
    status = parse_status(body)
    pause = _pause(status, retry_after)
    if code == 404 and _no_such_type(status):
        return NoSuchType(_type_is_missing(operation))
    if status is None:
        return _not_the_api_server(code, body, operation, pause)
    return _of_status(code, status, operation, pause)


def explain_event(status: Mapping[str, Any], operation: Operation) -> ProvisionerError:
    """Return the error for the `Status` of a watch's ERROR event; its code stands in it."""
    code = status.get("code")
    return explain(code if isinstance(code, int) else 500, json.dumps(status).encode(), operation)


def _of_status(code: int, status: Mapping[str, Any], operation: Operation, pause: float | None) -> ProvisionerError:
    reason = str(status.get("reason") or "")
    said = _short(str(status.get("message") or reason or code))
    if code == 401:
        return CredentialsRefused(
            f"{operation}: the API server does not accept the credentials (401: {said}); renew the token or the "
            "kubeconfig that the settings name"
        )
    if operation.writes and _DENIED.search(said) and reason != "AlreadyExists":
        return ProvisionerRefused(f"{operation}: {said}")
    if code == 403:
        return _forbidden(status, said, operation)
    if code == 404:
        return _not_found(status, said, operation)
    if code == 409:
        if reason == "AlreadyExists" and operation.verb == "create":
            return GangExists(f"{operation}: {said}")
        return Conflict(f"{operation}: {said}; {operation.remedy}")
    if code == 410:
        return Expired(f"{operation}: {said}")
    if code in (429, 408) or code >= 500:
        # An emulator's 501 names what it does not emulate: it never will.
        if code == 501 and operation.writes:
            return ProvisionerRefused(f"{operation}: {said}")
        text = f"{operation}: the API server answered {code} ({said}); {operation.remedy}"
        return ProvisionerUnavailable(text) if pause is None else Overloaded(text, retry_after_seconds=pause)
    if code >= 400 and operation.writes:
        return ProvisionerRefused(f"{operation}: the API server refuses it ({code}): {said}")
    return ProvisionerUnavailable(f"{operation}: the API server answered {code} ({said}); {operation.remedy}")


def _forbidden(status: Mapping[str, Any], said: str, operation: Operation) -> ProvisionerError:
    if _RBAC.search(said):
        return _rbac(said, operation)
    if any(cause.get("reason") == _ENDING_NAMESPACE for cause in _causes(status)):
        return ProvisionerUnavailable(
            f"{operation}: {said}; wait until the namespace is gone and create it again, or name another one"
        )
    if not operation.writes:
        return MissingPermission(
            f"{operation}: {said}; grant the permission to {operation.permission}", permission=operation.permission
        )
    if _QUOTA in said:
        return Stockout(f"{operation}: {said}")
    return ProvisionerRefused(f"{operation}: admission refuses it: {said}")


def _rbac(said: str, operation: Operation) -> MissingPermission:
    found = _RBAC.search(said)
    user = found["user"] if found else ""
    hint = (
        "the request carried no credentials; check the kubeconfig or token that the settings name"
        if user == "system:anonymous"
        else f"grant {user} the permission to {operation.permission} (`bastion kubernetes manifest` prints the Role)"
    )
    return MissingPermission(f"{operation}: {said}; {hint}", permission=operation.permission)


def _not_found(status: Mapping[str, Any], said: str, operation: Operation) -> ProvisionerError:
    kind = str(_details(status).get("kind") or "")
    if kind == "namespaces" and operation.resource != "namespaces":
        return ProvisionerUnavailable(
            f"{operation}: {said}; run `kubectl create namespace {operation.namespace}`, or correct the settings"
        )
    if _details(status).get("name") != operation.name:
        return ProvisionerUnavailable(f"{operation}: the API server answered about something else ({said})")
    return NoSuchObject(f"{operation}: {said}")


def _no_such_type(status: Mapping[str, Any] | None) -> bool:
    """Whether a 404 is about the resource's type; answers about an object name that object."""
    return status is not None and not _details(status).get("name")


def _type_is_missing(operation: Operation) -> str:
    remedy = _INSTALL.get(operation.group, "check that the settings name a Kubernetes API server")
    return f"{operation}: the API server does not serve {operation.kind} in the version that the bastion uses; {remedy}"


def _not_the_api_server(code: int, body: bytes, operation: Operation, pause: float | None) -> ProvisionerError:
    said = _short(body[:2000].decode("utf-8", "replace"))
    # The API server's last handler, for an unknown group or version.
    if code == 404 and said == "404 page not found":
        return NoSuchType(_type_is_missing(operation))
    if code == 401:
        return CredentialsRefused(
            f"{operation}: the credentials are not accepted (401: {said}); renew the token or the kubeconfig"
        )
    if code == 403 and _RBAC.search(said):
        return _rbac(said, operation)
    text = (
        f"{operation}: the answer {code} is not a Kubernetes API server's ({said or 'no text'}); if that lasts, check "
        "the server's address and the proxies between"
    )
    return ProvisionerUnavailable(text) if pause is None else Overloaded(text, retry_after_seconds=pause)


def _pause(status: Mapping[str, Any] | None, header: str) -> float | None:
    """Seconds to wait; dates in the header are not used by API servers."""
    named = _details(status).get("retryAfterSeconds") if status is not None else None
    for value in (header, named):
        try:
            seconds = float(value) if value else 0.0
        except (TypeError, ValueError):
            continue
        if 0 < seconds < float("inf"):
            return seconds
    return None


def _details(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = status.get("details")
    return found if isinstance(found, dict) else {}


def _causes(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = _details(status).get("causes")
    return [cause for cause in found if isinstance(cause, dict)] if isinstance(found, list) else []


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _TEXT_MAX else one_line[: _TEXT_MAX - 1] + "…"
