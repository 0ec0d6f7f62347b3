"""Decide whether a caller may do what a request asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bastion.emulators.gcs.iam.identities import ANONYMOUS, Identities
from bastion.emulators.gcs.iam.permissions import NEEDS, Action, Kind
from bastion.emulators.gcs.iam.policies import Binding, Policy
from bastion.emulators.gcs.iam.roles import FOR_MANAGED_FOLDERS, PREDEFINED
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.resources import InvalidRequest, NotPermitted, UnknownToken

_NO_RULES = Rules()


class Access:
    """What callers may do, by the identities of the endpoint's start and the rules of each bucket."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def caller(self, authorization: str) -> str:
        """The principal of an `Authorization` header; "" without one. Raises UnknownToken."""
        if not authorization:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        principal = self._identities.tokens.get(token.strip()) if scheme.lower() == "bearer" else None
        if principal is None:
            raise UnknownToken("the access token is not in the endpoint's table of identities")
        return principal

    def holds(self, caller: str, permission: str, target: Target, rules: Rules) -> bool:
        """Whether a caller has a permission on a resource."""
        if any(self._grants(binding, caller, permission) for binding in self._identities.project):
            return True
        if target.kind is Kind.PROJECT:
            return False
        name = target.resource_name(rules)
        return any(
            self._grants(binding, caller, permission) and binding.holds_for(name) for binding in target.bindings(rules)
        )

    def _grants(self, binding: Binding, caller: str, permission: str) -> bool:
        return permission in self._identities.permissions_of(binding.role) and any(
            self._identities.is_member(caller, member) for member in binding.members
        )

    def check_roles(self, policy: Policy) -> None:
        """Raise InvalidRequest for a custom role that does not exist."""
        for binding in policy.bindings:
            if not self._identities.knows_role(binding.role):
                raise InvalidRequest(f"Role {binding.role} does not exist in the resource's hierarchy.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a permission is asked of. `name` is the object's, the managed folder's, or the listing's prefix."""

    kind: Kind
    bucket: str = ""
    name: str = ""

    def bindings(self, rules: Rules) -> Iterator[Binding]:
        yield from rules.policy.bindings
        if self.kind is not Kind.BUCKET:
            for folder in rules.folders_around(self.name):
                yield from folder.policy.bindings

    def resource_name(self, rules: Rules) -> str:
        """`resource.name` of conditions."""
        bucket = f"projects/_/buckets/{self.bucket}"
        if self.kind is Kind.OBJECT:
            return f"{bucket}/objects/{self.name}"
        if self.kind is Kind.MANAGED_FOLDER:
            return f"{bucket}/managedFolders/{self.name}"
        if self.kind is Kind.LISTING:
            around = list(rules.folders_around(self.name))
            return f"{bucket}/managedFolders/{around[-1].name}" if around else bucket
        return bucket


@dataclass(frozen=True, slots=True)
class Gate:
    """What one caller may do."""

    access: Access
    caller: str

    def check(self, action: Action, bucket: str = "", name: str = "", rules: Rules = _NO_RULES) -> None:
        """Raise NotPermitted unless the caller has every permission that the action needs."""
        need = NEEDS[action]
        target = Target(kind=need.kind, bucket=bucket, name=name)
        for permission in need.permissions:
            if not self.access.holds(self.caller, permission, target, rules):
                raise NotPermitted(self.caller, permission, need.kind.noun)

    def held(self, permissions: Sequence[str], target: Target, rules: Rules) -> list[str]:
        return [name for name in permissions if self.access.holds(self.caller, name, target, rules)]


def check_roles(policy: Policy, kind: Kind) -> None:
    """Raise InvalidRequest for a predefined role that this kind of resource does not take."""
    taken = FOR_MANAGED_FOLDERS if kind is Kind.MANAGED_FOLDER else PREDEFINED.keys()
    for binding in policy.bindings:
        if binding.role not in taken and not binding.role.startswith(("projects/", "organizations/")):
            raise InvalidRequest(f"Role {binding.role} is not supported for this resource.")
