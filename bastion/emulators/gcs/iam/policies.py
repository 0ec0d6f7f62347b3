"""IAM policies as documents: `bindings`, `etag`, `version`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bastion.emulators.gcs import etags
from bastion.emulators.gcs.iam.conditions import NotSupported, compiled
from bastion.emulators.gcs.resources import ConditionFailed, InvalidRequest

Json = dict[str, Any]

EVERYBODY = "allUsers"
EVERYBODY_WITH_AN_ACCOUNT = "allAuthenticatedUsers"
CONDITIONAL_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Members who have a role. `condition` is the document, or None."""

    role: str
    members: tuple[str, ...]
    condition: Mapping[str, str] | None = None

    def holds_for(self, resource_name: str) -> bool:
        return self.condition is None or compiled(self.condition["expression"])(resource_name)

    def document(self) -> Json:
        found: Json = {"role": self.role, "members": list(self.members)}
        if self.condition is not None:
            found["condition"] = dict(self.condition)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """`changes` counts how often the policy was set; the etag is made of it."""

    bindings: tuple[Binding, ...] = ()
    changes: int = 0

    @property
    def etag(self) -> str:
        return etags.of_numbers(self.changes)

    @property
    def is_conditional(self) -> bool:
        return any(binding.condition is not None for binding in self.bindings)

    def replaced(self, document: Json) -> Policy:
        """The policy that a client sets. Raises InvalidRequest; ConditionFailed if its etag is not this policy's."""
        etag = document.get("etag")
        if etag and etag != self.etag:
            raise ConditionFailed(f"the policy's etag is {self.etag}")
        bindings = bindings_of(document.get("bindings"))
        replaced = Policy(bindings=bindings, changes=self.changes + 1)
        if replaced.is_conditional and document.get("version") != CONDITIONAL_VERSION:
            raise InvalidRequest(f"A policy with conditions must have the version {CONDITIONAL_VERSION}.")
        return replaced

    def document(self, resource_id: str) -> Json:
        """The policy as the API shows it; a policy that was never set has neither version nor bindings."""
        found: Json = {"kind": "storage#policy", "resourceId": resource_id, "etag": self.etag}
        if self.changes:
            found["version"] = CONDITIONAL_VERSION if self.is_conditional else 1
            found["bindings"] = [binding.document() for binding in self.bindings]
        return found


def bindings_of(given: object) -> tuple[Binding, ...]:
    """Parse a document's bindings; those without members are dropped. Raises InvalidRequest."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequest("The bindings of a policy must be a list.")
    return tuple(binding for binding in map(_binding, given) if binding.members)


def _binding(given: object) -> Binding:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise InvalidRequest("A binding must have a role.")
    members = given.get("members", [])
    if not isinstance(members, list) or not all(isinstance(member, str) and _is_member(member) for member in members):
        raise InvalidRequest(f"The members of the binding of {given['role']} are not valid.")
    return Binding(role=given["role"], members=_once(members), condition=_condition(given.get("condition")))


def _condition(given: object) -> Mapping[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not isinstance(given.get("expression"), str):
        raise InvalidRequest("A condition must have an expression.")
    try:
        compiled(given["expression"])
    except NotSupported as error:
        raise InvalidRequest(str(error)) from error
    return {name: str(value) for name, value in given.items() if name in ("title", "description", "expression")}


def _is_member(member: str) -> bool:
    kind, _, who = member.partition(":")
    return member in (EVERYBODY, EVERYBODY_WITH_AN_ACCOUNT) or bool(kind and who)


def _once(members: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(members))
