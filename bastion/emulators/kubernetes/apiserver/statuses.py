"""Refusals of the API as v1 Status objects.

Codes, reasons, texts and details: apimachinery pkg/api/errors/errors.go and pkg/util/validation/field/errors.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bastion.emulators.kubernetes.apiserver.resources import Resource

Object = dict[str, Any]


class ApiFailure(Exception):
    """A request that the server refuses.

    Attributes:
        reason: Of the Status; empty where upstream has none.
        details: Of the Status; `retryAfterSeconds` also becomes the header Retry-After.
    """

    def __init__(self, code: int, reason: str, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details if details is None else dict(details)

    def status(self) -> Object:
        document: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            document["reason"] = self.reason
        if self.details is not None:
            document["details"] = self.details
        return {**document, "code": self.code}


@dataclass(frozen=True, slots=True)
class Problem:
    """A field that breaks a rule; `kind` is Required, Invalid, NotSupported, Forbidden, TooLong, Duplicate, NotFound,
    TooMany, TypeInvalid, Internal or Rule, a rule in CEL."""

    kind: str
    field: str
    detail: str = ""
    value: Any = None

    def cause(self) -> Object:
        text = self._text()
        if self.kind == "Rule":
            return {
                "reason": "FieldValueInvalid",
                "message": f"Invalid value: {self.detail}",
                "field": self.field or "<nil>",
            }
        if self.detail:
            text = f"{text}: {self.detail}"
        reason = "InternalError" if self.kind == "Internal" else f"FieldValue{self.kind}"
        return {"reason": reason, "message": text, "field": self.field or "<nil>"}

    def message(self) -> str:
        return f"{self.field or '<nil>'}: {self.cause()['message']}"

    def _text(self) -> str:
        match self.kind:
            case "Required":
                return "Required value"
            case "Forbidden":
                return "Forbidden"
            case "NotSupported":
                return f"Unsupported value: {_shown(self.value)}"
            case "Duplicate":
                return f"Duplicate value: {_shown(self.value)}"
            case "Internal":
                return "Internal error"
            case "TooMany":
                return f"Too many: {_shown(self.value)}"
            case "NotFound":
                return f"Not found: {_shown(self.value)}"
            case "TooLong":
                return "Too long"
            case _:
                return f"Invalid value: {_shown(self.value)}"


def _shown(value: object) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def required(field: str, detail: str = "") -> Problem:
    return Problem("Required", field, detail)


def invalid_value(field: str, value: object, detail: str) -> Problem:
    return Problem("Invalid", field, detail, value)


def forbidden_field(field: str, detail: str) -> Problem:
    return Problem("Forbidden", field, detail)


def not_supported(field: str, value: object, supported: Iterable[str]) -> Problem:
    names = ", ".join(json.dumps(name) for name in supported)
    return Problem("NotSupported", field, f"supported values: {names}", value)


# apiextensions-apiserver: rules in CEL are skipped for an object that its schema refuses.
UNCHECKED = Problem(
    "Invalid",
    "",
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete"
    " validation",
)


def duplicate(field: str, value: object) -> Problem:
    return Problem("Duplicate", field, "", value)


def _of(resource: Resource, name: str) -> Object:
    """Details that name an object; upstream calls its resource `kind`."""
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> ApiFailure:
    text = f'{resource.qualified} "{name}" not found'
    return ApiFailure(404, "NotFound", text, details=_of(resource, name))


def no_such_path() -> ApiFailure:
    return ApiFailure(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(resource: Resource, name: str) -> ApiFailure:
    text = f'{resource.qualified} "{name}" already exists'
    return ApiFailure(409, "AlreadyExists", text, details=_of(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiFailure:
    """409 of a changed version."""
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiFailure(409, "Conflict", text, details=_of(resource, name))


def unmet(resource: Resource, name: str, why: str) -> ApiFailure:
    """409 of a deletion's precondition, which upstream calls by the kind."""
    text = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
    details = {**_of(resource, name), "kind": resource.kind}
    return ApiFailure(409, "Conflict", text, details=details)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(
    resource: Resource, name: str, why: str, causes: Sequence[Mapping[str, str]] = (), *, user: str = ""
) -> ApiFailure:
    text = f'{resource.qualified} "{name}" is forbidden: {user}{why}' if name else f"{resource.qualified}: {why}"
    details = _of(resource, name)
    if causes:
        details["causes"] = [dict(cause) for cause in causes]
    return ApiFailure(403, "Forbidden", text, details=details)


def invalid(kind: str, group: str, name: str, problems: Sequence[Problem]) -> ApiFailure:
    """422 with one cause per problem."""
    messages = list(dict.fromkeys(problem.message() for problem in problems))
    listed = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    qualified = f"{kind}.{group}" if group else kind
    details: Object = {"name": name, "group": group, "kind": kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [problem.cause() for problem in problems]
    return ApiFailure(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details=details)


def denied(webhook: str, failure: ApiFailure) -> ApiFailure:
    """A webhook's refusal: apiserver pkg/admission/plugin/webhook/errors/statuserror.go."""
    text = f'admission webhook "{webhook}" denied the request: {failure.message}'
    return ApiFailure(failure.code, failure.reason, text, details=failure.details)


def bad_request(message: str) -> ApiFailure:
    return ApiFailure(400, "BadRequest", message)


def internal(message: str) -> ApiFailure:
    """An error without a reason of its own, which upstream reports as a 500."""
    return ApiFailure(500, "", message)


def unauthorized() -> ApiFailure:
    return ApiFailure(401, "Unauthorized", "Unauthorized")


def expired(message: str, *, continuation: str = "") -> ApiFailure:
    failure = ApiFailure(410, "Expired", message)
    failure.continuation = continuation  # type: ignore[attr-defined]
    return failure


def too_large_version(wanted: int, current: int) -> ApiFailure:
    """apiserver pkg/storage/errors.go, NewTooLargeResourceVersionError."""
    text = f"Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiFailure(504, "Timeout", f"Timeout: {text}", details={"causes": [cause], "retryAfterSeconds": 1})


def not_acceptable() -> ApiFailure:
    text = "only the following media types are accepted: application/json"
    return ApiFailure(406, "NotAcceptable", text)


def unsupported_media(supported: Iterable[str]) -> ApiFailure:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return ApiFailure(415, "UnsupportedMediaType", text)


def method_not_allowed() -> ApiFailure:
    return ApiFailure(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", details={}
    )


def not_emulated(what: str, remedy: str = "") -> ApiFailure:
    """501: the real server could do it, the emulated one does not."""
    text = f"{what} is not emulated by bastion's Kubernetes emulator"
    return ApiFailure(501, "NotEmulated", f"{text}; {remedy}" if remedy else text)
