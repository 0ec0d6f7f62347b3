"""`bastion admin project-admin add|remove|list`: who may cancel the jobs of others, by `[admins]` of the quota file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.cli.parsing import did_you_mean
from bastion.cli.quota import quota_root, upload
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import Policy, QuotaFileError, edit_admins, load
from quota.members import USER_ID_MAX_CHARS

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaFile

_ACTIONS = ("add", "remove", "list")
_USAGE = "add|remove|list [NAME] [--project=P | --all_projects] [--dry_run] [--yes] [--wait] [--quota_root=URL]"


def _define(values: flags.FlagValues) -> None:
    upload.define(values)
    flags.DEFINE_string("project", None, "The project whose jobs the user may cancel.", flag_values=values)
    flags.DEFINE_boolean("all_projects", False, "All projects: an admin of the bastion.", flag_values=values)


def _run(call: Invocation) -> int:
    action, *names = call.operands
    if action not in _ACTIONS:
        raise Refused(f"{plain(action)!r} is none of {', '.join(_ACTIONS)}{did_you_mean(action, _ACTIONS)}")
    if (action == "list") is bool(names):
        raise Refused(f"{action} takes {'no name' if names else 'a name'}: bastion admin project-admin {_USAGE}")
    quota_client, suffix = quota_root.open_quota_client(call)
    present = quota_client.present()
    if not present.generation and (misplaced := quota_client.misplaced()):
        raise Refused(plain(misplaced))
    policy = _policy(present, quota_client.url)
    if action == "list":
        return _list(call, policy)
    name, project = names[0], _project(call, policy)
    data = _edited(action, present, name, project)
    if data == present.data:
        say(f"{plain(name)} is {'an' if action == 'add' else 'no'} admin of {_scope(project)} already")
        return 0
    try:
        changed = load(data)
    except QuotaFileError as error:
        raise Refused(f"the quota file would not be valid: {plain(error.problems[0])}") from error
    if action == "remove" and not call.flags.yes:
        refusal = _last(name, project, changed)
        if refusal:
            say(f"bastion: {plain(refusal)}; nothing was written")
            return EXIT_REFUSED
    uploading = upload.Upload(call, quota_client, suffix, data, changed)
    code = uploading.run(present)
    if call.json:
        emit_json(uploading.document)
    return code


def _policy(present: QuotaFile, url: str) -> Policy:
    if not present.generation:
        raise Refused(f"there is no quota file {plain(url)}; write one first: bastion quota upload FILE")
    if present.policy is None:
        raise Refused(f"the quota file {plain(url)} is not valid ({plain(present.problem)}); correct it first")
    return present.policy


def _project(call: Invocation, policy: Policy) -> str:
    """The project, or "" for the whole bastion."""
    project: str | None = call.flags.project
    if (project is None) is not bool(call.flags.all_projects):
        raise Refused("name one of --project=P and --all_projects: whose jobs the user may cancel")
    if project is None:
        return ""
    known = {*policy.projects, *policy.admins.projects}
    if project not in known:
        near = difflib.get_close_matches(project, known, 1)
        also = f"did you mean {near[0]}?" if near else f"the projects are {', '.join(sorted(known)[:20])}"
        raise Refused(f"{plain(project)!r} is not a project of the quota file; {plain(also)}")
    return project


def _edited(action: str, present: QuotaFile, name: str, project: str) -> bytes:
    if not 0 < len(name) <= USER_ID_MAX_CHARS or name != plain(name):
        raise Refused(f"{plain(name)[:80]!r} is not a user id; it has 1 to {USER_ID_MAX_CHARS} printable characters")
    change = edit_admins.added if action == "add" else edit_admins.removed
    try:
        return change(present.data.decode("utf-8"), name, project).encode("utf-8")
    except edit_admins.CannotEdit as error:
        say(error.lines)
        raise Refused(
            "the quota file's [admins] is laid out in a way that this command does not change; write the lines above "
            "there yourself: bastion quota show --raw > FILE, and bastion quota upload FILE"
        ) from error


def _last(name: str, project: str, after: Policy) -> str:
    """Why nobody would be left; empty if somebody is."""
    if after.admins.bastion or (project and after.admins.projects.get(project)):
        return ""
    return (
        f"{name} is the last admin of {_scope(project)}: afterwards only its submitter could cancel a job; "
        "add another admin first, or use --yes"
    )


def _scope(project: str) -> str:
    return f"project {project}" if project else "the bastion"


def _list(call: Invocation, policy: Policy) -> int:
    admins = policy.admins
    if call.json:
        emit_json(
            {
                "bastion": list(admins.bastion),
                "projects": {project: list(users) for project, users in sorted(admins.projects.items())},
            }
        )
        return 0
    rows = [(user, "all projects") for user in admins.bastion]
    rows += [(user, f"project {project}") for project, users in sorted(admins.projects.items()) for user in users]
    if rows:
        print(table(("ADMIN", "OF"), rows), end="")
    else:
        say("the quota file names no admins, so only its submitter can cancel a job")
    return 0


PROJECT_ADMIN = Command(
    summary="Adds, removes or lists who may cancel and hold the jobs of others.",
    usage=_USAGE,
    details="""Changes [admins] of the quota file, and uploads it as `bastion quota upload` does: with its checks, its
        forecast and a copy of the former file. Comments and everything else stay as they are. What it takes is the
        right to write the quota file, not a role of this list.

        Admins count where the bastion uses inboxes, because only there a request proves whose it is. NAME is a user_id,
        not a pattern. The last admin is removed only with --yes.""",
    examples=(
        "bastion admin project-admin add bob --project=research",
        "bastion admin project-admin add carol --all_projects --dry_run",
        "bastion admin project-admin list",
    ),
    operands=(1, 2),
    takes_output=True,
    define=_define,
    run=_run,
)
