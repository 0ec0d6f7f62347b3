"""`bastion admin user add|remove|list`: who has an inbox, and who may write to it."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.admin import identity_file, inbox_list
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import plain, say
from bastion.cli.parsing import did_you_mean
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, Refused, StoreError
from bastion.core.model.identity import Identity, Inbox
from bastion.ports import InboxRights
from bastion.wiring.inbox_rights import open_inbox_rights
from quota import Policy, QuotaFileError

if TYPE_CHECKING:
    from bastion.client import Client

_ACTIONS = ("add", "remove", "list")
_NAMED = 10
_PAGE = "docs/how-to/share-a-bastion.md"


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "member",
        None,
        "Who may write to the inbox: on Cloud Storage a principal like user:alice@example.com, on S3 the ARN of a role "
        "or user.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "project",
        None,
        "Make the inbox a project's, for a group: its jobs must be of this project, and their user_id is unverified.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "uid",
        None,
        "The number of the Unix user whose files count, in a folder bucket. Default: that of the user NAME.",
        lower_bound=0,
        upper_bound=2**32 - 1,
        flag_values=values,
    )
    flags.DEFINE_string(
        "role",
        None,
        "The role that the member gets, on Cloud Storage. Default: bastionWriter, from where the policy of inbox/ has "
        "bastionAdmin.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "take_over",
        False,
        "Add a user whose inbox has objects of a former user: they are his then.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "dry_run", False, "Print what would be granted or taken, and change nothing.", flag_values=values
    )


def _run(call: Invocation) -> int:
    action, *names = call.operands
    if action not in _ACTIONS:
        raise Refused(f"{plain(action)!r} is none of {', '.join(_ACTIONS)}{did_you_mean(action, _ACTIONS)}")
    if (action == "list") is bool(names):
        raise Refused(f"{action} takes {'no name' if names else 'a name'}: bastion admin user {_USAGE}")
    client, target = open_client(call)
    if call.flags.role and target.root.scheme != "gs":
        raise Refused("--role is for Cloud Storage only; leave it out")
    rights = open_inbox_rights(target.root, role=call.flags.role or "")
    present, generation = identity_file.read(client)
    if action == "list":
        return inbox_list.show(call, rights, present)
    name = names[0]
    if not keys.is_inbox_user(name):
        raise Refused(
            f"{plain(name)!r} is not a valid name of an inbox: it has 1 to 63 of a-z, 0-9, '.', '_', '-', and begins "
            "with a letter or digit; it is the user_id of the jobs"
        )
    change = _add if action == "add" else _remove
    return change(call, client, rights, name, present, generation)


@contextlib.contextmanager
def _what_else(client: Client) -> Iterator[None]:
    """Who is not allowed to is told who else can."""
    try:
        yield
    except AccessDenied as error:
        if client.root.local:
            raise
        raise AccessDenied(
            f"{error} Or let an owner of the bucket run what --dry_run --role=ROLE prints ({_PAGE})."
        ) from error


# -- add ----------------------------------------------------------------------------------------------------------


def _add(call: Invocation, client: Client, rights: InboxRights, name: str, present: Identity, generation: int) -> int:
    inbox = Inbox(member=call.flags.member or "", uid=call.flags.uid, project=call.flags.project or "")
    refusal = rights.refusal(inbox) or _conflict(name, inbox, present.users)
    if refusal:
        raise Refused(refusal)
    if name not in present.users and not call.flags.take_over:
        _refuse_left_overs(client, name, accepted=present.inbox)
    with _what_else(client):
        lines = rights.granting(name, inbox)
    if call.flags.dry_run:
        _print(lines)
        say("dry run: nothing was changed")
        return 0
    with _what_else(client):
        rights.check(name, inbox)
    if present.users.get(name) != inbox:
        # Before the rights: a project's inbox must never count as a user's.
        identity_file.write(client, present.model_copy(update={"users": {**present.users, name: inbox}}), generation)
    if rights.automatic:
        with _what_else(client):
            rights.grant(name, inbox)
        say(f"{inbox.member or name} may write to {keys.INBOX}{name}/")
    else:
        _print(lines)
        say(f"{keys.IDENTITY} has the inbox {name}; now run the last line with the document above it")
    if not inbox.project:
        say(f"his jobs have user_id {name}; if he is somebody else on his machine: bastion config set user_id {name}")
        _tell_membership(client, name)
    if not present.inbox:
        say("this bastion does not use inboxes yet: bastion admin inbox enable")
    return 0


def _conflict(name: str, inbox: Inbox, users: Mapping[str, Inbox]) -> str:
    """Why the inbox cannot be added beside the others."""
    known = users.get(name)
    if known is not None and known != inbox:
        return (
            f"the inbox {name} is {_owner(known)} already; run `bastion admin user remove {name}` first, "
            "and add it then with --take_over"
        )
    if inbox.project:
        return ""
    for other, each in users.items():
        if other != name and not each.project and _same_writer(inbox, each):
            return (
                f"{inbox.member or inbox.uid} has the inbox {other} already, and would be two users to all limits; "
                f"remove {other} first"
            )
    return ""


def _same_writer(one: Inbox, other: Inbox) -> bool:
    by_member = bool(one.member) and one.member.lower() == other.member.lower()
    return by_member or (one.uid is not None and one.uid == other.uid)


def _refuse_left_overs(client: Client, name: str, *, accepted: bool) -> None:
    """`accepted`: count jobs that run, too, which may have been accepted before there were inboxes."""
    found = [keys.InboxKey.parse(meta.key) for meta in islice(client.store.list(f"{keys.INBOX}{name}/"), 1000)]
    jobs = {each.job for each in found if each is not None}
    if accepted:
        jobs |= {job for job, entry in client.entries().items() if entry.user_id == name}
    if jobs:
        raise Refused(
            f"{keys.INBOX}{name}/ has jobs of a former user: {_named(sorted(jobs))}; cancel them first, or add "
            "--take_over if they are the same person's"
        )


def _tell_membership(client: Client, name: str) -> None:
    try:
        policy = client.policy()
    except (StoreError, QuotaFileError):
        return  # in a private bucket, perhaps
    if not policy.projects_of(name):
        say(f"no project of the quota file has {name} as a member, so his jobs would wait: bastion quota upload")


# -- remove -------------------------------------------------------------------------------------------------------


def _remove(
    call: Invocation, client: Client, rights: InboxRights, name: str, present: Identity, generation: int
) -> int:
    inbox = present.users.get(name)
    if inbox is None and name not in rights.findings(present.users):
        near = difflib.get_close_matches(name, present.users, 1)
        also = f"; did you mean {near[0]}?" if near else "; bastion admin user list shows them"
        raise Refused(f"there is no inbox {name}{also}")
    with _what_else(client):
        lines = rights.revoking(name, inbox or Inbox())
    if call.flags.dry_run:
        _print(lines)
        say("dry run: nothing was changed")
        return 0
    if rights.automatic:
        with _what_else(client):
            rights.revoke(name)
        say(f"nobody may write to {keys.INBOX}{name}/ any more")
    else:
        _print(lines)
        say("he may write to his inbox until that line was run")
    if inbox is not None:
        users = {user: each for user, each in present.users.items() if user != name}
        identity_file.write(client, present.model_copy(update={"users": users}), generation)
    _tell_rest(client, name)
    return 0


def _tell_rest(client: Client, name: str) -> None:
    """Say what is still his."""
    jobs = sorted(job for job, entry in client.entries().items() if entry.user_id == name)
    if jobs:
        say(f"jobs of {name} go on until they end: {_named(jobs)}; to end them: bastion cancel JOB, as an admin")
    try:
        policy = client.policy()
    except (StoreError, QuotaFileError):
        say(f"if the quota file names {name}, change it, too: whoever gets that name next would have it all")
        return
    for line in _still_named(policy, name):
        say(line)


def _still_named(policy: Policy, name: str) -> list[str]:
    found = []
    if projects := policy.projects_of(name):
        found.append(f"{name} is still a member of {', '.join(projects)} in the quota file")
    if name in policy.admins.bastion:
        found.append(f"{name} is still an admin: bastion admin project-admin remove {name} --all_projects")
    found += [
        f"{name} is still an admin of {project}: bastion admin project-admin remove {name} --project={project}"
        for project, users in policy.admins.projects.items()
        if name in users
    ]
    return found


def _owner(inbox: Inbox) -> str:
    whose = f"project {inbox.project}'s, written by " if inbox.project else "of "
    return f"{whose}{inbox_list.who(inbox)}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return plain(f"{', '.join(names[:_NAMED])}{more}")


def _print(lines: list[str]) -> None:
    for line in lines:
        print(plain(line))


_USAGE = "add|remove|list [NAME] [--member=PRINCIPAL] [--uid=N] [--project=P] [--dry_run]"

USER = Command(
    summary="Adds, removes or lists the users who have an inbox.",
    usage=_USAGE,
    details="""NAME is the user_id of the user's jobs. add writes the inbox into config/identity.json and lets that
        member, and nobody else, write to inbox/NAME/: on Cloud Storage with a managed folder, in a folder bucket with
        modes. On S3 it prints a policy, which you attach to the member in IAM. It can be repeated: it makes again what
        is missing. With --dry_run it prints what an owner of the bucket can run instead.

        remove takes these rights away. The user's jobs go on until they end, and the name can be given again.

        list shows each inbox, and what is wrong with its rights: somebody else may write there, a role or folder is
        missing, a principal was deleted, a file is a link.""",
    examples=(
        "bastion admin user add alice --member=user:alice@example.com",
        "bastion admin user add research --member=group:research@example.com --project=research --dry_run",
        "bastion admin user remove alice",
        "bastion admin user list",
    ),
    operands=(1, 2),
    takes_output=True,
    define=_define,
    run=_run,
)
