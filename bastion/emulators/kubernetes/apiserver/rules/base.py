"""What a kind adds to the common rules of objects: defaults, validation, what a write may change.

The steps have upstream's order: apiserver pkg/registry/rest/{create,update,delete}.go.
"""

from __future__ import annotations

import copy
from typing import Any

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.statuses import Problem

Object = dict[str, Any]


class Rules:
    """The rules of a plain kind; kinds override what differs."""

    # Whether an update may omit the resourceVersion.
    unconditional_update = True
    # Whether an update of what does not exist creates it.
    creates_on_update = False
    # The validating webhook that a cluster has for this kind.
    webhook = ""
    # Whether that webhook refuses with a plain error, 403, instead of a status of its own.
    plain_denials = False

    def name_rule(self, name: str) -> list[str]:
        return names.subdomain(name)

    def default(self, document: Object) -> None:
        """Fill in defaults, in place, of new and changed objects."""

    def admit(self, document: Object) -> None:
        """Fill in what the mutating webhook of a cluster adds to a new object."""

    def prepare_create(self, document: Object) -> None:
        """Set what a new object starts with, after its metadata is complete."""

    def create_problems(self, _document: Object) -> list[Problem]:
        return []

    def denials(self, _document: Object) -> list[Problem]:
        """Why the webhook denies a new object that is valid otherwise."""
        return []

    def prepare_update(self, document: Object, old: Object) -> None:
        """Restore what a client cannot change."""

    def update_problems(self, _document: Object, _old: Object) -> list[Problem]:
        return []

    def update_denials(self, _document: Object, _old: Object) -> list[Problem]:
        """Why the webhook denies a change that is valid otherwise."""
        return []

    def prepare_status(self, document: Object, old: Object) -> Object:
        """The object that a write of the status subresource makes."""
        return _with_status(document, {**old, "metadata": document["metadata"]})

    def grace_seconds(self, _document: Object, _wanted: int | None) -> int | None:
        """Seconds of a graceful deletion; None: this kind is deleted at once."""
        return None


class WithStatus(Rules):
    """A kind whose status is written through its subresource only."""

    def prepare_create(self, document: Object) -> None:
        document["status"] = self.initial_status(document)

    def initial_status(self, _document: Object) -> Object:
        return {}

    def prepare_update(self, document: Object, old: Object) -> None:
        _with_status(old, document, in_place=True)


class Custom(WithStatus):
    """A custom kind: apiextensions-apiserver pkg/registry/customresource/{strategy,status_strategy}.go."""

    unconditional_update = False

    def prepare_create(self, document: Object) -> None:
        document.pop("status", None)

    def prepare_status(self, document: Object, old: Object) -> Object:
        return _with_status(document, old)


def _with_status(source: Object, target: Object, *, in_place: bool = False) -> Object:
    result = target if in_place else copy.deepcopy(target)
    if "status" in source:
        result["status"] = copy.deepcopy(source["status"])
    else:
        result.pop("status", None)
    return result
