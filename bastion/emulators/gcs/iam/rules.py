"""The rules of one bucket: its policy, its managed folders with theirs, and its settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bastion.emulators.gcs.iam.policies import Json, Policy, bindings_of
from bastion.emulators.gcs.resources import InvalidRequest

_NAME_MAX_BYTES = 1024
_LEVELS_MAX = 15
_RESERVED = ".well-known/acme-challenge/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedFolder:
    """`name` ends with "/". Times are seconds since the epoch."""

    name: str
    metageneration: int
    created: float
    updated: float
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    # A bucket has a policy from its creation on; that of a managed folder has to be set.
    policy: Policy = field(default_factory=lambda: Policy(changes=1))
    folders: Mapping[str, ManagedFolder] = field(default_factory=dict)
    settings: Json = field(default_factory=dict)  # shown, and without effect

    def folders_around(self, name: str) -> Iterator[ManagedFolder]:
        """The managed folders whose name is a prefix of a name, from the outermost."""
        position = name.find("/")
        while position >= 0:
            folder = self.folders.get(name[: position + 1])
            if folder is not None:
                yield folder
            position = name.find("/", position + 1)

    def encoded(self) -> bytes:
        folders = [
            {
                "name": folder.name,
                "metageneration": folder.metageneration,
                "created": folder.created,
                "updated": folder.updated,
                "policy": _policy_document(folder.policy),
            }
            for _, folder in sorted(self.folders.items())
        ]
        document = {"policy": _policy_document(self.policy), "folders": folders, "settings": self.settings}
        return json.dumps(document, separators=(",", ":")).encode()

    @staticmethod
    def decoded(data: bytes) -> Rules:
        """Raises ValueError: such rules must not be taken for "no rules"."""
        try:
            document = json.loads(data)
            folders = [
                ManagedFolder(
                    name=item["name"],
                    metageneration=item["metageneration"],
                    created=item["created"],
                    updated=item["updated"],
                    policy=_policy(item["policy"]),
                )
                for item in document["folders"]
            ]
            return Rules(
                policy=_policy(document["policy"]),
                folders={folder.name: folder for folder in folders},
                settings=dict(document.get("settings", {})),
            )
        except (KeyError, TypeError, AttributeError, RecursionError, InvalidRequest) as error:
            raise ValueError(f"not the rules of a bucket: {error}") from error


def folder_name(given: str) -> str:
    """The name of a managed folder, with "/" at its end. Raises InvalidRequest.

    Rules from Google's page "Managed folders".
    """
    name = given if given.endswith("/") else f"{given}/"
    problem = ""
    if not given or name == "/":
        problem = "it is empty"
    elif len(name.encode()) > _NAME_MAX_BYTES:
        problem = f"it is longer than {_NAME_MAX_BYTES} bytes"
    elif "\r" in name or "\n" in name:
        problem = "it has a line break"
    elif name.count("/") > _LEVELS_MAX:
        problem = f"it has more than {_LEVELS_MAX} levels"
    elif name.startswith(_RESERVED) or name in ("./", "../"):
        problem = "it is reserved"
    if problem:
        raise InvalidRequest(f"Invalid managed folder name {given[:80]!r}: {problem}.")
    return name


def _policy_document(policy: Policy) -> Json:
    return {"changes": policy.changes, "bindings": [binding.document() for binding in policy.bindings]}


def _policy(document: Json) -> Policy:
    return Policy(bindings=bindings_of(document["bindings"]), changes=document["changes"])
