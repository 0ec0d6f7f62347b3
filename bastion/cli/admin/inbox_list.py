"""What `bastion admin user list` shows: each inbox, and what is wrong with its rights."""

from __future__ import annotations

from bastion.cli.command import Invocation
from bastion.cli.output import emit_json, say, table
from bastion.core.errors import AccessDenied
from bastion.core.model.identity import Identity, Inbox
from bastion.ports import InboxRights


def show(call: Invocation, rights: InboxRights, present: Identity) -> int:
    findings, unknown = {}, ""
    try:
        findings = rights.findings(present.users)
    except AccessDenied as error:
        unknown = str(error)
    names = sorted({*present.users, *(name for name, found in findings.items() if found)})
    if call.json:
        emit_json(
            {
                "mode": present.mode.value,
                "inboxes": {name: _document(present.users.get(name), findings.get(name, [])) for name in names},
                "rights_known": rights.automatic and not unknown,
            }
        )
        return 0
    if not names:
        say("there are no inboxes; add one with `bastion admin user add NAME`")
    else:
        rows = [
            (name, _kind(present.users.get(name)), who(present.users.get(name)), "; ".join(findings.get(name, [])))
            for name in names
        ]
        print(table(("NAME", "OF", "MEMBER", "PROBLEM"), rows), end="")
    if unknown:
        say(f"bastion: who may write is not known: {unknown}")
    elif not rights.automatic:
        say("S3 does not tell who may write; look at the policies in IAM")
    return 0


def _document(inbox: Inbox | None, problems: list[str]) -> dict[str, object]:
    return {**(inbox.model_dump(mode="json") if inbox is not None else {"unknown": True}), "problems": problems}


def _kind(inbox: Inbox | None) -> str:
    if inbox is None:
        return "nobody"
    return f"project {inbox.project}" if inbox.project else "user"


def who(inbox: Inbox | None) -> str:
    if inbox is None:
        return ""
    return inbox.member or (f"uid {inbox.uid}" if inbox.uid is not None else "the Unix user")
