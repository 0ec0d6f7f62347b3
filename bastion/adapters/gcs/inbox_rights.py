"""`bastion.ports.InboxRights` on Cloud Storage: a managed folder for each inbox, which one principal writes.

<ROOT>/inbox/          the administrators' role, by which they make the others
<ROOT>/inbox/<user>/   bastionWriter for the user
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from bastion.adapters.gcs.managed_folders import ManagedFolders
from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed, Refused
from bastion.core.model.identity import Inbox
from bastion.core.model.principals import google_problem

Json = dict[str, Any]

_WRITER = "bastionWriter"
_READERS = ("bastionReader", "storage.objectViewer", "storage.legacyObjectReader")
_ADMIN = "bastionAdmin"
# Of two administrators who change a policy at once.
_TRIES = 3


class GcsInboxRights:
    """The inboxes below a ROOT.

    Args:
        root: The ROOT's folder in the bucket, without "/" at its end.
        role: The role of whom an inbox is; empty: bastionWriter, of where the administrators' role is from.
    """

    automatic = True

    def __init__(self, folders: ManagedFolders, root: str, *, role: str = "") -> None:
        self._folders = folders
        self._inboxes = f"{root}/{keys.INBOX}"
        self._given_role = role

    def refusal(self, inbox: Inbox) -> str:
        if inbox.uid is not None:
            return "--uid is for folder buckets; on Cloud Storage, name the user with --member"
        if not inbox.member:
            return "--member is missing: it says who may write to the inbox; write --member=user:alice@example.com"
        return google_problem(inbox.member, project=inbox.project)

    def granting(self, user: str, inbox: Inbox) -> list[str]:
        folder = shlex.quote(self._folders.url(self._folder(user)))
        return [
            f"gcloud storage managed-folders create {folder}",
            f"gcloud storage managed-folders add-iam-policy-binding {folder} {self._binding(inbox)}",
        ]

    def revoking(self, user: str, inbox: Inbox) -> list[str]:
        folder = shlex.quote(self._folders.url(self._folder(user)))
        return [f"gcloud storage managed-folders remove-iam-policy-binding {folder} {self._binding(inbox)}"]

    def check(self, user: str, inbox: Inbox) -> None:
        self._role()
        self._check(user, inbox, self._folders.policy(self._folder(user)) or {})

    def grant(self, user: str, inbox: Inbox) -> None:
        folder, role = self._folder(user), self._role()
        self._folders.make(folder)
        for _ in range(_TRIES):
            policy = self._folders.policy(folder) or {}
            self._check(user, inbox, policy)
            if any(one.get("role") == role and inbox.member in one.get("members", ()) for one in _bindings(policy)):
                return
            bindings = [*_bindings(policy), {"role": role, "members": [inbox.member]}]
            if self._set(folder, {**policy, "bindings": bindings}):
                return
        raise self._contended(folder)

    def _check(self, user: str, inbox: Inbox, policy: Json) -> None:
        others = [member for member in _writers(policy) if not _same(member, inbox.member)]
        if others:
            raise Refused(
                f"{', '.join(others)} may write to {self._folders.url(self._folder(user))}, too, so it would prove "
                f"nothing; take that away with `bastion admin user remove {user}`, and add the user again"
            )

    def revoke(self, user: str) -> None:
        folder = self._folder(user)
        for _ in range(_TRIES):
            policy = self._folders.policy(folder)
            if policy is None or not _bindings(policy) or self._set(folder, {**policy, "bindings": []}):
                return
        raise self._contended(folder)

    def findings(self, users: Mapping[str, Inbox]) -> dict[str, list[str]]:
        names = [name.removeprefix(self._inboxes) for name in self._folders.names(self._inboxes)]
        found = {user: list(self._problems(user, inbox, names)) for user, inbox in users.items()}
        for name in names:
            user, _, inner = name.partition("/")
            if not user:
                continue
            if inner:
                found.setdefault(user, []).append(
                    f"inbox/{name} is a managed folder of its own, so others may write there; delete it"
                )
            elif user not in users:
                writers = _writers(self._folders.policy(self._folder(user)) or {})
                if writers:
                    found.setdefault(user, []).append(
                        f"{', '.join(writers)} may write there, but the bastion does not know this inbox; "
                        f"bastion admin user add {user}, or remove it"
                    )
        return found

    def _problems(self, user: str, inbox: Inbox, names: list[str]) -> Iterator[str]:
        again = f"bastion admin user add {user} --member={inbox.member}"
        if inbox.project:
            again += f" --project={inbox.project}"
        if f"{user}/" not in names:
            yield f"has no managed folder; run it again: {again}"
            return
        policy = self._folders.policy(self._folder(user)) or {}
        writers = _writers(policy)
        if not any(_same(member, inbox.member) for member in writers):
            yield f"{inbox.member} may not write there; run it again: {again}"
        for member in writers:
            if member.startswith("deleted:"):
                yield f"{member} was deleted from the directory; bastion admin user remove {user}"
            elif not _same(member, inbox.member):
                yield f"{member} may write there, too; take that away"

    def _folder(self, user: str) -> str:
        return f"{self._inboxes}{user}/"

    def _binding(self, inbox: Inbox) -> str:
        return f"--member={shlex.quote(inbox.member)} --role={shlex.quote(self._role())}"

    def _role(self) -> str:
        if not self._given_role:
            roles = [str(one.get("role", "")) for one in _bindings(self._folders.policy(self._inboxes) or {})]
            own = [role for role in roles if role.rpartition("/")[2] == _ADMIN]
            if not own:
                raise Refused(
                    f"the policy of {self._folders.url(self._inboxes)} does not show where the bastion's roles are; "
                    f"add --role=projects/PROJECT/roles/{_WRITER}"
                )
            self._given_role = f"{own[0].rpartition('/')[0]}/{_WRITER}"
        return self._given_role

    def _set(self, folder: str, policy: Json) -> bool:
        try:
            self._folders.set_policy(folder, policy)
        except PreconditionFailed:
            return False
        return True

    def _contended(self, folder: str) -> Refused:
        return Refused(f"somebody else is changing the policy of {self._folders.url(folder)}; try again")


def _bindings(policy: Json) -> list[Json]:
    return list(policy.get("bindings", ()))


def _writers(policy: Json) -> list[str]:
    """Whose roles do more than read. Conditions count as if they held."""
    found = [
        str(member)
        for one in _bindings(policy)
        if not str(one.get("role", "")).endswith(tuple(f"/{name}" for name in _READERS))
        for member in one.get("members", ())
    ]
    return list(dict.fromkeys(found))


def _same(one: str, other: str) -> bool:
    """Whether both name one principal: the directory's addresses have no case."""
    return one.lower() == other.lower()
